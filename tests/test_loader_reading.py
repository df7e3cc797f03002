"""Reads of a loader: planned by one thread while another one reads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpushard import Loader
from gpushard.loader import reading
from gpushard.loader.fields import Field
from loader_data import IMAGES, images


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
