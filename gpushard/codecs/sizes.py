"""Sizes of an inner chunk between its codecs, and the memory that decoding takes."""

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


class ChainSizes:
    """Sizes that follow from a codec chain and the shape of an inner chunk.

    Parameters
    ----------
    array_part
        Array-to-array codecs and the array-to-bytes codec.
    bytes_codecs
        Bytes-to-bytes codecs, in encoding order.
    largest_nbytes
        Decoded bytes accepted if neither the metadata nor a codec bounds them.
    """

    def __init__(
        self,
        array_part: ArrayPart,
        bytes_codecs: tuple[BytesCodec, ...],
        largest_nbytes: int,
    ) -> None:
        self._array_part = array_part
        self._bytes_codecs = bytes_codecs
        self._largest_nbytes = largest_nbytes

    def payload_nbytes(self, chunk_shape: tuple[int, ...]) -> int | None:
        """Encoded size of an inner chunk; None if it depends on the elements."""
        nbytes = self._array_part.encoded_nbytes(chunk_shape)
        for codec in self._bytes_codecs:
            if nbytes is not None:
                nbytes = codec.encoded_nbytes(nbytes)
        return nbytes

    def working_nbytes(self, chunk_shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk takes besides its stored bytes.

        This is for usual streams; some take `extra_nbytes` more. For strings it is the
        memory besides their text.
        """
        working = self._array_part.working_nbytes(chunk_shape)
        if self._array_part.encoded_nbytes(chunk_shape) is None:
            return working
        sizes = self._sizes(chunk_shape)
        peak = held = 0
        for codec, (nbytes, _) in zip(
            reversed(self._bytes_codecs), sizes[-2::-1], strict=True
        ):
            taken = codec.n_copies * nbytes + codec.beside_nbytes(nbytes)
            peak = max(peak, held + taken)
            held = nbytes if codec.n_copies else held
        return max(peak, held + working)

    def extra_nbytes(self, encoded: HostBytes, chunk_shape: tuple[int, ...]) -> int:
        """Memory that these bytes need besides `working_nbytes`, as their head says.

        Raises
        ------
        CorruptShardError
            The bytes have no valid head.
        """
        extra = 0
        sizes = self._sizes(chunk_shape)
        for codec, (nbytes, _) in zip(
            reversed(self._bytes_codecs), sizes[-2::-1], strict=True
        ):
            extra = codec.extra_nbytes(encoded, nbytes)
            if codec.n_copies:
                break
            # A view that leaves out the bytes at the end. (`nbytes` may be a bound.)
            n_behind = codec.encoded_nbytes(0) or 0
            encoded = memoryview(encoded)[: max(0, len(encoded) - n_behind)]
        return extra

    def encoded_limit(self, chunk_shape: tuple[int, ...]) -> int:
        """Generous bound of the encoded size that a reasonable writer produces."""
        *_, (limit, _) = self._sizes(chunk_shape)
        return limit

    def _sizes(self, chunk_shape: tuple[int, ...]) -> list[tuple[int, bool]]:
        """Sizes before each bytes-to-bytes codec and after the last; whether exact."""
        nbytes = self._array_part.encoded_nbytes(chunk_shape)
        if nbytes is None:
            return grown_sizes(self._bytes_codecs, self._largest_nbytes, exact=False)
        return grown_sizes(self._bytes_codecs, nbytes, exact=True)


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
