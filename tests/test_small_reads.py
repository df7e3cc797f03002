"""The path of small reads gives what the general path gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from array_strategies import stored_arrays
from gpushard import Options, results, small
from selection_strategies import basic_keys
from zarr_oracle import assert_same_bits, held

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")


@given(stored_arrays(min_levels=1), st.sampled_from([1, 3, 8, 1000]), st.data())
def test_small_and_general_reads_give_the_same_bits(stored, limit, data):
    store = held(stored.objects)
    general = gpushard.open_array(store, options=Options(small_read_chunks=0))
    scalar = gpushard.open_array(store, options=Options(small_read_chunks=limit))
    for _ in range(4):
        key = data.draw(basic_keys(stored.full.shape))
        note(f"{key=}")
        want = np.asarray(stored.full[key], stored.full.dtype)
        assert_same_bits(general.read(key), want)
        assert_same_bits(scalar.read(key), want)


@pytest.fixture
def sharded():
    """Array of 8 x 8 inner chunks in 2 x 2 shards, its store, and its values."""
    objects = {}
    values = np.arange(32 * 32, dtype="i4").reshape(32, 32)
    z = zarr.create_array(
        MemoryStore(objects), shape=(32, 32), chunks=(4, 4), shards=(16, 16), dtype="i4"
    )
    z[...] = values
    z[:16, 16:] = 0  # a shard that is not there
    return MemoryStore(objects), np.asarray(z[...])


@pytest.fixture
def small_reads(monkeypatch):
    """Whether each read since was taken as a small one."""
    taken: list[bool] = []

    def spy(*args):
        taken.append(small.read_small(*args))
        return taken[-1]

    monkeypatch.setattr(results, "read_small", spy)
    return taken


@pytest.mark.parametrize(
    ("key", "n_chunks"),
    [
        (np.s_[0, 0], 1),
        (np.s_[3:5, 3:5], 4),
        (np.s_[0:16:5, 0], 4),
        (np.s_[::-1, 31], 8),
        (np.s_[14:18, 14:18], 4),
        (np.s_[0:3, 16:32], 4),
        (np.s_[:, 0:8], 16),
        (np.s_[...], 64),
    ],
)
def test_reads_of_up_to_the_limit_are_small(sharded, small_reads, key, n_chunks):
    store, values = sharded
    a = gpushard.open_array(store)
    assert_same_bits(a[key], values[key])
    assert small_reads == [n_chunks <= a.source.options.small_read_chunks]


def test_a_stride_over_inner_chunks_still_counts_only_a_few(sharded, small_reads):
    store, values = sharded
    a = gpushard.open_array(store)
    assert_same_bits(a[::31, ::31], values[::31, ::31])
    assert math.prod(a[::31, ::31].shape) == 4


@pytest.mark.parametrize("n", [0, 8])
def test_empty_results_need_no_store(sharded, n):
    store, values = sharded
    a = gpushard.open_array(store, options=Options(small_read_chunks=n))
    assert_same_bits(a[5:5], values[5:5])
    assert_same_bits(a[:, 9:2], values[:, 9:2])


@pytest.mark.parametrize("n", [0, 8])
def test_both_paths_name_the_same_place_of_damage(sharded, n):
    store, _ = sharded
    key = "c/1/0"
    damaged = bytearray(store._store_dict[key].to_bytes())
    damaged[0:4] = b"\xff\xff\xff\xff"  # the first inner chunk's stream
    store._store_dict[key] = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(damaged))
    a = gpushard.open_array(store, options=Options(small_read_chunks=n))
    broken = []
    for row in range(16, 32, 4):
        for column in range(0, 16, 4):
            try:
                a[row, column]
            except gpushard.CorruptShardError as error:
                place = (row // 4, column // 4)
                broken.append(
                    (error.shard_key, error.inner_chunk == place, error.codec)
                )
    assert broken == [(key, True, "zstd")]
