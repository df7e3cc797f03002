"""What the columns of a box mean, and what a decoder can be; no numba here."""

from __future__ import annotations

# Columns of a box: address and size of the encoded bytes, offset of its first element
# in the decoded bytes, where that goes, which strides hold, and lengths along the axes.
SOURCE, NBYTES, OFFSET, TARGET, PART, FIRST_LENGTH = range(6)

# Decoders.
RAW, ZSTD, BLOSC, LZ4 = range(4)

# Changes to elements; 2, 4 and 8 stand for as many bytes to be reversed.
COPY, BOOL = 0, 1

# NumPy 2 allows 64 axes.
WORK_AXES = 64
