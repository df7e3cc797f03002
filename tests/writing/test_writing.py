"""Values that ``a[...] = ...`` writes are read back, by gpushard and zarr-python."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ZipStore

import gpushard
from gpushard.metadata import DOCUMENTS
from gpushard.options import Options
from gpushard.planning.index import MISSING
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.store import LocalStore
from gpushard.write_options import WriteOptions
from gpushard.writing.assign import n_shards_at_once
from gpushard.writing.shard import Region, StoredShard
from zarr_oracle import assert_same_bits

SHAPE, CHUNKS, SHARDS = (21, 19), (4, 4), (8, 16)


def numbers(dtype="i4") -> np.ndarray:
    return np.random.default_rng(3).integers(1, 100, SHAPE).astype(dtype)


def new(place, **changed) -> gpushard.Array:
    given = {"shape": SHAPE, "dtype": "i4", "chunks": CHUNKS, "shards": SHARDS}
    return gpushard.create_array(place, **given | changed)


def stored_shard(a: gpushard.Array, coordinate=(0, 0)) -> StoredShard:
    key = a.source.key(coordinate)
    data = np.frombuffer(a.source.store.get(key), np.uint8)
    return StoredShard.parse(Region.of_object(a.source, coordinate), data)


def files_below(place) -> set[str]:
    return {p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()}


WRITES = {
    "all": np.s_[...],
    "whole shards": np.s_[8:16],
    "part of an inner chunk": np.s_[1:3, 2:3],
    "across shards": np.s_[5:18, 3:],
    "every third": np.s_[1::3, ::5],
    "backwards": np.s_[::-1, 17:2:-4],
    "one row": np.s_[7],
    "one element": np.s_[20, 18],
    "a new axis": np.s_[2:5, None, 6],
    "nothing": np.s_[4:4],
}


@pytest.mark.parametrize("key", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("location", ["start", "end"])
def test_what_is_written_is_read_back(key, location, tmp_path):
    shards = {"shape": SHARDS, "index_location": location}
    a = new(tmp_path / "a", shards=shards, fill_value=5)
    want = np.full(SHAPE, 5, "i4")
    for values in (numbers(), numbers()[::-1]):
        a[key] = values[key]
        want[key] = values[key]
        assert_same_bits(a[...], want)
        assert_same_bits(zarr.open_array(tmp_path / "a")[...], want)


def test_orthogonal_and_point_writes_follow_numpy(tmp_path):
    a, want = new(tmp_path / "a"), np.zeros(SHAPE, "i4")
    a.oindex[[9, 1, 1], 2:7] = np.arange(15).reshape(3, 5)
    want[9, 2:7], want[1, 2:7] = np.arange(5), np.arange(10, 15)
    a.vindex[[20, 3, 20], [18, 0, 18]] = [7, 8, 9]
    want[20, 18], want[3, 0] = 9, 8
    a[want == 12] = 77
    want[want == 12] = 77
    a.blocks[1, 1] = 6
    want[8:16, 16:] = 6
    assert_same_bits(a[...], want)
    a.vindex[np.ones(SHAPE, bool)] = 4
    assert (a[...] == 4).all()


@pytest.mark.parametrize("shards", [None, 4])
def test_one_element_written_many_times_is_no_whole_shard(shards, tmp_path):
    a = gpushard.create_array(tmp_path, shape=8, dtype="i4", chunks=2, shards=shards)
    a[...] = want = np.arange(8)
    a.vindex[[0] * 4] = [5, 4, 3, 9]  # the last one wins, as with NumPy
    a.oindex[[5] * 4] = [5, 4, 3, 8]
    want[[0, 5]] = 9, 8
    assert a[...].tolist() == want.tolist()


def test_values_are_broadcast_and_cast_like_numpys(tmp_path):
    a = new(tmp_path / "a", dtype="f4")
    a[...] = 1.5
    a[3:5] = np.arange(19)
    a[6] = [2] * 19
    want = np.full(SHAPE, 1.5, "f4")
    want[3:5], want[6] = np.arange(19), 2
    assert_same_bits(a[...], want)


class _OnDevice:
    """What a CuPy array offers of itself."""

    __cuda_array_interface__ = None

    def get(self):
        return np.array(9, "i4")


def test_values_on_a_device_are_fetched(tmp_path):
    a = new(tmp_path / "a")
    a[2:4] = _OnDevice()
    assert (a[2:4] == 9).all()


@pytest.mark.parametrize(
    "value", [1.5, 300, -1, np.int64(256), "x", np.ones(3, "u1"), [1, 2], 1j]
)
def test_values_that_do_not_fit_are_refused_and_nothing_is_written(value, tmp_path):
    a = new(tmp_path / "a", dtype="u1")
    with pytest.raises(gpushard.SelectionError):
        a[...] = value
    assert files_below(tmp_path / "a") == {"zarr.json"}


def test_a_zero_dimensional_array_is_written(tmp_path):
    a = gpushard.create_array(tmp_path / "a", shape=(), dtype="f8", chunks=())
    a[...] = 2.5
    assert a[()] == zarr.open_array(tmp_path / "a")[()] == 2.5


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("bool", [True, False, True]),
        ("complex64", [1j, 2, 3]),
        ("float16", [0.5, np.nan, -0.0]),
        (">i2", [1, 2, 3]),
        ("datetime64[s]", np.array([1, 2, 3], "M8[s]")),
        ("str", np.array(["a", "", "long text"], np.dtypes.StringDType())),
        ("S4", np.array([b"ab", b"", b"abcd"], "S4")),
    ],
)
def test_data_types_are_written(dtype, values, tmp_path):
    if dtype == "str" and zarr.__version__ == "3.1.0":
        pytest.skip("zarr 3.1.0 warns that it does not know its own string codec")
    place = tmp_path / "a"
    a = gpushard.create_array(place, shape=7, dtype=dtype, chunks=2, shards=4)
    a[1:4] = values
    want = zarr.open_array(place)[...]
    # As text, in which a NaN is like another and a negative zero unlike zero.
    assert str(want[1:4].tolist()) == str(np.asarray(values, want.dtype).tolist())
    assert str(a[...].tolist()) == str(want.tolist())


@pytest.mark.parametrize("shards", [None, 4])
def test_records_are_written(shards, tmp_path):
    dtype = [("x", "i4"), ("y", "f4")]
    values = np.array([(1, 2), (3, 4), (0, 0)], dtype)
    a = gpushard.create_array(
        tmp_path / "a", shape=7, dtype=dtype, chunks=2, shards=shards
    )
    a[1:4] = values
    assert a[1:4].tolist() == values.tolist()
    if shards is None:  # zarr 3.1 cannot read records out of shards
        assert zarr.open_array(tmp_path / "a")[1:4].tolist() == values.tolist()


def test_a_negative_zero_and_another_nan_are_not_the_fill_value(tmp_path):
    a = gpushard.create_array(tmp_path / "a", shape=4, dtype="f4", chunks=2, shards=4)
    a[:2] = -0.0
    a[3] = -0.0  # behind a zero that is the fill value
    assert np.signbit(a[...]).tolist() == [True, True, False, True]
    other = np.array([0x7FC00001], "u4").view("f4")
    b = gpushard.create_array(
        tmp_path / "b", shape=4, dtype="f4", chunks=2, shards=4, fill_value=np.nan
    )
    b[...] = other
    assert (b[...].view("u4") == 0x7FC00001).all()


def test_writing_whole_shards_reads_nothing(tmp_path, monkeypatch):
    a = new(tmp_path / "a")
    a[...] = numbers()

    def refuse(*args):
        raise AssertionError("a whole shard was read")

    read = LocalStore.read

    def read_documents(store, requests):
        if not {request.key for request in requests} <= {*DOCUMENTS}:
            refuse()
        return read(store, requests)

    monkeypatch.setattr(LocalStore, "read", read_documents)
    monkeypatch.setattr(LockedFile, "opened", refuse)
    a[8:16] = 3
    a[16:, 16:] = 4  # as much of the last shard as lies within the array
    with pytest.raises(AssertionError):
        a[8:15] = 3


def test_untouched_inner_chunks_are_copied_as_bytes(tmp_path):
    a = new(tmp_path / "a")
    a[...] = numbers()
    # No decoder takes these bytes, so whoever copies them has not looked at them.
    path, span = tmp_path / "a" / "c" / "0" / "0", stored_shard(a).span(7)
    data = bytearray(path.read_bytes())
    data[span] = b"\xaa" * len(data[span])
    path.write_bytes(data)
    shards = [stored_shard(a)]
    a[0:2, 0:2] = 7
    shards.append(stored_shard(a))
    before, after = ([s.data[s.span(k)].tobytes() for k in range(8)] for s in shards)
    assert {k for k in range(8) if before[k] != after[k]} == {0}
    a[4:8, 12:16] = 1  # the damaged one, written whole
    assert (a[4:8, 12:16] == 1).all()


def test_inner_chunks_of_fill_value_become_missing(tmp_path):
    a = new(tmp_path / "a", fill_value=9)
    a[...] = numbers()
    a[:4, :8] = 9
    assert (stored_shard(a).index.state == MISSING).nonzero()[0].tolist() == [0, 1]
    a[:8, :16] = 9
    assert "c/0/0" not in files_below(tmp_path / "a")
    assert (a[:8, :16] == 9).all()


def test_inner_chunks_of_fill_value_are_stored_on_request(tmp_path):
    options = Options(write=WriteOptions(write_empty_chunks=True))
    a = new(tmp_path / "a", fill_value=9, options=options)
    a[:8, :16] = 9
    assert not (stored_shard(a).index.state == MISSING).any()


@pytest.mark.parametrize(
    ("order", "want"),
    [
        ("c", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("f", [0, 4, 1, 5, 2, 6, 3, 7]),
        ("morton", [0, 1, 4, 5, 2, 3, 6, 7]),
    ],
)
def test_inner_chunks_lie_in_the_order_asked_for(order, want, tmp_path):
    a = new(tmp_path / "a", options=Options(write=WriteOptions(order=order)))
    a[...] = numbers()
    assert stored_shard(a).present() == want
    assert_same_bits(zarr.open_array(tmp_path / "a")[...], numbers())


def test_nothing_but_shards_and_metadata_is_left_behind(tmp_path):
    a = new(tmp_path / "a")
    a[...] = numbers()
    a[1, 1] = 0
    shards = {f"c/{i}/{j}" for i in range(3) for j in range(2)}
    assert files_below(tmp_path / "a") == shards | {"zarr.json"}


def test_a_shard_is_replaced_and_never_changed_in_place(tmp_path):
    a = new(tmp_path / "a")
    a[...] = 1
    path = tmp_path / "a" / "c" / "0" / "0"
    old = path.open("rb")
    before = path.read_bytes()
    a[0, 0] = 2
    assert old.read() == before
    assert path.read_bytes() != before
    old.close()


def test_a_damaged_shard_is_not_written_to_in_part(tmp_path):
    a = new(tmp_path / "a")
    a[...] = numbers()
    path = tmp_path / "a" / "c" / "0" / "0"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(gpushard.ChecksumError, match="c/0/0"):
        a[0, 0] = 1
    a[:8, :16] = 1
    assert (a[:8, :16] == 1).all()


def test_links_out_of_the_store_are_not_followed(tmp_path):
    a = new(tmp_path / "a")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / "c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(gpushard.StoreError, match="symbolic link"):
        a[...] = 1
    assert not any((tmp_path / "elsewhere").iterdir())


def test_zarrs_memory_store_is_written_to():
    store = MemoryStore()
    a = new(store, path="deep/a")
    a[...] = numbers()
    a[3:9, 5] = 0
    want = numbers()
    want[3:9, 5] = 0
    assert_same_bits(zarr.open_array(store, path="deep/a")[...], want)
    a[...] = 0
    assert set(store._store_dict) == {f"{p}zarr.json" for p in ("", "deep/", "deep/a/")}


def test_a_store_without_a_lock_takes_whole_shards_only(tmp_path):
    store = ZipStore(tmp_path / "a.zip", mode="w")
    a = new(store)
    a[...] = numbers()
    with pytest.raises(gpushard.UnsupportedError, match="whole shards"):
        a[0, 0] = 1
    assert_same_bits(a[...], numbers())
    store.close()


@pytest.mark.parametrize("wrap", [zarr.storage.WrapperStore, lambda store: store])
def test_a_read_only_store_is_refused(wrap, tmp_path):
    zarr.create_array(tmp_path / "a", shape=4, dtype="i4", chunks=2)
    store = zarr.storage.LocalStore(tmp_path / "a", read_only=True)
    a = gpushard.open_array(wrap(store))
    for read_only in (a, pickle.loads(pickle.dumps(a))):
        with pytest.raises(gpushard.UnsupportedError, match="read-only"):
            read_only[0] = 1


def test_memory_bounds_the_shards_under_way(tmp_path):
    def at_once(limit):
        options = Options(threads=8, memory_limit=limit)
        return n_shards_at_once(new(tmp_path / str(limit), options=options).source)

    shard_nbytes = 8 * 16 * 4
    assert at_once(1) == 1
    assert at_once(6 * shard_nbytes) == 2
    assert at_once(1 << 30) == 8


def test_objects_are_written_through_conditional_puts():
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    store = obstore.store.MemoryStore()
    a = new(store, path="a")
    a[...] = numbers()
    a[2:11, 3] = 0
    want = numbers()
    want[2:11, 3] = 0
    assert_same_bits(a[...], want)
    a[:8, :8] = 0
    a[:8, 8:16] = 0  # nothing is left, but there is no conditional delete
    want[:8, :16] = 0
    assert_same_bits(a[...], want)
    assert (stored_shard(a).index.state == MISSING).all()


def test_a_write_between_reading_and_putting_is_not_lost(monkeypatch):
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    store = obstore.store.MemoryStore()
    a, other = new(store), gpushard.open_array(store)
    a[...] = 1
    real, n_calls = obstore.put, []

    def put(*args, **named):
        n_calls.append(named)
        if len(n_calls) == 1:
            other[0, 0] = 3
        return real(*args, **named)

    monkeypatch.setattr(obstore, "put", put)
    a[1, 1] = 2
    assert len(n_calls) == 3
    assert a[:2, :2].tolist() == [[3, 1], [1, 2]]


def test_an_object_store_without_conditional_puts_takes_whole_shards(tmp_path):
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    store = obstore.store.LocalStore(tmp_path)
    a = new(store)
    a[...] = numbers()
    with pytest.raises(gpushard.UnsupportedError, match="conditional put"):
        a[0, 0] = 1
    assert_same_bits(a[...], numbers())


def test_a_pathlib_path_below_a_missing_directory_is_made(tmp_path):
    a = new(Path(tmp_path, "x", "y"))
    a[0, 0] = 1
    assert a[0, 0] == 1
