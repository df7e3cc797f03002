"""Projections and shard indexes -> boxes, in a compiled loop.

For an array with one sharding level, this does box by box what `grid`, `locate` and
`boxes` do step by step with columns over a whole block. Like `loops`, it is imported
only once reads pay for it.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused import columns
from gpushard.fused.columns import (
    CELL,
    CELL_ROWS,
    CHUNK_STRIDE,
    END,
    ENTRY,
    FILE,
    FILLED,
    FIRST,
    FIRST_LENGTH,
    HANDLE,
    HIGH,
    INDEX_STRIDE,
    INNER,
    KEEP,
    LENGTH,
    LIST,
    LISTED,
    LOW,
    N_CELLS,
    N_ELEMENTS,
    N_SHARDS,
    NBYTES,
    NO_FILE,
    OBJECTS,
    OFFSET,
    OFFSETS,
    ORDINAL,
    OUT_OFFSET,
    OUTER,
    OUTER_STEP,
    PART,
    PER_SHARD,
    SIZES,
    SOURCE,
    STATES,
    STEP,
    TARGET,
)
from gpushard.fused.compiled import calls
from gpushard.fused.words import PlanParameters
from gpushard.planning.index import CORRUPT, MISSING

sorting_words = calls.inner(columns.sorting_words)


@calls.inner
def _byte_range(p: PlanParameters, shard: Any, ordinal: int) -> tuple[int, int, int]:
    """State, start and size of an inner chunk; anything unusual is `CORRUPT`."""
    if not shard[OFFSETS]:
        return MISSING, 0, 0
    state = calls.load_8(shard[STATES] + ordinal)
    start = calls.load_64(shard[OFFSETS] + 8 * ordinal)
    nbytes = calls.load_64(shard[SIZES] + 8 * ordinal)
    is_odd = nbytes > p.limit_nbytes or (p.is_plain and nbytes != p.chunk_nbytes)
    if state != MISSING and is_odd:
        return CORRUPT, 0, 0
    return state, start, nbytes


@calls.inner
def _put_bytes(
    p: PlanParameters, box: Any, shard: Any, ordinal: int, extent_nbytes: int
) -> bool:
    """Write the place of a box's bytes; False if its index entry is unusable."""
    box[ENTRY], box[KEEP] = ordinal, 0
    if shard[HANDLE] == OBJECTS:
        box[SOURCE], box[NBYTES], box[FILE] = 0, 0, NO_FILE
        box[LOW], box[HIGH] = ordinal, ordinal  # brings the boxes of a file together
        return True
    state, start, nbytes = _byte_range(p, shard, ordinal)
    if state == CORRUPT:
        return False
    if state == MISSING:
        box[SOURCE], box[NBYTES], box[FILE] = p.fill, p.chunk_nbytes, FILLED
        box[LOW], box[HIGH] = 0, 0
        return True
    box[SOURCE], box[NBYTES], box[FILE] = start, nbytes, shard[HANDLE]
    box[LOW], box[HIGH] = start, start + nbytes
    if p.is_plain:
        box[LOW] = start + box[OFFSET]
        box[HIGH] = box[LOW] + extent_nbytes
    return True


@calls.inner
def _plan_shard(
    p: PlanParameters, strides: Any, cells: Any, ranges: Any, shard: Any, boxes: Any
) -> bool:
    """Write the boxes of one shard, in C order; False if its index is unusable."""
    first, count = ranges[0], ranges[1]
    n_axes = len(count)
    at = calls.ints(p.work, (n_axes,))
    for axis in range(n_axes):
        at[axis] = 0
    for k in range(boxes.shape[0]):
        box = boxes[k]
        ordinal, offset, target = 0, 0, p.target
        extent_nbytes, listed = p.itemsize, 0
        for axis in range(n_axes):
            cell = first[axis] + at[axis]
            ordinal += cells[ORDINAL, cell]
            offset += cells[INNER, cell]
            target += cells[OUTER, cell]
            length = cells[LENGTH, cell]
            extent_nbytes += (length - 1) * strides[0, 0, axis]
            box[FIRST_LENGTH + axis] = length
            listed |= cells[LIST, cell]  # only one axis can have a list
        box[OFFSET], box[TARGET], box[PART] = offset, target, 0
        box[LISTED] = listed
        if not _put_bytes(p, box, shard, ordinal, extent_nbytes):
            return False
        axis = n_axes - 1
        while axis >= 0:
            at[axis] += 1
            if at[axis] < count[axis]:
                break
            at[axis] = 0
            axis -= 1
    return True


# Plain loops, because NumPy's argsort took a third of numba's compilation time,
# together with an assignment to a slice, whose error message contains shapes.
@calls.inner
def _merge(boxes: Any, order: Any, start: int, width: int, merged: Any) -> None:
    """Merge two adjacent runs of `width` sorted boxes; equal ones stay in order."""
    middle = min(start + width, len(order))
    stop = min(middle + width, len(order))
    left, right = start, middle
    for k in range(start, stop):
        takes_right = right < stop and (
            left == middle or boxes[order[right], LOW] < boxes[order[left], LOW]
        )
        if takes_right:
            merged[k] = order[right]
            right += 1
        else:
            merged[k] = order[left]
            left += 1


@calls.inner
def _order(boxes: Any, order: Any, merged: Any) -> Any:
    """Numbers of a shard's boxes, sorted by the bytes that they need."""
    n, width = boxes.shape[0], 1
    for k in range(n):
        order[k] = k
    while width < n:
        start = 0
        while start < n:
            _merge(boxes, order, start, width, merged)
            start += 2 * width
        order, merged = merged, order
        width *= 2
    return order


@calls.inner
def _sort(boxes: Any, work: int) -> None:
    """Sort a shard's boxes by the bytes that they need."""
    n, n_columns = boxes.shape
    for k in range(1, n):
        if boxes[k, LOW] < boxes[k - 1, LOW]:
            numbers = calls.ints(work, (2, n))
            order = _order(boxes, numbers[0], numbers[1])
            unsorted = calls.ints(work + 8 * numbers.size, (n, n_columns))
            for i in range(n):
                for column in range(n_columns):
                    unsorted[i, column] = boxes[i, column]
            for i in range(n):
                for column in range(n_columns):
                    boxes[i, column] = unsorted[order[i], column]
            return


@calls.inner
def _put_cell(axis: Any, element: int, outer: int, length: int, column: Any) -> int:
    """Write the cell of a given first wanted element; return the cell's shard."""
    cell = element // axis[CELL]
    column[ORDINAL] = cell % axis[PER_SHARD] * axis[INDEX_STRIDE]
    column[INNER] = (element - cell * axis[CELL]) * axis[CHUNK_STRIDE]
    column[OUTER] = outer
    column[LENGTH], column[LIST] = length, 0
    return cell // axis[PER_SHARD]


@calls.inner
def _lay_slice(axis: Any, done: int, cells: Any, spans: Any) -> int:
    """Write the cells that a slice touches, and the span of each shard's cells."""
    s, before, k = -1, -1, 0
    while k < axis[N_ELEMENTS]:
        element = axis[FIRST] + k * axis[STEP]
        left = axis[CELL] - 1 - element % axis[CELL]
        n = min(axis[N_ELEMENTS] - k, left // axis[STEP] + 1)
        outer = axis[OUT_OFFSET] + k * axis[OUTER_STEP]
        shard = _put_cell(axis, element, outer, n, cells[:, done])
        if shard != before:
            before = shard
            s += 1
            spans[0, s], spans[1, s] = done, 0
        spans[1, s] += 1
        k += n
        done += 1
    return done


@calls.inner
def _lay_index(axis: Any, elements: Any, done: int, cells: Any, spans: Any) -> int:
    """Like `_lay_slice`, for ascending elements; each run of them is a cell."""
    s, before, next_element, next_out = -1, -1, -1, -1
    for k in range(axis[FIRST], axis[FIRST] + axis[N_ELEMENTS]):
        element, out = elements[0, k], elements[1, k]
        is_next = element == next_element and out == next_out
        if is_next and element % axis[CELL]:
            cells[LENGTH, done - 1] += 1
        else:
            outer = out * axis[OUTER_STEP]
            shard = _put_cell(axis, element, outer, 1, cells[:, done])
            if shard != before:
                before = shard
                s += 1
                spans[0, s], spans[1, s] = done, 0
            spans[1, s] += 1
            done += 1
        next_element, next_out = element + 1, out + 1
    return done


@calls.inner
def _lay_axes(axes: Any, elements: Any, cells: Any, spans: Any) -> int:
    """Write the cells of all axes; return the number of boxes in their product."""
    n_boxes, before = 1, 0
    for a in range(axes.shape[1]):
        axis = axes[:, a]
        if axis[STEP]:
            done = _lay_slice(axis, before, cells, spans[a])
        else:
            done = _lay_index(axis, elements, before, cells, spans[a])
        n_boxes *= done - before
        before = done
    return n_boxes


@calls.inner
def _cross(axes: Any, spans: Any, ranges: Any) -> None:
    """Write the ranges of cells of each shard, from the spans along each axis."""
    for s in range(ranges.shape[1]):
        rest = s
        for axis in range(axes.shape[1] - 1, -1, -1):
            at = rest % axes[N_SHARDS, axis]
            rest //= axes[N_SHARDS, axis]
            ranges[0, s, axis] = spans[axis, 0, at]
            ranges[1, s, axis] = spans[axis, 1, at]


@calls.inner
def plan_boxes(
    p: PlanParameters, strides: Any, cells: Any, ranges: Any, shards: Any, boxes: Any
) -> None:
    """Write the boxes of shards, and set `END` of each shard.

    `strides` are as in `loops.place_boxes`. `cells` has the cells of all axes, int64,
    shape (CELL_ROWS, n_cells). `ranges` has the first cell and the number of cells of
    each shard along each axis, int64, shape (2, n_shards, n_axes). `shards` is int64,
    shape (n_shards, SHARD_COLUMNS). The memory must have `sorting_words` of the largest
    shard. A shard whose index is unusable gets no boxes.
    """
    done = 0
    for s in range(len(shards)):
        n = 1
        for axis in range(ranges.shape[2]):
            n *= ranges[1, s, axis]
        some = boxes[done : done + n]
        if _plan_shard(p, strides, cells, ranges[:, s], shards[s], some):
            _sort(some, p.work)
            done += n
        shards[s, END] = done


@calls.inner
def plan_axes(
    p: PlanParameters, strides: Any, axes: Any, elements: Any, shards: Any, boxes: Any
) -> int:
    """Lay out axes, then do as `plan_boxes`; returns the number of boxes they make.

    `axes` is int64, shape (AXIS_ROWS, n_axes). `elements` are those that indexes take,
    ascending along each axis, and their places in the output, int64, shape
    (2, n_elements). The memory must have `columns.laying_words`.
    """
    n_axes, n_cells, most_shards = axes.shape[1], 0, 0
    for axis in range(n_axes):
        n_cells += axes[N_CELLS, axis]
        most_shards = max(most_shards, axes[N_SHARDS, axis])
    at = p.work + 8 * sorting_words(boxes.shape[0], boxes.shape[1])
    cells = calls.ints(at, (CELL_ROWS, n_cells))
    at += 8 * cells.size
    spans = calls.ints(at, (n_axes, 2, most_shards))
    at += 8 * spans.size
    ranges = calls.ints(at, (2, len(shards), n_axes))
    n_boxes = _lay_axes(axes, elements, cells, spans)
    _cross(axes, spans, ranges)
    plan_boxes(p, strides, cells, ranges, shards, boxes)
    return n_boxes


@calls.inner
def plan_points(
    p: PlanParameters, axes: Any, points: Any, shards: Any, boxes: Any
) -> None:
    """Do as `plan_boxes` with a box per point.

    `points` is int64, shape (2 + n_axes, n_points), sorted by shard. Its rows are the
    number of the shard, the place in the output in bytes, and the coordinates.
    """
    done, k = 0, 0
    for s in range(len(shards)):
        first = done
        is_sound = True
        while k < points.shape[1] and points[0, k] == s:
            box = boxes[done]
            ordinal, offset = 0, 0
            for axis in range(axes.shape[1]):
                element = points[2 + axis, k]
                cell = element // axes[CELL, axis]
                nth = cell % axes[PER_SHARD, axis]
                ordinal += nth * axes[INDEX_STRIDE, axis]
                within = element - cell * axes[CELL, axis]
                offset += within * axes[CHUNK_STRIDE, axis]
                box[FIRST_LENGTH + axis] = 1
            box[OFFSET], box[PART], box[LISTED] = offset, 0, 0
            box[TARGET] = p.target + points[1, k]
            is_sound &= _put_bytes(p, box, shards[s], ordinal, p.itemsize)
            done += 1
            k += 1
        if is_sound:
            _sort(boxes[first:done], p.work)
        else:
            done = first
        shards[s, END] = done
