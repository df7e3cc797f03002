"""The mark of a conversion: of very many shards, and where it has no place."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard.converting import mark
from gpushard.options import MIB


class Absent:
    """A store that has the objects whose keys end in 7."""

    def __init__(self) -> None:
        self.n_asked = 0

    def read(self, requests: Any) -> list[Any]:
        self.n_asked += len(requests)
        return [True if r.key[-1] == "7" else None for r in requests]


def test_shards_that_may_be_finished_are_listed_few_at_a_time(monkeypatch):
    monkeypatch.setattr(mark, "writer_of", lambda _: SimpleNamespace(puts_whole=True))
    n, step = 1 << 20, 9
    done = np.ones(n, bool)
    done[::step] = False
    store: Any = Absent()
    found = mark.ConversionMark(store, "mark", "source", "document", done.copy())
    tracemalloc.start()
    try:
        found.look_for(str)
        nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    number = np.arange(n)
    assert store.n_asked == n - int(done.sum())
    assert np.array_equal(found.done, done | (number % 10 == 7))
    assert nbytes < 2 * MIB


def test_of_a_mark_only_runs_of_shards_are_taken_over():
    store: Any = Absent()
    wrong = [["0", "9"], [None, 9], [0.0, 9], [False, 9], [-1, 9], [0, 11], [9, 8]]
    for told in ("09", {"0": 9}, [*wrong, [0], [0, 1, 9], 9, "09", [2, 4], [8, 10]]):
        found = mark.ConversionMark(
            store, "mark", "source", "document", np.zeros(10, bool)
        )
        found.take_over({"done": told})
        is_list = isinstance(told, list)
        assert np.flatnonzero(found.done).tolist() == ([2, 3, 8, 9] if is_list else [])


class Session(MemoryStore):
    """A store that takes what belongs to arrays only, like a session of Icechunk."""

    async def get(self, key: str, *args: Any, **named: Any) -> Any:
        return await super().get(self._known(key), *args, **named)

    async def set(self, key: str, *args: Any, **named: Any) -> None:
        await super().set(self._known(key), *args, **named)

    async def delete(self, key: str) -> None:
        await super().delete(self._known(key))

    @staticmethod
    def _known(key: str) -> str:
        *path, name = key.split("/")
        if (
            name not in ("zarr.json", ".zarray", ".zattrs", ".zgroup")
            and "c" not in path
        ):
            raise ValueError(f"invalid zarr key format {key}")
        return key


Session.__module__ = "icechunk.store"


def test_a_store_of_arrays_alone_takes_a_conversion_without_a_mark():
    values = np.arange(100).reshape(10, 10)
    source = zarr.create_group(MemoryStore())
    source.create_array("x/y", data=values, chunks=(5, 5))
    for path, made in (("", "x/y"), ("x/y", "")):
        to = Session()
        report = gpushard.convert(source.store, to, path)
        assert [a.n_written for a in report.arrays.values()] == [1]
        assert np.array_equal(zarr.open_array(to, path=made, mode="r")[...], values)
        assert not any(mark.NAME in key for key in to._store_dict)


def test_a_mark_that_is_nested_without_end_is_no_mark(tmp_path):
    zarr.create_array(tmp_path / "src", shape=(4,), chunks=(2,), dtype="u1")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / mark.NAME).write_text("[" * 100_000)
    with pytest.raises(gpushard.OptionError, match="is no mark"):
        gpushard.convert(tmp_path / "src", tmp_path / "dst")
