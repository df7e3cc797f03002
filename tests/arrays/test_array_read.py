"""`Array.read` and `read_many`: into your arrays, cast on the way."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.codecs import ShardingCodec
from zarr.storage import MemoryStore

import gpushard
from gpushard import Options
from gpushard.selecting import expressions
from small_array import VALUES, write_values
from zarr_oracle import assert_same_bits

KEY = np.s_[3:17, ::-2]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return write_values(tmp_path_factory.mktemp("array") / "a.zarr")


@pytest.fixture
def a(place) -> gpushard.Array:
    return gpushard.open_array(place)


def test_read_writes_into_your_array_and_gives_it_back(a):
    out = np.empty((14, 15), "i4")
    assert a.read(KEY, out=out) is out
    assert_same_bits(out, VALUES[KEY])


@pytest.mark.parametrize("n", [0, 100])
def test_read_writes_into_arrays_of_any_strides(place, n):
    a = gpushard.open_array(place, options=Options(small_read_chunks=n))
    fortran = np.empty((14, 15), "i4", order="F")
    backwards = np.zeros((14, 15), "i4")[::-1, ::-1]
    spread = np.zeros((28, 45), "i4")
    for out in (fortran, backwards, spread[::2, 2::3]):
        a.read(KEY, out=out)
        assert_same_bits(out, VALUES[KEY])
    assert spread[1::2].sum() == 0  # nothing between the rows is touched
    swapped = np.empty((14, 15), ">i4")
    a.read(KEY, out=swapped)
    assert np.array_equal(swapped, VALUES[KEY])


def test_points_are_written_into_arrays_of_any_strides(a):
    out = np.zeros((6, 2), "i4")[::2].T
    assert not out.flags.c_contiguous
    key = (np.array([[0, 5, 19], [3, 3, 7]]), np.array([[29, 0, 1], [2, 2, 2]]))
    a.read(expressions.points(key, a.shape), out=out)
    assert_same_bits(out, VALUES[key])


def test_read_casts_on_the_way(a, place):
    small = gpushard.open_array(place, options=Options(small_read_chunks=0))
    for dtype in ("f4", "f8", "i8", "c8", "i2", ">i4"):
        want = VALUES[KEY].astype(dtype)
        for reader in (a, small):
            got = reader.read(KEY, dtype=dtype)
            assert got.dtype == np.dtype(dtype)
            assert np.array_equal(got, want)
    out = np.empty((14, 15), "f8")
    assert_same_bits(a.read(KEY, out=out), VALUES[KEY].astype("f8"))


def test_floats_narrow_as_numpy_narrows_them():
    objects: dict = {}
    values = np.random.default_rng(0).normal(size=(8, 8)).astype("f4") * 300
    z = zarr.create_array(MemoryStore(objects), shape=(8, 8), chunks=(3, 3), dtype="f4")
    z[...] = values
    a = gpushard.open_array(MemoryStore(objects))
    assert_same_bits(a.read(dtype="f2"), values.astype("f2"))
    assert_same_bits(
        a.read(dtype=ml_dtypes.bfloat16), values.astype(ml_dtypes.bfloat16)
    )
    for refused in ("i4", "u1", "?", "M8[s]"):
        with pytest.raises(gpushard.SelectionError, match="cast"):
            a.read(dtype=refused)


def readonly() -> np.ndarray:
    out = np.empty((14, 15), "i4")
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "word"),
    [
        (np.empty((15, 14), "i4"), "shape"),
        (np.empty(14 * 15, "i4"), "shape"),
        (np.empty((14, 15), "u2"), "cast"),
        (np.empty((14, 15), "?"), "cast"),
        (readonly(), "read-only"),
        ([[0] * 15] * 14, "memory"),
        ("text", "memory"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(a, out, word):
    with pytest.raises(gpushard.SelectionError, match=word):
        a.read(KEY, out=out)


@pytest.mark.parametrize("limit", [1, 1000, 10**9])
def test_any_memory_limit_gives_the_same_elements(a, limit):
    assert_same_bits(a.read(memory_limit=limit), VALUES)
    first, second = a.read_many([np.s_[:], KEY], memory_limit=limit)
    assert_same_bits(first, VALUES)
    assert_same_bits(second, VALUES[KEY])


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("batch_nbytes", [1, 3000, 4 * 1024**2])
def test_any_options_give_the_same_elements(tmp_path, threads, batch_nbytes):
    values = np.arange(2**18, dtype="i4").reshape(512, 512)
    z = zarr.create_array(
        tmp_path / "a", shape=(512, 512), chunks=(32, 64), shards=(128, 256), dtype="i4"
    )
    z[...] = values
    options = Options(threads=threads, batch_nbytes=batch_nbytes, index_cache_nbytes=0)
    a = gpushard.open_array(tmp_path / "a", options=options)
    assert_same_bits(a[...], values)
    assert_same_bits(a[7:400, ::-3], values[7:400, ::-3])


# read_many


def test_read_many_gives_one_result_a_selection(a):
    keys = [np.s_[0:9, 0:9], np.s_[3:12, 5:25], np.s_[5], np.s_[5, 5], np.s_[9:9], ...]
    for key, got in zip(keys, a.read_many(keys), strict=True):
        assert_same_bits(got, np.asarray(VALUES[key]))
    assert a.read_many([]) == []


def test_an_inner_chunk_that_several_selections_need_is_decoded_once(
    place, monkeypatch
):
    options = Options(small_read_chunks=0, compile_nbytes=2**62)
    a = gpushard.open_array(place, device="cpu", options=options)
    kind, decoded = type(a.source.pipeline), []
    decode = kind.decode

    def noted(self, *given):
        decoded.append(self is a.source.pipeline)  # other chains are of indexes
        return decode(self, *given)

    monkeypatch.setattr(kind, "decode", noted)
    a.read_many([np.s_[:5, :7], ..., np.s_[2:18, 9:11], 3])
    assert sum(decoded) == 15


def test_read_many_writes_into_your_arrays(a):
    outs = [np.empty((20, 30), "f4"), None]
    first, second = a.read_many([..., 4], out=outs)
    assert first is outs[0]
    assert_same_bits(first, VALUES.astype("f4"))
    assert_same_bits(second, VALUES[4])
    with pytest.raises(gpushard.SelectionError, match="one array for each selection"):
        a.read_many([..., ...], out=[None])


@pytest.mark.parametrize("n_small", [0, 1000], ids=["long way", "short way"])
@pytest.mark.parametrize("step", [2, -3])
def test_index_arrays_meet_a_slice_with_a_step_whatever_way_is_taken(n_small, step):
    values = np.arange(20**3, dtype="i4").reshape(20, 20, 20)
    store = MemoryStore()
    z = zarr.create_array(
        store, shape=values.shape, shards=(10,) * 3, chunks=(5,) * 3, dtype="i4"
    )
    z[...] = values
    options = Options(small_read_chunks=n_small)
    a = gpushard.open_array(store, device="cpu", options=options)
    key = ([0, 12, 3], [1, 7, 19], slice(None, None, step))
    assert_same_bits(a.oindex[key], values[np.ix_(*key[:2], range(20)[key[2]])])


@pytest.mark.parametrize("n_small", [0, 8], ids=["long way", "short way"])
def test_nested_indexes_of_stores_that_tell_no_version_are_read_anew(n_small):
    store = MemoryStore()
    inner = ShardingCodec(chunk_shape=(4,))
    nested = ShardingCodec(chunk_shape=(16,), codecs=[inner])
    options = Options(small_read_chunks=n_small)
    for missing in (slice(8, 12), slice(4, 8)):  # of one size, so where the other was
        values = np.arange(1, 65, dtype="i4")
        values[missing] = 0
        z = zarr.create_array(
            store, shape=(64,), chunks=(64,), dtype="i4", fill_value=0,
            serializer=nested, compressors=None, overwrite=True,
        )  # fmt: skip
        z[...] = values
        if missing.start == 8:
            a = gpushard.open_array(store, device="cpu", options=options)
        assert_same_bits(a[...], values)
        assert_same_bits(a[3:10], values[3:10])
