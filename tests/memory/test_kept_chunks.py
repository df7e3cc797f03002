"""Reads that keep decoded inner chunks give what is stored, whatever replaces it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import gpushard
from array_strategies import codec, stored_arrays
from fused_cases import CHAINS, stored
from gpushard import CorruptShardError, Loader, ObjectChangedError, Options
from gpushard.fused import choice
from gpushard.options import MIB
from gpushard.pipeline import HostPipeline
from gpushard.placing.kept_rows import placing_tasks
from gpushard.report import Tally
from gpushard.stores.local import handles
from gpushard.stores.local.store import LocalStore
from selection_strategies import basic_keys, orthogonal_keys, take_orthogonal
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

CACHED = Options(chunk_cache_nbytes=1 << 20)
WAYS = {
    "small": CACHED.but(small_read_chunks=1000, compile_nbytes=2**62),
    "short": CACHED.but(small_read_chunks=1, compile_nbytes=0),
    "plain": CACHED.but(small_read_chunks=0, compile_nbytes=2**62),
    "fused": CACHED.but(small_read_chunks=0, compile_nbytes=0),
}
VALUES = np.arange(64 * 48, dtype="i4").reshape(64, 48)
READS = [
    ("basic", (5, 7)),
    ("basic", np.s_[3:61:2, ::-3]),
    ("basic", np.s_[:, 40]),
    ("oindex", [60, 3, 3, 33]),
    ("vindex", ([1, 63, 30], [47, 0, 20])),
    ("mask", VALUES % 7 == 0),
    ("basic", ...),
]


def assert_reads(a: gpushard.Array, values: Any) -> None:
    """Hold reads of all kinds against the elements that are stored."""
    for kind, key in READS:
        by = {"oindex": a.oindex, "vindex": a.vindex}.get(kind, a)
        assert_same_bits(np.asarray(by[key]), np.asarray(values[key]))
    keys = [np.s_[k : k + 20, 2 * k : 2 * k + 9] for k in (30, 7, 12, 11)]
    for found, key in zip(a.read_many(keys), keys, strict=True):
        assert_same_bits(found, np.asarray(values[key]))


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def settle() -> None:
    """Wait until files that were just written are taken for settled."""
    time.sleep(0.025)


def written(place: Path, values: Any = VALUES, **how: Any) -> Any:
    """An array of 8 x 8 inner chunks in shards of 32 x 24."""
    shapes = {"chunks": (8, 8), "shards": (32, 24)}
    z = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, **shapes, **how
    )
    z[...] = values
    settle()
    return z


@pytest.mark.parametrize("casts", [(None, "f8"), ("f8", None)])
def test_turned_inner_chunks_that_the_loops_keep_others_read_too(casts, tmp_path):
    turned = zarr.codecs.TransposeCodec(order=(1, 0))
    written(tmp_path, filters=turned)
    a = gpushard.open_array(tmp_path, options=WAYS["fused"])
    for dtype in casts:  # the loops do not cast
        assert_same_bits(a.read(dtype=dtype), VALUES.astype(dtype or a.dtype))
    assert a.explain(...).n_kept_inner_chunks == 48


@pytest.fixture(params=WAYS)
def options(request):
    return WAYS[request.param]


def test_reads_again_and_again_give_what_is_stored(tmp_path, options):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=options)
    for _ in range(3):
        assert_reads(a, VALUES)


def test_a_replaced_shard_is_read_anew(tmp_path, options):
    z = written(tmp_path)
    a = gpushard.open_array(tmp_path, options=options)
    for k in range(4):
        assert_reads(a, np.asarray(z[...]))
        z[:32, 24:] = -k
        if k % 2:
            settle()


def test_a_shard_that_is_deleted_reads_as_the_fill_value(tmp_path, options):
    z = written(tmp_path)
    a = gpushard.open_array(tmp_path, options=options)
    assert_reads(a, VALUES)
    (tmp_path / "c" / "0" / "1").unlink()
    assert_reads(a, np.asarray(z[...]))


def test_a_shard_that_is_overwritten_in_place_is_read_anew(tmp_path, options):
    written(tmp_path)
    shard = tmp_path / "c" / "0" / "0"
    written(tmp_path / "other", -VALUES)
    a = gpushard.open_array(tmp_path, options=options)
    assert_reads(a, VALUES)
    with shard.open("r+b") as file:
        file.write((tmp_path / "other" / "c" / "0" / "0").read_bytes())
        file.truncate()
    want = VALUES.copy()
    want[:32, :24] *= -1
    assert_reads(a, want)


@given(stored_arrays(), st.sampled_from(sorted(WAYS)), st.data())
def test_any_array_reads_alike_with_what_is_kept(tmp_path_factory, stored, way, data):
    place = stored.placed("local", tmp_path_factory.mktemp("arrays"))
    settle()
    nbytes = data.draw(st.sampled_from([1000, 1 << 20]))
    options = WAYS[way].but(chunk_cache_nbytes=nbytes)
    a, full = gpushard.open_array(place, options=options), stored.full
    for _ in range(4):
        key = data.draw(basic_keys(full.shape))
        note(f"{key=}")
        for _ in range(2):
            assert_same_bits(a.read(key), np.asarray(full[key], full.dtype))
        key = data.draw(orthogonal_keys(full.shape))
        note(f"{key=}")
        want = np.asarray(take_orthogonal(full, key), full.dtype)
        for _ in range(2):
            got = a.oindex[key]
            if want.shape:  # a scalar of text would lose the length of its type
                got = np.asarray(got).reshape(want.shape)
            assert_same_bits(got, want)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("zstd", "bool"),
        ("blosc lz4 shuffle 512", "int32"),
        ("crc32c", "uint8"),
        ("lz4", "complex64"),
    ],
)
def test_every_way_finds_what_every_other_way_kept(tmp_path, name, dtype):
    array = stored(CHAINS[name], dtype, [codec("bytes", endian="big")])
    place = array.placed("local", tmp_path)
    settle()
    box = np.s_[10:70, 5:80:3]
    for first, second in itertools.permutations(WAYS.values(), 2):
        a = gpushard.open_array(place, options=first)
        a[box]
        b = gpushard.Array(replace(a.source, options=second.resolved()))
        report = b.explain(box)
        assert report.n_kept_inner_chunks == report.n_inner_chunks
        assert report.n_payload_requests == 0
        assert_same_bits(b[box], array.full[box])
        assert_same_bits(b.read(box, dtype="c16"), array.full[box].astype("c16"))


def test_what_is_kept_is_neither_fetched_nor_decoded(tmp_path, options, monkeypatch):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=options)
    assert_reads(a, VALUES)

    def refused(*args: Any, **how: Any) -> Any:
        raise AssertionError

    # The loops would open the files, and all else asks the store.
    monkeypatch.setattr(LocalStore, "read", refused)
    monkeypatch.setattr(HostPipeline, "decode", refused)
    assert_reads(a, VALUES)


def test_uncompressed_inner_chunks_are_not_kept(tmp_path, options):
    written(tmp_path, compressors=None)
    a = gpushard.open_array(tmp_path, options=options)
    assert_reads(a, VALUES)
    assert a.source.chunks is None


def test_inner_chunks_without_a_place_in_one_index_are_not_kept(tmp_path, options):
    inner = ShardingCodec(chunk_shape=(8, 6), codecs=[BytesCodec(), ZstdCodec()])
    nested = ShardingCodec(chunk_shape=(16, 12), codecs=[inner])
    how = {"chunks": (32, 24), "serializer": nested, "compressors": None}
    z = zarr.create_array(tmp_path, shape=VALUES.shape, dtype="i4", **how)
    z[...] = VALUES
    a = gpushard.open_array(tmp_path, options=options)
    assert a.source.chunks is None
    assert_reads(a, VALUES.astype("i4"))


def test_small_inner_chunks_are_not_kept_unless_it_is_asked_for(tmp_path):
    written(tmp_path)
    assert gpushard.open_array(tmp_path).source.chunks is None


def test_of_files_that_were_just_written_nothing_is_kept(
    tmp_path, options, monkeypatch
):
    written(tmp_path)
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**18)
    a = gpushard.open_array(tmp_path, options=options)
    assert_reads(a, VALUES)
    assert len(a.source.chunks) == 0


@pytest.mark.filterwarnings("ignore::gpushard.DamageWarning")
def test_a_damaged_inner_chunk_is_never_kept(tmp_path, options):
    written(tmp_path, compressors=[ZstdCodec(), Crc32cCodec()])
    damage(tmp_path / "c" / "0" / "0")
    a = gpushard.open_array(tmp_path, options=options)
    for _ in range(2):
        for key in (np.s_[0:16, 0:8], ...):
            filled = a.read(key, errors="fill")
            assert np.array_equal(filled[8:, :8], VALUES[8 : len(filled), :8])
            with pytest.raises(CorruptShardError):
                a[key]


def test_a_read_of_more_than_there_is_room_for_drops_nothing(tmp_path, options):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=options.but(chunk_cache_nbytes=4 * 256))
    a[0:8, 0:16]
    assert np.array_equal(a[...], VALUES)
    assert len(a.source.chunks) == 4
    assert a.explain(np.s_[0:8, 0:16]).n_kept_inner_chunks == 2
    b = gpushard.open_array(tmp_path, options=options.but(chunk_cache_nbytes=4 * 256))
    b[0:8, 0:32]
    b[16:]  # none of which is held meanwhile
    assert b.explain(np.s_[0:8, 0:32]).n_kept_inner_chunks == 4


@pytest.mark.parametrize("n", [1, 4 * MIB // 3, 4 * MIB, 5 * MIB])
def test_tasks_copy_a_few_megabytes_of_what_is_kept(n):
    placed: list[Any] = []
    sink = SimpleNamespace(place_kept=lambda _job, _block, rows, _: placed.append(rows))
    tally, source = Tally(), SimpleNamespace(chunk_nbytes=n)
    job: Any = SimpleNamespace(sink=sink, tally=tally, source=source)
    rows = np.arange(10)
    for task in placing_tasks(job, None, None, rows):
        task()
    assert np.concatenate(placed).tolist() == rows.tolist()
    assert {len(some) * n > 4 * MIB for some in placed if len(some) > 1} <= {False}
    assert len(placed) == -(-10 // max(1, 4 * MIB // n))
    assert not [*placing_tasks(job, None, None, rows[:0])]


def test_inner_chunks_are_kept_beside_shards_that_are_missing_or_damaged(tmp_path):
    written(tmp_path)
    (tmp_path / "c" / "1" / "1").unlink()
    damage(tmp_path / "c" / "0" / "1", at=-1)  # in the checksum of its index
    expected = VALUES.copy()
    expected[:, 24:] = 0
    a = gpushard.open_array(tmp_path, options=WAYS["plain"])
    told: list[Any] = []
    for _ in range(2):
        assert_same_bits(a.read(errors=told.append), expected)
    assert len(told) == 24
    assert len(a.source.chunks) == 24
    assert a.explain(np.s_[:, :24]).n_kept_inner_chunks == 24


def test_views_share_what_is_kept_and_pickles_do_not(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=CACHED)
    a[...]
    both = gpushard.concat([a, a])
    assert both.explain().n_kept_inner_chunks == 96
    again = pickle.loads(pickle.dumps(a))
    assert again.explain().n_kept_inner_chunks == 0


def test_a_forked_process_begins_with_nothing_kept(tmp_path):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=CACHED)
    a[...]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(kept_and_read, (a,)) == (0, True)
    assert len(a.source.chunks) == 48


def kept_and_read(a: gpushard.Array) -> tuple[int, bool]:
    return len(a.source.chunks or ()), np.array_equal(a[...], VALUES)


def test_threads_read_what_is_stored_while_shards_are_replaced(tmp_path):
    written(tmp_path, VALUES * 0)
    # The oldest zarr writes files in place, and readers would meet half of one.
    z = gpushard.open_array(tmp_path, device="cpu")
    options = Options(chunk_cache_nbytes=20 * 256, threads=1)
    a = gpushard.open_array(tmp_path, options=options)
    floor, n_read = [0], [0] * 3
    start, is_done = threading.Barrier(4), threading.Event()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        while not is_done.is_set():
            least = floor[0]
            i, j = rng.integers(0, 56), rng.integers(0, 40)
            # Where this thread waits its shard may be replaced twice under a read.
            with contextlib.suppress(ObjectChangedError):
                assert a[i : i + 8, j : j + 8].min() >= least
                n_read[seed] += 1

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, seed) for seed in range(3)]
        start.wait()
        for k in range(1, 12):
            z[...] = k
            floor[0] = k
            settle()
        is_done.set()
        for reader in readers:
            reader.result()
    assert all(n_read)
    assert np.array_equal(a[...], np.full_like(VALUES, 11))


@pytest.mark.parametrize("how", [{}, {"window": (10, 10), "stride": 6}])
def test_a_loader_finds_what_its_epoch_before_decoded(tmp_path, how):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, options=CACHED)
    with Loader(a, batch_size=16, shuffle=True, **how) as loader:
        first = [batch.copy() for batch in loader]
        assert loader.stats()["chunk_cache_hits"] < 48
        stored_nbytes = loader.stats()["stored_bytes_read"]
        loader.set_epoch(0)
        again = list(loader)
        assert loader.stats()["chunk_cache_hits"] >= 48
        assert loader.stats()["stored_bytes_read"] == stored_nbytes
    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))


def damage(shard: Path, at: int = 10) -> None:
    """Flip a bit, by default of the first inner chunk."""
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)
    settle()
