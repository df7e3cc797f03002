"""The window of a rolling array: its arithmetic in whole stored objects, and keys.

Logical coordinates count elements from where the array once began. They may be
negative, and the element at a coordinate never moves. A window is a box of coordinates.
It starts where a stored object starts; the origin is the coordinate of that object.
``a.at[...]`` takes keys in logical coordinates.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from gpushard.arguments import integer
from gpushard.errors import OptionError, SelectionError
from gpushard.layout import MAX_LENGTH, ArrayLayout, Coordinate, in_c_order


@dataclass(frozen=True, slots=True)
class Window:
    """The box of logical coordinates that an array covers.

    Attributes
    ----------
    origin
        Coordinate of the first stored object.
    shape
        Length along each axis, in elements.
    cells
        Length of a stored object along each axis, in elements.
    """

    origin: Coordinate
    shape: tuple[int, ...]
    cells: tuple[int, ...]

    @classmethod
    def of(cls, layout: ArrayLayout) -> Window:
        """Window of an array with a regular chunk grid."""
        origin = layout.keys.offset or (0,) * layout.ndim
        return cls(origin, layout.shape, tuple(axis.cell for axis in layout.axes))

    @property
    def domain(self) -> tuple[range, ...]:
        """Logical coordinates along each axis."""
        sides = zip(self.origin, self.shape, self.cells, strict=True)
        return tuple(range(at * cell, at * cell + n) for at, n, cell in sides)

    def axis(self, axis: int) -> int:
        """Number of an axis from 0 on; a negative `axis` counts from the last."""
        ndim = len(self.shape)
        axis = integer(axis, "axis")
        if not -ndim <= axis < ndim:
            raise OptionError(
                "there is no such axis", expected=f"0 to {ndim - 1}", got=axis
            )
        return axis % ndim

    def over(self, axis: int, start: int, stop: int) -> Window:
        """The window from `start` to `stop` along an axis.

        Raises
        ------
        SelectionError
            `start` is not the start of a stored object, or no document could have the
            window.
        """
        self._refuse_inside(axis, start, "the window would begin inside of a shard")
        first, length = start // self.cells[axis], max(stop - start, 0)
        if max(abs(first), length) > MAX_LENGTH:
            raise SelectionError(
                f"the window would be too long along axis {axis}, or too far away",
                expected=f"up to {MAX_LENGTH} elements, that many shards from 0",
                got=f"{start} to {stop}",
            )
        origin = (*self.origin[:axis], first, *self.origin[axis + 1 :])
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        return replace(self, origin=origin, shape=shape)

    def whole(self, axis: int, start: int, stop: int) -> Window:
        """Like `over`; `stop` must be the end of a stored object, too."""
        self._refuse_inside(axis, stop, "a shard would be cut in two")
        return self.over(axis, start, stop)

    def holds(self, coordinate: Coordinate) -> bool:
        """Whether the stored object at `coordinate` has elements of the window."""
        return all(
            at in cells for at, cells in zip(coordinate, self._objects, strict=True)
        )

    def objects(self) -> Iterator[Coordinate]:
        """Coordinates of the stored objects, in C order."""
        sides = self._objects
        for at in in_c_order([len(cells) for cells in sides]):
            yield tuple(cells[i] for cells, i in zip(sides, at, strict=True))

    @property
    def _objects(self) -> tuple[range, ...]:
        sides = zip(self.origin, self.shape, self.cells, strict=True)
        return tuple(range(at, at + -(-n // cell)) for at, n, cell in sides)

    def _refuse_inside(self, axis: int, at: int, what: str) -> None:
        cell = self.cells[axis]
        if at % cell:
            raise SelectionError(
                f"{what}: an array rolls by whole shards",
                expected=f"a multiple of {cell} along axis {axis}",
                got=at,
                hint="collect as many steps as a shard has, or make shards shorter",
            )


def relative_key(key: Any, domain: Sequence[range]) -> tuple[Any, ...]:
    """Key for ``a[...]`` that selects what `key` selects by logical coordinates.

    A key may have integers, slices with positive steps, and an ellipsis. Negative
    numbers are coordinates and do not count from the end.

    Raises
    ------
    SelectionError
        A coordinate is outside the domain, or the key is of another kind.
    """
    items: list[Any] = (
        list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    )
    n_ellipses = sum(item is Ellipsis for item in items)
    n_given = len(items) - n_ellipses
    if n_ellipses > 1 or n_given > len(domain):
        raise SelectionError(
            "the key has too many axes", expected=len(domain), got=n_given
        )
    if n_ellipses:
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (len(domain) - n_given)
    return tuple(
        _relative(item, lives, axis)
        for axis, (item, lives) in enumerate(zip(items, domain, strict=False))
    )


def _relative(item: Any, lives: range, axis: int) -> Any:
    if isinstance(item, slice):
        part = cast("slice[Any, Any, Any]", item)
        step = 1 if part.step is None else _index(part.step)
        if step < 1:
            raise SelectionError(
                "logical coordinates are read in ascending order", got=step
            )
        start = _bound(part.start, lives.start, lives, axis)
        stop = _bound(part.stop, lives.stop, lives, axis)
        return slice(start, max(start, stop), step)
    at = _index(item)
    if at not in lives:
        raise _outside(at, lives, axis)
    return at - lives.start


def _bound(value: Any, default: int, lives: range, axis: int) -> int:
    at = default if value is None else _index(value)
    if not lives.start <= at <= lives.stop:
        raise _outside(at, lives, axis)
    return at - lives.start


def _index(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise SelectionError(
            "at[...] takes integers, slices and an ellipsis",
            got=f"a {type(value).__name__}",
        ) from None


def _outside(at: int, lives: range, axis: int) -> SelectionError:
    return SelectionError(
        "a logical coordinate is not in the window",
        expected=f"{lives.start} to {lives.stop} along axis {axis}",
        got=at,
        hint="it may have rolled off, or not be there yet; a[-n:] counts from the end",
    )
