"""Codecs around a whole stored object."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpushard import codecs
from gpushard.codecs.base import HostBytes
from gpushard.codecs.sizes import extra_nbytes, grown_sizes
from gpushard.layout import CodecSpec


class ObjectCodecs:
    """Codecs around a stored object, in encoding order, and what undoing them takes.

    Where `data` is a stored object, its head may be damaged (`CorruptShardError`).
    """

    def __init__(self, specs: Sequence[CodecSpec]) -> None:
        self._chain = [codecs.bytes_codec(spec) for spec in specs]

    def encoded_limit(self, nbytes: int) -> int:
        """Generous bound of the size that at most `nbytes` bytes are encoded to."""
        return grown_sizes(self._chain, nbytes, exact=False)[-1][0]

    def extra_nbytes(self, data: HostBytes, nbytes: int) -> int:
        """Memory that a rare stream takes in addition, if it decodes to `nbytes`."""
        return extra_nbytes(self._chain, [nbytes] * len(self._chain), data)

    def needed_nbytes(self, data: HostBytes, nbytes: int) -> int:
        """Memory to decode an object of `nbytes` bytes, without its stored bytes."""
        n_copies = max(1, sum(codec.n_copies for codec in self._chain))
        beside = max(codec.beside_nbytes(nbytes) for codec in self._chain)
        return n_copies * nbytes + beside + self.extra_nbytes(data, nbytes)

    def most_nbytes(self, data: HostBytes, limit: int, room_nbytes: int) -> int:
        """Largest object of at most `limit` bytes that decodes in `room_nbytes`."""

        def needed(nbytes: int) -> int:
            return self.needed_nbytes(data, nbytes)

        if needed(limit) <= room_nbytes:
            return limit
        return max(0, bisect_right(range(limit), room_nbytes, key=needed) - 1)

    def decode(self, data: HostBytes, limit: int) -> NDArray[np.uint8]:
        """Bytes of the object without the codecs around it: shape (n_bytes,), host.

        Raises
        ------
        CorruptShardError
            The bytes are no valid stream, or decode to more than `limit` bytes.
        """
        sizes = grown_sizes(self._chain, limit, exact=False)
        pairs = zip(reversed(self._chain), sizes[-2::-1], strict=True)
        for codec, (size, exact) in pairs:
            data = codec.decode(data, size, exact=exact)
        return np.frombuffer(data, np.uint8)
