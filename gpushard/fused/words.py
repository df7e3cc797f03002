"""The words that tell the compiled function what to do; no numba."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

# The words that tell the compiled function what to do (int64; arrays by their
# addresses), which precede a `Decoder` or a `PlanParameters`.
WORDS = 12
TASK, STRIDES, N_PARTS, N_AXES, BOXES, N_BOXES = range(6)
# To place boxes: memory to work in, and whether each was placed. Then the shares that
# boxes are placed in, their number, the one to claim next, and about how many boxes a
# call places (`gpushard.fused.shares`); all 0 to place all boxes.
WORK, IS_PLACED, SHARE_CUTS, N_SHARES, NEXT_SHARE, MOST_BOXES = range(6, WORDS)
# To plan boxes: the shards and their number, then cells, elements or points and their
# number, then the ranges or axes.
SHARDS, N_SHARDS, COLUMNS, N_COLUMNS, TABLE = range(6, WORDS - 1)

# The tasks. To place boxes and to plan them are as above.
# To place chunk files, as to place boxes in shares; an `Opener` follows the `Decoder`.
# To read one box, as to place boxes; but the strides and the box follow the `Decoder`,
# and `STRIDES` and `BOXES` are their distances from the first word.
# To relay ranges, a `Relay` follows, or a `Team` that does, and to poll a `Poll`; all
# words but the task are 0.
# To read axes, as to plan axes; but the axes, whose first two rows are the strides,
# follow, and `STRIDES` and `TABLE` are their distance from the first word. Between the
# `PlanParameters` and the axes are words to place boxes and a `Decoder`.
(
    PLACE_BOXES,
    PLAN_BOXES,
    PLAN_AXES,
    PLAN_POINTS,
    READ_BOX,
    READ_AXES,
    PLACE_CHUNK_FILES,
    RELAY_RANGES,
    RELAY_TOGETHER,
    POLL,
) = range(10)

# Columns of a range of a file that is relayed to a device: the file, the range's first
# byte, its size, and the place where its bytes go, counted from `Relay.target`.
RANGE_FILE, RANGE_OFFSET, RANGE_NBYTES, RANGE_PLACE = range(4)
RANGE_COLUMNS = 4
# Outcomes of a piece whose bytes are not all in its files, and of one that no thread
# has claimed. Otherwise it is what a function of the driver returned: 0, or an error.
CUT_SHORT, LEFT = -1, -2

# Number of openat2(2) of Linux; `system_calls` says on which machines.
OPENAT2 = 437
# Size of a `struct statx` of statx(2), and most characters of an int64.
STATUS_NBYTES = 256
NUMBER_NBYTES = 20
# Version of a file: major and minor number of its device (32 bits each), inode, size,
# and in ns the times of modification and of change.
VERSION_NBYTES, VERSION_CHANGED = 40, 4

# Memory in which shuffled bits are put together: for 512 items of 16 bytes.
TILE_NBYTES = 8192

# Size of a `ZSTD_outBuffer` and a `ZSTD_inBuffer` of zstd.h: address, size, position.
BUFFERS_NBYTES = 48


class Decoder(NamedTuple):
    """What the loops must know of a codec chain and of the calling thread.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC`, `BLOSC_ZLIB`, `LZ4`, `INFLATE` or `LIBDEFLATE`.
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
    staging
        Address of memory for a tile and a block of a Blosc frame, or for the
        description of a zstd frame; 0 for other kinds.
    window, window_nbytes
        Address and size of memory for bytes that are read from a file.
    itemsize, out_itemsize
        Bytes of an element, and of one in the output.
    change
        Change to elements: `COPY`, `BOOL`, the bytes to reverse (2, 4, 8), or a cast.
    writes_past_cache
        Whether rows that fill cache lines are written past the cache.
    shuffle_itemsize
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
    window: int
    window_nbytes: int
    itemsize: int
    out_itemsize: int
    change: int
    writes_past_cache: int
    shuffle_itemsize: int
    planes: int


class Opener(NamedTuple):
    """What the loops must know of files of one inner chunk each, to open them.

    A path has a prefix, and then the place of the file in the chunk grid: a number for
    each axis, with a separator in between. `ENTRY` of a box is the file's number in C
    order. If a box is `FILLED`, its inner chunk is kept: it is placed if the file still
    has the version from which that was decoded.

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
    versions
        Address of a version (`VERSION_NBYTES`) per box, or 0: that of the file from
        which a kept inner chunk was decoded; of other files, it is written. Only that
        of the first box of a file counts.
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
    versions: int = 0

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
    upload, record, wait, exchange_mode, get_context, set_context, context
        Functions of the driver, and its context, see `devices.base.CopyCalls`.
    saved
        Address of memory for the context that the calling thread had.
    mode
        Address of the mode for the calling thread, see `devices.base.CopyCalls`. It
        is the same again afterwards.
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
    exchange_mode: int
    get_context: int
    set_context: int
    context: int
    saved: int
    mode: int


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
        Addresses of the system's functions, see `system_calls.ThreadCalls`.
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


pack_placing = Struct(f"={WORDS + len(Decoder._fields)}q").pack
pack_planning = Struct(f"={WORDS + len(PlanParameters._fields)}q").pack
