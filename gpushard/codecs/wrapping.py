"""Codecs around a whole stored object: undoing them, and what they may make of it."""

from __future__ import annotations

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


def object_copies(specs: Sequence[CodecSpec]) -> int:
    """Copies of an object's bytes that undoing `specs` around it holds."""
    chain = [codecs.bytes_codec(spec) for spec in specs]
    return max(1, sum(codec.n_copies for codec in chain))


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
