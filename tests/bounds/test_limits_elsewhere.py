"""Each knob is heeded wherever else it is used: writes, verification, servers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from array_strategies import codec
from asked_store import AskedStore, opened, put
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated
from device_fetch_cases import MeasuredDevice
from gpushard import Options
from gpushard.converting import conversion, copying
from gpushard.device_reading.payload import direct
from gpushard.devices.budget import N_LANES
from gpushard.devices.compressing import BatchCompressor
from gpushard.inspection.verify import verify_array
from gpushard.options import GIB, KIB, MIB
from gpushard.rolling import RollingArray
from gpushard.stores import documents, patience
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest
from gpushard.stores.local.store import LocalStore
from gpushard.stores.patience import Patience, WaitLimits
from gpushard.stores.remote import RemoteStore
from gpushard.stores.zarr.store import ZarrStore
from gpushard.write_options import WriteOptions
from gpushard.writing import encode
from gpushard.writing.assign import n_shards_at_once
from gpushard.writing.encode import Encoder
from hostile_shards import ZSTD
from rolling_arrays import rolling, steps
from spec_shards import LITTLE, document, sharding
from written_on_device import CODECS, new, numbers, on_device
from zarr_oracle import held

INDEXED = {"index_codecs": [LITTLE]}


@pytest.mark.parametrize(
    ("threads", "limit", "nbytes", "most"),
    [
        *((2, MIB, (0, 0), 8), (1, MIB, (0, 0), 4), (2, 18 * KIB, (MIB, MIB), 5)),
        *((1, MIB, (11 * KIB, 0), 11), (1, MIB, (0, 7 * KIB), 7)),
        (1, MIB // 2, (0, MIB), 8),
    ],
)
def test_inner_chunks_are_encoded_together_as_far_as_threads_and_memory_go(
    tmp_path, monkeypatch, threads, limit, nbytes, most
):
    """Each of 1 KiB is held three times, beside an eighth of the limit for what is
    encoded; a thread has four, or `nbytes`, of which the second is in a 64th of it.
    """
    monkeypatch.setattr(encode, "_BATCH_NBYTES", nbytes[0])
    monkeypatch.setattr(encode, "_LARGE_BATCH_NBYTES", nbytes[1])
    meta = document((16 * KIB,), (16 * KIB,), sharding((KIB,), codecs=[LITTLE, ZSTD]))
    put(tmp_path, meta)
    batches: list[int] = []
    real = Encoder._encoded

    def encoded(self: Encoder, entries: Any, given: list[Any]) -> Any:
        batches.append(len(given[0]))
        return real(self, entries, given)

    monkeypatch.setattr(Encoder, "_encoded", encoded)
    options = Options(threads=threads, memory_limit=limit)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    a[::2] = 3  # in part
    assert max(batches) == most
    batches.clear()
    a[:] = 4
    assert max(batches) == most


@pytest.mark.parametrize(("threads", "n"), [(1, 1), (3, 3)])
def test_shards_are_written_side_by_side_by_the_threads_asked_for(tmp_path, threads, n):
    meta = document((64,), (8,), sharding((4,)))
    put(tmp_path, meta)
    a = gpushard.open_array(tmp_path, device="cpu", options=Options(threads=threads))
    assert n_shards_at_once(a.source) == n


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
    assert a.source.most_workers == n


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
        raise gpushard.StoreError("status code: 503") from RefusalError("busy", 503)

    with pytest.raises(gpushard.StoreError):
        Patience(WaitLimits(patience_s, 1), None).ask(refused, None)
    # The pause after the last one would have been twice as long, and a half more.
    assert patience_s / 4 < clock.now <= patience_s


@pytest.mark.parametrize("patience_s", [3, 30])
def test_the_client_of_a_server_is_told_the_patience(patience_s):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    from gpushard.stores.remote_url import _limits, open_url

    limits = _limits(patience_s, {})
    told = limits["client_options"]
    assert told["read_timeout"] == told["connect_timeout"] == f"{patience_s // 3}s"
    last = limits["retry_config"]["retry_timeout"].total_seconds()
    assert last + patience_s / 3 < patience_s
    options = Options(patience_s=patience_s, min_nbytes_per_s=77)
    settings = open_url("http://127.0.0.1:9/a", {}, options).settings  # type: ignore[attr-defined]
    assert settings.wait_limits == WaitLimits(patience_s, 77)
    assert settings.pause_s == settings.connect_s == patience_s / 3
    assert settings.repeats.lost_limit_s + patience_s / 3 < patience_s


@pytest.mark.usefixtures("settled")
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


@pytest.mark.parametrize("most", [4 * KIB, 8 * KIB])
def test_of_an_object_that_must_be_held_no_more_is_read_than_tells_it_is_too_large(
    monkeypatch, most
):
    store = MemoryStore()
    made = zarr.create_array(
        store, shape=(16 * KIB,), dtype="u1", chunks=(KIB,), shards=(16 * KIB,),
        compressors=None,
    )  # fmt: skip
    made[...] = 3
    asked: list[int | None] = []
    real = ZarrStore.read

    def read(self: ZarrStore, requests: Any) -> Any:
        asked.extend(r.max_nbytes for r in requests)
        return real(self, requests)

    monkeypatch.setattr(ZarrStore, "read", read)
    options = Options(max_chunk_nbytes=most)
    with pytest.raises(gpushard.LimitError, match="has to be held"):
        gpushard.open_array(store, device="cpu", options=options)[3:5] = 1
    assert asked[-1] == most + 1


@pytest.mark.parametrize("strategy", ["rewrite", "append_only"])
def test_nested_shards_are_held_to_the_cap_where_they_have_to_be_held(
    tmp_path, strategy
):
    inner = sharding((MIB,), **INDEXED)
    meta = document((8 * MIB,), (8 * MIB,), sharding((4 * MIB,), codecs=[inner]))
    a = gpushard.open_array(put(tmp_path, meta), device="cpu")
    a[:] = 1
    nested_nbytes = 4 * MIB + 4 * 16
    for most in (nested_nbytes - 1, nested_nbytes):
        options = Options(max_chunk_nbytes=most, write=WriteOptions(strategy))
        a = gpushard.open_array(tmp_path, device="cpu", options=options)
        if most < nested_nbytes and strategy != "rewrite":
            with pytest.raises(gpushard.LimitError, match="a nested shard"):
                a[3:5] = 3
        else:
            a[3:5] = 2
    assert a[2:6].tolist() == [1, 2, 2, 1]


def test_historic_shards_are_levels_of_the_depth_too():
    meta = {
        "zarr_format": 2, "shape": [4], "chunks": [1], "shards": [2], "order": "C",
        "shard_format": "indexed", "dtype": "<i4", "fill_value": 0, "filters": None,
        "compressor": None, "dimension_separator": ".",
    }  # fmt: skip
    store = held({".zarray": json.dumps(meta).encode()})
    assert gpushard.open_array(store, device="cpu").shards == (2,)
    with pytest.raises(gpushard.LimitError, match="nested too deep"):
        gpushard.open_array(store, device="cpu", options=Options(max_sharding_depth=0))


def test_a_conversion_reads_and_encodes_within_its_budget(tmp_path, monkeypatch):
    source = put(tmp_path / "a", document((MIB,), (64 * KIB,), LITTLE))
    limits: list[int] = []
    threads: list[int] = []
    budgets: list[Any] = []
    read, budget = gpushard.Array.read, conversion.budget_for

    def noted_read(self: Any, *given: Any, **named: Any):
        limits.append(self.source.options.memory_limit)
        return read(self, *given, **named)

    class NotedEncoder(Encoder):
        def __init__(self, source: Any) -> None:
            threads.append(source.options.threads)
            super().__init__(source)

    def noted_budget(*given: Any, **named: Any) -> Any:
        budgets.append(budget(*given, **named))
        return budgets[-1]

    monkeypatch.setattr(gpushard.Array, "read", noted_read)
    monkeypatch.setattr(copying, "Encoder", NotedEncoder)
    monkeypatch.setattr(conversion, "budget_for", noted_budget)
    gpushard.convert(
        source, tmp_path / "b", shards=(256 * KIB,), chunks=(64 * KIB,),
        memory_limit=4 * MIB, num_threads=8,
    )  # fmt: skip
    made = budgets[-1]
    assert set(limits) == {made.read_nbytes}
    assert 0 < made.n_tiles * made.read_nbytes < 4 * MIB
    assert threads == [made.encoder_threads]
    assert made.n_tiles * made.encoder_threads <= 8


def test_a_silent_server_is_given_a_third_of_the_patience():
    assert WaitLimits(6, 1).pause_s == 2
    assert WaitLimits(60, 1).pause_s == 20


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_files_that_kvikio_keeps_open_are_bounded_by_the_option(
    tmp_path, monkeypatch, kind
):
    obstores = pytest.importorskip("obstore.store", reason="no obstore (extra remote)")
    store: Any = LocalStore(tmp_path)
    if kind == "remote":
        store = RemoteStore(obstores.MemoryStore(), "memory://")
    limits: list[int] = []
    monkeypatch.setattr(direct, f"_open_{kind}", lambda *given: limits.append(given[3]))
    shards = sharding((KIB,))
    a, _ = opened(
        put(tmp_path, document((4 * KIB,), (4 * KIB,), shards)),
        file_handles=7, kvikio_remote=True,
    )  # fmt: skip
    request = ByteRequest("c/0", 0, GIB)
    direct.open_direct(None, replace(a.source, store=store), [request])
    assert limits == [7]


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")
def test_what_a_device_is_given_decoded_fits_the_memory_limit(tmp_path):
    """The host decodes; slots, arenas and pinned copies are all counted."""
    limit = 256 * KIB
    values = np.random.default_rng(5).integers(0, 256, limit, "u1")
    shards = sharding((2 * KIB,), codecs=[LITTLE, codec("numcodecs.bz2", level=1)])
    put(tmp_path, document((limit,), (limit,), shards))
    gpushard.open_array(tmp_path, device="cpu")[:] = values
    device = MeasuredDevice(*emulated(), seed=5)
    options = Options(memory_limit=limit, threads=1)
    store = AskedStore(tmp_path)
    a = gpushard.open_array(store, device=device, options=options)
    assert a.explain().codecs[-1].where == "host"
    device.peak_nbytes = 0
    store.calls.clear()
    result = a[...]
    assert np.array_equal(result.get(), values)
    assert limit // 4 < device.peak_nbytes - values.nbytes <= limit
    # A quarter is for encoded bytes, of which each slot and lane has its part; an
    # inner chunk may be more.
    n_homes = options.pinned_slots + N_LANES
    assert max(store.payload_nbytes()) <= limit // 4 // n_homes + 3 * KIB
