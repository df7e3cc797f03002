"""Columns of boxes -> decoded inner chunks in the outputs, in one compiled loop.

This is imported only once reads are large enough to pay for it. Addresses are int64. A
box is what one inner chunk contributes to one output. Its columns are a row of an int64
matrix.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused.columns import (
    BLOSC,
    BLOSC_ZLIB,
    COPY,
    FILE,
    FILLED,
    FIRST_LENGTH,
    GAP_NBYTES,
    HIGH,
    KEEP,
    LISTED,
    LOW,
    LZ4,
    NBYTES,
    NO_FILE,
    OFFSET,
    PART,
    RAW,
    SOURCE,
    TARGET,
    WORK_WINDOW,
    ZSTD,
)
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.copies import (
    copy_box,
    copy_wanted,
    far_axis,
    is_shared,
    merge_axes,
    next_line,
)
from gpushard.fused.compiled.decoding import decode, decode_to_keep
from gpushard.fused.words import Decoder


@calls.inner
def _read_at(d: Decoder, file: int, target: int, nbytes: int, offset: int) -> int:
    return calls.read_at(d.read, file, target, nbytes, offset)


@calls.inner
def _reach(boxes: Any, at: tuple[int, int], most: int) -> int:
    """Stop of the bytes to read with those of a box: of boxes that follow closely.

    `at` is the number of the box, and the end of its share, whose later boxes another
    thread reads. Boxes whose bytes go beyond `most` are not counted.
    """
    file, low, stop = boxes[at[0], FILE], boxes[at[0], LOW], boxes[at[0], HIGH]
    for k in range(at[0] + 1, at[1]):
        box = boxes[k]
        if box[FILE] == FILLED:  # its inner chunk is kept
            continue
        is_near = low <= box[LOW] <= stop + GAP_NBYTES
        if box[FILE] != file or not is_near or box[HIGH] > most:
            break
        stop = max(stop, box[HIGH])
    return stop


@calls.inner
def _read_ahead(d: Decoder, boxes: Any, at: tuple[int, int], held: Any) -> bool:
    """Read the bytes of a box's inner chunk into the window; False if that failed.

    `at` is as for `_reach`, and `held` is the row `WORK_WINDOW`.
    """
    box = boxes[at[0]]
    low, high = box[LOW], box[HIGH]
    if held[0] == box[FILE] and held[1] <= low and high <= held[2]:
        return True
    if high - low > d.window_nbytes:
        return False
    stop = _reach(boxes, at, low + d.window_nbytes)
    n = _read_at(d, box[FILE], d.window, stop - low, low)
    held[0], held[1], held[2] = box[FILE], low, low + n
    return n >= high - low


@calls.inner
def _read_apart(
    d: Decoder, box: Any, left: tuple[int, int], far: tuple[int, int], work: Any
) -> bool:
    """Read plain elements that lie far apart along `far`, one step at a time.

    If each step is a single run, it is read directly to its place.
    """
    target, source = box[TARGET], box[SOURCE] + box[OFFSET]
    run, n_axes = left
    axis, nbytes = far
    if axis:
        work[WORK_WINDOW, 0] = NO_FILE  # the window no longer has what `work` says
    is_done = False
    while not is_done:
        place = d.window if axis else target
        if _read_at(d, box[FILE], place, nbytes, source) != nbytes:
            return False
        if axis:
            copy_box(d, target, d.window, run, axis, work)
        target, source, is_done = next_line(target, source, (axis, n_axes), work)
    return True


@calls.inner
def _wanted(d: Decoder, boxes: Any, i: int, stop: int, strides: Any) -> tuple[int, int]:
    """Range of decoded bytes that a box and all boxes of its inner chunk need."""
    if d.kind not in (BLOSC, BLOSC_ZLIB, LZ4, ZSTD) or d.shuffle_itemsize:
        return 0, d.chunk_nbytes
    low, high = d.chunk_nbytes, 0
    # In another file, the same place has another inner chunk.
    source, file = boxes[i, SOURCE], boxes[i, FILE]
    while i < stop and boxes[i, SOURCE] == source and boxes[i, FILE] == file:
        box = boxes[i]
        end = box[OFFSET] + d.itemsize
        for axis in range(strides.shape[2]):
            end += (box[FIRST_LENGTH + axis] - 1) * strides[0, box[PART], axis]
        low, high = min(low, box[OFFSET]), max(high, end)
        i += 1
    return low, high


@calls.inner
def _read_into(
    d: Decoder, boxes: Any, at: tuple[int, int], run: int, strides: Any, work: Any
) -> tuple[int, int]:
    """Read plain elements directly to their places: boxes done, and boxes tried.

    Boxes that are adjacent both in the file and in the output are read with one call;
    `at` is the first box to read, and the end of those that may be read.
    """
    i, stop = at
    file, first = boxes[i, FILE], boxes[i, SOURCE] + boxes[i, OFFSET]
    target = boxes[i, TARGET]
    nbytes, n = run, 1
    while i + n < stop:
        box = boxes[i + n]
        if (
            box[FILE] != file
            or box[SOURCE] + box[OFFSET] != first + nbytes
            or box[TARGET] != target + nbytes
            or box[NBYTES] != d.chunk_nbytes
            or box[LISTED]
        ):
            break
        run, n_axes = merge_axes(d, box, strides, work)
        if n_axes:
            break
        nbytes += run
        n += 1
    is_read = _read_at(d, file, target, nbytes, first) == nbytes
    return (n if is_read else 0), n


@calls.inner
def _read_plain(
    d: Decoder,
    boxes: Any,
    at: tuple[int, int],
    left: tuple[int, int],
    strides: Any,
    work: Any,
) -> tuple[int, int]:
    """Like `_read_into`, for boxes that are runs or lie far apart; others: 0 done."""
    run, n_axes = left
    if n_axes == 0:
        return _read_into(d, boxes, at, run, strides, work)
    far = far_axis(run, n_axes, work)
    if not 0 < far[1] <= d.window_nbytes:
        return 0, 0
    is_read = _read_apart(d, boxes[at[0]], left, far, work)
    return (1 if is_read else 0), 1


@calls.inner
def _decode_box(
    d: Decoder,
    boxes: Any,
    at: tuple[int, int],
    address: int,
    target: int,
    strides: Any,
) -> int:
    """Address of a box's decoded inner chunk, or of a part of it; 0 on failure.

    `at` is the number of the box, and the end of its share; `address` is the address of
    its encoded bytes, 0 if they could not be read.
    """
    box = boxes[at[0]]
    if address == 0 or box[FILE] == FILLED:
        return address
    if box[KEEP]:
        return decode_to_keep(d, address, box[NBYTES], box[KEEP])
    wanted = _wanted(d, boxes, at[0], at[1], strides)
    return decode(d, address, box[NBYTES], target, wanted)


@calls.inner
def place_boxes(
    d: Decoder,
    boxes: Any,
    share: tuple[int, int],
    strides: Any,
    work: Any,
    is_placed: Any,
) -> None:
    """Decode and copy boxes; an inner chunk with adjacent boxes is decoded once.

    `boxes` is int64, shape (n_boxes, FIRST_LENGTH + n_axes). `strides` has the bytes
    between wanted neighbours in the inner chunk and in each output, int64, shape
    (2, n_parts, n_axes). `work` is memory to work in, int64, shape (WORK_ROWS,
    WORK_AXES). `share` is the first box and the end of those to place, for which alone
    `is_placed`, bool, shape (n_boxes,), is set. If a box is placed without decoding to
    where its inner chunk should be kept, its `KEEP` is set to 0.
    """
    is_raw = d.kind == RAW and not d.has_crc
    is_plain = is_raw and d.change == COPY
    i, stop = share
    decoded, before, before_nbytes, before_file = 0, 0, -1, NO_FILE
    while i < stop:
        box = boxes[i]
        source, nbytes, target = box[SOURCE], box[NBYTES], box[TARGET]
        file, listed = box[FILE], box[LISTED]
        run, n_axes = merge_axes(d, box, strides, work)
        if is_plain and file >= 0 and nbytes == d.chunk_nbytes and not listed:
            n_read, n = _read_plain(d, boxes, (i, stop), (run, n_axes), strides, work)
            for k in range(i, i + n):
                is_placed[k] = n_read > 0
            i += n
            if n:
                continue
        # The next box of an inner chunk of plain elements may need unread bytes.
        is_new = source != before or nbytes != before_nbytes or file != before_file
        if is_new or is_raw:
            address = source
            if file >= 0:
                # Address that byte 0 of the inner chunk would have in the window.
                is_there = _read_ahead(d, boxes, (i, stop), work[WORK_WINDOW])
                address = d.window + source - work[WORK_WINDOW, 1] if is_there else 0
            is_whole = n_axes == 0 and run == d.chunk_nbytes and d.change == COPY
            is_only = not is_shared(boxes, i, stop)
            place = target if is_whole and is_only and not listed else d.scratch
            decoded = _decode_box(d, boxes, (i, stop), address, place, strides)
            before, before_nbytes, before_file = source, nbytes, file
        else:
            box[KEEP] = 0
        is_placed[i] = decoded != 0
        first = decoded + box[OFFSET]  # `decoded` may lie before what was fetched
        if decoded and (listed or d.change != COPY or first != target):
            copy_wanted(d, box, first, (run, n_axes), strides, work)
        i += 1
