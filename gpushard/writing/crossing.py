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

# Cells along an axis whose objects are held, of 300 bytes each.
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
    if isinstance(part, IndexAxis):
        found = _Listed(project(part, axis))
        return list(found) if found.columns.n_cells <= _MOST_CELLS else found
    cuts = _Sliced(part, axis)
    return list(cuts) if _n_spanned(part, axis) <= _MOST_CELLS else cuts


def _n_spanned(part: SliceAxis, axis: GridAxis) -> int:
    """Number of cells from the first to the last that a slice touches."""
    if part.length <= _MOST_CELLS:
        return part.length
    return int(axis.cell_at(part.last)) - int(axis.cell_at(part.start)) + 1


@dataclass(frozen=True, slots=True)
class _Listed:
    """Cuts of listed elements, made of columns, as often as they are asked for."""

    columns: Projection

    def __iter__(self) -> Iterator[Cut]:
        members = self.columns.members
        assert members is not None  # noqa: S101 - as of all listed elements
        for i, cell in enumerate(self.columns.cell.tolist()):
            some = slice(int(members.bounds[i]), int(members.bounds[i + 1]))
            yield cell, IndexAxis(members.in_index[some], members.out_index[some])


@dataclass(frozen=True, slots=True)
class _Sliced:
    """Cuts of a slice, as often as they are asked for.

    They are few as a rule, for which columns would take longer than plain integers.
    """

    part: SliceAxis
    axis: GridAxis

    def __iter__(self) -> Iterator[Cut]:
        part, axis = self.part, self.axis
        start, step, length, out_start, out_step, _ = part
        first = 0
        while first < length:
            here = start + first * step
            cell = int(axis.cell_at(here))
            begin = int(axis.start_of(cell))
            end = begin + int(axis.length_of(cell))
            last = min(length, part.n_before(end))
            out_first = out_start + first * out_step
            yield cell, SliceAxis(here - begin, step, last - first, out_first, out_step)
            first = last
