"""Layouts of the integer tables that the compiled loops share with Python; no numba."""

from __future__ import annotations

# Columns of a box:
# - SOURCE, NBYTES: start and size of the encoded inner chunk.
# - LOW, HIGH: start and stop of the bytes to fetch.
# - FILE: the file that they lie in. Places are byte offsets in that file, or addresses
#   in memory if it is NO_FILE. FILLED: decoded elements in memory.
# - OFFSET, TARGET, PART: where the box's first element lies in the decoded bytes, the
#   address that it goes to, and the part of the plan, whose strides apply.
# - ENTRY: place of the inner chunk in its index, or number of its file, which says what
#   to open (only of boxes that the loops plan, and of files of one inner chunk).
# - KEEP: address of the memory that keeps the decoded inner chunk, or 0.
# - LISTED: address of a list of elements, or 0.
# - FIRST_LENGTH and on: length along each axis.
SOURCE, NBYTES, LOW, HIGH, FILE, OFFSET, TARGET, PART = range(8)
ENTRY, KEEP, LISTED, FIRST_LENGTH = range(8, 12)
NO_FILE, FILLED, OBJECTS = -1, -2, -3

# Words of a list: number of elements; their axis; the first element in the inner chunk,
# where the box begins; address of the places of all elements in the inner chunk, and
# address of their places in the output, both counted in elements of the axis. The box's
# length along the axis is the distance from the first element to the end of the last.
N_LISTED, LIST_AXIS, LIST_FIRST, LIST_INNER, LIST_OUTER = range(5)
LIST_WORDS = 5

# Kinds of streams. A chain has one of RAW to ZLIB. Each has its own decoder in the
# loops, except for deflate (GZIP, ZLIB), which libz or, if present, libdeflate decodes.
# BLOSC_ZLIB: Blosc frames of deflate, which only libdeflate decodes.
RAW, ZSTD, BLOSC, BLOSC_ZLIB, LZ4, GZIP, ZLIB, INFLATE, LIBDEFLATE = range(9)

# Changes to elements. The values 2, 4 and 8 are the number of bytes to reverse.
COPY, BOOL = 0, 1
# From this value on a change is a cast, in the order of `CASTS`: data types of the
# elements as they are stored, and in the output.
FIRST_CAST = 16
_INTEGERS = "u1", "i1", "u2", "i2", "u4", "i4"
_SHORT = "u1", "i1", "u2", "i2", "f4"
# A wider integer depends on the sign of the stored one alone, and a narrower one on
# nothing but the two sizes, so those with a sign stand for the others.
CASTS = (
    *((stored, "f4") for stored in (*_INTEGERS, "u8", "i8", "f8")),
    *((stored, "f8") for stored in (*_INTEGERS, "u8", "i8", "f4")),
    *((stored, "i8") for stored in _INTEGERS),
    *((stored, "f2") for stored in _SHORT),
    *(("f2", wide) for wide in ("f4", "f8")),
    *((stored, "bfloat16") for stored in (*_SHORT, "f8")),
    *(("bfloat16", wide) for wide in ("f4", "f8")),
    *((stored, "i4") for stored in ("u1", "i1", "u2", "i2")),
    *((stored, "i2") for stored in ("u1", "i1")),
    *(("i8", narrow) for narrow in ("i4", "i2", "i1")),
    *(("i4", narrow) for narrow in ("i2", "i1")),
    ("i2", "i1"),
    *(("b1", number) for number in ("f4", "f8", "f2", "bfloat16", "i8", "i4", "i2")),
)

# Rows of the memory that `place_boxes` works in, with a column per axis:
# - WORK_LENGTH, WORK_INNER, WORK_OUTER: of the axes that `merge_axes` left, the number
#   of runs, and the bytes between them in the inner chunk and in the output.
# - WORK_AT: the run along each of these axes that a copy has come to.
# - WORK_WINDOW: what the window has: a file, and start and stop of a range of it.
WORK_LENGTH, WORK_INNER, WORK_OUTER, WORK_AT, WORK_WINDOW = range(5)
WORK_ROWS, WORK_AXES = 5, 64  # NumPy 2 allows 64 axes

# Rows of a cell along an axis (`gpushard.fused.cells`).
ORDINAL, INNER, OUTER, LENGTH, LIST = range(5)
CELL_ROWS = 5

# Rows of an axis that a slice takes:
# - INNER_STEP, OUTER_STEP: bytes between wanted neighbours in the inner chunk and in
#   the output.
# - FIRST, STEP, N_ELEMENTS: first element, step and number of elements.
# - OUT_OFFSET: where the first element lands, in bytes.
# - CELL, PER_SHARD: length of a cell in elements, and number of cells in a shard.
# - INDEX_STRIDE, CHUNK_STRIDE: distance of neighbouring cells in the index, and of
#   neighbouring elements in an inner chunk, in bytes.
# - N_CELLS, N_SHARDS: number of touched cells (at most) and of touched shards.
# For an axis that an index takes, STEP is 0, and FIRST is where its elements begin
# among those of all axes.
INNER_STEP, OUTER_STEP, FIRST, STEP, N_ELEMENTS, OUT_OFFSET = range(6)
CELL, PER_SHARD, INDEX_STRIDE, CHUNK_STRIDE, N_CELLS, N_SHARDS = range(6, 12)
AXIS_ROWS = 12

# Columns of a shard: addresses of its index' columns, 0 if there is no object; its
# file; and the number of boxes up to and including its last. An unsharded array is one
# shard without an index, whose file is OBJECTS.
OFFSETS, SIZES, STATES, HANDLE, END = range(5)
SHARD_COLUMNS = 5

# To read this many unwanted bytes takes as long as another call (0.4 us from the page
# cache).
GAP_NBYTES = 4096


def sorting_words(n_boxes: int, n_columns: int) -> int:
    """Number of int64 that counting along axes and sorting a shard's boxes takes."""
    return n_columns + n_boxes * (2 + n_columns)


def laying_words(n_boxes: int, n_shards: int, n_axes: int) -> int:
    """Number of int64 that laying out axes and then sorting their boxes takes.

    There are fewer cells than boxes (their product) and axes together. Each shard has a
    span of cells along each axis, twice.
    """
    n_cells = n_boxes + n_axes
    more = CELL_ROWS * n_cells + 4 * n_shards * n_axes
    return sorting_words(n_boxes, FIRST_LENGTH + n_axes) + more
