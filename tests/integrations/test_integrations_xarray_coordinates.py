"""Coordinates of a dataset behind a network, which are waited for once."""

from __future__ import annotations

import asyncio
import pickle
import time
from contextlib import suppress

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from entry_points import add_to_xarray

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")

PATIENCE_S = 10  # of requests for chunks that wait for each other
LENGTHS = {"time": 40, "y": 8, "x": 16}


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


class Far(WrapperStore):
    """A store that counts the requests under way.

    Attributes
    ----------
    most, keys
        Most requests for chunks that were under way at once, and what they were for.
    n_together
        Requests for chunks wait until so many are under way.
    """

    def __init__(self, store):
        super().__init__(store)
        self._n_now, self.most, self.keys = 0, 0, []
        self._are_together, self.n_together = asyncio.Event(), 1

    async def get(self, key, prototype, byte_range=None):
        is_document = "/c/" not in key
        if not is_document:
            self._n_now += 1
            self.most = max(self.most, self._n_now)
            self.keys.append(key)
            if self._n_now == self.n_together:
                self._are_together.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._are_together.wait(), PATIENCE_S)
        self._n_now -= not is_document
        return await super().get(key, prototype, byte_range)


def put():
    """A dataset with an array, and a coordinate for each of its dimensions."""
    group = zarr.create_group(memory := MemoryStore())
    for name, n in LENGTHS.items():
        coordinate = group.create_array(
            name, shape=(n,), dtype="f8", dimension_names=[name]
        )
        coordinate[...] = np.arange(n) * 0.5
    group["time"].attrs["units"] = "hours since 2020-01-01"
    u = group.create_array(
        "u", shape=(*LENGTHS.values(),), dtype="f4", dimension_names=[*LENGTHS]
    )
    u[...] = 1
    return Far(memory)


def opened(store, **how):
    return xr.open_dataset(store, engine="gpushard", consolidated=False, **how)


def test_coordinates_are_fetched_side_by_side_and_once():
    store = put()
    chunks = ["time/c/0", "x/c/0", "y/c/0"]
    store.n_together = len(chunks)
    dataset = opened(store)
    assert sorted(store.keys) == chunks
    assert store.most == len(chunks)
    assert dataset.x.values.tolist() == [i * 0.5 for i in range(16)]
    last = np.datetime64("2020-01-01T19:30")
    assert (dataset.time.values[-1], dataset.sizes) == (last, LENGTHS)


def test_once_a_dataset_is_open_coordinates_are_read_from_the_store(monkeypatch):
    store = put()
    dataset = opened(store, create_default_indexes=False, cache=False)
    assert dataset.x[3].item() == 1.5
    zarr.open_array(store._store, path="y")[...] = 7
    later_s = time.monotonic() + 60
    clock = "gpushard.integrations.xarray_arrays.monotonic"
    monkeypatch.setattr(clock, lambda: later_s, raising=False)
    assert dataset.y[3].item() == 7
    assert dataset.y.values.tolist() == [7] * 8


def test_a_coordinate_that_was_read_whole_is_read_again_from_the_store():
    store = put()
    dataset = opened(store, create_default_indexes=False, cache=False)
    first = dataset.y.values
    zarr.open_array(store._store, path="y")[...] = 7
    assert dataset.x.values.tolist() == [i * 0.5 for i in range(16)]
    assert first.tolist() == [i * 0.5 for i in range(8)]
    assert dataset.y.values.tolist() == [7] * 8


def test_parts_of_a_coordinate_are_those_of_numpy_and_nobody_elses_memory():
    values = np.arange(16) * 0.5
    dataset = opened(put(), create_default_indexes=False, cache=False)
    for key in (3, -1, slice(2, 9, 3), slice(None, None, -1), [5, 1, 5]):
        part = dataset.x[key].values
        assert part.tolist() == values[key].tolist()
        part[...] = -1
    assert dataset.x.values.tolist() == values.tolist()


def test_a_damaged_coordinate_does_not_hide_the_others():
    store = put()
    buffer = store._store._store_dict["x/c/0"]
    store._store._store_dict["x/c/0"] = buffer[:5]
    dataset = opened(store, create_default_indexes=False)
    assert dataset.y.values.tolist() == [i * 0.5 for i in range(8)]
    with pytest.raises(gpushard.CorruptShardError, match="/x'"):
        dataset.x.load()


def test_a_pickled_coordinate_is_read_anew(tmp_path):
    from gpushard.integrations.xarray_arrays import CoordinateArray, Coordinates

    place = zarr.create_array(tmp_path / "x", shape=(3,), dtype="i4")
    place[...] = [1, 2, 3]
    array = gpushard.open_array(tmp_path / "x", device="cpu")
    again = pickle.loads(
        pickle.dumps(CoordinateArray("x", array, Coordinates({"x": array})))
    )
    assert not isinstance(again, CoordinateArray)
    assert again.array[...].tolist() == [1, 2, 3]
