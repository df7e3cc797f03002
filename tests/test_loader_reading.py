"""Reads of a loader: planned by one thread while another one reads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader
from gpushard.loader import reading
from gpushard.loader.fields import Field
from loader_data import IMAGES, N, images, stored


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


@pytest.mark.parametrize("keeps", [False, True])
def test_a_read_is_ready_to_be_decoded_before_the_one_ahead_is_over(
    keeps, monkeypatch, tmp_path
):
    """But where inner chunks are kept: those of the read ahead are found then."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    plain_prepare, plain_begin = reading.prepare, reading.begin
    prepared, begun = [], []

    def prepare(jobs):
        prepared.append(threading.get_ident())
        return plain_prepare(jobs)

    def begin(ready):
        begun.append(threading.get_ident())
        plain_begin(ready)

    monkeypatch.setattr(reading, "prepare", prepare)
    monkeypatch.setattr(reading, "begin", begin)
    options = gpushard.Options(chunk_cache_nbytes=1 << 20 if keeps else 0)
    z = zarr.create_array(
        tmp_path, shape=(N, 6), chunks=(4, 6), shards=(12, 6), dtype="u2"
    )
    z[...] = IMAGES.reshape(N, 6)
    a = gpushard.open_array(tmp_path, options=options)
    with Loader(a, batch_size=8) as loader:
        assert np.array_equal(np.concatenate(list(loader)), z[...])
    assert len(prepared) == len(begun) > 2
    assert (set(prepared) == set(begun)) == keeps
