"""An array ready to be read, and what is kept of its shard indexes."""

from __future__ import annotations

import dataclasses
import json
import os
import threading

import numpy as np
import pytest
import zarr

import gpushard
import strategies as sts
from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecChain, CodecSpec, GridAxis
from gpushard.memory.known import IndexCache, KnownIndex
from gpushard.options import Options
from gpushard.planning.index import parse_index
from gpushard.source import Source
from gpushard.stores.held import HeldObjects

ENTRY_NBYTES = 17


def known(n_entries, version="v") -> KnownIndex:
    entries = np.zeros((n_entries, 2), np.uint64)
    return KnownIndex(parse_index(entries, nbytes=10), version)


# What is kept of shard indexes


def test_a_kept_index_is_found_under_its_coordinates():
    cache = IndexCache(1000)
    first, second = known(1), known(1)
    cache.put((0, 1), first)
    cache.put((0, 1, 1, 0, 40), second)
    assert cache.get((0, 1)) is first
    assert cache.get((0, 1, 1, 0, 40)) is second
    assert cache.get((1, 0)) is None


def test_the_index_unused_for_longest_goes_first():
    cache = IndexCache(3 * ENTRY_NBYTES)
    for i in range(3):
        cache.put((i,), known(1))
    assert cache.get((0,)) is not None
    cache.put((3,), known(1))
    assert [i for i in range(4) if cache.get((i,))] == [0, 2, 3]


def test_memory_counts_and_not_the_number_of_indexes():
    cache = IndexCache(10 * ENTRY_NBYTES)
    cache.put((0,), known(4))
    cache.put((1,), known(4))
    cache.put((2,), known(3))
    assert [i for i in range(3) if cache.get((i,))] == [1, 2]


def test_a_replaced_index_is_not_counted_twice():
    cache = IndexCache(2 * ENTRY_NBYTES)
    cache.put((0,), known(1))
    for _ in range(5):
        cache.put((1,), known(1))
    assert cache.get((0,)) is not None
    assert cache.get((1,)) is not None


def test_what_was_dropped_leaves_its_room_to_others():
    cache = IndexCache(2 * ENTRY_NBYTES)
    for _ in range(5):
        cache.put((0,), known(1))
        cache.drop_shard((0,))
    cache.put((1,), known(1))
    cache.put((2,), known(1))
    assert [i for i in range(3) if cache.get((i,))] == [1, 2]


@pytest.mark.parametrize("limit_nbytes", [0, ENTRY_NBYTES])
def test_an_index_larger_than_the_limit_is_not_kept(limit_nbytes):
    cache = IndexCache(limit_nbytes)
    cache.put((0,), known(2))
    assert cache.get((0,)) is None


def test_dropping_a_shard_drops_the_shards_nested_in_it_and_no_other():
    cache = IndexCache(1000)
    keys = [(0, 1), (0, 1, 1, 0, 9), (0, 1, 2, 3, 5), (0, 2), (0, 2, 1, 0, 9), (1, 0)]
    for key in keys:
        cache.put(key, known(1))
    cache.drop_shard((0, 1))
    assert [key for key in keys if cache.get(key)] == [(0, 2), (0, 2, 1, 0, 9), (1, 0)]
    cache.drop_shard((7, 7))
    assert cache.get((1, 0)) is not None


def test_threads_may_share_a_cache():
    cache = IndexCache(20 * ENTRY_NBYTES)
    errors = []

    def work(seed):
        try:
            for i in range(500):
                key = ((i * seed) % 30,)
                cache.put(key, known(1))
                cache.get(((i + seed) % 30,))
                if i % 7 == 0:
                    cache.drop_shard(key)
        except Exception as error:  # noqa: BLE001 - reported by the assert below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for i in range(20):
        cache.put((100 + i,), known(1))
    assert all(cache.get((100 + i,)) for i in range(20))


# Arrays ready to be read


def source_of(layout, **knobs) -> Source:
    return Source.prepare(layout, HeldObjects({}, "memory://"), Options(**knobs))


def chain_of(*before, endian="little", after=()) -> CodecChain:
    return CodecChain(before, CodecSpec("bytes", {"endian": endian}), tuple(after))


def transpose(*order) -> CodecSpec:
    return CodecSpec("transpose", {"order": list(order)})


def plain_layout(shape=(8, 6), cells=(4, 3), **changes):
    axes = [GridAxis(n, c) for n, c in zip(shape, cells, strict=True)]
    return dataclasses.replace(sts.make_layout(shape, axes), **changes)


@pytest.mark.parametrize(
    ("path", "keys", "key"),
    [
        ("", ChunkKeys("default", "/"), "c/1/0"),
        ("a/b", ChunkKeys("default", "."), "a/b/c.1.0"),
        ("a", ChunkKeys("v2", "."), "a/1.0"),
    ],
)
def test_the_key_of_a_stored_object_lies_below_the_array(path, keys, key):
    assert source_of(plain_layout(path=path, keys=keys)).key((1, 0)) == key


@pytest.mark.parametrize(
    ("before", "outer_order", "strides"),
    [
        ((), (0, 1), (12, 4, 4)),
        ((transpose(1, 0),), (0, 1), (4, 16, 4)),
        ((), (1, 0), (4, 16, 4)),
        ((transpose(1, 0),), (1, 0), (12, 4, 4)),
    ],
)
def test_plain_elements_tell_their_strides_in_the_arrays_axes(
    before, outer_order, strides
):
    layout = plain_layout(chain=chain_of(*before), outer_order=outer_order)
    source = source_of(layout)
    assert source.raw_strides == strides
    stored = np.arange(12, dtype="<i4")
    chunk = source.decode(stored.view(np.uint8), (4, 3))
    at = np.arange(4)[:, None] * strides[0] + np.arange(3) * strides[1]
    np.testing.assert_array_equal(chunk, stored[at // 4])


def test_a_transpose_of_three_axes_decodes_to_the_arrays_axes():
    shape, outer_order = (2, 3, 4), (2, 0, 1)
    axes = [GridAxis(n, n) for n in shape]
    layout = dataclasses.replace(
        sts.make_layout(shape, axes),
        chain=chain_of(transpose(1, 2, 0), endian="big"),
        outer_order=outer_order,
    )
    array = sts.numbered(shape)
    stored = array.transpose(outer_order).transpose(1, 2, 0).astype(">i4").tobytes()
    source = source_of(layout)
    chunk = source.decode(np.frombuffer(stored, np.uint8), shape)
    np.testing.assert_array_equal(chunk, array)
    *strides, itemsize = source.raw_strides
    for index in np.ndindex(shape):
        at = int(np.dot(index, strides))
        element = np.frombuffer(stored[at : at + itemsize], ">i4")
        assert element == array[index]


@pytest.mark.parametrize(
    "changes",
    [
        {"chain": chain_of(after=[CodecSpec("zstd", {"level": 1, "checksum": False})])},
        {"chain": chain_of(after=[CodecSpec("crc32c")])},
        {"object_codecs": (CodecSpec("gzip", {"level": 1}),)},
        {"axes": (GridAxis(8, 4), GridAxis(6, 0, np.array([0, 2, 6])))},
    ],
)
def test_encoded_or_uneven_payload_has_no_strides(changes):
    assert source_of(plain_layout(**changes)).raw_strides is None


def test_inner_chunks_of_a_rectilinear_grid_have_shapes_of_their_own():
    axes = (GridAxis(8, 4), GridAxis(6, 0, np.array([0, 2, 7])))
    source = source_of(plain_layout(axes=axes))
    assert source.chunk_shape is None
    assert [source.shape_of((0, i)) for i in range(2)] == [(4, 2), (4, 5)]


def test_inner_chunks_of_a_rectilinear_sharded_grid_are_all_alike():
    axes = (GridAxis(8, 4), GridAxis(6, 0, np.array([0, 2, 8])))
    source = source_of(plain_layout(axes=axes, levels=(sts.make_level((2, 2)),)))
    assert source.chunk_shape == source.shape_of((3, 2)) == (2, 2)
    assert source.chunks_per_shard((0, 0), 0) == (2, 1)
    assert source.chunks_per_shard((1, 1), 0) == (2, 3)


def test_chunks_per_shard_follow_each_levels_stored_axes():
    levels = (sts.make_level((4, 6), (1, 0)), sts.make_level((2, 1), (0, 1)))
    source = source_of(plain_layout((16, 6), (8, 6), levels=levels))
    assert source.chunks_per_shard((1, 0), 0) == (1, 2)
    assert source.chunks_per_shard((1, 0), 1) == (2, 6)


def test_a_limited_source_shares_its_indexes_and_leaves_the_other_alone():
    source = source_of(plain_layout(), memory_limit=1000)
    limited = source.limited(50)
    assert (limited.options.memory_limit, source.options.memory_limit) == (50, 1000)
    assert limited.indexes is source.indexes
    assert source.limited(None) is source


def test_a_source_has_findings_of_its_own_and_keeps_the_last_limited_one():
    source = source_of(plain_layout(), memory_limit=1000)
    source.findings["a reader"] = "found"
    limited = source.limited(50)
    assert not limited.findings
    limited.findings["a reader"] = "found under the limit"
    assert source.limited(50) is limited
    assert not source.limited(60).findings
    assert not source.limited(50).findings
    assert source.findings == {"a reader": "found"}


def test_an_entry_larger_than_any_encoding_of_its_inner_chunk_is_refused():
    gzip = CodecSpec("gzip", {"level": 1})
    source = source_of(plain_layout(chain=chain_of(after=[gzip])))
    source.pipeline.refuse_oversized(4 * 12 + 100, (4, 3))
    with pytest.raises(
        CorruptShardError, match="more bytes than any encoding"
    ) as caught:
        source.pipeline.refuse_oversized(10**9, (4, 3))
    assert caught.value.got == 10**9


# Replaced objects


def plain_sharding(chunk_shape, codecs):
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": chunk_shape,
            "codecs": codecs,
            "index_codecs": [PLAIN_BYTES],
        },
    }


PLAIN_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
NESTED = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [plain_sharding([2], [plain_sharding([1], [PLAIN_BYTES])])],
}


def nested_object(*offsets) -> bytes:
    """Four elements in two nested shards, elements of each at the offsets given."""
    index = np.array([(o, 1) for o in offsets], "<u8")
    nested = b"\x0a\x14" + index.tobytes()
    outer = np.array([(0, len(nested)), (len(nested), len(nested))], "<u8")
    return 2 * nested + outer.tobytes()


def replace_object(place, data):
    place.parent.mkdir(exist_ok=True)
    fresh = place.with_name("fresh")
    fresh.write_bytes(data)
    os.replace(fresh, place)


@pytest.mark.parametrize("n_kept", [0, 1, 2, 3])
def test_a_replaced_object_is_read_anew_whatever_of_its_indexes_is_kept(
    tmp_path, n_kept
):
    (tmp_path / "zarr.json").write_text(json.dumps(NESTED))
    replace_object(tmp_path / "c" / "0", nested_object(0, 1))
    options = Options(index_cache_nbytes=n_kept * 2 * ENTRY_NBYTES)
    array = gpushard.open_array(tmp_path, options=options)
    assert array[...].tolist() == [10, 20, 10, 20]
    replace_object(tmp_path / "c" / "0", nested_object(1, 0))
    assert array[...].tolist() == [20, 10, 20, 10]


@pytest.mark.usefixtures("settled")
def test_what_is_kept_between_reads_is_bounded_by_the_option(tmp_path):
    z = zarr.create_array(tmp_path, shape=(8,), dtype="u1", chunks=(1,), shards=(2,))
    z[...] = 7
    for most, n_kept in ((2**20, 4), (0, 0)):
        options = Options(index_cache_nbytes=most, small_read_chunks=0)
        array = gpushard.open_array(tmp_path, options=options)
        array[...]
        kept = [array.source.indexes.get((i,)) for i in range(4)]
        assert sum(one is not None for one in kept) == n_kept


def test_an_index_larger_than_the_cache_leaves_the_others_in_it():
    small = KnownIndex(parse_index(np.zeros((1, 2), np.uint64), nbytes=0), "v")
    large = KnownIndex(parse_index(np.zeros((100, 2), np.uint64), nbytes=0), "v")
    cache = IndexCache(10 * small.index.held_nbytes)
    cache.put((0,), small)
    cache.put((1,), large)
    assert cache.get((0,)) is small
    assert cache.get((1,)) is None


def test_the_array_under_other_options_keeps_what_was_found_of_its_layout(
    tmp_path,
):
    zarr.create_array(tmp_path, data=np.zeros((4, 6), "i4"), chunks=(2, 3))
    source = gpushard.open_array(tmp_path, device="cpu").source
    source.facts["noted"] = 1
    assert source.chunk_shape == (2, 3)
    narrow = source.with_memory_limit(1 << 20)
    assert narrow.facts is source.facts
    assert narrow.__dict__["chunk_shape"] == (2, 3)
    assert narrow.findings is not source.findings
    assert narrow.room is not source.room
