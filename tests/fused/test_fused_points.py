"""Points of an inner chunk go to their places from one list."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, ZstdCodec

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    LITTLE,
    SHAPE,
    ZSTD,
    assert_all_fused,
    blosc,
    need_fast_packages,
    stored,
    watch_sinks,
)
from gpushard.fused import choice
from gpushard.fused.meshes import MOST_BOXES
from gpushard.fused.short.sharded import ShortShardedReader
from gpushard.fused.sink import FusedSink
from gpushard.placing.place import HostSink
from gpushard.planning import blocks
from gpushard.selecting.index_arrays import KEPT_ELEMENTS
from selection_strategies import masks, point_keys
from spec_shards import index_of
from zarr_oracle import assert_same_bits, held

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

BIG = codec("bytes", endian="big")
TRANSPOSED = codec("transpose", order=[1, 0])
CASES = {
    **{name: stored(CHAINS[name]) for name in ("raw", "crc32c", "zstd", "gzip", "lz4")},
    "parts of frames": stored([blosc("lz4", "shuffle", 512)]),
    "reversed": stored([ZSTD], "float64", [BIG]),
    "bool": stored([ZSTD], "bool"),
    "transposed": stored([ZSTD], before=[TRANSPOSED, LITTLE]),
    "plain, reversed": stored([], "int16", [BIG]),
    "plain, transposed": stored([], before=[TRANSPOSED, LITTLE]),
    "checked, transposed": stored([CRC], before=[TRANSPOSED, BIG]),
}


@pytest.fixture(scope="module", params=CASES)
def arrays(request, tmp_path_factory):
    """The same array in memory and in files."""
    made = CASES[request.param]
    place = made.placed("local", tmp_path_factory.mktemp("points"))
    return made.full, [held(made.objects), place]


@pytest.fixture
def seen(monkeypatch):
    return watch_sinks(monkeypatch)


def opened(place: Any, **options: Any) -> gpushard.Array:
    return gpushard.open_array(place, options=FUSED.but(**options))


def random_points(n: int, seed: int = 0) -> tuple[Any, ...]:
    """Points in no order, some of them repeated, some counted from the end."""
    rng = np.random.default_rng(seed)
    points = [rng.integers(-extent, extent, n) for extent in SHAPE]
    return tuple(p[rng.integers(0, n, n)] for p in points) if n else tuple(points)


@given(st.data())
def test_any_points_read_as_numpy_reads_them(arrays, data):
    full, places = arrays
    a = opened(data.draw(st.sampled_from(places)))
    key = data.draw(point_keys(SHAPE) | masks(SHAPE))
    assert_same_bits(a.vindex[key], full[key])


LENGTHS = [most + k for most in (MOST_BOXES, KEPT_ELEMENTS) for k in (-1, 0, 1)]


@pytest.mark.parametrize(
    "options", [{}, {"small_read_chunks": 1}, {"threads": 3}], ids=str
)
def test_lists_of_any_length_read_as_numpy_reads_them(arrays, options):
    full, places = arrays
    for n in LENGTHS:
        key = random_points(n, n)
        for place in places:
            assert_same_bits(opened(place, **options).vindex[key], full[key])


def test_points_are_not_left_to_the_plain_way(arrays, seen):
    full, places = arrays
    key = random_points(3000)
    for place in places:
        assert_same_bits(opened(place).vindex[key], full[key])
    assert len(seen.sinks) == 2
    assert_all_fused(seen)


def test_each_inner_chunk_is_read_once_for_all_of_its_points(tmp_path):
    a = opened(stored([ZSTD]).placed("local", tmp_path))
    report = a.explain(random_points(5000))
    assert report.n_inner_chunks == 4 * 6
    assert report.payload_nbytes == a.explain(...).payload_nbytes


def test_points_land_in_a_column_of_the_callers(arrays, seen):
    full, places = arrays
    key = random_points(300)
    for place in places:
        table = np.zeros((300, 3), full.dtype)
        opened(place).read(key, out=table[::-1, 1])
        assert_same_bits(table[::-1, 1].copy(), full[key])
        assert not table[:, ::2].any()
    assert_all_fused(seen)


def test_points_at_uneven_distances_go_the_plain_way(arrays, seen):
    full, places = arrays
    rows, columns = (p.reshape(20, 15) for p in random_points(300))
    out = np.zeros((15, 20), full.dtype).T
    opened(places[0]).read((rows, columns), out=out)
    assert_same_bits(out.copy("C"), full[rows, columns])
    assert isinstance(seen.sinks.pop(), HostSink)


def test_lists_of_many_pieces_stay_as_long_as_their_boxes(arrays, monkeypatch):
    full, places = arrays
    monkeypatch.setattr(blocks, "BLOCK_CHUNKS", 2)
    key = random_points(4000)
    for place, threads in product(places, (1, 3)):
        assert_same_bits(opened(place, threads=threads).vindex[key], full[key])


@pytest.mark.parametrize("codec_class", [ZstdCodec, BloscCodec])
def test_parts_of_large_frames_reach_to_the_last_of_their_points(
    codec_class, tmp_path, seen
):
    """Of 1 MiB only the blocks between the first and the last point are decoded."""
    n, rng = 1 << 18, np.random.default_rng(0)
    values = np.cumsum(rng.integers(0, 3, 8 * n), dtype="i4").reshape(8, n)
    zarr.create_array(
        tmp_path, data=values, chunks=(1, n), shards=(4, n), compressors=codec_class()
    )
    first = rng.integers(0, n // 2, (8, 1))
    columns = np.sort(first + rng.integers(0, n // 4, (8, 150)))
    rows = np.broadcast_to(np.arange(8)[:, None], columns.shape)
    a = opened(str(tmp_path), threads=1)
    for _ in range(2):
        assert_same_bits(a.vindex[rows, columns], values[rows, columns])
    assert_all_fused(seen)


@pytest.mark.parametrize("chain", ["raw", "zstd", "lz4"])
def test_missing_and_kept_inner_chunks_give_their_points(chain, tmp_path):
    made = stored(CHAINS[chain])
    gone = sorted(key for key in made.objects if "c/1" in key)[:1]
    assert gone
    full = made.full.copy()
    full[64:, :64] = 0
    objects = {k: v for k, v in made.objects.items() if k not in gone}
    held_array = opened(held(objects), chunk_cache_nbytes=1 << 20)
    local = stored(CHAINS[chain]).placed("local", tmp_path)
    for path in gone:
        (Path(local) / path).unlink()
    for a in (held_array, opened(local, chunk_cache_nbytes=1 << 20)):
        for seed in range(3):
            key = random_points(2000, seed)
            assert_same_bits(a.vindex[key], full[key])


@pytest.mark.parametrize("chain", ["crc32c", "zstd, crc32c"])
def test_points_of_damaged_inner_chunks_are_named_or_filled(chain, tmp_path, seen):
    made = stored(CHAINS[chain])
    place = made.placed("local", tmp_path)
    (shard,) = Path(place).rglob("c/0/0")
    stored_bytes = bytearray(shard.read_bytes())
    stored_bytes[3] ^= 1  # of the inner chunk that comes first in the file
    shard.write_bytes(stored_bytes)
    key = random_points(3000)
    found: list[gpushard.errors.CorruptShardError] = []
    got = opened(place).read(key, errors=found.append)
    assert [error.shard_key for error in found] == ["c/0/0"]
    row, column = found[0].inner_chunk or (-1, -1)
    full = made.full.copy()
    full[32 * row : 32 * row + 32, 16 * column : 16 * column + 16] = 0
    assert_same_bits(got, full[key])
    assert isinstance(seen.sinks[0], FusedSink)
    with pytest.raises(gpushard.errors.CorruptShardError) as caught:
        opened(place).vindex[key]
    assert caught.value.inner_chunk == found[0].inner_chunk


def test_nothing_is_read_where_an_inner_chunk_lies_beyond_its_shard(
    monkeypatch, tmp_path, seen
):
    """Of its box no column says where to read."""
    choice._load()
    made = stored([ZSTD])
    place = made.placed("local", tmp_path)
    data = (place / "c/0/0").read_bytes()
    n_index = 8 * 16 + 4
    entries = np.frombuffer(data[-n_index:-4], "<u8").reshape(8, 2).copy()
    entries[5, 1] += len(data)
    (place / "c/0/0").write_bytes(data[:-n_index] + index_of(entries.tolist()))
    a = gpushard.open_array(place, options=FUSED.but(small_read_chunks=1))
    rows, columns = np.array([3, 40, 70, 99]), np.array([5, 20, 80, 2])
    for read in (lambda: a.vindex[rows, columns], lambda: a[40], lambda: a[40, 20]):
        with monkeypatch.context() as patch:
            patch.setattr(
                ShortShardedReader, "_place", lambda *_, **__: pytest.fail("placed")
            )
            with pytest.raises(gpushard.CorruptShardError, match="entry 5"):
                read()
    sound = rows != 40
    got = a.vindex[rows[sound], columns[sound]]
    assert_same_bits(got, made.full[rows[sound], columns[sound]])
    assert seen.n_short == 1
