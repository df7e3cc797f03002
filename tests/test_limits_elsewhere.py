"""Each knob is heeded wherever else it is used: writes, verification, servers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import opened, put
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated
from gpushard import Options
from gpushard.devices.compressing import BatchCompressor
from gpushard.inspection.payload import n_workers
from gpushard.inspection.verify import verify_array
from gpushard.options import KIB, MIB, WriteOptions
from gpushard.rolling import RollingArray
from gpushard.stores import documents, patience
from gpushard.stores.bodies import Pace
from gpushard.stores.local import LocalStore
from gpushard.stores.patience import Patience
from gpushard.writing.assign import WriteSession
from gpushard.writing.encode import Encoder
from hostile_shards import ZSTD
from rolling_arrays import rolling, steps
from spec_shards import LITTLE, document, sharding
from test_writing_on_device import CODECS, new, numbers, on_device

INDEXED = {"index_codecs": [LITTLE]}


@pytest.mark.parametrize(
    ("threads", "limit", "most"), [(2, MIB, 8), (1, MIB, 4), (2, 5 * 3 * KIB, 5)]
)
def test_inner_chunks_are_encoded_together_as_far_as_threads_and_memory_go(
    tmp_path, monkeypatch, threads, limit, most
):
    """Each of 1 KiB is held three times; a thread has four in hand."""
    meta = document((16 * KIB,), (16 * KIB,), sharding((KIB,), codecs=[LITTLE, ZSTD]))
    put(tmp_path, meta)
    batches: list[int] = []
    real = Encoder._payloads

    def payloads(self: Encoder, changed: Any) -> Any:
        batches.append(len(changed))
        return real(self, changed)

    monkeypatch.setattr(Encoder, "_payloads", payloads)
    options = Options(threads=threads, memory_limit=limit)
    gpushard.open_array(tmp_path, device="cpu", options=options)[:] = 3
    assert max(batches) == most


@pytest.mark.parametrize(("threads", "n"), [(1, 1), (3, 3)])
def test_shards_are_written_side_by_side_by_the_threads_asked_for(tmp_path, threads, n):
    meta = document((64,), (8,), sharding((4,)))
    put(tmp_path, meta)
    a = gpushard.open_array(tmp_path, device="cpu", options=Options(threads=threads))
    assert WriteSession(a.source).n_shards_at_once() == n


@pytest.mark.parametrize(("fraction", "is_kept"), [(0.4, False), (0.9, True)])
@pytest.mark.parametrize("strategy", ["fixed_order", "random_write"])
def test_a_shard_is_laid_down_anew_beyond_the_unused_fraction(
    tmp_path, strategy, fraction, is_kept
):
    noise = np.random.default_rng(3).integers(0, 256, 4 * KIB, "u1")
    index_location = "start" if strategy == "random_write" else "end"
    shards = sharding((KIB,), codecs=[LITTLE, ZSTD], index_location=index_location)
    put(tmp_path, document((4 * KIB,), (4 * KIB,), shards))
    write = WriteOptions(strategy=strategy, max_unused_fraction=fraction)
    a = gpushard.open_array(tmp_path, device="cpu", options=Options(write=write))
    a[:] = noise
    before = os.stat(tmp_path / "c" / "0")
    a[: 2 * KIB] = 7  # half of the shard is unused then, and a little more
    after = os.stat(tmp_path / "c" / "0")
    assert (
        after.st_ino == before.st_ino and after.st_size >= before.st_size
    ) is is_kept


@pytest.mark.parametrize("limit", [MIB, 64 * KIB])
def test_batches_that_a_device_compresses_fit_the_memory_limit(
    tmp_path, monkeypatch, limit
):
    device = EmulatedDevice(*emulated(), seed=5)
    new(tmp_path, device, CODECS["lz4"])
    a = gpushard.open_array(
        tmp_path, device=device, options=Options(memory_limit=limit)
    )
    taken: list[int] = []
    real = BatchCompressor.compress

    def compress(self: BatchCompressor, batch: Any, *others: Any) -> Any:
        taken.append(self._nbytes(self.most_rows))
        return real(self, batch, *others)

    monkeypatch.setattr(BatchCompressor, "compress", compress)
    a[...] = on_device(device, numbers())
    assert np.array_equal(gpushard.open_array(tmp_path, device="cpu")[...], numbers())
    assert limit // 4 < max(taken) <= limit
    device.drain()


@pytest.mark.parametrize(("threads", "limit"), [(1, 64 * KIB), (2, 128 * KIB)])
def test_a_verification_fetches_within_the_memory_limit(tmp_path, threads, limit):
    """Each task takes half of its thread's part, and a request more at most."""
    n, nbytes = 256, 4 * KIB
    entries = np.stack([np.arange(n) * nbytes, np.full(n, nbytes)], 1).astype("<u8")
    meta = document((MIB,), (MIB,), sharding((nbytes,), **INDEXED))
    put(tmp_path, meta, c_0=bytes(MIB) + entries.tobytes())
    a, store = opened(tmp_path, threads=threads, memory_limit=limit)
    assert verify_array(a.source, decodes=True).status == "whole"
    assert 32 * KIB <= max(store.payload_nbytes()) <= 64 * KIB


@pytest.mark.parametrize(
    ("threads", "limit", "n"), [(3, MIB, 3), (8, MIB, 4), (8, 600 * KIB, 2)]
)
def test_a_verification_takes_the_threads_that_are_asked_for_and_have_room(
    tmp_path, threads, limit, n
):
    shards = sharding((128 * KIB,), codecs=[LITTLE, ZSTD])
    put(tmp_path, document((MIB,), (MIB,), shards))
    a, _ = opened(tmp_path, threads=threads, memory_limit=limit)
    assert n_workers(a.source) == n


class Clock:
    """A clock that stands but while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("patience_s", [2.0, 40.0])
def test_a_busy_server_is_given_up_when_the_patience_ends(monkeypatch, patience_s):
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)

    def refused(_: Any) -> None:
        raise gpushard.StoreError("status code: 503")

    with pytest.raises(gpushard.StoreError):
        Patience(Pace(patience_s, 1), None).ask(refused, None)
    # The pause after the last one would have been twice as long, and a half more.
    assert patience_s / 4 < clock.now <= patience_s


@pytest.mark.parametrize("patience_s", [3, 30])
def test_the_client_of_a_server_is_told_the_patience(patience_s):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    from gpushard.stores.remote_url import _limits, open_url

    limits = _limits(patience_s, {}, "http")
    told = limits["client_options"]
    assert told["read_timeout"] == told["connect_timeout"] == f"{patience_s // 3}s"
    last = limits["retry_config"]["retry_timeout"].total_seconds()
    assert last + patience_s / 3 < patience_s
    options = Options(patience_s=patience_s, min_nbytes_per_s=77)
    store = open_url("http://127.0.0.1:9/a", {}, options)
    assert store._pace == Pace(patience_s, 77)


@pytest.mark.parametrize(("most", "n_read_again"), [(0, 3), (MIB, 0)])
def test_a_rolling_array_keeps_indexes_up_to_the_option(
    tmp_path, monkeypatch, most, n_read_again
):
    rolling(tmp_path / "a", 0, 6)
    options = Options(index_cache_nbytes=most, small_read_chunks=0)
    a = RollingArray.open(tmp_path / "a", device="cpu", options=options)
    a[:]
    fetched: list[str] = []
    real = LocalStore.read

    def read(self: LocalStore, requests: Any) -> Any:
        fetched.extend(r.key for r in requests if not r.is_indexed)
        return real(self, requests)

    monkeypatch.setattr(LocalStore, "read", read)
    assert np.array_equal(a[:], steps(0, 6))
    assert len([key for key in fetched if key.startswith("c/")]) == n_read_again


def test_of_a_document_no_more_is_read_than_tells_that_it_is_too_large(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_NBYTES", 100)
    (tmp_path / "zarr.json").write_bytes(bytes(10_000))
    n_read: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        n_read.append(sum(map(len, buffers)))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(gpushard.StoreError, match="at most 100 bytes"):
        LocalStore(tmp_path).get("zarr.json")
    assert n_read == [101]


def test_a_document_that_is_too_large_is_not_moved(tmp_path, monkeypatch):
    a = rolling(tmp_path / "a", 0, 4)
    before = (tmp_path / "a" / "zarr.json").read_bytes()
    monkeypatch.setattr("gpushard.rolling.steps.MAX_DOCUMENT_NBYTES", 100)
    with pytest.raises(gpushard.GpushardError):
        a.append(steps(4, 6))
    assert (tmp_path / "a" / "zarr.json").read_bytes() == before
