"""Long ascending lists of elements along one axis -> runs around them, to pick from.

A mask of an axis, or a sorted list, often takes many of the elements of the inner
chunks that it touches. Columns say for each element where it lies and where it lands.
Making them takes longer than reading these inner chunks whole, and having NumPy pick
the elements: docs/decisions/2026-11-29-ascending-lists.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.fused.points import is_flat
from gpushard.layout import GridAxis
from gpushard.placing.outputs import new_output
from gpushard.planning.axes import LONG_CELLS
from gpushard.reading.crossed import most_added_nbytes, takes_others
from gpushard.reading.rounds import Reader
from gpushard.selecting.listing import elements_changed
from gpushard.selecting.numbering import Ints, distinct
from gpushard.selecting.selection import AxisSelection, Listed, Orthogonal, SliceAxis
from gpushard.source import Source

# Elements that are read and picked from in the time in which one is listed; and in
# which a run is begun.
_MANY_PER_ELEMENT, _MANY_PER_RUN = 8, 1 << 14
# Longer rows gain nothing, as they are copied twice.
_MOST_ROW_NBYTES = 16
# The part of the memory limit that runs may take; and how many there may be, each of
# which takes 2 KiB of columns.
_RUNS_SHARE, _MOST_RUNS = 4, 1 << 10


class Run(NamedTuple):
    """Elements ``first:last`` along the axis, which are read to ``at`` and onwards."""

    first: int
    last: int
    at: int


class Touched(NamedTuple):
    """Inner chunks along the axis that have listed elements, all of ``first:last``.

    Attributes
    ----------
    cell
        int64, shape (n_cells,), ascending.
    """

    cell: Ints
    first: int
    last: int


def read_runs(source: Source, listed: Listed, out: NDArray[Any], read: Reader) -> bool:
    """Whether a list could be read into `out` from runs around its elements.

    Every inner chunk of a run has listed elements, and each shard is read once.

    Raises
    ------
    SelectionError
        The list was changed while it was read.
    """
    if not _may_have_runs(source, listed, out):
        return False
    touched = _touched(source, listed)
    groups = None if touched is None else _groups(source, listed, touched, out.dtype)
    if groups is None:
        return False
    target = out.reshape(-1) if listed.around is None else listed.around.on_grid(out)
    try:
        _pick(listed, _read_groups(source, listed, groups, out.dtype, read), target)
    except LimitError:  # inner chunks do not fit beside the runs
        return False
    return True


def _may_have_runs(source: Source, listed: Listed, out: NDArray[Any]) -> bool:
    """Whether elements lie along one axis, and can be copied twice in little time."""
    if listed.around is None and not (source.layout.ndim == 1 and is_flat(out)):
        return False
    if not takes_others(source, out.dtype):
        return False
    itemsize = max(source.layout.dtype.itemsize, out.dtype.itemsize)
    row_nbytes = prod(_others(listed)) * itemsize
    return 0 < row_nbytes <= _MOST_ROW_NBYTES


def _others(listed: Listed) -> list[int]:
    """Number of elements taken along each other axis, and 1 along the listed one."""
    if listed.around is None:
        return [1]
    lengths = listed.around.grid_shape
    return [1 if d == listed.axis else n for d, n in enumerate(lengths)]


def _touched(source: Source, listed: Listed) -> Touched | None:
    """Inner chunks that a list touches; None if it does not ascend, or has long gaps.

    A gap is long if so many plain elements would not be fetched without need.
    """
    axis = source.layout.inner_axes[listed.axis]
    most_step = axis.extent
    if source.raw_strides is not None:
        most_step = most_added_nbytes(source) // source.raw_strides[listed.axis]
    first = last = -1
    cells: list[Ints] = []
    for number in range(listed.listing.n_blocks):
        ((element,), _) = listed.listing.block(number)
        if not len(element):
            continue
        first = int(element[0]) if first < 0 else first
        steps = np.diff(element, prepend=first if last < 0 else last)
        if steps.min() < 0 or steps.max() > most_step:
            return None
        last = int(element[-1])
        cells.append(_cells_of(element, axis))
        if sum(map(len, cells)) > LONG_CELLS:
            return None
    return Touched(distinct(np.concatenate(cells)), first, last + 1)


def _cells_of(element: Ints, axis: GridAxis) -> Ints:
    """The different cells of ascending elements."""
    cell: Ints = axis.cell_at(element[[0, -1]])
    if cell[0] == cell[1]:
        return cell[:1]
    cell = axis.cell_at(element)
    return cell[np.append(True, cell[1:] != cell[:-1])]


def _groups(
    source: Source, listed: Listed, touched: Touched, dtype: np.dtype[Any]
) -> list[list[Run]] | None:
    """Runs of touched inner chunks, those of some whole shards at a time.

    None if listing the elements takes less time, or the runs of a shard more memory
    than there is.
    """
    cell = touched.cell
    inner, outer = (
        axes[listed.axis] for axes in (source.layout.inner_axes, source.layout.axes)
    )
    start = inner.start_of(cell)
    first = np.maximum(start, touched.first)
    last = np.minimum(start + inner.length_of(cell), touched.last)
    is_begin = np.append(True, np.diff(cell) != 1)
    ends = np.cumsum(last - first)
    n_runs = np.count_nonzero(is_begin)
    n_equal = int(ends[-1]) + _MANY_PER_RUN * n_runs
    if n_runs > _MOST_RUNS or n_equal > _MANY_PER_ELEMENT * listed.listing.n_elements:
        return None
    row_nbytes = prod(_others(listed)) * dtype.itemsize
    most = source.options.memory_limit // _RUNS_SHARE // row_nbytes
    cuts = _cuts(ends, outer.cell_at(start), most)
    if cuts is None:
        return None
    is_begin[cuts[:-1]] = True
    groups: list[list[Run]] = []
    for begin, end in pairwise(cuts):
        begins = begin + np.flatnonzero(is_begin[begin:end])
        bounds = first[begins], last[np.append(begins[1:], end) - 1]
        at = np.append(0, np.cumsum(bounds[1] - bounds[0])[:-1])
        columns = (*bounds, at)
        groups.append([Run(*run) for run in np.stack(columns, axis=1).tolist()])
    return groups


def _cuts(ends: Ints, shard: Ints, most: int) -> list[int] | None:
    """Where groups of whole shards begin among inner chunks, and the last one ends.

    Each has at most `most` elements. None if one shard has more.

    Parameters
    ----------
    ends
        int64, shape (n_cells,). Sums of the elements of the inner chunks.
    shard
        Same shape. The shard of each, ascending.
    """
    cuts, done = [0], 0
    while cuts[-1] < len(ends):
        last = int(ends.searchsorted(done + most, side="right"))
        if last < len(ends):  # back to where its shard begins
            last = int(shard.searchsorted(shard[last]))
        if last <= cuts[-1]:
            return None
        cuts.append(last)
        done = int(ends[last - 1])
    return cuts


def _read_groups(
    source: Source,
    listed: Listed,
    groups: Sequence[Sequence[Run]],
    dtype: np.dtype[Any],
    read: Reader,
) -> Iterator[tuple[Run, NDArray[Any]]]:
    """Each run, with what it and the others of its group were read to.

    What was read is overwritten when the next group is.
    """
    shape = _others(listed)
    lengths = [runs[-1].at + runs[-1].last - runs[-1].first for runs in groups]
    memory = new_output((prod(shape) * max(lengths),), dtype)
    beside = source.beside(memory.nbytes)
    along = (slice(None),) * listed.axis
    for runs, length in zip(groups, lengths, strict=True):
        shape[listed.axis] = length
        grid = memory[: prod(shape)].reshape(shape)
        parts = [grid[(*along, slice(at, at + b - a))] for a, b, at in runs]
        selections = [_around(listed, run) for run in runs]
        read(beside, selections, parts)
        for run in runs:
            yield run, grid


def _around(listed: Listed, run: Run) -> Orthogonal:
    """Selection of a run, with no axis dropped."""
    axes: list[AxisSelection] = [SliceAxis(0, 1, 0)]
    if listed.around is not None:
        axes = [
            axis._replace(drop=False) if isinstance(axis, SliceAxis) else axis
            for axis in listed.around.axes
        ]
    axes[listed.axis] = SliceAxis(run.first, 1, run.last - run.first)
    return Orthogonal(tuple(axes), tuple(axis.length for axis in axes))


def _pick(
    listed: Listed, runs: Iterator[tuple[Run, NDArray[Any]]], target: NDArray[Any]
) -> None:
    """Copy the listed elements to their places along the axis of `target`."""
    along = (slice(None),) * listed.axis
    run, grid = _next_of(runs)
    for number in range(listed.listing.n_blocks):
        ((element,), place) = listed.listing.block(number)
        done = 0
        while done < len(element):
            while element[done] >= run.last:
                run, grid = _next_of(runs)
            end = done + int(element[done:].searchsorted(run.last))
            some = element[done:end]
            if some.min() < run.first or some.max() >= run.last:
                raise elements_changed()
            landing = slice(int(place[done]), int(place[end - 1]) + 1)
            found = grid.take(some - (run.first - run.at), axis=listed.axis)
            target[(*along, landing)] = found
            done = end


def _next_of(runs: Iterator[tuple[Run, NDArray[Any]]]) -> tuple[Run, NDArray[Any]]:
    """The next run; all elements lay in runs when the list was looked at first."""
    for found in runs:
        return found
    raise elements_changed()
