"""Copies the elements of a box from a decoded inner chunk to an output (compiled)."""

from __future__ import annotations

from typing import Any

from gpushard.fused.columns import (
    BOOL,
    COPY,
    FILE,
    FIRST_CAST,
    FIRST_LENGTH,
    GAP_NBYTES,
    LIST_AXIS,
    LIST_FIRST,
    LIST_INNER,
    LIST_OUTER,
    LISTED,
    N_LISTED,
    PART,
    SOURCE,
    TARGET,
    WORK_AT,
    WORK_INNER,
    WORK_LENGTH,
    WORK_OUTER,
)
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.casts import cast_elements
from gpushard.fused.words import Decoder

# Parts of a box this far apart are read one by one: twice what another call costs.
_APART_NBYTES = 2 * GAP_NBYTES
# Runs from 16 bytes up to this are copied without a call. For rows that no cache holds,
# a call takes nearly twice as long (64 bytes: 33 ns instead of 20).
_LARGEST_INLINE_NBYTES = 512
# The elements of a list may go anywhere in an output that no cache holds. From this
# size on they are written past the caches, which then need not fetch what is
# overwritten.
_SMALLEST_STREAMED_NBYTES = 512


@calls.inner
def is_shared(boxes: Any, i: int, stop: int) -> bool:
    """Whether the next box before `stop` copies from the same inner chunk.

    Its output may overlap that of box `i`.
    """
    box, n = boxes[i], i + 1
    if n >= stop or boxes[n, FILE] != box[FILE]:
        return False
    return boxes[n, SOURCE] == box[SOURCE]


@calls.inner
def merge_axes(d: Decoder, box: Any, strides: Any, work: Any) -> tuple[int, int]:
    """Contiguous run of a box in bytes, and the number of axes that remain around it.

    The remaining axes are written to `work` (see `columns.WORK_LENGTH`), the innermost
    first. The axis of a list is not among them.
    """
    part = box[PART]
    listed = calls.word(box[LISTED], LIST_AXIS) if box[LISTED] else -1
    run, out_run, n = d.itemsize, d.out_itemsize, 0
    for axis in range(strides.shape[2] - 1, -1, -1):
        length = box[FIRST_LENGTH + axis]
        if length == 1 or axis == listed:
            continue
        inner, outer = strides[0, part, axis], strides[1, part, axis]
        if n == 0 and inner == run and outer == out_run:
            run *= length
            out_run *= length
        elif (
            n > 0
            and inner == work[WORK_INNER, n - 1] * work[WORK_LENGTH, n - 1]
            and outer == work[WORK_OUTER, n - 1] * work[WORK_LENGTH, n - 1]
        ):
            work[WORK_LENGTH, n - 1] *= length
        else:
            work[WORK_LENGTH, n], work[WORK_AT, n] = length, 0
            work[WORK_INNER, n], work[WORK_OUTER, n] = inner, outer
            n += 1
    return run, n


@calls.inner
def far_axis(run: int, n_axes: int, work: Any) -> tuple[int, int]:
    """Axis along which parts of a box lie far apart, and the bytes of each part.

    This is the innermost such axis that `merge_axes` left; 0 bytes if there is none.
    """
    nbytes = run
    for axis in range(n_axes):
        if work[WORK_INNER, axis] - nbytes > _APART_NBYTES:
            for outer in range(axis + 1, n_axes):
                # In a transposed inner chunk, the bytes between are wanted, too.
                if work[WORK_INNER, outer] < work[WORK_INNER, axis]:
                    return 0, 0
            return axis, nbytes
        nbytes += (work[WORK_LENGTH, axis] - 1) * work[WORK_INNER, axis]
    return 0, 0


@calls.inner
def _copy_inline(target: int, source: int, nbytes: int) -> None:
    """Copy at least 16 bytes; the last 16 may overlap those before."""
    last = nbytes - 16
    for k in range(0, last, 16):
        calls.copy_128(target + k, source + k)
    calls.copy_128(target + last, source + last)


@calls.inner
def _copy_run(d: Decoder, target: int, source: int, nbytes: int) -> None:
    """Copy contiguous elements from one address to another."""
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
    elif d.change >= FIRST_CAST:
        cast_elements(d.change, target, source, nbytes, d.itemsize)
    else:
        for k in range(0, nbytes, 8):
            calls.swap_64(target + k, source + k)


@calls.inner
def _copy_words(target: int, source: int, run: int, line: Any) -> None:
    """Like `_copy_line`, for runs of 1, 2, 4 or 8 bytes."""
    n, inner, outer = line[WORK_LENGTH, 0], line[WORK_INNER, 0], line[WORK_OUTER, 0]
    if run == 4:
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


@calls.inner
def _swap_words(change: int, target: int, source: int, line: Any) -> None:
    """Like `_copy_words`, for elements of `change` bytes to reverse, and booleans."""
    n, inner, outer = line[WORK_LENGTH, 0], line[WORK_INNER, 0], line[WORK_OUTER, 0]
    if change == 4:
        for k in range(n):
            calls.swap_32(target + k * outer, source + k * inner)
    elif change == 8:
        for k in range(n):
            calls.swap_64(target + k * outer, source + k * inner)
    elif change == 2:
        for k in range(n):
            calls.swap_16(target + k * outer, source + k * inner)
    else:
        for k in range(n):
            calls.store_bool(target + k * outer, calls.load_8(source + k * inner))


@calls.inner
def _change_line(d: Decoder, target: int, source: int, run: int, line: Any) -> None:
    """Like `_copy_line`, for elements that change."""
    n, inner, outer = line[WORK_LENGTH, 0], line[WORK_INNER, 0], line[WORK_OUTER, 0]
    is_cast = d.change >= FIRST_CAST and run == d.itemsize
    if is_cast and outer == d.out_itemsize:
        cast_elements(d.change, target, source, n * run, inner)
    elif is_cast and outer == -d.out_itemsize:
        to, at = target + (n - 1) * outer, source + (n - 1) * inner
        cast_elements(d.change, to, at, n * run, -inner)
    elif d.change == run and d.change < FIRST_CAST:  # `BOOL` is 1, as its size
        _swap_words(d.change, target, source, line)
    else:
        for k in range(n):
            _copy_run(d, target + k * outer, source + k * inner, run)


@calls.inner
def _copy_line(d: Decoder, target: int, source: int, run: int, line: Any) -> None:
    """Copy the runs along the innermost remaining axis."""
    n, inner, outer = line[WORK_LENGTH, 0], line[WORK_INNER, 0], line[WORK_OUTER, 0]
    if d.change:
        _change_line(d, target, source, run, line)
    elif d.writes_past_cache and (run | target | outer) & 63 == 0:
        for k in range(n):
            to, at = target + k * outer, source + k * inner
            for i in range(0, run, 64):
                calls.stream_512(to + i, at + i)
    elif 16 <= run <= _LARGEST_INLINE_NBYTES:
        for k in range(n):
            _copy_inline(target + k * outer, source + k * inner, run)
    elif run > 8 or run & (run - 1):
        for k in range(n):
            calls.copy_bytes(target + k * outer, source + k * inner, run)
    else:
        _copy_words(target, source, run, line)


@calls.inner
def copy_box(
    d: Decoder, target: int, source: int, run: int, n_axes: int, work: Any
) -> None:
    """Copy the elements of a box whose axes `merge_axes` left in `work`."""
    if n_axes == 0:
        _copy_run(d, target, source, run)
        return
    is_done = False
    while not is_done:
        _copy_line(d, target, source, run, work)
        target, source, is_done = next_line(target, source, (1, n_axes), work)


@calls.inner
def next_line(
    target: int, source: int, axes: tuple[int, int], work: Any
) -> tuple[int, int, bool]:
    """Start of the next line of a box in output and inner chunk, and if it is the end.

    A line has all runs along the axes before the first of `axes`.
    """
    axis, n_axes = axes
    while axis < n_axes:
        source += work[WORK_INNER, axis]
        target += work[WORK_OUTER, axis]
        work[WORK_AT, axis] += 1
        if work[WORK_AT, axis] < work[WORK_LENGTH, axis]:
            return target, source, False
        source -= work[WORK_INNER, axis] * work[WORK_LENGTH, axis]
        target -= work[WORK_OUTER, axis] * work[WORK_LENGTH, axis]
        work[WORK_AT, axis] = 0
        axis += 1
    return target, source, True


@calls.inner
def copy_wanted(
    d: Decoder, box: Any, source: int, left: tuple[int, int], strides: Any, work: Any
) -> None:
    """Copy the elements that a box wants: all of it, or those of a list.

    `source` is the address of the first wanted element, and `left` is the result of
    `merge_axes`.
    """
    run, n_axes = left
    target, listed = box[TARGET], box[LISTED]
    n, inner, outer, is_streamed = 1, 0, 0, False
    first, inner_at, outer_at = 0, 0, 0
    if listed:
        first = calls.word(listed, LIST_FIRST)
        inner_at, outer_at = (
            calls.word(listed, LIST_INNER),
            calls.word(listed, LIST_OUTER),
        )
        n, axis = calls.word(listed, N_LISTED), calls.word(listed, LIST_AXIS)
        inner, outer = strides[0, box[PART], axis], strides[1, box[PART], axis]
        # Every write then starts and ends at a multiple of 16 bytes.
        is_streamed = (
            d.change == COPY
            and n_axes == 0
            and run >= _SMALLEST_STREAMED_NBYTES
            and (run | target | outer) & 15 == 0
        )
    # There is only one call of each function, so that it is inlined.
    for k in range(n):
        at, to = source, target
        if listed:
            at += (calls.word(inner_at, k) - first) * inner
            to += calls.word(outer_at, k) * outer
        if is_streamed:
            for i in range(0, run, 16):
                calls.stream_128(to + i, at + i)
        else:
            copy_box(d, to, at, run, n_axes, work)
