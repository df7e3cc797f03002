"""What is done to a rolling array in a step, and what it must come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fuzz.rolling_model import SHARD, WIDTH, Change, Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpushard.rolling import RollingArray

_MOST_ROWS = 64
_ODD = (-2, 1, 3, -1, -4, 2**62, 2**70)


def _number(x: int) -> int:
    """A number of rows: mostly of whole shards."""
    return SHARD * (x % 5) if x < 192 else _ODD[x // 3 % len(_ODD)]


def _rows(x: int) -> int:
    """A number of rows that there can be."""
    return SHARD * (x % 5) if x < 224 else x % 7


def _is_whole(*numbers: int) -> bool:
    return all(n % SHARD == 0 for n in numbers)


def _append(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n, at = _rows(x), None if y % 3 == 0 else stop + SHARD * (y // 3 % 7 - 4)
    first = stop if at is None else at
    written = model.new(first, n, blank=y >= 240)
    is_valid = first >= start and _is_whole(first, n)
    return Change(
        lambda a: a.append(_stacked(written), at=at),
        is_valid,
        (start, max(stop, first + n)),
        written,
        may_meet=at is None,
    )


def _prepend(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n = _rows(x)
    at = None if y % 3 == 0 else start - n + SHARD * (y // 3 % 4 - 2)
    first = start - n if at is None else at
    written = model.new(first, n, blank=y >= 240)
    is_valid = first + n <= start and _is_whole(first, n)
    return Change(
        lambda a: a.prepend(_stacked(written), at=at),
        is_valid,
        (min(start, first), stop),
        written,
        may_meet=at is None,
    )


def _drop(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n, delete = _number(x), bool(y & 1)
    is_valid = 0 <= n <= stop - start and _is_whole(n)
    deleted = range(start, start + n) if delete and is_valid else range(0)
    return Change(
        lambda a: a.drop(n, delete=delete), is_valid, (start + n, stop), {}, deleted
    )


def _roll(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n, delete = _rows(x), bool(y & 1)
    keep = None if y % 3 == 0 else _number(y)
    written = model.new(stop, n, blank=y >= 240)
    end = stop + n
    length = stop - start if keep is None else keep
    first = max(start, end - length)
    deleted = range(start, first) if delete else range(0)
    return Change(
        lambda a: a.roll(_stacked(written), keep=keep, delete=delete),
        length >= 0 and _is_whole(stop, n, first),
        (first, end),
        written,
        deleted if length >= 0 else range(0),
        may_meet=True,
    )


def _move(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    first, last = start + SHARD * (x % 7 - 3) + x // 200, stop + y % 9 - 4
    last = min(last, first + _MOST_ROWS)
    window = (first, max(first, last))
    return Change(lambda a: a.move_window(first, last), _is_whole(first), window)


def _write(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n, at = _rows(x), (start, stop)[y & 1] + SHARD * (y // 2 % 9 - 4) + y // 200
    written = model.new(at, n, blank=y >= 240)
    return Change(
        lambda a: a.write_shards(_stacked(written), at=at),
        _is_whole(at, n),
        (start, stop),
        written,
    )


def _delete(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    n, at = _rows(x), (start, stop)[y & 1] + SHARD * (y // 2 % 9 - 4) + y // 200
    return Change(
        lambda a: a.delete_shards(at, at + n),
        _is_whole(at, n),
        (start, stop),
        {},
        range(at, at + n) if _is_whole(at, n) else range(0),
    )


def _sweep(model: Model, _x: int, _y: int) -> Change:
    first = min(model.rows, default=model.start)
    deleted = range(first, model.start)
    return Change(lambda a: a.sweep(), True, model.window, {}, deleted)


def _assign(model: Model, x: int, y: int) -> Change:
    start, stop = model.window
    low = start + x % (stop - start + 1)
    high = min(stop, low + y % 5)
    written = model.new(low, high - low, blank=y >= 240)

    def work(a: RollingArray) -> None:
        if y & 32:
            a.at[low:high] = _stacked(written)
        else:
            a[low - start : high - start] = _stacked(written)

    beyond = range(stop, stop + -stop % SHARD) if low < high == stop else range(0)
    return Change(work, True, (start, stop), written, beyond=beyond)


def _refresh(model: Model, _x: int, _y: int) -> Change:
    return Change(lambda a: a.refresh(), True, model.window)


def _stacked(written: dict[int, int]) -> NDArray[np.int32]:
    rows = np.array([*written.values()], "i4").reshape(-1, 1)
    return np.repeat(rows, WIDTH, axis=1)


CHANGES: tuple[Callable[[Model, int, int], Change], ...] = (
    *(_append, _prepend, _drop, _roll, _move, _write, _delete, _sweep, _assign),
    _refresh,
)
"""What makes a change of two numbers, 0 to 255, and of what an array is."""
