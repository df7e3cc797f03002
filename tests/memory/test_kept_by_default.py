"""Reads with the default options keep inner chunks that they come back to."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import gpushard
from gpushard import Options
from gpushard.fused import choice
from gpushard.memory import chunk_share
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.misses import SPENT_PART, SPENT_WHOLE
from gpushard.options import KIB, MIB
from gpushard.stores.local import handles
from test_kept_chunks import settle
from zarr_oracle import assert_same_bits

VALUES = np.arange(256 * 512, dtype="i4").reshape(256, 512) // 3
# With the loops, with threads and Python, and what is for a few inner chunks.
WAYS = {
    "loops": Options(compile_nbytes=0),
    "small": Options(compile_nbytes=2**62),
    "general": Options(compile_nbytes=2**62, small_read_chunks=0),
    "general in loops": Options(compile_nbytes=0, small_read_chunks=0),
}
ONE, TWO = np.s_[5, 10:200], np.s_[60:70, 100:300]


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


@pytest.fixture(params=WAYS)
def options(request):
    return WAYS[request.param]


def written(place: Path, values: Any = VALUES, n_rows: int = 64, **how: Any) -> Any:
    """An array of 64 x 256 inner chunks (64 KiB) in one shard."""
    shapes = {"chunks": (n_rows, 256), "shards": values.shape}
    how.setdefault("compressors", [ZstdCodec()])
    z = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, **shapes, **how
    )
    z[...] = values
    settle()
    return z


def cache_of(a: gpushard.Array) -> ChunkCache:
    assert a.source.chunks is not None
    return a.source.chunks


def n_kept(a: gpushard.Array) -> int:
    return len(a.source.chunks or ())


@pytest.mark.parametrize(("key", "n"), [(ONE, 1), (TWO, 4)])
def test_the_second_read_keeps_and_the_third_finds(tmp_path, options, key, n):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    seen = []
    for _ in range(3):
        assert_same_bits(a[key], VALUES[key])
        seen.append((n_kept(a), cache_of(a).held_nbytes > 0))
    assert seen == [(0, False), (n, True), (n, True)]
    report = a.explain(key)
    assert (report.n_kept_inner_chunks, report.n_payload_requests) == (n, 0)


@pytest.mark.parametrize(
    ("key", "n_reads"),
    [
        (np.s_[5, 250:260], SPENT_WHOLE // SPENT_PART + 1),
        (np.s_[100:355, 250:260], SPENT_WHOLE // SPENT_PART + 1),
        (np.s_[100:360, 250:260], 2),
        (np.s_[::300, 250:260], 2),  # whatever lies between is decoded, too
    ],
)
def test_a_read_of_parts_of_frames_keeps_them_when_it_has_cost_as_much_as_the_frames(
    tmp_path, key, n_reads
):
    pytest.importorskip("numba", reason="only the loops decode parts of Blosc frames")
    values = np.arange(1024 * 512, dtype="i4").reshape(1024, 512) * 7
    codec = BloscCodec(cname="lz4", blocksize=1 << 14)
    written(tmp_path, values, 1024, compressors=[codec])
    a = gpushard.open_array(tmp_path, device="cpu", options=WAYS["loops"])
    seen = []
    for _ in range(n_reads + 1):
        assert_same_bits(a[key], values[key])
        seen.append(n_kept(a))
    assert seen == [0] * (n_reads - 1) + [2, 2]


def test_one_pass_keeps_nothing(tmp_path, options):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for i in range(0, 256, 64):
        for j in (0, 256):
            assert_same_bits(
                a[i : i + 64, j : j + 256], VALUES[i : i + 64, j : j + 256]
            )
    assert (n_kept(a), cache_of(a).held_nbytes) == (0, 0)


@pytest.mark.parametrize("codec", [ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec()])
@pytest.mark.parametrize("rows", [64, 1024])
def test_whatever_comes_back_is_what_is_stored(tmp_path, options, codec, rows):
    values = np.arange(1024 * 512, dtype="i4").reshape(1024, 512) * 7
    z = zarr.create_array(
        tmp_path,
        shape=values.shape,
        dtype="i4",
        chunks=(rows, 256),
        shards=(1024, 512),
        compressors=[codec],
    )
    z[...] = values
    settle()
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    rng = np.random.default_rng(3)
    for _ in range(6):
        i, j = rng.integers(0, 1000), rng.integers(0, 500)
        for key in (np.s_[i, j:], np.s_[:, j], np.s_[i : i + 20, j : j + 9], i):
            assert_same_bits(a[key], values[key])
        some = rng.integers(0, 1024, 5)
        assert_same_bits(a.oindex[some], values[some])
        assert_same_bits(a.vindex[some, some % 512], values[some, some % 512])
    is_fast_and_small = isinstance(codec, BloscCodec) and rows == 64
    assert (a.source.chunks is None) == is_fast_and_small
    assert is_fast_and_small or n_kept(a)


def test_a_replaced_shard_is_read_anew(tmp_path, options):
    z = written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for k in range(4):
        for _ in range(3):
            assert_same_bits(a[TWO], np.asarray(z[TWO]))
        z[:64] = -k
        if k % 2:
            settle()


def test_missing_inner_chunks_do_not_count_as_missed(tmp_path, options):
    written(tmp_path, np.where(VALUES < 11_000, 0, VALUES))
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for _ in range(4):
        assert not a[5, :].any()
    assert len(cache_of(a)._missed) == 0


def test_of_files_that_were_just_written_nothing_is_kept(
    tmp_path, options, monkeypatch
):
    written(tmp_path)
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**18)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for _ in range(4):
        assert_same_bits(a[TWO], VALUES[TWO])
    assert n_kept(a) == 0


@pytest.mark.filterwarnings("ignore::gpushard.DamageWarning")
def test_a_damaged_inner_chunk_is_never_kept(tmp_path, options):
    written(tmp_path, compressors=[ZstdCodec(checksum=True)])
    shard = tmp_path / "c" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1  # in the first inner chunk
    shard.write_bytes(data)
    settle()
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for _ in range(4):
        filled = a.read(TWO, errors="fill")
        assert not filled[:4, :156].any()
        assert np.array_equal(filled[4:], VALUES[64:70, 100:300])
        with pytest.raises(gpushard.CorruptShardError):
            a[TWO]
    assert n_kept(a) < 4


@pytest.mark.parametrize(
    "changes", [{"memory_limit": 256 * MIB}, {"chunk_cache_nbytes": 0}]
)
def test_nothing_is_kept_where_memory_is_limited_or_the_cache_switched_off(
    tmp_path, changes
):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=Options(**changes))
    assert a.source.chunks is None
    resolved = Options().resolved().but(**changes)
    assert gpushard.open_array(tmp_path, options=resolved).source.chunks is None


def test_a_read_under_a_limit_of_its_own_uses_no_cache(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu")
    for _ in range(4):
        assert_same_bits(a.read(TWO, memory_limit=64 * MIB), VALUES[TWO])
    assert n_kept(a) == 0


def test_a_number_means_all_of_it_and_at_once(tmp_path):
    written(tmp_path)
    options = Options(chunk_cache_nbytes=MIB)
    for given in (options, Options().resolved().but(chunk_cache_nbytes=MIB)):
        a = gpushard.open_array(tmp_path, device="cpu", options=given)
        a[TWO]
        assert n_kept(a) == 4
        assert not cache_of(a).is_sparing


def test_a_pickled_array_keeps_by_default_too_and_begins_with_nothing(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu")
    for _ in range(2):
        a[TWO]
    again = pickle.loads(pickle.dumps(a))
    assert n_kept(again) == 0
    for _ in range(2):
        again[TWO]
    assert n_kept(again) == 4


def test_a_forked_process_begins_with_nothing_and_keeps_its_own(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu")
    for _ in range(2):
        a[TWO]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads
        with chunk_share.SHARE._lock:  # as another thread of the parent may have it
            pool = multiprocessing.get_context("fork").Pool(1)
        with pool:
            assert pool.apply(kept_before_and_after, (a,)) == (0, 4)
    assert n_kept(a) == 4


def kept_before_and_after(a: gpushard.Array) -> tuple[int, int]:
    before = n_kept(a)
    for _ in range(2):
        assert np.array_equal(a[TWO], VALUES[TWO])
    return before, n_kept(a)


def test_fifty_arrays_stay_under_the_bound_of_the_process(tmp_path, monkeypatch):
    written(tmp_path)
    limit = 20 * 64 * KIB
    share = chunk_share.ChunkShare(limit)
    monkeypatch.setattr("gpushard.source.SHARE", share)
    monkeypatch.setattr("gpushard.memory.chunk_slots._SHARED_SEGMENT_NBYTES", 64 * KIB)
    arrays = [gpushard.open_array(tmp_path, device="cpu") for _ in range(50)]
    for _ in range(3):
        for a in arrays:
            assert_same_bits(a[TWO], VALUES[TWO])
            assert share.held_nbytes <= limit
    assert share.held_nbytes == limit
    assert sum(n_kept(a) > 0 for a in arrays) >= 5
    arrays.clear()
    del a
    assert share.held_nbytes == 0


def test_a_loader_reads_ahead_beside_a_cache_that_nobody_asked_for(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu")
    with gpushard.Loader(a, batch_size=16) as loader:
        batches = [batch.copy() for batch in loader]
    assert_same_bits(np.concatenate(batches), VALUES)


def test_large_reads_that_come_back_are_kept_too(tmp_path, options):
    values = np.arange(4096 * 512, dtype="i4").reshape(4096, 512) * 7
    written(tmp_path / "large", values, 32)
    a = gpushard.open_array(tmp_path / "large", device="cpu", options=options)
    key = np.s_[10:1600, 3:500]
    seen = []
    for _ in range(3):
        assert_same_bits(a[key], values[key])
        seen.append(n_kept(a))
    assert seen == [0, 100, 100]
    report = a.explain(key)
    assert (report.n_kept_inner_chunks, report.n_payload_requests) == (100, 0)


def test_what_large_reads_share_is_kept_wherever_they_begin(tmp_path, options):
    values = np.arange(4096 * 512, dtype="i4").reshape(4096, 512) * 7
    written(tmp_path, values, 32)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for first, last, n in ((0, 1920, 0), (960, 2880, 60), (1000, 1100, 60)):
        assert_same_bits(a[first:last], values[first:last])
        assert n_kept(a) == n


def test_reads_of_more_than_fits_are_not_remembered(tmp_path, options):
    values = np.arange(4096 * 1280, dtype="i4").reshape(4096, 1280)  # 640 inner chunks
    written(tmp_path, values, 32)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for _ in range(3):
        assert_same_bits(a[:], values)
    assert (n_kept(a), cache_of(a).held_nbytes) == (0, 0)


def test_a_large_read_of_a_replaced_shard_is_read_anew(tmp_path, options):
    values = np.arange(4096 * 512, dtype="i4").reshape(4096, 512)
    z = written(tmp_path, values, 32)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for k in range(3):
        for _ in range(3):
            assert_same_bits(a[:1600], values[:1600])
        assert n_kept(a) >= 100
        values[700:800] = -k
        z[700:800] = -k
        settle()
