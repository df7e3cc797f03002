"""What the columns of a box mean, and what a decoder can be; no numba here."""

from __future__ import annotations

from typing import NamedTuple

# Columns of a box: where the encoded bytes start and how many they are; which of them
# are to be had, from where to where, and up to where it pays to read on; the file they
# lie in; offset of the box's first element in the decoded bytes, where that goes, which
# strides hold; the inner chunk's place in its index (of planned boxes), the address of
# the memory that it is kept in once it is decoded, 0 for none, and that of a list of
# elements, 0 for none; and lengths along the axes. Places are byte offsets in a file,
# or addresses in memory where the file is NO_FILE. FILLED: decoded elements in memory.
SOURCE, NBYTES, LOW, HIGH, REACH, FILE, OFFSET, TARGET, PART = range(9)
ENTRY, KEEP, LISTED, FIRST_LENGTH = range(9, 13)
NO_FILE, FILLED = -1, -2

# Of a list, words: how many elements, along which axis; which of them comes first in
# the inner chunk, where the box begins; addresses of where each lies in the inner chunk
# and in the output, in elements of the axis. The box's length along it is how far they
# reach.
N_LISTED, LIST_AXIS, LIST_FIRST, LIST_INNER, LIST_OUTER = range(5)
LIST_WORDS = 5

# Streams, and how the loops decode them: each in its own way, but for deflate, which
# goes through libz or, where there is one, libdeflate.
RAW, ZSTD, BLOSC, LZ4, GZIP, ZLIB, INFLATE, LIBDEFLATE = range(8)

# Changes to elements; 2, 4 and 8 stand for as many bytes to be reversed.
COPY, BOOL = 0, 1

# Room of `place_boxes`: a column an axis (NumPy 2 allows 64), a row a use.
WORK_ROWS, WORK_AXES = 5, 64

# Of a cell along an axis (`gpushard.fused.cells`).
ORDINAL, INNER, OUTER, LENGTH, LIST = range(5)
CELL_ROWS = 5

# Of an axis that is taken by a slice: bytes between wanted neighbours in the inner
# chunk and in the output; the first element, the step and how many there are; where the
# first lands, in bytes; how long a cell is, how many make a shard, how far apart they
# stand in the index, bytes between their elements; cells (at most) and shards that are
# touched. By an index: STEP is 0, and FIRST where its elements begin among all axes'.
INNER_STEP, OUTER_STEP, FIRST, STEP, N_ELEMENTS, OUT_OFFSET = range(6)
CELL, PER_SHARD, INDEX_STRIDE, CHUNK_STRIDE, N_CELLS, N_SHARDS = range(6, 12)
AXIS_ROWS = 12

# Of a shard: addresses of its index' columns, 0 where there is no object; its file; and
# how many boxes there are up to its last.
OFFSETS, SIZES, STATES, HANDLE, END = range(5)
SHARD_COLUMNS = 5

# What the compiled function is called to do, and the words that say so ahead of a
# `Decoder` or a `Planned` (int64; arrays by address): 0 is one of these; 1 to 3 the
# strides, for how many parts and axes; 4 and 5 the boxes and how many they are. To
# place them, 6 is room and 7 whether each was placed; 8 and 9 the shares that they are
# placed in and how many these are, 10 the one that is claimed next, 11 about how many
# boxes a call places (`gpushard.fused.shares`; all 0 to place all boxes). To plan them,
# 6 and 7 are the shards and their number, 8 and 9 cells, elements or points and how
# many they are, 10 the ranges or axes.
PLACE_BOXES, PLAN_BOXES, PLAN_AXES, PLAN_POINTS = range(4)
WORDS = 12

# Reading on costs what another call does (0.4 us from the page cache) for so many bytes
# that nobody wants.
GAP_NBYTES = 4096

# Of zstd.h, a `ZSTD_outBuffer` and a `ZSTD_inBuffer`: address, size and position each.
BUFFERS_NBYTES = 48


class Decoder(NamedTuple):
    """What the loop needs to know of a chain and of this thread.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC`, `LZ4`, `INFLATE` or `LIBDEFLATE`.
    has_crc
        Whether four bytes of CRC-32C stand after the payload.
    function, context
        Addresses of the decompressor and of its context; 0 where there is none.
    reset
        Address of what makes the context ready for another stream; 0 where nothing is.
    part
        Address of what decodes a stream as far as it is given; 0 where nothing is.
    read
        Address of the system's `pread`.
    chunk_nbytes
        Decoded size of an inner chunk.
    scratch
        Address of room for an inner chunk, hot in the cache, with 16 bytes ahead of it.
    staging, staging_nbytes
        Address and size of room for a part of a frame, or to tell of one; 0 but for
        `BLOSC` and `ZSTD`.
    window, window_nbytes
        Address and size of room for bytes read from a file.
    itemsize
        Bytes of an element.
    change
        What is done to elements: `COPY`, `BOOL`, or the bytes to reverse (2, 4, 8).
    streams
        Whether rows that fill lines of a cache are written past it.
    """

    kind: int
    has_crc: int
    function: int
    context: int
    reset: int
    part: int
    read: int
    chunk_nbytes: int
    scratch: int
    staging: int
    staging_nbytes: int
    window: int
    window_nbytes: int
    itemsize: int
    change: int
    streams: int


class Planned(NamedTuple):
    """What the loops need to know of an array and of an output, to plan boxes.

    Attributes
    ----------
    chunk_nbytes, itemsize
        Decoded size of an inner chunk, and of an element.
    limit_nbytes
        Most bytes that an inner chunk may be stored in.
    is_plain
        Whether inner chunks are stored as plain elements.
    fill
        Address of an inner chunk of fill values, as it would be stored.
    target
        Address of the output's first element.
    room
        Address of room for the loops themselves.
    """

    chunk_nbytes: int
    itemsize: int
    limit_nbytes: int
    is_plain: int
    fill: int
    target: int
    room: int


def sorting_words(n_boxes: int, n_columns: int) -> int:
    """Room, in int64, to count along axes and to sort the boxes of a shard."""
    return n_columns + n_boxes * (2 + n_columns)
