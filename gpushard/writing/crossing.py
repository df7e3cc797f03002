"""Cells of a grid that a cross product of axes is cut into, few at a time.

Each cell along an axis is a Python object. Those of a short axis are made once, those
of a long axis one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gpushard.layout import GridAxis
from gpushard.selecting.projection import Projection, project
from gpushard.selecting.selection import AxisSelection, IndexAxis, SliceAxis

# Cells along an axis whose objects are held, of 300 bytes each; of a slice along a
# longer axis, columns are made of so many cells at a time.
_MOST_CELLS = 1 << 12

Cut = tuple[int, AxisSelection]
"""A cell along an axis, and what is taken of it, counted from its first element."""


def crossed_cells(
    parts: Sequence[AxisSelection], grid: Sequence[GridAxis]
) -> Iterator[tuple[Cut, ...]]:
    """Cells of `grid` with elements of all `parts`, in C order: a cut an axis."""
    if not all(part.length for part in parts):
        return iter(())  # which the walk along a long axis would find cell by cell
    columns = [_cuts(part, axis) for part, axis in zip(parts, grid, strict=True)]
    return _crossed(columns)


def _crossed(columns: Sequence[Iterable[Cut]]) -> Iterator[tuple[Cut, ...]]:
    long = (d for d, column in enumerate(columns) if not isinstance(column, list))
    d = next(long, None)
    if d is None:
        yield from product(*columns)
        return
    for head in product(*columns[:d]):
        for one in columns[d]:
            for tail in _crossed(columns[d + 1 :]):
                yield (*head, one, *tail)


def _cuts(part: AxisSelection, axis: GridAxis) -> Iterable[Cut]:
    """The cuts along an axis: a list of them, unless they are many."""
    if isinstance(part, IndexAxis) or _n_spanned(part, axis) <= _MOST_CELLS:
        found = _Projected(project(part, axis))
        return list(found) if found.columns.n_cells <= _MOST_CELLS else found
    return _Sliced(part, axis)


def _n_spanned(part: SliceAxis, axis: GridAxis) -> int:
    """Number of cells from the first to the last that a slice touches."""
    if part.length <= _MOST_CELLS:
        return part.length
    return int(axis.cell_at(part.last)) - int(axis.cell_at(part.start)) + 1


@dataclass(frozen=True, slots=True)
class _Projected:
    """Cuts made of columns over all touched cells, as often as they are asked for."""

    columns: Projection

    def __iter__(self) -> Iterator[Cut]:
        found = self.columns
        members = found.members
        for i, cell in enumerate(found.cell.tolist()):
            if members is not None:
                some = slice(int(members.bounds[i]), int(members.bounds[i + 1]))
                yield cell, IndexAxis(members.in_index[some], members.out_index[some])
            elif found.length[i] > 0:
                start, length = int(found.in_start[i]), int(found.length[i])
                out_start = int(found.out_start[i])
                yield (
                    cell,
                    SliceAxis(start, found.step, length, out_start, found.out_step),
                )


@dataclass(frozen=True, slots=True)
class _Sliced:
    """Cuts of a slice over very many cells, as often as they are asked for."""

    part: SliceAxis
    axis: GridAxis

    def __iter__(self) -> Iterator[Cut]:
        for run in self._runs():
            yield from _Projected(project(run, self.axis))

    def _runs(self) -> Iterator[SliceAxis]:
        """Parts of the slice in so many cells each, one after the other."""
        start, step, length, out_start, out_step, _ = self.part
        first = 0
        while first < length:
            here = start + first * step
            beyond = int(self.axis.cell_at(here)) + _MOST_CELLS
            last = length
            if beyond < self.axis.n_cells:
                end = int(self.axis.start_of(beyond))
                last = min(length, self.part.n_before(end))
            out_first = out_start + first * out_step
            yield SliceAxis(here, step, last - first, out_first, out_step)
            first = last
