"""`ShardedStore`: its operations on the store below, its refusals, stacks, damage."""

from __future__ import annotations

import struct
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from zarr.storage import LocalStore, MemoryStore

import gpushard
from gpushard.stores.base import Fetched
from gpushard.stores.held import HeldObjects
from gpushard.stores.key_value import MappingStore, key_value_store
from gpushard.stores.zarr import writer as zarr_writer
from gpushard.transformer import ShardedStore, transformed
from historic_arrays import (
    ROOT,
    all_chunks,
    draft_document,
    draft_key,
    grouped,
    json_bytes,
    shard,
)
from zarr_oracle import assert_same_bits

SHARD_00 = "data/root/a/c0/0"


class CountingStore(MappingStore):
    """Key/value store that remembers what it was asked."""

    def __init__(self, values):
        super().__init__(values)
        self.asked: list[tuple] = []

    def get_partial_values(self, key_ranges):
        self.asked.append(("get", len(key_ranges)))
        return super().get_partial_values(key_ranges)

    def set(self, key, value):
        self.asked.append(("set", key))
        super().set(key, value)

    def erase_values(self, keys):
        keys = list(keys)
        self.asked += [("erase", key) for key in keys]
        super().erase_values(keys)


@pytest.fixture
def below():
    return CountingStore(
        {
            SHARD_00: shard([b"aaaa", b"bb", None, b"d"], gap=b"~~"),
            "data/root/a/c0/1": shard([b"e", None, None, None]),
            "zarr.json": b"{}",
        }
    )


@pytest.fixture
def store(below):
    return ShardedStore(below, (2, 2), "a")


def chunk(i, j):
    return f"data/root/a/c{i}/{j}"


def test_many_ranges_take_two_operations_of_the_store_below(store, below):
    whole = (0, None)
    got = store.get_partial_values(
        [
            (chunk(0, 0), (1, 2)),
            (chunk(0, 1), whole),
            (chunk(1, 0), whole),
            (chunk(0, 2), whole),
            (chunk(9, 9), whole),
            ("zarr.json", (0, 1)),
            ("absent", whole),
            (chunk(0, 0), (-3, 2)),
        ]
    )
    assert got == [b"aa", b"bb", None, b"e", None, b"{", None, b"aa"]
    # Three indexes and two keys that are passed on; then the chunks that are there.
    assert below.asked == [("get", 5), ("get", 4)]


def test_what_is_not_there_takes_one_operation(store, below):
    assert store.get(chunk(1, 0)) is None
    assert store.get("zarr.json") == b"{}"
    assert below.asked == [("get", 1), ("get", 1)]


def test_a_whole_shard_is_written_without_being_read(store, below):
    chunks = [chunk(i, j) for i in (0, 1) for j in (0, 1)]
    store.set_values({key: key[-1].encode() for key in reversed(chunks)})
    assert below.asked == [("set", SHARD_00)]
    assert store[chunk(1, 0)] == b"0"
    (value,) = below.get_partial_values([(SHARD_00, (0, 4))])
    assert value == b"0101"  # in the order of the index, not of the calls


def test_a_shard_at_the_edge_is_whole_with_the_chunks_that_the_array_has(below):
    store = ShardedStore(below, (2, 2), "a", grid_shape=(2, 3))
    store.set_values({chunk(0, 2): b"x", chunk(1, 2): b"y"})
    assert below.asked == [("set", "data/root/a/c0/1")]


def test_chunks_behind_the_grid_are_no_more_lost_than_others():
    # As where somebody has made the array larger, or smaller, in the meantime.
    store = ShardedStore({}, (2, 2), "a", grid_shape=(3, 2))
    behind = [chunk(3, 0), chunk(6, 0), chunk(7, 0)]
    for key in behind:
        store[key] = b"behind"
    assert list(store) == behind
    store.erase(behind[1])
    assert list(store) == [behind[0], behind[2]]


def test_a_chunk_is_written_with_two_reads_and_one_write(store, below):
    store.set(chunk(0, 1), b"longer")
    assert below.asked == [("get", 1), ("get", 2), ("set", SHARD_00)]
    assert store[chunk(0, 0)] == b"aaaa"
    assert store[chunk(1, 1)] == b"d"


def test_keys_beside_the_arrays_chunks_are_left_as_they_are(store, below):
    beside = ["data/root/b/c0/0", "data/root/a/d0/0", "data/root/a/c0", "data/root/a/c"]
    for key in beside:
        store.set(key, b"other")
        assert below.asked[-1] == ("set", key)
        assert store.get_partial_values([(key, (0, None))]) == [b"other"]
    assert store.get_partial_values([(chunk(0, 0), (0, None))]) == [b"aaaa"]


def test_erasing_all_chunks_of_a_shard_erases_it_unread(store, below):
    store.erase_values([chunk(i, j) for i in (0, 1) for j in (0, 1)])
    assert below.asked == [("erase", SHARD_00)]


def test_erasing_the_last_chunk_of_a_shard_erases_the_shard(store, below):
    store.erase(chunk(0, 2))
    assert below.asked[-1] == ("erase", "data/root/a/c0/1")


def test_the_example_of_the_draft():
    values: dict[str, bytes] = {}
    store = ShardedStore(values, [32, 2], "foo/baz")
    for key in ("c96/18", "c96/19", "c127/19"):
        store[f"data/root/foo/baz/{key}"] = b"x"
    assert list(values) == ["data/root/foo/baz/c3/9"]
    assert len(values["data/root/foo/baz/c3/9"]) == 3 + 1024


def test_a_directory_of_shards_lists_all_chunks_that_may_be_there(store):
    keys, prefixes = store.list_dir("data/root/a/")
    assert (list(keys), list(prefixes)) == ([], [chunk(0, ""), chunk(1, "")])
    keys, prefixes = store.list_dir(chunk(0, ""))
    assert (list(keys), list(prefixes)) == ([chunk(0, j) for j in range(3)], [])
    store.set(chunk(0, "1/of_others"), b"")
    assert list(store.list_dir(chunk(0, ""))[1]) == [chunk(0, "1/")]


@pytest.mark.parametrize(("grid", "n_listed"), [(None, 4), ((3, 3), 3)])
def test_no_directories_beyond_a_known_grid_are_listed(grid, n_listed, below):
    below.set("data/root/a/c1/0", shard([b"f", None, None, None]))
    store = ShardedStore(below, (2, 2), "a", grid_shape=grid)
    _, prefixes = store.list_dir("data/root/a/")
    assert list(prefixes) == [chunk(i, "") for i in range(n_listed)]


@pytest.mark.parametrize("key", ["data/root/a/c0/0", "zarr.json"])
@pytest.mark.parametrize("value", [3, "text", [1, 2]])
def test_values_that_are_no_bytes_are_refused(value, key, store, below):
    asked = len(below.asked)
    with pytest.raises(gpushard.OptionError, match="no bytes"):
        store[key] = value
    assert not [call for call in below.asked[asked:] if call[0] == "set"]


def test_a_key_with_thousands_of_digits_is_none_of_a_chunk(store):
    key = chunk("1" * 5000, 0)
    assert key not in store
    store[key] = b"x"
    assert key in list(store)


def test_a_mapping_raises_key_errors(store):
    for operation in (store.__getitem__, store.__delitem__):
        with pytest.raises(KeyError):
            operation(chunk(1, 0))
    assert chunk(1, 0) not in store
    assert 3 not in store
    assert len(store) == 5


def test_a_start_beyond_the_value_is_refused(store):
    for start in (5, -5):
        with pytest.raises(gpushard.OptionError, match="beyond"):
            store.set_partial_values([(chunk(0, 0), start, b"x")])
    with pytest.raises(gpushard.OptionError, match="negative length"):
        store.get_partial_values([(chunk(0, 0), (0, -1))])
    with pytest.raises(gpushard.OptionError, match="slash"):
        store.list_dir("data")


@pytest.mark.parametrize(
    ("per_shard", "more"),
    [
        ((0, 1), {}),
        ((True,), {}),
        ((2, 2), {"separator": "-"}),
        ((2, 2), {"grid_shape": (3,)}),
        ((2,), {"grid_shape": ("3",)}),
        ((2,), {"grid_shape": (2.5,)}),
        ((2,), {"grid_shape": (-1,)}),
    ],
)
def test_impossible_shards_are_refused(per_shard, more):
    with pytest.raises(gpushard.OptionError):
        ShardedStore({}, per_shard, "a", **more)


def test_shards_may_be_described_by_numpys_integers():
    below = {}
    store = ShardedStore(below, np.array([2, 3]), "a", grid_shape=np.array([4, 4]))
    store["data/root/a/c3/3"] = b"a chunk"
    assert list(below) == ["data/root/a/c1/1"]
    assert list(store) == ["data/root/a/c3/3"]


@pytest.mark.parametrize("length", ["1", "", 1.5, True])
def test_a_length_that_is_no_integer_is_refused(length, store):
    store[chunk(0, 0)] = b"a chunk"
    with pytest.raises(gpushard.OptionError, match="length is of the wrong kind"):
        store.get_partial_values([(chunk(0, 0), (0, length))])


def test_a_path_that_is_no_text_is_refused():
    with pytest.raises(gpushard.OptionError, match="path is of the wrong kind"):
        transformed({}, 5)


def test_what_is_no_store_is_refused():
    with pytest.raises(gpushard.UnsupportedError, match="no key/value store"):
        ShardedStore(3, (2, 2), "a")


BOTH = struct.pack("<QQ", 2**64 - 1, 2**64 - 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        struct.pack("<QQ", 2**64 - 1, 0) + BOTH,
        struct.pack("<QQ", 0, 2**64 - 1) + BOTH,
        struct.pack("<QQ", 2**63, 1) + BOTH,
        struct.pack("<QQ", 31, 2) + BOTH,
        struct.pack("<QQ", 0, 2**62) + BOTH,
    ],
)
def test_a_damaged_shard_is_named(data):
    store = ShardedStore({"data/root/a/c0": data}, (2,), "a")
    for operation in (
        lambda: store.get("data/root/a/c0"),
        lambda: store.set("data/root/a/c1", b"x"),
    ):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            operation()
        assert caught.value.shard_key == "data/root/a/c0"


def test_a_store_of_gpushard_is_read_and_not_written():
    data = np.frombuffer(shard([b"abc", None]), np.uint8)
    objects = {"data/root/a/c0": Fetched(data, len(data), None)}
    store = ShardedStore(HeldObjects(objects, "memory://x"), (2,), "a")
    assert store["data/root/a/c0"] == b"abc"
    assert store.get("data/root/a/c1") is None
    for operation in (
        lambda: store.set("data/root/a/c1", b"x"),
        lambda: store.erase("data/root/a/c0"),
        lambda: store.erase_prefix("data/"),
        store.list,
        lambda: store.list_dir(""),
    ):
        with pytest.raises(gpushard.UnsupportedError, match="this store cannot"):
            operation()


def test_files_of_a_local_zarr_store(tmp_path):
    store = ShardedStore(LocalStore(tmp_path), (2, 2), "a")
    for i, j in ((0, 0), (3, 1), (3, 2)):
        store[chunk(i, j)] = f"{i}{j}".encode()
    assert (tmp_path / "data/root/a/c1/1").is_file()
    assert list(store) == [chunk(0, 0), chunk(3, 1), chunk(3, 2)]
    assert [*map(list, store.list_dir("data/root/"))] == [[], ["data/root/a/"]]
    assert list(store.list_prefix(chunk(3, ""))) == [chunk(3, 1), chunk(3, 2)]
    store.erase_prefix(chunk(3, ""))
    assert dict(store) == {chunk(0, 0): b"00"}


VALUES = np.arange(30, dtype="<i2").reshape(5, 6)


@pytest.mark.parametrize("way_out", ["..", "../beside", "a/../../beside", "/beside"])
def test_no_key_leads_out_of_a_zarr_store(way_out, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("kept")
    below = key_value_store(LocalStore(tmp_path / "root"))
    for leave in (
        lambda: below.set(f"{way_out}/new", b""),
        lambda: below.erase_values([f"{way_out}/kept"]),
        lambda: below.erase_prefix(f"{way_out}/"),
        lambda: below.list_prefix(f"{way_out}/k"),
        lambda: below.list_dir(f"{way_out}/"),
    ):
        with pytest.raises(gpushard.StoreError, match="no key below the store's root"):
            leave()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["kept"]


def test_transformers_stack_in_the_order_of_the_document():
    transformers = (1, 2), (2, 1)
    stored = all_chunks(VALUES, (2, 2))
    chunks = {f"data/root/a/{draft_key(at)}": data for at, data in stored.items()}
    for per_shard in transformers:
        stored = grouped(stored, per_shard)
    document = draft_document(VALUES, (2, 2), *transformers)
    values = {
        "zarr.json": json_bytes(ROOT),
        "meta/root/a.array.json": json_bytes(document),
        **{f"data/root/a/{draft_key(at)}": data for at, data in stored.items()},
    }
    store = transformed(values, "a")
    assert {k: store[k] for k in store if k.startswith("data/")} == chunks
    # An array written through the stack is the array that is read.
    fresh = {key: values[key] for key in ("zarr.json", "meta/root/a.array.json")}
    transformed(fresh, "a").set_values(chunks)
    objects = {
        key: Fetched(np.frombuffer(data, np.uint8), len(data), None)
        for key, data in fresh.items()
    }
    a = gpushard.open_array(HeldObjects(objects, "memory://x"), "a")
    assert_same_bits(a[...], VALUES)


def test_unknown_transformers_and_absent_arrays_are_refused():
    document = draft_document(VALUES, (2, 2), (1, 2))
    document["storage_transformers"][0]["type"] = "ragged"
    values = {
        "zarr.json": json_bytes(ROOT),
        "meta/root/a.array.json": json_bytes(document),
    }
    with pytest.raises(gpushard.UnsupportedError, match="format of the shards"):
        transformed(values, "a")
    with pytest.raises(gpushard.NotFoundError, match=r"meta/root/b\.array\.json"):
        transformed(values, "b")
    with pytest.raises(gpushard.NotFoundError, match=r"zarr\.json"):
        transformed({}, "a")


def test_values_are_written_and_erased_while_a_writer_of_zarr_stores_has_its_turn():
    # Its zarr store may be made of this one, whose values it writes in another thread.
    below = MemoryStore()
    store = key_value_store(below)

    def write():
        store.set("a", b"1")
        store.set("b", b"2")
        store.erase_values(["a"])

    thread = threading.Thread(target=write, daemon=True)
    with ExitStack() as stack:
        for lock in zarr_writer._key_locks._locks:
            stack.enter_context(lock)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    assert list(below._store_dict) == ["b"]
