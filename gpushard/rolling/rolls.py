"""The changes to a rolling array, each made of the three steps in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpushard.arguments import integer, whole_number
from gpushard.errors import SelectionError, StoreError, WindowMovedError
from gpushard.moving.window import Window
from gpushard.rolling.steps import Steps

Moved = tuple[Window, Window]
"""Window before the change, and window after it."""


class Roll(NamedTuple):
    """How to roll.

    Attributes
    ----------
    at
        Logical coordinate of the first value; None: the window's end.
    keep
        Greatest length of the window; None: its length now.
    delete
        Whether to delete the shards that the window leaves.
    """

    at: int | None
    keep: int | None
    delete: bool


def append(steps: Steps, values: Any, axis: int, at: int | None) -> Moved:
    """Write shards after the window, then extend its end over them."""

    def grown(stop: int, now: Window) -> Window:
        start, end = _sides(now, axis)
        return now.over(axis, start, max(end, stop))

    return _behind(steps, values, axis, at, grown)


def roll(steps: Steps, values: Any, axis: int, how: Roll) -> Moved:
    """Write shards after the window, then move its end, and its start if too long."""
    if how.keep is not None:
        how = how._replace(keep=whole_number(how.keep, "keep", 0))

    def rolled(stop: int, now: Window) -> Window:
        start, end = _sides(now, axis)
        end = max(end, stop)
        length = now.shape[axis] if how.keep is None else how.keep
        return now.over(axis, max(start, end - length), end)

    moved = _behind(steps, values, axis, how.at, rolled)
    if how.delete:
        _delete_left(steps, moved, axis, how.at)
    return moved


def _behind(
    steps: Steps,
    values: Any,
    axis: int,
    at: int | None,
    change: Callable[[int, Window], Window],
) -> Moved:
    with steps.alone() if at is None else nullcontext():
        now = steps.window()
        start, end = _sides(now, axis)
        first = end if at is None else integer(at, "at")
        if first < start:
            raise SelectionError(
                "the window has rolled past where the values belong",
                expected=f"{start} or behind it, along axis {axis}",
                got=first,
                hint="prepend them, or leave them out",
            )
        place = _place(now, values, axis, first)
        _, stop = _sides(place, axis)
        change(stop, now)  # raises before anything is written
        claimed = steps.claim(place) if at is None else None
        steps.write(place, values, claimed=claimed)
        return steps.move(partial(change, stop))


def prepend(steps: Steps, values: Any, axis: int, at: int | None) -> Moved:
    """Write shards before the window, then extend its start over them."""
    with steps.alone() if at is None else nullcontext():
        now = steps.window()
        begin, end = _sides(now, axis)
        first = begin - _length(now, values, axis) if at is None else integer(at, "at")
        place = _place(now, values, axis, first)
        _, stop = _sides(place, axis)
        if stop > begin:
            raise SelectionError(
                "the values belong into the window, or behind it",
                expected=f"values that end at {begin} or before, along axis {axis}",
                got=stop,
                hint="append them, or write by a.at[...]",
            )
        now.over(axis, first, end)  # raises before anything is written
        claimed = steps.claim(place) if at is None else None
        steps.write(place, values, claimed=claimed)

        def grown(now: Window) -> Window:
            start, end = _sides(now, axis)
            if at is None and start != begin:
                raise WindowMovedError(
                    "the window began elsewhere when the new shards were written",
                    expected=begin,
                    got=start,
                    hint="prepend again",
                )
            return now.over(axis, min(start, first), end)

        return steps.move(grown)


def drop(steps: Steps, n: int, axis: int, *, delete: bool) -> Moved:
    """Move the window's start by `n` elements, then delete the shards before it."""
    n = integer(n, "n")

    def shrunk(now: Window) -> Window:
        start, end = _sides(now, axis)
        if not 0 <= n <= end - start:
            raise SelectionError(
                "drop asks for more elements than the window has",
                expected=f"0 to {end - start} along axis {axis}",
                got=n,
            )
        return now.over(axis, start + n, end)

    moved = steps.move(shrunk)
    if delete:
        _delete_left(steps, moved, axis)
    return moved


def write(steps: Steps, values: Any, axis: int, at: int) -> None:
    """Write shards from `at` on, inside the window or outside it."""
    at = integer(at, "at")
    steps.write(_place(steps.window(), values, axis, at), values)


def move(steps: Steps, start: int, stop: int, axis: int) -> Moved:
    """Make ``start:stop`` the window."""
    start, stop = integer(start, "start"), integer(stop, "stop")
    return steps.move(lambda now: now.over(axis, start, stop))


def sweep(steps: Steps) -> int:
    """Delete all shards before the origin along some axis; returns their number."""
    # The shards of a prepend under way lie there as well.
    with steps.alone():
        origin = steps.window().origin
        left = [
            at
            for at in steps.stored()
            if any(i < o for i, o in zip(at, origin, strict=True))
        ]
        return steps.delete_objects(left)


def _delete_left(steps: Steps, moved: Moved, axis: int, at: int | None = None) -> None:
    """Delete the shards that the window has left at its start.

    If a roll wrote values `at` somewhere behind the end, there are none in between.
    """
    before, after = moved
    first, end = _sides(before, axis)
    start, _ = _sides(after, axis)
    parts = [(first, start)]
    if at is not None and at > end:
        parts = [(first, min(start, end)), (at, start)]
    try:
        for begin, stop in parts:
            if stop > begin:
                steps.delete(before.over(axis, begin, stop))
    except StoreError as error:
        raise StoreError(
            f"the window has moved, to {after.domain[axis]}, but not all shards"
            f" that it has left are deleted: {error.what}",
            store_url=error.store_url,
            hint="do not do it again: `sweep` deletes them once the store can",
        ) from error


def _place(now: Window, values: Any, axis: int, at: int) -> Window:
    """Window of the values, whose first element is at `at`."""
    return now.whole(axis, at, at + _length(now, values, axis))


def _length(now: Window, values: Any, axis: int) -> int:
    """Length of the values along an axis; the others must be those of the window."""
    shape = tuple(np.shape(values))
    wanted = list[Any](now.shape)
    wanted[axis] = "any"
    fits = len(shape) == len(wanted) and all(
        n == m for d, (n, m) in enumerate(zip(shape, wanted, strict=True)) if d != axis
    )
    if not fits:
        raise SelectionError(
            "the values do not have the shape of the window",
            expected=f"({', '.join(map(str, wanted))})",
            got=shape,
        )
    return shape[axis]


def _sides(window: Window, axis: int) -> tuple[int, int]:
    domain = window.domain[axis]
    return domain.start, domain.start + len(domain)
