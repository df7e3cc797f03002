"""The work behind `gpushard bench`: reads of one array, timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.cli.comparison import have_same_elements
from gpushard.cli.contenders import Contender, Key, open_contenders

_N_SINGLE, _N_BATCH = 32, 256
_OTHER_ELEMENTS = "other elements"


class TimedReads(NamedTuple):
    """Reads that are timed together, with a description.

    `keys` returns the keys to read in a repetition, by its number.
    """

    name: str
    description: str
    keys: Callable[[int], list[Key]]


class Timing(NamedTuple):
    """Times of one contender at one workload, one for each repetition.

    Wall seconds, and CPU seconds of all CPUs. Both are empty if it read other elements
    than gpushard, or failed; `trouble` says what was wrong then.
    """

    contender: str
    wall_s: list[float]
    cpu_s: list[float]
    trouble: str

    @property
    def is_wrong(self) -> bool:
        """Whether it read other elements than gpushard."""
        return self.trouble == _OTHER_ELEMENTS


def workloads(
    shape: Sequence[int], itemsize: int, most_nbytes: int
) -> list[TimedReads]:
    """Reads that fit an array of `shape`: everything, or as much as `most_nbytes`."""
    if not shape or 0 in shape:
        return []
    row_nbytes = prod(shape[1:]) * itemsize
    n_rows = min(shape[0], max(1, most_nbytes // max(row_nbytes, 1)))
    found = [_leading(shape, n_rows)]
    if row_nbytes * min(_N_BATCH, shape[0]) <= most_nbytes:
        found += [_single(shape), _batch(shape)]
    n_along = min(shape[0], max(1, most_nbytes // itemsize))
    return [*found, _line(shape, n_along)] if len(shape) > 1 else found


def _leading(shape: Sequence[int], n_rows: int) -> TimedReads:
    about = "everything" if n_rows == shape[0] else f"the first {n_rows} rows"

    def rows(_: int) -> list[Key]:
        return [(slice(0, n_rows),)]

    return TimedReads("full", about, rows)


def _single(shape: Sequence[int]) -> TimedReads:
    n = min(_N_SINGLE, shape[0])

    def keys(repetition: int) -> list[Key]:
        rng = np.random.default_rng([1, repetition])
        return [(int(row),) for row in rng.integers(shape[0], size=n)]

    return TimedReads("rows", f"{n} random rows, one read each", keys)


def _batch(shape: Sequence[int]) -> TimedReads:
    n = min(_N_BATCH, shape[0])

    def keys(repetition: int) -> list[Key]:
        rng = np.random.default_rng([2, repetition])
        return [(np.sort(rng.choice(shape[0], n, replace=False)),)]

    return TimedReads("batch", f"{n} random rows in one read", keys)


def _line(shape: Sequence[int], n_along: int) -> TimedReads:
    def keys(repetition: int) -> list[Key]:
        rng = np.random.default_rng([3, repetition])
        return [(slice(0, n_along), *(int(rng.integers(n)) for n in shape[1:]))]

    length = "all" if n_along == shape[0] else f"the first {n_along:,}"
    return TimedReads("line", f"{length} of the first axis at one place", keys)


def measure(
    array: Array, *, most_nbytes: int, repetitions: int
) -> tuple[list[Contender], list[tuple[TimedReads, list[Timing]]]]:
    """The contenders that took part, and the times of each at each workload.

    The first read of each is not timed, but compared with gpushard's.
    """
    readers = open_contenders(array)
    rows: list[tuple[TimedReads, list[Timing]]] = []
    for workload in workloads(array.shape, array.dtype.itemsize, most_nbytes):
        expected = [readers[0].read(key) for key in workload.keys(0)]
        timings = [_compared(one, workload, expected) for one in readers]
        for repetition in range(1, repetitions + 1):
            turn = repetition % len(readers)
            order = [*range(turn, len(readers)), *range(turn)]
            for i in order:
                if not timings[i].trouble:
                    _time(readers[i], workload.keys(repetition), timings[i])
        rows.append((workload, timings))
    return readers, rows


def _compared(
    contender: Contender, workload: TimedReads, expected: Sequence[NDArray[Any]]
) -> Timing:
    try:
        got = [contender.read(key) for key in workload.keys(0)]
    except Exception as error:  # noqa: BLE001 - a contender may raise anything
        text = str(error).strip().splitlines()
        return Timing(contender.name, [], [], text[0] if text else repr(error))
    are_same = all(map(have_same_elements, expected, got))
    return Timing(contender.name, [], [], "" if are_same else _OTHER_ELEMENTS)


def _time(contender: Contender, keys: Sequence[Key], timing: Timing) -> None:
    cpu, wall = process_time(), perf_counter()
    for key in keys:
        contender.read(key)
    timing.wall_s.append(perf_counter() - wall)
    timing.cpu_s.append(process_time() - cpu)


def ratio_to_best(timings: Sequence[Timing]) -> float | None:
    """Median time of the best other contender over gpushard's; None without one."""
    mine, *others = [median(t.wall_s) if t.wall_s else None for t in timings]
    times = [time for time in others if time is not None]
    return min(times) / mine if times and mine else None
