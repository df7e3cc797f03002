"""A week of weather that rolls: every few hours a new step, and readers all the while.

``python tests/rolling_simulation.py DIRECTORY ROLLS`` tells what a roll touches, and
what rewriting the array in place would.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gpushard
from gpushard.rolling import RollingArray
from rolling_arrays import Beside

# Seven days, a step every three hours.
WINDOW = 7 * 24 // 3
GRID = (16, 24)
LAYOUT = {
    "dtype": "f4",
    "chunks": (1, 8, 8),
    "shards": (1, 8, 24),
    "fill_value": "NaN",
}
SHARDS_PER_STEP = 2


@dataclass(frozen=True)
class Outcome:
    """What was seen.

    Attributes
    ----------
    n_rolls, n_reads, n_told
        Rolls done, windows read beside them value by value, and reads that were told
        that theirs had gone.
    touched
        Objects written, and deleted, by each roll; the document is one of them.
    naive
        Objects that are written when the same array is shifted in place.
    """

    n_rolls: int
    n_reads: int
    n_told: int
    touched: tuple[int, int]
    naive: int


def fields(start: int, stop: int) -> np.ndarray:
    """Fields of the steps ``start:stop``, each value of its own."""
    cells = np.arange(GRID[0] * GRID[1], dtype="f4").reshape(GRID) / 512
    return np.arange(start, stop, dtype="f4")[:, None, None] + cells


def snapshot(place: Path) -> dict[str, tuple[int, int]]:
    """What tells whether a file was replaced, by its name."""
    files = (p for p in place.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}


def difference(before: dict, after: dict) -> tuple[int, int]:
    written = sum(before.get(key) != state for key, state in after.items())
    return written, len(before.keys() - after.keys())


def simulate(place: Path, n_rolls: int) -> Outcome:
    """Roll an array on, step by step, and read it beside that all the time."""
    a = RollingArray.create(place / "live", shape=(0, *GRID), **LAYOUT)
    a.append(fields(0, WINDOW))
    views = RollingArray.open(place / "live")
    follower = RollingArray.open(place / "live")
    told: list[str] = []

    def look() -> None:
        view = views.refresh().view()
        domain = view.domain[0]
        try:
            values = view[...]
        except gpushard.WindowMovedError as error:
            told.append(str(error))
            return
        assert np.array_equal(values, fields(domain.start, domain.stop))

    def follow() -> None:
        values = follower[...]
        start = int(values[0, 0, 0])
        assert np.array_equal(values, fields(start, start + WINDOW))

    touched: set[tuple[int, int]] = set()
    with Beside(look) as looking, Beside(follow) as following:
        for step in range(WINDOW, WINDOW + n_rolls):
            before = snapshot(place / "live")
            a.roll(fields(step, step + 1))
            touched.add(difference(before, snapshot(place / "live")))
    (counts,) = touched
    n_reads = looking.n_runs + following.n_runs - len(told)
    return Outcome(n_rolls, n_reads, len(told), counts, rewritten(place))


def rewritten(place: Path) -> int:
    """Objects written when an array that does not roll is shifted by a step."""
    shape = (WINDOW, *GRID)
    b = gpushard.create_array(place / "still", shape=shape, **LAYOUT)
    b[...] = fields(0, WINDOW)
    before = snapshot(place / "still")
    b[...] = fields(1, WINDOW + 1)
    return difference(before, snapshot(place / "still"))[0]


if __name__ == "__main__":
    outcome = simulate(Path(sys.argv[1]), int(sys.argv[2]))
    written, deleted = outcome.touched
    told = f"""{outcome.n_rolls} rolls
{outcome.n_reads} windows read beside them, every value right
{outcome.n_told} reads told that theirs had gone
a roll: {written} objects written, {deleted} deleted
rewriting: {outcome.naive} objects written
"""
    sys.stdout.write(told)
