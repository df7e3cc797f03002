"""What a conversion does at a time: as much as the memory limit allows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import zarr

import gpushard
from asked_store import AskedStore, put
from gpushard.converting.tiles import budget_for, with_room
from gpushard.fetching.pieces import least_beside_columns
from gpushard.formats.v3 import parse_array
from gpushard.options import MIB, Options


def document(shards, chunks, shape=(4096, 4096)) -> dict:
    bytes_ = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": chunks,
        "codecs": [bytes_],
        "index_codecs": [bytes_],
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": shards}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def budget(shards, chunks, limit, threads=4, source_chunks=(64, 64), **asked):
    options = Options(memory_limit=limit, threads=threads)
    target = parse_array(document(shards, chunks), "", options)
    source = parse_array(document(source_chunks, source_chunks), "", options)
    return budget_for(source, target, options, **{"joins": False, **asked})


def test_as_many_tiles_are_under_way_as_memory_allows():
    shard, chunk = 512 * 512, 64 * 64
    assert budget([512, 512], [64, 64], 64 * MIB).n_tiles == 4
    one = budget([512, 512], [64, 64], 4 * (2 * shard + 9 * chunk) // 3)
    assert (one.n_tiles, one.counts, one.slab) == (1, (1, 1), (512, 512))


def test_a_shard_that_does_not_fit_twice_is_read_in_slabs():
    shard, chunk = 512 * 512, 64 * 64
    got = budget([512, 512], [64, 64], 4 * (shard + 8 * chunk + 20 * chunk) // 3 + 4)
    assert (got.n_tiles, got.slab) == (1, (128, 512))
    got = budget([512, 512], [64, 64], 4 * (shard + 8 * chunk + 3 * chunk) // 3 + 4)
    assert got.slab == (64, 192)
    with pytest.raises(gpushard.OptionError, match="memory limit"):
        budget([512, 512], [64, 64], 4 * (shard + 8 * chunk) // 3)
    enough_for_files = 4 * (shard + 8 * chunk + 3 * chunk) // 3 + 4
    with pytest.raises(gpushard.OptionError, match="memory limit"):
        budget([512, 512], [64, 64], enough_for_files, joins=True)


def test_a_tile_grows_to_the_sources_chunks_and_not_further():
    wide = {"source_chunks": (64, 4096), "threads": 1}
    assert budget([512, 512], [64, 64], 256 * MIB, **wide).counts == (1, 8)
    assert budget([512, 512], [64, 64], 256 * MIB, threads=1).counts == (1, 1)
    less = budget([512, 512], [64, 64], 4 * MIB, **wide).counts
    assert less[0] == 1
    assert 1 < less[1] < 8


@pytest.mark.parametrize("wide", [0, 1])
def test_a_tile_grows_along_the_axis_that_it_covers_least(wide):
    source_chunks, counts = [1024, 1024], [1, 1]
    source_chunks[wide], counts[wide] = 4096, 4
    got = budget([512, 512], [64, 64], 4 * MIB, threads=1, source_chunks=source_chunks)
    assert got.counts == tuple(counts)


def wider(shards, alone=64 * MIB, source_chunks=(64, 64), **asked):
    """Options for a limit of 1 MiB that is left open, and the budget with these."""
    given = {"memory_limit": MIB, "bound_nbytes": MIB, "alone_nbytes": alone}
    reads_parts = asked.pop("reads_parts", False)
    options = replace(Options(threads=1).resolved(), **given, **asked)
    target = parse_array(document(shards, [64, 64]), "", options)
    source = parse_array(document(source_chunks, source_chunks), "", options)
    wide = with_room(source, target, options, joins=False, reads_parts=reads_parts)
    return wide, budget_for(source, target, wide, joins=False)


def test_a_limit_left_open_has_room_for_the_largest_shard():
    wide, got = wider([2048, 2048])
    assert 4 * MIB < wide.memory_limit < 8 * MIB
    assert got.slab == (64, 64)
    with pytest.raises(gpushard.OptionError, match="memory limit"):
        wider([2048, 2048], alone=2 * MIB)


def test_a_limit_left_open_has_room_for_tiles_as_long_as_the_sources_chunks():
    wide, got = wider([512, 512], source_chunks=(64, 4096))
    assert got.counts == (1, 8)
    assert wide.memory_limit < 8 * MIB
    assert wider([2048, 2048], source_chunks=(2048, 1024))[1].slab == (2048, 2048)
    wide, got = wider([512, 512], source_chunks=(64, 4096), alone=3 * MIB)
    assert wide.memory_limit == wide.bound_nbytes == 3 * MIB
    assert 1 < got.counts[1] < 8


@pytest.mark.parametrize("asked", [{"is_left_open": False}, {"reads_parts": True}, {}])
def test_a_limit_is_not_wider_than_tiles_need_it(asked):
    source_chunks = (64, 4096) if asked else (512, 512)
    assert (
        wider([512, 512], source_chunks=source_chunks, **asked)[0].memory_limit == MIB
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_as_many_threads_encode_as_there_is_room_for(n):
    shard, encoder = 512 * 512, 8 * 64 * 64
    room = 2 * shard + n * encoder
    assert budget([512, 512], [64, 64], 4 * room // 3 + 4, 8).encoder_threads == n


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("least", [0, 10**5, 10**7])
@pytest.mark.parametrize("shard", [64, 512])
def test_the_limit_that_an_error_asks_for_is_enough(shard, least, joins):
    asked = {"joins": joins, "least_read_nbytes": least}
    with pytest.raises(gpushard.OptionError, match="memory limit") as caught:
        budget([shard, shard], [64, 64], 50_000, **asked)
    enough = int(re.findall("[0-9]+", caught.value.expected)[0])
    got = budget([shard, shard], [64, 64], enough, **asked)
    assert got.read_nbytes >= least
    if not least:
        with pytest.raises(gpushard.OptionError, match="memory limit"):
            budget([shard, shard], [64, 64], enough - 2, **asked)


LIMIT = 64 * MIB


def tiny(place, n_shards, per_shard):
    """Shards of tiny inner chunks; at most 16 differ."""
    meta = document([16 * per_shard], [16], [16 * per_shard * n_shards])
    options = Options(memory_limit=LIMIT, threads=16, index_cache_nbytes=0)
    a = gpushard.open_array(put(place, meta), device="cpu", options=options)
    a[:] = np.arange(a.size, dtype="u1")
    return a


@pytest.mark.parametrize(
    ("per_shard", "box"),
    [(1 << 12, 1 << 16), (1 << 16, 1 << 20), (1 << 16, 1 << 21), (1 << 16, 3 << 20)],
)
def test_a_read_with_the_least_limit_has_room_beside_columns_and_indexes(
    tmp_path, per_shard, box
):
    a = tiny(tmp_path, 4, per_shard)
    least = least_beside_columns(a.source, (box,))
    assert least < 12 * MIB
    narrow = gpushard.Array(a.source.with_memory_limit(least, LIMIT - least))
    assert np.array_equal(narrow[:box], np.arange(box, dtype="u1"))


@pytest.mark.parametrize("shards", [1 << 20, 1 << 21])
def test_a_conversion_has_no_more_tiles_than_reads_of_tiny_inner_chunks_fit(
    tmp_path, shards
):
    a = tiny(tmp_path / "a", 4, 1 << 16)
    options = Options(memory_limit=LIMIT, threads=16)
    gpushard.convert(tmp_path / "a", tmp_path / "b", shards=(shards,), options=options)
    b = gpushard.open_array(tmp_path / "b", device="cpu")
    assert np.array_equal(b[:], a[:])


def test_with_the_limit_left_open_each_chunk_of_the_source_is_fetched_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(gpushard.options, "DEFAULT_MEMORY_LIMIT", MIB)
    shape, chunks = (512, 4096), (128, 4096)
    a = zarr.create_array(tmp_path / "a", shape=shape, chunks=chunks, dtype="u1")
    a[...] = np.resize(np.arange(251, dtype="u1"), shape)
    store = AskedStore(tmp_path / "a")
    gpushard.convert(store, tmp_path / "b", shards=(512, 256), chunks=(64, 64))
    fetched = [r.key for call in store.calls for r in call if r.stop != 1]
    chunks_fetched = sorted(key for key in fetched if key.startswith("c/"))
    assert chunks_fetched == [f"c/{i}/0" for i in range(4)]
    assert np.array_equal(zarr.open_array(tmp_path / "b")[...], a[...])
