"""Sizes of an inner chunk between its codecs."""

from __future__ import annotations

from collections.abc import Sequence

from gpushard.codecs.base import BytesCodec, HostBytes
from gpushard.options import KIB

# The largest encoded size that a reasonable codec makes of n bytes: 2n, and a header or
# table. Compressors store bytes that they cannot compress.
_GROWTH, _GROWTH_NBYTES = 2, 64 * KIB
_MOST_NBYTES = 2**62


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


def extra_nbytes(
    chain: Sequence[BytesCodec], decoded: Sequence[int], encoded: HostBytes
) -> int:
    """Memory that decoding these bytes takes beyond what usual bytes do.

    `decoded` has the size that each codec decodes to. Only the first codec that
    decompresses is looked at: of its stream the head is known. Raises as
    `BytesCodec.beside_nbytes`.
    """
    for codec, nbytes in zip(reversed(chain), reversed(decoded), strict=True):
        if codec.n_copies:
            return codec.beside_nbytes(nbytes, encoded) - codec.beside_nbytes(nbytes)
        # A view that leaves out the bytes at the end. (`nbytes` may be a bound.)
        n_behind = codec.encoded_nbytes(0) or 0
        encoded = memoryview(encoded)[: max(0, len(encoded) - n_behind)]
    return 0
