"""Writes of large inner chunks to local files stay within the memory limit."""

from __future__ import annotations

import ctypes
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from array_strategies import codec
from asked_store import put
from gpushard.options import KIB, MIB
from hostile_shards import ZSTD
from memory_sweep import grown
from spec_shards import CRC, EMPTY, LITTLE, document, index_of, sharding

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux tells the highest memory of a process since a moment",
)

LIMIT = 64 * MIB
N = 19 * MIB
SHUFFLE = codec("numcodecs.shuffle", elementsize=4)
BLOSC = codec("blosc", cname="zstd", clevel=1, shuffle="noshuffle", blocksize=0)
BLOSC["configuration"]["typesize"] = 4
CHAINS = {
    "zstd": [LITTLE, ZSTD],
    "zstd, crc32c": [LITTLE, ZSTD, CRC],
    "shuffle, blosc": [LITTLE, SHUFFLE, BLOSC],
}


class Nothing:
    nbytes = 0


def put_array(place: Path, n: int, k: int, chain: list[Any]) -> gpushard.Array:
    """A shard of `k` inner chunks of `n` bytes, which do not become smaller."""
    shard = sharding((n // 4,), codecs=chain)
    put(place, document((k * n // 4,), (k * n // 4,), shard, dtype="uint32"))
    return opened(place)


def opened(place: Path) -> gpushard.Array:
    options = gpushard.Options(memory_limit=LIMIT, threads=2)
    return gpushard.open_array(place, device="cpu", options=options)


def noise(n: int) -> Any:
    return np.random.default_rng(3).integers(0, 2**32, n // 4, "u4")


def write_one(place: Path) -> Any:
    opened(place)[7] = 5
    return Nothing


@pytest.mark.parametrize("name", CHAINS)
def test_a_write_of_one_element_holds_an_inner_chunk_twice(tmp_path, name):
    for place, n in ("large", N), ("warm up", 4096):
        put_array(tmp_path / place, n, 1, CHAINS[name])[:] = noise(n)
    ctypes.CDLL(None).malloc_trim(0)
    came, nbytes = grown(
        partial(write_one, tmp_path / "large"),
        partial(write_one, tmp_path / "warm up"),
        0,
    )
    assert came == "read"
    assert nbytes < LIMIT
    expected = noise(N)
    expected[7] = 5
    assert np.array_equal(opened(tmp_path / "large")[:], expected)


@pytest.mark.parametrize("key", [slice(None), slice(3, -3)], ids=["whole", "part"])
def test_a_write_does_not_hold_all_encoded_inner_chunks_of_a_shard(tmp_path, key):
    n, k, values = 11 * MIB, 6, noise(66 * MIB)

    def write(place: Path, values: Any) -> Any:
        opened(place)[key] = values[key]
        return Nothing

    for place, size in ("large", n), ("warm up", 4096):
        put_array(tmp_path / place, size, k, CHAINS["zstd"])[:] = 1
    came, nbytes = grown(
        partial(write, tmp_path / "large", values),
        partial(write, tmp_path / "warm up", noise(k * 4096)),
        0,
    )
    assert came == "read"
    assert nbytes < LIMIT
    assert np.array_equal(opened(tmp_path / "large")[key], values[key])


@pytest.mark.parametrize("key", [slice(None), slice(3, -3)], ids=["whole", "part"])
def test_a_write_does_not_hold_nested_shards(tmp_path, key):
    n, values = 11 * MIB, noise(66 * MIB)

    def put_nested(place: Path, n: int) -> gpushard.Array:
        nested = sharding((n // 4,), codecs=CHAINS["zstd"])
        shard = sharding((3 * n // 4,), codecs=[nested])
        put(place, document((6 * n // 4,), (6 * n // 4,), shard, dtype="uint32"))
        return opened(place)

    def write(place: Path, values: Any) -> Any:
        opened(place)[key] = values[key]
        return Nothing

    for place, size in ("large", n), ("warm up", 4096):
        put_nested(tmp_path / place, size)[:] = 1
    came, nbytes = grown(
        partial(write, tmp_path / "large", values),
        partial(write, tmp_path / "warm up", noise(6 * 4096)),
        0,
    )
    assert came == "read"
    assert nbytes < LIMIT
    assert np.array_equal(opened(tmp_path / "large")[key], values[key])


def test_a_small_nested_shard_of_large_pieces_is_not_held(tmp_path):
    nested = sharding((KIB,), codecs=[sharding((512,), codecs=[LITTLE, ZSTD])])
    place = put(tmp_path, document((2 * KIB,), (2 * KIB,), nested))
    a = gpushard.open_array(place, device="cpu")
    large = 48 * MIB  # that the index claims of the inner chunk that stays
    data = bytes(large) + index_of([(0, large), (EMPTY, EMPTY)])
    path = tmp_path / "c" / "0"
    path.parent.mkdir()
    path.write_bytes(data + index_of([(0, len(data)), (EMPTY, EMPTY)]))

    def write() -> Any:
        a[600] = 7
        return Nothing

    came, nbytes = grown(write, lambda: a[3:3], 0)
    assert came == "read"
    assert nbytes < 24 * MIB
    assert path.stat().st_size > large


@pytest.mark.parametrize("key", [slice(None), slice(3, -3)], ids=["whole", "part"])
def test_nested_shards_with_codecs_around_them_tell_what_is_enough(tmp_path, key):
    n, values = 24 * MIB, noise(48 * MIB)

    def put_nested(place: Path, n: int) -> None:
        nested = sharding((n // 16,), codecs=CHAINS["zstd"])
        shard = sharding((n // 4,), codecs=[nested, ZSTD])
        put(place, document((n // 2,), (n // 2,), shard, dtype="uint32"))
        if key != slice(None):
            gpushard.open_array(place, device="cpu")[:] = 1

    def write(place: Path, values: Any, limit: int) -> Any:
        options = gpushard.Options(memory_limit=limit, threads=2)
        gpushard.open_array(place, device="cpu", options=options)[key] = values[key]
        return Nothing

    put_nested(tmp_path / "large", n)
    put_nested(tmp_path / "warm up", 4096)
    with pytest.raises(gpushard.LimitError, match="a nested shard with") as error:
        write(tmp_path / "large", values, LIMIT)
    enough = int(str(error.value.got).removesuffix(" bytes"))
    came, nbytes = grown(
        partial(write, tmp_path / "large", values, enough),
        partial(write, tmp_path / "warm up", noise(2 * 4096), LIMIT),
        0,
    )
    assert came == "read"
    assert nbytes < enough
    a = gpushard.open_array(tmp_path / "large", device="cpu")
    assert np.array_equal(a[key], values[key])


def test_nested_shards_that_zarr_changes_are_changed_few_at_a_time(tmp_path):
    n, k, values = 4 * MIB, 24, noise(96 * MIB)

    def put_nested(place: Path, n: int) -> gpushard.Array:
        nested = sharding((n // 16,), codecs=CHAINS["zstd"])
        shard = sharding((n // 4,), codecs=[nested, ZSTD])
        put(place, document((k * n // 4,), (k * n // 4,), shard, dtype="uint32"))
        return opened(place)

    def write(place: Path, values: Any) -> Any:
        opened(place)[3:-3] = values[3:-3]
        return Nothing

    for place, size in ("large", n), ("warm up", 4096):
        put_nested(tmp_path / place, size)[:] = 1
    came, nbytes = grown(
        partial(write, tmp_path / "large", values),
        partial(write, tmp_path / "warm up", noise(k * 4096)),
        0,
    )
    assert came == "read"
    assert nbytes < LIMIT


def test_shards_with_codecs_around_them_are_written_as_memory_allows(tmp_path):
    values = noise(4 * 10 * MIB)

    def put_wrapped(place: Path, n: int) -> Path:
        inner = sharding((n // 4,), codecs=CHAINS["zstd"])
        meta = document((n,), (n // 4,), inner, ZSTD, dtype="uint32")
        put(place, meta)
        return place

    def write(place: Path, values: Any) -> Any:
        opened(place)[:] = values
        return Nothing

    large = put_wrapped(tmp_path / "large", 10 * MIB)
    warm = put_wrapped(tmp_path / "warm up", 4096)
    came, nbytes = grown(
        partial(write, large, values), partial(write, warm, values[:4096]), 0
    )
    assert came == "read"
    assert nbytes < LIMIT
    assert np.array_equal(opened(large)[:], values)


@pytest.mark.parametrize("packed", [None, "zstd"])
def test_a_write_changes_no_bytes_that_the_store_has_given(packed):
    store = MemoryStore()
    compressors = [zarr.codecs.ZstdCodec()] if packed else None
    a = zarr.create_array(
        store, shape=(100,), chunks=(100,), dtype="u1", compressors=compressors
    )
    a[:] = 1
    held = store._store_dict["c/0"].as_numpy_array()
    before = held.copy()
    written = gpushard.open_array(store, device="cpu")
    written[5] = 9
    assert np.array_equal(held, before)
    assert written[4:7].tolist() == [1, 9, 1]
