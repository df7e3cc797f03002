"""``a.at[...]``: converts keys in logical coordinates to keys for ``a[...]``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

from gpushard.errors import SelectionError


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
