"""Layouts of the integer tables that the compiled loops share with Python; no numba."""

from __future__ import annotations

from typing import NamedTuple

# Columns of a box:
# - SOURCE, NBYTES: start and size of the encoded inner chunk.
# - LOW, HIGH: start and stop of the bytes to fetch. Of a file that is not open yet, LOW
#   says which it is (see `Opener`).
# - FILE: the file that they lie in. Places are byte offsets in that file, or addresses
#   in memory if it is NO_FILE. FILLED: decoded elements in memory.
# - OFFSET, TARGET, PART: where the box's first element lies in the decoded bytes, the
#   address that it goes to, and the part of the plan, whose strides apply.
# - ENTRY: place of the inner chunk in its index (only in planned boxes).
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
RAW, ZSTD, BLOSC, LZ4, GZIP, ZLIB, INFLATE, LIBDEFLATE = range(8)

# Changes to elements. The values 2, 4 and 8 are the number of bytes to reverse.
COPY, BOOL = 0, 1
# From this value on a change is a cast, in the order of `CASTS`: data types of the
# elements as they are stored, and in the output.
FIRST_CAST = 16
_INTEGERS = "u1", "i1", "u2", "i2", "u4", "i4"
_SHORT = "u1", "i1", "u2", "i2", "f4"
CASTS = (
    *((stored, "f4") for stored in (*_INTEGERS, "u8", "i8", "f8")),
    *((stored, "f8") for stored in (*_INTEGERS, "u8", "i8", "f4")),
    *((stored, "i8") for stored in _INTEGERS),
    *((stored, "f2") for stored in _SHORT),
    ("f2", "f4"),
    *((stored, "bfloat16") for stored in (*_SHORT, "f8")),
    ("bfloat16", "f4"),
)

# Memory for `place_boxes`: a column per axis (NumPy 2 allows 64), a row per use.
WORK_ROWS, WORK_AXES = 5, 64

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

# The tasks of the compiled function, and the words that describe a task (int64; arrays
# by their addresses). They precede a `Decoder` or a `PlanParameters`.
# - 0: the task, one of the constants below.
# - 1 to 3: the strides, the number of parts, the number of axes.
# - 4 and 5: the boxes, and their number.
# To place boxes (8 to 11 are for `gpushard.fused.shares`; all 0 to place all boxes):
# - 6 and 7: memory to work in, and whether each box was placed.
# - 8 and 9: the shares that boxes are placed in, and their number.
# - 10 and 11: the share to claim next, and about how many boxes a call places.
# To plan boxes:
# - 6 and 7: the shards, and their number.
# - 8 and 9: cells, elements or points, and their number.
# - 10: the ranges or axes.
# To place objects, as to place boxes in shares; but an `Opener` follows the `Decoder`.
# To read one box, as to place boxes; but the strides and the box follow the `Decoder`,
# and the words 1 and 4 are their distances from the first word.
# To relay ranges, a `Relay` follows, or a `Team` that does, and to poll a `Poll`; the
# words 1 to 11 are 0.
# To read axes, as to plan axes; but the axes, whose first two rows are the strides,
# follow, and the words 1 and 10 are their distance from the first word. Between the
# `PlanParameters` and the axes are words to place boxes and a `Decoder`.
(
    PLACE_BOXES,
    PLAN_BOXES,
    PLAN_AXES,
    PLAN_POINTS,
    READ_BOX,
    READ_AXES,
    PLACE_OBJECTS,
    RELAY_RANGES,
    RELAY_TOGETHER,
    POLL,
) = range(10)
WORDS = 12

# To read this many unwanted bytes takes as long as another call (0.4 us from the page
# cache).
GAP_NBYTES = 4096

# Columns of a range of a file that is relayed to a device: the file, the range's first
# byte, its size, and the place where its bytes go, counted from `Relay.target`.
RANGE_FILE, RANGE_OFFSET, RANGE_NBYTES, RANGE_PLACE = range(4)
RANGE_COLUMNS = 4
# Outcomes of a piece whose bytes are not all in its files, and of one that no thread
# has claimed. Otherwise it is what a function of the driver returned: 0, or an error.
CUT_SHORT, LEFT = -1, -2

# Size of a `struct statx` of statx(2), and most characters of an int64.
STATUS_NBYTES = 256
NUMBER_NBYTES = 20

# Size of a `ZSTD_outBuffer` and a `ZSTD_inBuffer` of zstd.h: address, size, position.
BUFFERS_NBYTES = 48


class Decoder(NamedTuple):
    """What the loops must know of a codec chain and of the calling thread.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC`, `LZ4`, `INFLATE` or `LIBDEFLATE`.
    has_crc
        Whether four bytes of CRC-32C follow the payload.
    decode, context
        Addresses of the decompressor and of its context; 0 if there is none.
    reset
        Address of the function that readies the context for another stream, or 0.
    decode_part
        Address of the function that decodes as much of a stream as it is given, or 0.
    read
        Address of the system's `pread`.
    chunk_nbytes
        Decoded size of an inner chunk.
    scratch
        Address of memory for an inner chunk, hot in the cache; 16 bytes precede it.
    staging, staging_nbytes
        Address and size of memory for a part of a frame, or for a frame's description;
        0 except for `BLOSC` and `ZSTD`.
    window, window_nbytes
        Address and size of memory for bytes that are read from a file.
    itemsize, out_itemsize
        Bytes of an element, and of one in the output.
    change
        Change to elements: `COPY`, `BOOL`, the bytes to reverse (2, 4, 8), or a cast.
    writes_past_cache
        Whether rows that fill cache lines are written past the cache.
    shuffled
        Bytes of an element if streams have the bytes of the same significance side by
        side, or 0.
    planes
        Address of memory for an inner chunk of such bytes, or 0.
    """

    kind: int
    has_crc: int
    decode: int
    context: int
    reset: int
    decode_part: int
    read: int
    chunk_nbytes: int
    scratch: int
    staging: int
    staging_nbytes: int
    window: int
    window_nbytes: int
    itemsize: int
    out_itemsize: int
    change: int
    writes_past_cache: int
    shuffled: int
    planes: int


class Opener(NamedTuple):
    """What the loops must know of files of one inner chunk each, to open them.

    A path has a prefix, and then the place of the file in the chunk grid: a number for
    each axis, with a separator in between. Before a box is placed, its `LOW` is the
    file's number in C order.

    Attributes
    ----------
    root
        Descriptor of the directory that the paths begin at.
    prefix, prefix_nbytes, separator
        Address and size of the prefix, and the separator's character.
    strides, offsets, n_axes
        Addresses of int64, shape (n_axes,): distance of neighbours in the order of
        numbers, and what is added to their places.
    missing
        Address of a bool per box, which is set if there is no such file.
    knows_missing
        Whether a path that leads to nothing means that. A link may lead to nothing, and
        of a rolling array the file may be deleted.
    how
        Address of a `struct open_how` of openat2(2), with zero bytes behind it.
    syscall, statx, close, errno
        Addresses of functions of the C library; `errno` is ``__errno_location``.
    most_nbytes
        Size of the largest file to read.
    status
        Address of memory of the thread for two statuses, and behind them for a path.
    """

    root: int
    prefix: int
    prefix_nbytes: int
    separator: int
    strides: int
    offsets: int
    n_axes: int
    missing: int
    knows_missing: int
    how: int
    syscall: int
    statx: int
    close: int
    errno: int
    most_nbytes: int
    status: int = 0

    @property
    def path_nbytes(self) -> int:
        """Size of the longest path, with a zero byte behind it."""
        return self.prefix_nbytes + self.n_axes * (NUMBER_NBYTES + 1) + 1


class Poll(NamedTuple):
    """What asks the driver whether something is done, and sleeps in between.

    Attributes
    ----------
    query, handle
        Address of the driver's function that is asked, and what it takes.
    not_ready
        What it answers until it is done.
    sleep, n_sleeps
        Address of the system's `usleep`, and how often to sleep at most.
    sleep_ns, most_sleep_ns, growth_bits
        The first and the longest sleep. Each is longer than the one before by that
        divided by ``2 ** growth_bits``.
    get_context, set_context, context
        As in `Relay`.
    saved
        Address of memory for the context that the calling thread had.
    """

    query: int
    handle: int
    not_ready: int
    sleep: int
    n_sleeps: int
    sleep_ns: int
    most_sleep_ns: int
    growth_bits: int
    get_context: int
    set_context: int
    context: int
    saved: int


class Relay(NamedTuple):
    """Pieces of files that threads read and queue for a device, one after the other.

    A piece is a run of ranges that are next to one another on the device. A thread has
    two buffers, so that it reads one piece while the one before is being copied.

    Attributes
    ----------
    cuts, n_pieces
        Address of int64 of shape (n_pieces + 1,), and their number. Piece p has the
        ranges ``cuts[p]:cuts[p + 1]``.
    ranges
        Address of int64 of shape (n_ranges, 4), see `RANGE_FILE`.
    outcomes
        Address of int64 of shape (n_pieces,), written; see `CUT_SHORT`.
    counter
        Address of the number of the piece to claim next.
    target, stream
        Address of place 0 on the device, and handle of the stream that copies.
    buffers, buffer_nbytes
        Address of the calling thread's two buffers, side by side, and the size of each.
        They are pinned, and each has room for a piece.
    first_event, second_event
        Handles of an event for each buffer, which is done when its last copy is.
    read
        Address of the system's `pread`.
    upload, record, wait, get_context, set_context, context
        Functions of the driver, and its context, see `devices.base.CopyCalls`.
    saved
        Address of memory for the context that the calling thread had.
    """

    cuts: int
    n_pieces: int
    ranges: int
    outcomes: int
    counter: int
    target: int
    stream: int
    buffers: int
    buffer_nbytes: int
    first_event: int
    second_event: int
    read: int
    upload: int
    record: int
    wait: int
    get_context: int
    set_context: int
    context: int
    saved: int


class Team(NamedTuple):
    """Threads that relay the pieces of one batch, without the interpreter.

    The calling thread is one of them. It begins the others once it has its turn, ends
    the turn as soon as no piece is left to claim, and returns when all have ended.

    Attributes
    ----------
    n_threads, words, words_nbytes
        Number of threads, address of what the first one is told (`RELAY_RANGES`, with a
        `Relay`), and bytes from that to the next one's.
    loops
        Address of the compiled function, which threads begin with.
    threads
        Address of int64 of shape (n,): memory for the system's handles (`pthread_t`).
    turn
        Address of a mutex that all batches of a read share.
    create, join, lock, unlock
        Addresses of the system's functions, see `libraries.ThreadCalls`.
    """

    n_threads: int
    words: int
    words_nbytes: int
    loops: int
    threads: int
    turn: int
    create: int
    join: int
    lock: int
    unlock: int


class PlanParameters(NamedTuple):
    """What the loops must know of an array and of an output, to plan boxes.

    Attributes
    ----------
    chunk_nbytes, itemsize
        Decoded size of an inner chunk, and of an element.
    limit_nbytes
        Largest stored size of an inner chunk.
    is_plain
        Whether inner chunks are stored as plain elements.
    fill
        Address of an inner chunk of fill values, in its stored form.
    target
        Address of the output's first element.
    work
        Address of memory for the loops to work in.
    """

    chunk_nbytes: int
    itemsize: int
    limit_nbytes: int
    is_plain: int
    fill: int
    target: int
    work: int


def sorting_words(n_boxes: int, n_columns: int) -> int:
    """Number of int64 that counting along axes and sorting a shard's boxes takes."""
    return n_columns + n_boxes * (2 + n_columns)
