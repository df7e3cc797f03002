"""`Array`: how it looks, what it gives, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.storage import MemoryStore

import gpushard
from gpushard.reading import results
from selection_strategies import basic_keys
from small_array import VALUES, write_values
from zarr_oracle import assert_same_bits, quiet_zarr


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return write_values(tmp_path_factory.mktemp("array") / "a.zarr")


@pytest.fixture
def a(place) -> gpushard.Array:
    return gpushard.open_array(place)


def scalar_array(value=42) -> gpushard.Array:
    objects: dict = {}
    z = zarr.create_array(MemoryStore(objects), shape=(), chunks=(), dtype="i8")
    z[...] = value
    return gpushard.open_array(MemoryStore(objects))


def empty_array() -> gpushard.Array:
    objects: dict = {}
    zarr.create_array(MemoryStore(objects), shape=(0, 3), chunks=(2, 2), dtype="f4")
    return gpushard.open_array(MemoryStore(objects))


# What it says of itself


def test_its_properties_are_those_of_the_metadata(a):
    assert (a.shape, a.ndim, a.size, a.nbytes) == ((20, 30), 2, 600, 2400)
    assert a.dtype == np.dtype("i4")
    assert (a.chunks, a.shards) == ((4, 10), (8, 20))
    assert a.fill_value == -7
    assert type(a.fill_value) is np.int32
    assert a.attrs == {"units": "K", "nested": {"a": [1, None]}}
    assert a.dimension_names == ("y", None)
    assert (a.path, a.device) == ("", "cpu")


def test_its_repr_tells_where_it_is_and_what_it_holds(a, place):
    text = repr(a)
    assert str(place) in text
    assert "shape=(20, 30)" in text
    assert "dtype=int32" in text
    assert "cpu" in text


def test_len_and_iteration_go_along_the_first_axis(a):
    assert len(a) == 20
    rows = list(a)
    assert len(rows) == 20
    assert_same_bits(np.stack(rows), VALUES)
    assert len(empty_array()) == 0
    assert list(empty_array()) == []


def test_an_array_without_axes_has_neither_length_nor_items():
    a = scalar_array()
    with pytest.raises(TypeError):
        len(a)
    with pytest.raises(TypeError):
        iter(a)
    assert a[...].shape == ()
    assert a[()] == 42
    assert int(a[...]) == 42


def test_an_array_without_axes_becomes_a_number_as_numpys_does(a):
    one = scalar_array()
    assert [kind(one) for kind in (int, float, complex, bool)] == [42, 42.0, 42, True]
    for kind in (int, float, complex):
        with pytest.raises(TypeError, match=r"shape=\(20, 30\).*: index it first"):
            kind(a)


def test_numpy_takes_it_for_an_array(a):
    assert_same_bits(np.asarray(a), VALUES)
    assert_same_bits(np.asarray(a, dtype="f8"), VALUES.astype("f8"))
    assert_same_bits(np.add(a, 1), VALUES + 1)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(a, copy=False)


# Indexing by NumPy's rules


def test_integers_give_scalars_and_slices_give_arrays(a):
    for key in (np.s_[3, 4], np.s_[-1, -30], (np.int64(3), np.uint8(4))):
        got = a[key]
        assert type(got) is type(VALUES[key])
        assert got == VALUES[key]
    kept = a[3:4, 4]
    assert isinstance(kept, np.ndarray)
    assert kept.shape == (1,)
    assert a[3, 4, ...].shape == ()
    assert isinstance(a[3, 4, ...], np.ndarray)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[5:5],
        np.s_[9:3],
        np.s_[:, 100:],
        np.s_[::-1, 3:2:1],
        np.s_[0:0, 4],
        np.s_[None, 20:, None],
        ([],),
    ],
)
def test_empty_selections_give_empty_results_of_numpys_shape(a, key):
    want = VALUES[np.asarray(key[0], int) if key == ([],) else key]
    assert want.size == 0
    assert_same_bits(a[key], want)


def test_a_selection_of_nothing_is_not_planned(place, monkeypatch):
    # Else the ways for few inner chunks would take it.
    a = gpushard.open_array(place, options=gpushard.Options(small_read_chunks=0))

    def plan(*_, **__):
        raise AssertionError("a plan of nothing")

    monkeypatch.setattr(results, "plan_read", plan)
    assert a[5:5].shape == (0, 30)
    assert a.read(np.s_[:, 3:3], dtype="f8").dtype == "f8"
    out = np.empty((0, 30), "i8")
    assert a.read(np.s_[9:3], out=out) is out
    assert a.oindex[[], [3, 1]].shape == (0, 2)


def test_an_array_without_elements_gives_results_without_elements():
    a = empty_array()
    assert_same_bits(a[...], np.empty((0, 3), "f4"))
    assert_same_bits(a[:, 1], np.empty(0, "f4"))
    assert_same_bits(a[None, :, ::-1], np.empty((1, 0, 3), "f4"))
    assert a.blocks[:, 0].shape == (0, 2)
    assert a.explain().n_shards == 0


@pytest.mark.parametrize(
    "key",
    [
        20,
        -21,
        (0, 30),
        (0, 0, 0),
        (..., ...),
        1.5,
        "u",
        (0, "u"),
        slice(0, 5, 0),
        slice(1.5, 3),
        True,
        np.ones((20, 29), bool),
        np.ones(19, bool),
        [0, 20],
        (object(),),
    ],
)
def test_a_key_that_does_not_fit_is_refused_in_a_sentence(a, key):
    with pytest.raises(gpushard.SelectionError) as caught:
        a[key]
    assert isinstance(caught.value, IndexError)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_mixtures_that_numpy_reads_in_its_own_way_are_refused_or_equal(a):
    rows, mask = np.array([3, 1, 3]), np.arange(30) % 7 == 2
    assert_same_bits(a[rows], VALUES[rows])
    assert_same_bits(a[rows, 2:9:3], VALUES[rows, 2:9:3])
    assert_same_bits(a[:, mask], VALUES[:, mask])
    assert_same_bits(a[rows, [5, 6, 7]], VALUES[rows, [5, 6, 7]])
    assert_same_bits(a[VALUES % 5 == 0], VALUES[VALUES % 5 == 0])
    assert_same_bits(a[rows, 4], VALUES[rows, 4])
    with pytest.raises(gpushard.SelectionError, match="oindex or vindex"):
        a[rows, None, rows]


def test_a_mask_of_an_array_without_axes_takes_its_element_or_nothing():
    store = MemoryStore()
    zarr.create_array(store, shape=(), dtype="i4")[...] = 5
    a = gpushard.open_array(store)
    for mask in (True, False):
        assert_same_bits(a.vindex[np.array(mask)], np.array(5, "i4")[np.array(mask)])


def test_blocks_are_shards_cut_at_the_arrays_edge(a):
    assert_same_bits(a.blocks[0, 0], VALUES[:8, :20])
    assert_same_bits(a.blocks[-1, 1], VALUES[16:, 20:])
    assert_same_bits(a.blocks[1:, :], VALUES[8:])
    assert_same_bits(a.blocks[:, 1], VALUES[:, 20:])
    for key in (3, (0, 2), (slice(0, 2, 2),), (0, 0, 0), "x", [0, 1]):
        with pytest.raises(gpushard.SelectionError):
            a.blocks[key]


def test_hyperslabs_are_netcdfs(a):
    key = gpushard.hyperslab([2, 1], [3, 5], [4, 6])
    assert_same_bits(a[key], VALUES[2:11:4, 1:26:6])


@given(basic_keys(VALUES.shape))
def test_any_basic_key_is_numpys(place, key):
    a = gpushard.open_array(place)
    assert_same_bits(a[key], VALUES[key])


# explain


def test_a_report_counts_shards_inner_chunks_and_bytes(place, a):
    report = a.explain()
    assert (report.n_shards, report.n_missing_shards) == (6, 0)
    assert (report.n_inner_chunks, report.n_missing_inner_chunks) == (15, 0)
    assert report.n_index_requests == 6
    assert report.index_nbytes == 6 * (4 * 16 + 4)
    stored = sum(path.stat().st_size for path in place.rglob("c/*/*"))
    assert report.payload_nbytes == stored - report.index_nbytes
    assert (report.gap_nbytes, report.out_nbytes) == (0, 2400)
    assert report.milliseconds["total"] > 0


def test_a_report_counts_bytes_of_objects_that_are_fetched_whole_once():
    objects: dict = {}
    values = np.arange(600, dtype="i4").reshape(20, 30)
    zarr.create_array(MemoryStore(objects), data=values, chunks=(10, 10))
    report = gpushard.open_array(MemoryStore(objects)).explain()
    stored = sum(len(data) for key, data in objects.items() if key.startswith("c/"))
    assert (report.payload_nbytes, report.gap_nbytes) == (stored, 0)


def test_a_report_names_codecs_and_prints_and_becomes_json(a):
    report = a.explain(np.s_[0, 0])
    assert [c.codec for c in report.codecs] == ["zstd", "bytes"]
    assert report.codecs[0].where == "host"
    assert "zstandard" in report.codecs[0].library
    text = str(report)
    for word in ("shards", "inner chunks", "requests", "zstd", "milliseconds"):
        assert word in text
    assert json.loads(json.dumps(report.as_dict()))["n_inner_chunks"] == 1


def test_a_report_counts_what_is_missing(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4"
    )
    z[0:2, 0:2] = 1
    report = gpushard.open_array(tmp_path / "a").explain()
    assert (report.n_shards, report.n_missing_shards) == (4, 3)
    assert (report.n_inner_chunks, report.n_missing_inner_chunks) == (16, 15)
    z = zarr.create_array(tmp_path / "b", shape=(8,), chunks=(2,), dtype="i4")
    z[0:2] = 1
    report = gpushard.open_array(tmp_path / "b").explain()
    assert (report.n_shards, report.n_missing_shards) == (4, 3)


# Opening


def test_an_array_is_opened_by_path_text_url_store_and_zarr_array(place):
    with quiet_zarr():
        z = zarr.open_array(place, mode="r")
    targets = [place, str(place), place.as_uri(), z, z.store, z.store_path]
    for target in targets:
        assert_same_bits(gpushard.open_array(target)[3], VALUES[3])
    assert_same_bits(gpushard.open_array(place.parent, "a.zarr")[3], VALUES[3])
    assert gpushard.open_array(place.parent, "a.zarr").path == "a.zarr"


def test_devices_that_are_not_there_are_refused(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpushard.open_array(place, device="cpu").device == "cpu"
    for device in ("cuda", "cuda:1", "tpu", ""):
        with pytest.raises(gpushard.UnsupportedError, match=r"device|CuPy"):
            gpushard.open_array(place, device=device)


def test_what_is_not_there_is_not_found(place, tmp_path):
    for args in ((tmp_path,), (place, "u"), (tmp_path / "absent",)):
        with pytest.raises(gpushard.NotFoundError) as caught:
            gpushard.open_array(*args)
        assert isinstance(caught.value, FileNotFoundError)


def test_strings_of_variable_length_come_through_zarrs_codec():
    objects: dict = {}
    words = np.array(["", "a", "über", "b" * 50, "é", "\0x"], dtype=object)
    with quiet_zarr():
        z = zarr.create_array(
            MemoryStore(objects), shape=(6,), chunks=(2,), shards=(4,), dtype="str"
        )
        z[...] = words
        full = z[...]
    a = gpushard.open_array(MemoryStore(objects))
    assert a[...].tolist() == full.tolist() == words.tolist()
    assert a[::-2].tolist() == words[::-2].tolist()
    assert a[3] == words[3]
