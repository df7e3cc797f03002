"""What is known of a rolling array: its window, and what each row of it may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gpushard.rolling import RollingArray

WIDTH, SHARD, FILL = 4, 2, -7

Values = frozenset[int]
Sides = tuple[int, int]


class Change(NamedTuple):
    """What a step is to do.

    Attributes
    ----------
    work
        Does it, given the array.
    is_valid
        Whether it has to be accepted.
    window
        Where the window begins and ends then.
    written
        Row -> what is written there.
    deleted
        Rows that are deleted.
    may_meet
        Whether what lies behind or before the window may be in its way.
    beyond
        Rows behind the window, of a shard that is written as far as the window has it:
        they may be the fill value then.
    """

    work: Callable[[RollingArray], object]
    is_valid: bool
    window: Sides
    written: Mapping[int, int] = {}
    deleted: range = range(0)
    may_meet: bool = False
    beyond: range = range(0)


@dataclass
class Model:
    """What an array is, as far as is known.

    Attributes
    ----------
    start, stop
        Its window.
    rows
        Row -> what it may hold; others hold the fill value.
    gone
        Rows that were written, and deleted since.
    n_written
        Values that were given to rows.
    """

    start: int
    stop: int
    rows: dict[int, Values] = field(default_factory=dict[int, Values])
    gone: set[int] = field(default_factory=set[int])
    n_written: int = 0

    @property
    def window(self) -> Sides:
        """Where it begins and ends."""
        return self.start, self.stop

    def copy(self) -> Model:
        """What is known now."""
        return Model(self.start, self.stop, dict(self.rows), set(self.gone))

    def new(self, first: int, n: int, *, blank: bool) -> dict[int, int]:
        """Rows from `first` on, each of a value of its own, or of the fill value."""
        value, self.n_written = self.n_written, self.n_written + n
        return {first + k: FILL if blank else value + k for k in range(n)}

    def may_hold(self, row: int) -> Values:
        """What a row may hold."""
        return self.rows.get(row, frozenset((FILL,)))

    def do(self, change: Change) -> None:
        """Take a change for done."""
        self.start, self.stop = change.window
        self._write({row: frozenset((v,)) for row, v in change.written.items()})
        self.gone |= self.rows.keys() & set(change.deleted)
        for row in self.gone:
            self.rows.pop(row, None)
        self._blur(change.beyond)

    def doubt(self, change: Change, window: Sides) -> None:
        """Take a change for begun, as far as the window tells that was found then.

        What it writes is there before the window moves, and what it deletes is deleted
        after that.
        """
        has_moved = change.window != self.window and window == change.window
        before = {row: self.may_hold(row) for row in change.written}
        self._write(
            {
                row: frozenset((value,)) | (frozenset() if has_moved else before[row])
                for row, value in change.written.items()
            }
        )
        if window == change.window:
            for row in change.deleted:
                self.rows[row] = self.may_hold(row) | {FILL}
        self._blur(change.beyond)
        self.start, self.stop = window

    def _blur(self, rows: range) -> None:
        """Let rows hold the fill value too."""
        self.rows |= {r: self.rows[r] | {FILL} for r in rows if r in self.rows}

    def _write(self, rows: Mapping[int, Values]) -> None:
        self.rows |= rows
        # A shard that is written is there again, with all of its rows.
        shards = {row // SHARD for row in rows}
        self.gone -= {row for row in self.gone if row // SHARD in shards}

    def hold_to(
        self, first: int, got: NDArray[np.int32], change: Change | None = None
    ) -> None:
        """Hold elements from row `first` on to what they may be.

        Parameters
        ----------
        change
            What was done while they were read: it shows, or does not.
        """
        assert np.array_equal(got, np.repeat(got[:, :1], WIDTH, axis=1)), got
        during = change or Change(int, True, self.window)
        for row, value in enumerate(got[:, 0].tolist(), first):
            is_written = during.written.get(row) == value
            is_inside = _has_shard(self.window, row) or _has_shard(during.window, row)
            # What is deleted out of the window is missing there.
            is_cut_out = row in during.deleted and _is_in(row, during.window)
            is_lost = is_cut_out or row in during.beyond
            may = self.may_hold(row) | ({FILL} if is_lost else set())
            assert is_written or value in may, (row, value, may)
            assert is_inside or is_written or row not in self.gone, row


def _has_shard(window: Sides, row: int) -> bool:
    """Whether a window has some of the shard of a row: then that has not rolled off."""
    first = row // SHARD * SHARD
    return window[0] < first + SHARD and first < window[1]


def _is_in(row: int, window: Sides) -> bool:
    return window[0] <= row < window[1]
