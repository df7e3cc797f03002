"""Loaders, dask graphs and other processes over a window that stays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from zarr.storage import LocalStore as ZarrLocalStore
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from device_fetch_cases import emulated
from gpushard.moving.watch import watched
from gpushard.rolling import RollingArray, RollingView
from gpushard.rolling.reader import RollingReader
from gpushard.stores.local.store import LocalStore
from rolling_arrays import rolling, steps


def test_a_view_is_an_array_over_the_last_steps(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    last = a.view(-4)
    assert isinstance(last, gpushard.Array)
    assert last.shape == (4, 6)
    assert last.domain == (range(4, 8), range(6))
    assert np.array_equal(last[...], steps(4, 8))
    assert np.array_equal(a.view(2, 5)[...], steps(2, 5))
    assert a.view(4, 2).shape == (0, 6)
    assert np.array_equal(last.read_many([0, -1])[1], steps(7, 8)[0])
    assert last.explain(...).n_shards == 2
    both = gpushard.concat([a.view(0, 4), last])
    assert np.array_equal(both[...], steps(0, 8))
    with pytest.raises(gpushard.UnsupportedError, match="RollingArray"):
        last[0] = 1
    store = last.source.store
    assert watched(store, last.source.layout, last.source.options) is store


def test_a_rolling_array_is_written_to_by_its_steps_and_coordinates_alone(tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    reader = RollingReader(LocalStore(tmp_path / "a"), "")
    for door in (a.oindex, a.vindex, reader.at):
        with pytest.raises(gpushard.UnsupportedError, match="cannot be written"):
            door[2:3] = -1
    assert np.array_equal(a[...], steps(0, 4))


def test_a_loader_reads_the_last_steps_while_the_array_rolls_on(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    loader = gpushard.Loader(a.view(-4), batch_size=2, shuffle=True, seed=1)
    a.roll(steps(8, 12))
    seen = np.concatenate([np.asarray(batch) for batch in loader])
    assert np.array_equal(np.sort(seen[:, 0]), steps(4, 8)[:, 0])


def test_a_loader_takes_a_rolling_array_as_it_is_then(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    loader = gpushard.Loader({"x": a}, batch_size=4)
    a.append(steps(8, 12))
    seen = np.concatenate([batch["x"] for batch in loader])
    assert np.array_equal(seen, steps(0, 8))


def test_a_loader_is_told_when_its_steps_are_gone(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    loader = gpushard.Loader(a.view(), batch_size=4)
    a.roll(steps(8, 12))
    with pytest.raises(gpushard.WindowMovedError):
        list(loader)


def test_what_was_pickled_keeps_its_window(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    view, plain = a.view(-4), gpushard.open_array(tmp_path / "a")
    copies = pickle.dumps([view, plain, a])
    a.roll(steps(8, 10), delete=False)
    view, plain, live = pickle.loads(copies)
    assert isinstance(view, RollingView)
    assert view.domain[0] == range(4, 8)
    assert np.array_equal(view[...], steps(4, 8))
    assert np.array_equal(plain[...], steps(0, 8))
    assert np.array_equal(live[...], steps(2, 10))
    a.drop(4)
    again = pickle.loads(copies)[0]
    with pytest.raises(gpushard.WindowMovedError):
        again[...]


def test_what_was_pickled_is_told_of_any_store_that_it_rolled_on(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    store = WrapperStore(ZarrLocalStore(tmp_path / "a"))
    pickled = pickle.dumps(gpushard.open_array(store))
    a.append(steps(8, 10)).drop(2)
    copy = pickle.loads(pickled)
    assert np.array_equal(copy[2:], steps(2, 8))
    with pytest.raises(gpushard.WindowMovedError):
        copy[0]


def test_a_rolling_array_tells_where_it_is_and_what_it_has(tmp_path):
    dask = pytest.importorskip("dask.base", reason="the extra `dask` is not installed")
    a = rolling(tmp_path / "a", 4, 8)
    where = f"<gpushard.RollingArray file://{tmp_path}/a domain=[4:8, 0:6]"
    assert repr(a) == f"{where} dtype=int32 on cpu>"
    token = dask.tokenize(a)
    assert dask.tokenize(RollingArray.open(tmp_path / "a")) == token
    assert dask.tokenize(a.append(steps(8, 10))) != token


def test_a_graph_of_dask_over_the_last_steps_is_of_one_window(tmp_path):
    pytest.importorskip("dask", reason="the extra `dask` is not installed")
    a = rolling(tmp_path / "a", 0, 8)
    last = a.view(-4).to_dask()
    whole = a.to_dask()
    copies = pickle.dumps([last, whole])
    assert last.chunks == ((2, 2), (6,))
    a.roll(steps(8, 12))
    assert np.array_equal(last.compute(), steps(4, 8))
    moved, gone = pickle.loads(copies)
    assert np.array_equal(moved.compute(), steps(4, 8))
    assert np.array_equal(gone[4:].compute(), steps(4, 8))
    with pytest.raises(gpushard.WindowMovedError):
        gone.compute()
    assert a.to_dask().name != whole.name


@pytest.mark.usefixtures("settled")
def test_indexes_that_are_known_stay_known_when_the_window_moves(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    reader = RollingArray.open(tmp_path / "a")
    assert np.array_equal(reader[...], steps(0, 8))
    a.roll(steps(8, 10))
    view = reader.refresh().view()
    assert view.explain(slice(0, 6)).n_index_requests == 0
    assert view.explain(...).n_index_requests == 1
    assert np.array_equal(view[...], steps(2, 10))


def test_whoever_opens_a_rolling_array_is_told_that_it_rolled_on(tmp_path):
    rolling(tmp_path / "g/a", 0, 8)
    (tmp_path / "g/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    opened = gpushard.open_array(tmp_path / "g", "a")
    member = gpushard.open_group(tmp_path / "g")["a"]
    RollingArray.open(tmp_path / "g", "a").roll(steps(8, 10))
    for a in (opened, member, pickle.loads(pickle.dumps(opened))):
        assert np.array_equal(a[2:], steps(2, 8))
        with pytest.raises(gpushard.WindowMovedError):
            a[0]
        with pytest.raises(gpushard.UnsupportedError, match="RollingArray"):
            a[0] = 1
    again = gpushard.open_group(tmp_path / "g")["a"]
    assert np.array_equal(again[...], steps(2, 10))


@pytest.mark.parametrize("name", ["memory", "files"])
@pytest.mark.usefixtures("device_begins_at_once")
def test_a_device_reads_a_window_and_follows(name, tmp_path):
    store = MemoryStore() if name == "memory" else tmp_path / "a"
    a = rolling(store, 0, 6)
    reader = RollingArray.open(store, device=emulated())
    assert np.array_equal(reader[...].get(), steps(0, 6))
    view = reader.view()
    a.roll(steps(6, 8))
    assert np.array_equal(reader[...].get(), steps(2, 8))
    assert np.array_equal(view[2:].get(), steps(2, 6))
    with pytest.raises(gpushard.WindowMovedError):
        view[...]


def test_a_rolling_array_is_converted_to_one_that_does_not_roll(tmp_path):
    rolling(tmp_path / "a", -4, 6, attributes={"units": "K"}).drop(2)
    gpushard.convert(tmp_path / "a", tmp_path / "b", shards=(4, 6), chunks=(2, 2))
    converted = gpushard.open_array(tmp_path / "b")
    assert converted.attrs == {"units": "K"}
    assert np.array_equal(converted[...], steps(-2, 6))
    converted[0, 0] = 1
    assert (tmp_path / "b/c/0/0").exists()


def test_a_link_out_of_the_store_is_refused_in_a_window_too(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    (shard, *_) = sorted(p for p in (tmp_path / "a/c").rglob("*") if p.is_file())
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    for opened in (a.view(), gpushard.open_array(tmp_path / "a")):
        with pytest.raises(gpushard.StoreError, match="out of the store"):
            opened[...]
