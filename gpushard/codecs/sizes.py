"""Sizes of an inner chunk between its codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from gpushard.codecs.base import BytesCodec, HostBytes
from gpushard.options import KIB

# The largest encoded size that a reasonable codec makes of n bytes: 2n, and a header or
# table. Compressors store bytes that they cannot compress.
_GROWTH, _GROWTH_NBYTES = 2, 64 * KIB
_MOST_NBYTES = 2**62


class ArrayPart(Protocol):
    """Array-to-array codecs and the array-to-bytes codec of a chain."""

    def encoded_nbytes(self, shape: tuple[int, ...]) -> int | None:
        """Encoded size of an inner chunk; None if it depends on the elements."""
        ...

    def working_nbytes(self, shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk of `shape` takes besides its bytes."""
        ...

    def decoder(self, shape: tuple[int, ...]) -> Callable[[HostBytes], NDArray[Any]]:
        """Function from bytes of the right size to an inner chunk of `shape`."""
        ...

    @property
    def labels(self) -> Sequence[tuple[str, str]]:
        """Name and library of each codec, in encoding order."""
        ...


def grown_sizes(
    chain: Sequence[BytesCodec], nbytes: int, *, exact: bool
) -> list[tuple[int, bool]]:
    """Sizes before each codec of `chain` and after the last; whether they are exact."""
    sizes = [(nbytes, exact)]
    for codec in chain:
        encoded_nbytes = codec.encoded_nbytes(nbytes)
        if encoded_nbytes is None:
            nbytes, exact = _GROWTH * nbytes + _GROWTH_NBYTES, False
        else:
            nbytes = encoded_nbytes
        sizes.append((nbytes, exact))
    # A bound that no library and no real size exceeds.
    return [(min(nbytes, _MOST_NBYTES), exact) for nbytes, exact in sizes]
