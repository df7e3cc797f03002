"""Reads of a loader: planned by one thread while another one reads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpushard import Loader
from gpushard.loader import reading
from gpushard.loader.fields import Field
from loader_data import IMAGES, images, stored


def test_the_next_read_is_planned_while_one_is_read(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    plan, begin = Field.read, reading.begin
    n_planned, was_planned = threading.Semaphore(0), []

    def planned(field, origins, memory):
        found = plan(field, origins, memory)
        n_planned.release()
        return found

    def begun(jobs):
        # One for itself, then one for the read that follows.
        was_planned.append(n_planned.acquire(timeout=20))
        if len(was_planned) == 1:
            was_planned.append(n_planned.acquire(timeout=20))
        begin(jobs)

    monkeypatch.setattr(Field, "read", planned)
    monkeypatch.setattr(reading, "begin", begun)
    with Loader(images(), batch_size=8) as loader:
        assert np.array_equal(next(iter(loader)), IMAGES[:8])
    assert was_planned[:2] == [True, True]


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_what_goes_wrong_in_planning_reaches_the_consumer(prefetch_factor, monkeypatch):
    def fails(field, origins, memory):
        raise MemoryError("no room for a plan")

    monkeypatch.setattr(Field, "read", fails)
    loader = Loader(images(), prefetch_factor=prefetch_factor)
    with pytest.raises(MemoryError, match="no room for a plan"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("rows", "options", "n"),
    [([128], {}, 16), ([128], {"dtype": "i2"}, 8), ([127], {}, 8), ([128, 127], {}, 4)],
)
def test_loads_of_rows_that_are_never_there_twice_are_twice_as_large(
    rows, options, n, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 512)
    read, n_read = Field.read, []

    def noted(field, origins, memory):
        n_read.append(len(origins))
        return read(field, origins, memory)

    monkeypatch.setattr(Field, "read", noted)
    arrays = tuple(stored(np.zeros((64, m), "i4"), (1, m)) for m in rows)
    with Loader(arrays, batch_size=1, **options) as loader:
        assert len(list(loader)) == 64
    assert max(n_read) == n
