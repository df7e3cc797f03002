"""Codecs around a whole stored object: undoing them, and what they may make of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gpushard import codecs
from gpushard.codecs.base import HostBytes
from gpushard.codecs.sizes import grown_sizes
from gpushard.layout import CodecSpec


def encoded_object_limit(specs: Sequence[CodecSpec], nbytes: int) -> int:
    """Generous bound of the size that `specs` encode at most `nbytes` bytes to.

    Parameters
    ----------
    specs
        The codecs around a stored object, in encoding order.
    nbytes
        Size of the object inside.
    """
    chain = [codecs.bytes_codec(spec) for spec in specs]
    return grown_sizes(chain, nbytes, exact=False)[-1][0]


class Unwrapping:
    """What undoing the codecs around one stored object takes.

    Parameters
    ----------
    specs
        The codecs, in encoding order.
    data
        The stored object.

    Raises
    ------
    CorruptShardError
        The bytes have no valid head.
    """

    def __init__(self, specs: Sequence[CodecSpec], data: HostBytes) -> None:
        self._chain = [codecs.bytes_codec(spec) for spec in specs]
        # The head of a stream is known only of the first codec that decompresses.
        self._first, self._data = self._chain[-1], data
        for codec in reversed(self._chain):
            self._first = codec
            if codec.n_copies:
                break
            n_behind = codec.encoded_nbytes(0) or 0
            n_before = max(0, len(self._data) - n_behind)
            self._data = memoryview(self._data)[:n_before]
        self._told_nbytes = self._first.told_nbytes(self._data)

    def extra_nbytes(self, nbytes: int) -> int:
        """Memory that a rare stream takes in addition, if it decodes to `nbytes`."""
        told = self._told_nbytes
        return self._first.extra_nbytes(self._data, nbytes if told is None else told)

    def needed_nbytes(self, nbytes: int) -> int:
        """Memory to decode an object of `nbytes` bytes, without its stored bytes."""
        n_copies = max(1, sum(codec.n_copies for codec in self._chain))
        beside = max(codec.beside_nbytes(nbytes) for codec in self._chain)
        return n_copies * nbytes + beside + self.extra_nbytes(nbytes)

    def most_nbytes(self, limit: int, room_nbytes: int) -> int:
        """Largest object of at most `limit` bytes that decodes in `room_nbytes`."""
        if self.needed_nbytes(limit) <= room_nbytes:
            return limit
        sizes = range(limit)
        return max(0, bisect_right(sizes, room_nbytes, key=self.needed_nbytes) - 1)


def decode_object_bytes(
    specs: Sequence[CodecSpec],
    data: HostBytes,
    limit: int,
) -> HostBytes:
    """Bytes of a stored object without the bytes-to-bytes codecs around it.

    Parameters
    ----------
    specs
        The codecs, in encoding order.
    data
        The stored object.
    limit
        Largest decoded size accepted.

    Raises
    ------
    CorruptShardError
        The bytes are no valid stream, or decode to more than `limit` bytes.
    MetadataError
        A codec's configuration is wrong.
    UnsupportedError
        Neither gpushard nor zarr knows a codec.
    """
    chain = [codecs.bytes_codec(spec) for spec in specs]
    sizes = grown_sizes(chain, limit, exact=False)
    for codec, (size, exact) in zip(reversed(chain), sizes[-2::-1], strict=True):
        data = codec.decode(data, size, exact=exact)
    return data
