"""Columns of boxes -> decoded inner chunks in the outputs, in one compiled loop.

This is imported only once reads are large enough to pay for it. Addresses are int64. A
box is what one inner chunk contributes to one output. Its columns are a row of an int64
matrix.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused import calls
from gpushard.fused.columns import (
    BLOSC,
    COPY,
    FILE,
    FILLED,
    FIRST_LENGTH,
    GAP_NBYTES,
    HIGH,
    INFLATE,
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
    ZSTD,
    Decoder,
)
from gpushard.fused.copies import (
    copy_box,
    copy_wanted,
    far_axis,
    is_shared,
    merge_axes,
    next_line,
)
from gpushard.fused.frames import decode_frame
from gpushard.fused.lz4 import decode_lz4
from gpushard.fused.zstd_frames import decode_first, is_one_frame

# zlib counts bytes in 32 bits.
_LARGEST_DEFLATED = (1 << 32) - 1
_Z_FINISH, _Z_STREAM_END = 4, 1
# Magic number and the flag FHCRC, in the first four bytes.
_GZIP_WITH_FHCRC = 0x02008B1F
# Offsets of next_in, avail_in, next_out and avail_out in zlib.h's `z_stream`.
_NEXT_IN, _AVAIL_IN, _NEXT_OUT, _AVAIL_OUT = 0, 8, 24, 32


@calls.inner
def _decode(d: Decoder, source: int, nbytes: int, target: int, wanted: Any) -> int:
    """Address of the decoded bytes, in `target` or in the source; 0 on failure.

    Bytes outside the range `wanted` may be missing.
    """
    if d.has_crc:
        nbytes -= 4
        if nbytes < 0 or calls.crc32c(source, nbytes) != calls.load_32(source + nbytes):
            return 0
    if d.kind == RAW:
        return source if nbytes == d.chunk_nbytes else 0
    if d.kind == BLOSC:
        library = (d.function, d.context, d.staging, d.staging_nbytes)
        return decode_frame(library, source, nbytes, target, d.chunk_nbytes, wanted)
    if d.kind == ZSTD:
        is_whole = _decode_zstd(d, source, nbytes, target, wanted[1])
    elif d.kind == LZ4:
        # The size precedes the block (numcodecs.lz4).
        is_whole = (
            nbytes > 4
            and calls.load_32(source) == d.chunk_nbytes
            and decode_lz4(source + 4, nbytes - 4, target, d.chunk_nbytes)
            == d.chunk_nbytes
        )
    elif d.kind == INFLATE:
        is_whole = _inflate(d, source, nbytes, target)
    else:
        is_whole = _libdeflate(d, source, nbytes, target)
    return target if is_whole else 0


@calls.inner
def _decode_zstd(d: Decoder, source: int, nbytes: int, target: int, n: int) -> bool:
    """Whether one frame decodes to exactly an inner chunk, checked up to byte `n`."""
    if not is_one_frame(source, nbytes):
        return False
    if d.part:
        library = (d.reset, d.part, d.context, d.staging)
        if decode_first(library, source, target, (d.chunk_nbytes, n)):
            return True
    call = (d.context, target, d.chunk_nbytes, source, nbytes)
    return calls.call_zstd(d.function, call) == d.chunk_nbytes


@calls.inner
def _decode_to_keep(d: Decoder, source: int, nbytes: int, target: int) -> int:
    """Like `_decode` for all decoded bytes, which are always at `target`."""
    decoded = _decode(d, source, nbytes, target, (0, d.chunk_nbytes))
    if decoded not in (0, target):
        calls.copy_bytes(target, decoded, d.chunk_nbytes)
        return target
    return decoded


@calls.inner
def _inflate(d: Decoder, source: int, nbytes: int, target: int) -> bool:
    """Whether one stream, and nothing else, decodes to exactly an inner chunk."""
    stream = d.context
    if nbytes > _LARGEST_DEFLATED or calls.call_reset(d.reset, (stream,)) != 0:
        return False
    calls.store_int64(stream + _NEXT_IN, source)
    calls.store_int32(stream + _AVAIL_IN, nbytes)
    calls.store_int64(stream + _NEXT_OUT, target)
    calls.store_int32(stream + _AVAIL_OUT, d.chunk_nbytes)
    return (
        calls.call_inflate(d.function, (stream, _Z_FINISH)) == _Z_STREAM_END
        and calls.load_32(stream + _AVAIL_IN) == 0
        and calls.load_32(stream + _AVAIL_OUT) == 0
    )


@calls.inner
def _libdeflate(d: Decoder, source: int, nbytes: int, target: int) -> bool:
    """Whether one stream, and nothing else, decodes to exactly an inner chunk."""
    # RFC 1952: a checksum of the header, which libdeflate does not check.
    if nbytes > 3 and calls.load_32(source) & _GZIP_WITH_FHCRC == _GZIP_WITH_FHCRC:
        return False
    used = d.scratch - 16
    call = (d.context, source, nbytes, target, d.chunk_nbytes, used, 0)
    # Given no address for the decoded size, libdeflate requires the exact size.
    return (
        calls.call_libdeflate(d.function, call) == 0 and calls.load_64(used) == nbytes
    )


@calls.inner
def _read_at(d: Decoder, file: int, target: int, nbytes: int, offset: int) -> int:
    """Number of bytes read from a file; fewer at its end or if reading fails."""
    done = 0
    while done < nbytes:
        call = (file, target + done, nbytes - done, offset + done)
        n = calls.call_pread(d.read, call)
        if n <= 0:
            break
        done += n
    return done


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

    `at` is as for `_reach`. `held` is what the window has: a file, and a range of it.
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
def _read_runs(d: Decoder, box: Any, run: int, n_axes: int, work: Any) -> bool:
    """Read plain elements that lie far apart, each run directly to its place."""
    target, source = box[TARGET], box[SOURCE] + box[OFFSET]
    is_done = False
    while not is_done:
        for k in range(work[0, 0]):
            place, at = target + k * work[2, 0], source + k * work[1, 0]
            if _read_at(d, box[FILE], place, run, at) != run:
                return False
        target, source, is_done = next_line(target, source, (1, n_axes), work)
    return True


@calls.inner
def _read_slabs(
    d: Decoder, box: Any, left: tuple[int, int], far: tuple[int, int], work: Any
) -> bool:
    """Read plain elements that lie far apart along `far`, one step at a time."""
    target, source = box[TARGET], box[SOURCE] + box[OFFSET]
    run, n_axes = left
    axis, nbytes = far
    work[4, 0] = NO_FILE  # the window no longer has what `work` says
    is_done = False
    while not is_done:
        if _read_at(d, box[FILE], d.window, nbytes, source) != nbytes:
            return False
        copy_box(d, target, d.window, run, axis, work)
        target, source, is_done = next_line(target, source, (axis, n_axes), work)
    return True


@calls.inner
def _wanted(d: Decoder, boxes: Any, i: int, stop: int, strides: Any) -> tuple[int, int]:
    """Range of decoded bytes that a box and all boxes of its inner chunk need."""
    if d.kind not in (BLOSC, ZSTD):
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
    # Decoding only some blocks of a Blosc frame costs extra.
    if d.kind == BLOSC and 2 * (high - low) > d.chunk_nbytes:
        return 0, d.chunk_nbytes
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
    if far[0]:
        is_read = _read_slabs(d, boxes[at[0]], left, far, work)
    else:
        is_read = _read_runs(d, boxes[at[0]], run, n_axes, work)
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
        return _decode_to_keep(d, address, box[NBYTES], box[KEEP])
    wanted = _wanted(d, boxes, at[0], at[1], strides)
    return _decode(d, address, box[NBYTES], target, wanted)


@calls.inner
def place_shares(
    d: Decoder, boxes: Any, shares: Any, strides: Any, work: Any, is_placed: Any
) -> None:
    """Claim shares of the boxes, one after the other, and place them.

    `shares` has three parts: the cuts between shares, int64, shape (n_shares + 1,); the
    address of the number of the next share, which other threads may claim at the same
    time; and about how many boxes to place before returning.
    """
    cuts, counter, most = shares
    work[4, 0] = NO_FILE
    n = 0
    while n < most:
        share = calls.claim(counter)
        if share >= cuts.shape[0] - 1:
            return
        first, stop = cuts[share], cuts[share + 1]
        place_boxes(d, boxes, (first, stop), strides, work, is_placed)
        n += stop - first


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
    WORK_AXES), whose row 4 describes the window. `share` is the first box and the end
    of those to place, for which alone `is_placed`, bool, shape (n_boxes,), is set. If a
    box is placed without decoding to where its inner chunk should be kept, its `KEEP`
    is set to 0.
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
                is_there = _read_ahead(d, boxes, (i, stop), work[4])
                address = d.window + source - work[4, 1] if is_there else 0
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
