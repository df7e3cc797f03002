"""Columns of boxes -> decoded inner chunks in the outputs, in one compiled loop.

Imported only once a read pays for it. Addresses are int64. A box is what one inner
chunk gives to one output; its columns stand in one row of an int64 matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numba import njit

from gpushard.codecs import blosc_frame
from gpushard.fused import calls
from gpushard.fused.columns import (
    BOOL,
    COPY,
    FIRST_LENGTH,
    LZ4,
    NBYTES,
    OFFSET,
    PART,
    RAW,
    SOURCE,
    TARGET,
    WORK_AXES,
    ZSTD,
)

_HEADER = blosc_frame.HEADER_NBYTES
_COMPRESSED_HEADER = _HEADER + 8  # one block start and the size of one stream
_SHUFFLE, _MEMCPYED = blosc_frame.BYTE_SHUFFLE, blosc_frame.MEMCPYED
_BITSHUFFLE, _RESERVED = blosc_frame.BIT_SHUFFLE, blosc_frame.RESERVED
_DONT_SPLIT, _SNAPPY = blosc_frame.DONT_SPLIT, blosc_frame.SNAPPY
# A frame of version 2, as c-blosc 1 writes: one unfiltered LZ4 stream, item size 1.
_LZ4_FRAME = 2 | 1 << 8 | (blosc_frame.LZ4 << 5 | _DONT_SPLIT) << 16 | 1 << 24
# Longer streams may make blosclz count wrong: those are looked at one by one.
_BLOSCLZ_MAX = (1 << 31) // 255


class Decoder(NamedTuple):
    """What the loop needs to know of a chain and of this thread.

    Attributes
    ----------
    kind
        `RAW`, `ZSTD`, `BLOSC` or `LZ4`.
    has_crc
        Whether four bytes of CRC-32C stand after the payload.
    function, context
        Addresses of the decompressor and of its context; 0 if `RAW`.
    chunk_nbytes
        Decoded size of an inner chunk.
    scratch
        Address of room for an inner chunk, hot in the cache.
    staging
        Address of room for an LZ4 block wrapped in a frame; 0 but for `LZ4`.
    itemsize
        Bytes of an element.
    change
        What is done to elements: `COPY`, `BOOL`, or the bytes to reverse (2, 4, 8).
    """

    kind: int
    has_crc: int
    function: int
    context: int
    chunk_nbytes: int
    scratch: int
    staging: int
    itemsize: int
    change: int


@njit(nogil=True)
def _decode(d: Decoder, source: int, nbytes: int, target: int) -> int:
    """Address of the decoded bytes, `target` or a place in the source; 0 on failure."""
    if d.has_crc:
        nbytes -= 4
        if nbytes < 0 or calls.crc32c(source, nbytes) != calls.load_32(source + nbytes):
            return 0
    if d.kind == RAW:
        return source if nbytes == d.chunk_nbytes else 0
    if d.kind == ZSTD:
        call = (d.context, target, d.chunk_nbytes, source, nbytes)
        return target if calls.call_zstd(d.function, call) == d.chunk_nbytes else 0
    if d.kind == LZ4:
        source, nbytes = _wrap_lz4(d, source, nbytes)
        if not nbytes:
            return 0
    else:
        verdict = _check_frame(source, nbytes, d.chunk_nbytes)
        if verdict != 1:
            return source + _HEADER if verdict == 2 else 0
    frame = (d.context, source, nbytes, target, d.chunk_nbytes)
    return target if calls.call_blosc(d.function, frame) == d.chunk_nbytes else 0


@njit(nogil=True)
def _wrap_lz4(d: Decoder, source: int, nbytes: int) -> tuple[int, int]:
    """An LZ4 block, its size ahead, as a blosc frame: address, size (0 on failure)."""
    block_nbytes = nbytes - 4
    if block_nbytes <= 0 or calls.load_32(source) != d.chunk_nbytes:
        return 0, 0
    # A stream as long as what it decodes to would be taken for stored bytes,
    # and longer ones are rare.
    if block_nbytes >= d.chunk_nbytes:
        return 0, 0
    frame_nbytes = block_nbytes + _COMPRESSED_HEADER
    calls.store_int32(d.staging, _LZ4_FRAME)
    calls.store_int32(d.staging + 4, d.chunk_nbytes)
    calls.store_int32(d.staging + 8, d.chunk_nbytes)
    calls.store_int32(d.staging + 12, frame_nbytes)
    calls.store_int32(d.staging + 16, 20)
    calls.store_int32(d.staging + 20, block_nbytes)
    calls.copy_bytes(d.staging + _COMPRESSED_HEADER, source + 4, block_nbytes)
    return d.staging, frame_nbytes


@njit(nogil=True)
def _check_frame(source: int, nbytes: int, expected: int) -> int:
    """1 for a frame that may be decompressed, 2 for a stored one, else 0.

    A frame that is legal and rare gives 0 too: it is decoded one by one.
    """
    if nbytes < _HEADER:
        return 0
    flags, typesize = calls.load_8(source + 2), calls.load_8(source + 3)
    block_nbytes = calls.load_32(source + 8)
    if (
        calls.load_8(source) != 2
        or flags & _RESERVED
        or flags >> 5 > blosc_frame.ZSTD
        or not typesize
        or not block_nbytes
        or calls.load_32(source + 4) != expected
        or calls.load_32(source + 12) != nbytes
    ):
        return 0
    if flags & _MEMCPYED:
        return 2 if nbytes == _HEADER + expected else 0
    n_splits = 1 if flags & _DONT_SPLIT else typesize
    if (
        block_nbytes > expected
        or block_nbytes % n_splits
        or flags >> 5 == _SNAPPY
        # The version of the stream format, which c-blosc wants to be 1.
        or calls.load_8(source + 1) != 1
        # Both filters at once mark another version of the format to libblosc2.
        or (flags & _SHUFFLE and flags & _BITSHUFFLE)
        # Libraries differ on whether such a block is split.
        or (n_splits > 1 and (n_splits > 16 or block_nbytes < 128 * typesize))
    ):
        return 0
    return _check_streams(source, nbytes, expected, block_nbytes, n_splits)


@njit(nogil=True)
def _check_streams(
    source: int, nbytes: int, expected: int, block_nbytes: int, n_splits: int
) -> int:
    """1 if every stream of a frame lies inside it, else 0."""
    n_full = expected // block_nbytes
    n_blocks = n_full + (1 if expected % block_nbytes else 0)
    first = _HEADER + 4 * n_blocks
    if first > nbytes:
        return 0
    is_blosclz = calls.load_8(source + 2) >> 5 == blosc_frame.BLOSCLZ
    for block in range(n_blocks):
        offset = calls.load_32(source + _HEADER + 4 * block)
        for _ in range(n_splits if block < n_full else 1):
            if offset < first or offset > nbytes - 4:
                return 0
            stream_nbytes = calls.load_32(source + offset)
            offset += 4 + stream_nbytes
            # To libblosc2 an empty stream is a run of zeros, to c-blosc it is damage.
            if (
                not stream_nbytes
                or offset > nbytes
                or (is_blosclz and stream_nbytes >= _BLOSCLZ_MAX)
            ):
                return 0
    return 1


@njit(nogil=True)
def _merge_axes(d: Decoder, box: Any, strides: Any, work: Any) -> tuple[int, int]:
    """Contiguous run of a box in bytes, and how many axes are left around it.

    Those stand in `work`, the innermost first: length, stride in the inner chunk,
    stride in the output.
    """
    part = box[PART]
    run, n = d.itemsize, 0
    for axis in range(strides.shape[2] - 1, -1, -1):
        length = box[FIRST_LENGTH + axis]
        if length == 1:
            continue
        inner, outer = strides[0, part, axis], strides[1, part, axis]
        if n == 0 and inner == run and outer == run:
            run *= length
        elif (
            n > 0
            and inner == work[1, n - 1] * work[0, n - 1]
            and outer == work[2, n - 1] * work[0, n - 1]
        ):
            work[0, n - 1] *= length
        else:
            work[0, n], work[1, n], work[2, n], work[3, n] = length, inner, outer, 0
            n += 1
    return run, n


@njit(nogil=True)
def _copy_run(d: Decoder, target: int, source: int, nbytes: int) -> None:
    """Contiguous elements from one address to another."""
    if d.change == COPY:
        calls.copy_bytes(target, source, nbytes)
    elif d.change == BOOL:
        for k in range(nbytes):
            calls.store_bool(target + k, calls.load_8(source + k))
    elif d.change == 2:
        for k in range(0, nbytes, 2):
            calls.swap_16(target + k, source + k)
    elif d.change == 4:
        for k in range(0, nbytes, 4):
            calls.swap_32(target + k, source + k)
    else:
        for k in range(0, nbytes, 8):
            calls.swap_64(target + k, source + k)


@njit(nogil=True)
def _copy_line(d: Decoder, target: int, source: int, run: int, line: Any) -> None:
    """Runs along the innermost of the axes that are left."""
    n, inner, outer = line[0, 0], line[1, 0], line[2, 0]
    if d.change or run > 8 or run & (run - 1):
        for k in range(n):
            _copy_run(d, target + k * outer, source + k * inner, run)
    elif run == 4:
        for k in range(n):
            calls.copy_32(target + k * outer, source + k * inner)
    elif run == 8:
        for k in range(n):
            calls.copy_64(target + k * outer, source + k * inner)
    elif run == 2:
        for k in range(n):
            calls.copy_16(target + k * outer, source + k * inner)
    else:
        for k in range(n):
            calls.copy_8(target + k * outer, source + k * inner)


@njit(nogil=True)
def _copy_box(
    d: Decoder, target: int, source: int, run: int, n_axes: int, work: Any
) -> None:
    """Elements of a box, as `_merge_axes` left it in `work`."""
    if n_axes == 0:
        _copy_run(d, target, source, run)
        return
    while True:
        _copy_line(d, target, source, run, work)
        axis = 1
        while axis < n_axes:
            source += work[1, axis]
            target += work[2, axis]
            work[3, axis] += 1
            if work[3, axis] < work[0, axis]:
                break
            source -= work[1, axis] * work[0, axis]
            target -= work[2, axis] * work[0, axis]
            work[3, axis] = 0
            axis += 1
        if axis == n_axes:
            return


def _compiled(stamp: int, *, keeps: bool) -> Any:
    """The loop; `keeps` it for other processes, which compare `stamp`."""

    @njit(nogil=True, cache=keeps)
    def place_boxes(
        d: Decoder, boxes: Any, strides: Any, work: Any, is_placed: Any
    ) -> int:
        decoded, before, before_nbytes = 0, 0, -1
        for i in range(boxes.shape[0]):
            box = boxes[i]
            source, nbytes, target = box[SOURCE], box[NBYTES], box[TARGET]
            run, n_axes = _merge_axes(d, box, strides, work)
            if source != before or nbytes != before_nbytes:
                is_whole = n_axes == 0 and run == d.chunk_nbytes and d.change == COPY
                decoded = _decode(d, source, nbytes, target if is_whole else d.scratch)
                before, before_nbytes = source, nbytes
            is_placed[i] = decoded != 0
            if decoded not in (0, target):
                _copy_box(d, target, decoded + box[OFFSET], run, n_axes, work)
        return stamp

    return place_boxes


def _sources_stamp() -> int:
    """Number of all that is compiled; numba looks at the age of one file alone."""
    names = ("calls.py", "columns.py", "loops.py")
    folder = Path(__file__).parent
    return crc32(b"".join((folder / name).read_bytes() for name in names))


def load_place_boxes() -> Any:
    """The loop over boxes, compiled.

    It takes what the chain and the thread have (`Decoder`); the boxes, int64, shape
    (n_boxes, FIRST_LENGTH + n_axes), in C order, those of one inner chunk side by side,
    so that it is decoded once; bytes between wanted neighbours in the inner chunk and
    in each output, int64, shape (2, n_parts, n_axes); room, int64, shape
    (4, WORK_AXES); and bool, shape (n_boxes,), which it sets to whether each box was
    decoded and copied.
    """
    stamp = _sources_stamp()
    try:
        return _warm(_compiled(stamp, keeps=True))
    except (RuntimeError, OSError):  # no folder, or a full one, to keep it in
        return _warm(_compiled(stamp, keeps=False))


def _warm(place_boxes: Any) -> Any:
    decoder = Decoder(*[0] * len(Decoder._fields))
    boxes = np.empty((0, FIRST_LENGTH + 1), np.int64)
    strides = np.empty((2, 1, 1), np.int64)
    work = np.empty((4, WORK_AXES), np.int64)
    place_boxes(decoder, boxes, strides, work, np.empty(0, np.bool_))
    return place_boxes
