"""Payload read straight into device memory, by a stand-in for kvikio."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from zarr.codecs import BloscCodec

import gpushard
from cuda_host import kvikio_standin
from cuda_host.reads import read_on_device
from device_fetch_cases import (
    CHAINS,
    LazyDevice,
    LockedDevice,
    MeasuredDevice,
    emulated,
    read_three_ways,
    small_batches,
    standing_in,
    stored,
)
from gpushard.device_reading import sink
from gpushard.device_reading.payload import direct
from gpushard.device_reading.payload.kvikio_file import KvikioFiles
from gpushard.options import KIB, MIB, Options
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from gpushard.stores.local.store import LocalStore
from zarr_oracle import assert_same_bits

SHAPE = (120, 80)


@pytest.fixture
def device():
    return emulated(seed=1)


@pytest.fixture
def kvikio(monkeypatch, device):
    standin = standing_in(monkeypatch, device)
    yield standin
    assert standin.under_way == []


def in_small_batches(monkeypatch, nbytes=1000):
    monkeypatch.setattr(sink.Budget, "of", lambda *_, **__: small_batches(nbytes))


@pytest.mark.parametrize(
    ("chain", "max_rows"), [*((chain, 5) for chain in CHAINS), ("zstd", 4096)]
)
def test_every_chain_is_read_from_what_kvikio_put_there(
    tmp_path, device, kvikio, chain, max_rows, monkeypatch
):
    values = stored(tmp_path, CHAINS[chain], SHAPE)
    in_small_batches(monkeypatch)
    job = read_three_ways(gpushard.open_array(tmp_path), values, device, max_rows)
    counts = job.tally.counts
    assert counts["n_direct_requests"] == counts["n_payload_requests"] > 4
    assert kvikio.n_preads == counts["n_payload_requests"]
    assert "n_refused_inner_chunks" not in counts


def test_ranges_are_whole_pages_and_nothing_is_uploaded_but_tables(
    tmp_path, device, kvikio
):
    stored(tmp_path, None, (512, 480), chunks=(16, 32), shards=(128, 96))
    a = gpushard.open_array(tmp_path)
    part = expressions.basic((slice(40, 50), slice(0, 32)), a.shape)
    read_on_device(a, [part], device)
    spans = [what.split("+") for _, kind, what in device.log if kind == "pread"]
    assert spans
    assert all(int(offset) % 4096 == int(n) % 4096 == 0 for offset, n in spans)
    # The tables of the targets, and one packed page.
    assert [kind for _, kind, _ in device.log].count("upload") == 2


def test_pages_end_where_the_file_does(tmp_path, device, kvikio):
    values = stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    sizes = {path.stat().st_size for path in tmp_path.rglob("c/*/*")}
    ends = [what.split("+") for _, kind, what in device.log if kind == "pread"]
    assert {int(offset) + int(n) for offset, n in ends} <= sizes


def test_the_next_read_is_issued_before_the_scatter_ends(tmp_path, kvikio, monkeypatch):
    # One that does no more than it must: else it could be done already.
    device = kvikio.device = emulated(LazyDevice)
    stored(tmp_path, CHAINS["zstd"], SHAPE)
    a = gpushard.open_array(tmp_path)
    in_small_batches(monkeypatch)
    read = KvikioFiles.read

    def noted(files, ranges):
        device.log.append((-1, "fetch", str(len(ranges))))
        read(files, ranges)

    monkeypatch.setattr(KvikioFiles, "read", noted)
    read_on_device(a, [expressions.basic((slice(0, 96),), a.shape)], device)
    fetches = [i for i, entry in enumerate(device.log) if entry[1] == "fetch"]
    scatters = [i for i, entry in enumerate(device.log) if "gs_scatter" in entry[2]]
    assert len(fetches) == len(scatters) > 4
    for following, scatter in zip(fetches[1:], scatters, strict=False):
        assert following < scatter


@pytest.mark.parametrize("chain", ["zstd", "blosc-lz4", "none"])
def test_memory_stays_under_the_limit(tmp_path, monkeypatch, chain):
    device = emulated(MeasuredDevice)
    kvikio_standin.install(monkeypatch, device)
    monkeypatch.setattr(direct, "MIN_MEAN_NBYTES", 4 * KIB)
    shape = (512, 480)
    values = stored(tmp_path, CHAINS[chain], shape, chunks=(16, 32), shards=(128, 96))
    options = Options(memory_limit=MIB, threads=1)
    a = gpushard.open_array(tmp_path, options=options)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_direct_requests"]
    assert device.peak_nbytes - values.nbytes <= MIB


def test_several_threads_read_into_both_lanes(tmp_path, monkeypatch):
    device = emulated(LockedDevice)
    monkeypatch.setattr(direct, "MIN_MEAN_NBYTES", 1)
    kvikio_standin.install(monkeypatch, device)
    values = stored(
        tmp_path, CHAINS["zstd"], (512, 480), chunks=(32, 32), shards=(64, 96)
    )
    options = Options(memory_limit=MIB, threads=4)
    a = gpushard.open_array(tmp_path, options=options)
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)


def test_what_the_device_refuses_is_read_back_and_decoded_on_the_host(
    tmp_path, device, kvikio
):
    values = stored(tmp_path, [BloscCodec(cname="blosclz", clevel=9)])
    a = gpushard.open_array(tmp_path)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] > 0
    assert job.tally.counts["n_direct_requests"] > 0


@pytest.mark.parametrize("chain", ["none", "zstd-crc32c"])
def test_damage_is_refused_with_its_place(tmp_path, device, kvikio, chain):
    stored(tmp_path, CHAINS[chain])
    shard = tmp_path / "c/0/0"
    data = bytearray(shard.read_bytes())
    entries = np.frombuffer(bytes(data[-68:-4]), "<u8").reshape(-1, 2).copy()
    if chain == "none":
        entries[1, 1] -= 4  # elements missing
        index = entries.tobytes()
        data[-68:-4] = index
        import crc32c

        data[-4:] = crc32c.crc32c(index).to_bytes(4, "little")
    else:
        data[int(entries[1, 0]) + 9] ^= 0x55
    shard.write_bytes(bytes(data))
    a = gpushard.open_array(tmp_path)
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as refused:
        read_on_device(a, [whole(a.shape)], device)
    assert refused.value.what == host.value.what
    assert refused.value.inner_chunk == host.value.inner_chunk == (0, 1)


def test_a_shard_cut_short_is_refused_as_on_the_host(tmp_path, device, kvikio):
    stored(tmp_path, None)
    shard = tmp_path / "c/0/0"
    data = shard.read_bytes()
    shard.write_bytes(data[-68:])
    a = gpushard.open_array(tmp_path)
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as refused:
        read_on_device(a, [whole(a.shape)], device)
    assert refused.value.what == host.value.what


def test_a_file_overwritten_while_it_is_read_is_read_again(tmp_path, device, kvikio):
    values = stored(tmp_path, None)
    a = gpushard.open_array(tmp_path)
    shard = tmp_path / "c/0/0"
    later = bytearray(shard.read_bytes())
    later[:4] = np.int32(-1).tobytes()

    def overwrite():
        kvikio.before_bytes = lambda: None
        with shard.open("r+b") as file:
            file.write(later)
        os.utime(shard, ns=(1, 1))

    kvikio.before_bytes = overwrite
    results, _ = read_on_device(a, [whole(a.shape)], device)
    values[0, 0] = -1
    assert_same_bits(results[0], values)


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_file_overwritten_again_and_again_is_refused(
    tmp_path, device, kvikio, is_failing
):
    stored(tmp_path, None)
    a = gpushard.open_array(tmp_path)
    times = iter(range(1, 1000))
    kvikio.answer = lambda nbytes: nbytes - is_failing

    def overwrite():
        for shard in tmp_path.rglob("c/*/*"):
            os.utime(shard, ns=(1, next(times)))

    kvikio.before_bytes = overwrite
    with pytest.raises(gpushard.ObjectChangedError):
        read_on_device(a, [whole(a.shape)], device)


def test_a_file_that_a_network_file_system_has_forgotten_is_an_error_of_the_store(
    tmp_path, device, kvikio, monkeypatch
):
    stored(tmp_path, None)
    a = gpushard.open_array(tmp_path)
    fstat = os.fstat

    def forget():
        monkeypatch.setattr(os, "fstat", fail)

    def fail(fd):
        monkeypatch.setattr(os, "fstat", fstat)
        raise OSError(errno.ESTALE, "Stale file handle")

    kvikio.before_bytes = forget
    with pytest.raises(gpushard.StoreError, match="Stale file handle"):
        read_on_device(a, [whole(a.shape)], device)


def test_a_file_replaced_before_kvikio_opens_it_stays_the_one_that_is_open(
    tmp_path, device, kvikio, monkeypatch
):
    values = stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    open_file = LocalStore.open_file

    def opened_and_replaced(store, key, version):
        handle = open_file(store, key, version)
        part = tmp_path / "part"
        part.write_bytes(b"another array altogether" * 20)
        part.rename(tmp_path / key)
        return handle

    monkeypatch.setattr(LocalStore, "open_file", opened_and_replaced)
    part = expressions.basic((slice(0, 16), slice(0, 20)), a.shape)
    results, job = read_on_device(a, [part], device)
    assert_same_bits(results[0], values[:16, :20])
    assert job.tally.counts["n_direct_requests"] == kvikio.n_preads > 0


def test_a_short_read_is_an_error(tmp_path, device, kvikio):
    stored(tmp_path, CHAINS["zstd"], SHAPE)
    a = gpushard.open_array(tmp_path)
    kvikio.answer = lambda nbytes: nbytes - 1
    with pytest.raises(gpushard.StoreError, match="another number of bytes"):
        read_on_device(a, [whole(a.shape)], device)


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_failing_read_is_an_error_once_nothing_is_under_way(
    tmp_path, device, kvikio, error
):
    stored(tmp_path, CHAINS["zstd"], SHAPE)
    a = gpushard.open_array(tmp_path)
    n_left = iter([1, 1, 1])

    def fail(nbytes):
        if next(n_left, 0):
            return nbytes
        raise error("cuFileRead failed")

    kvikio.answer = fail
    with pytest.raises(gpushard.StoreError, match="cuFileRead failed") as caught:
        read_on_device(a, [whole(a.shape)], device)
    assert "gds=False" in str(caught.value)
    assert caught.value.store_url == a.source.store.url
    assert caught.value.array_path == a.path
    assert kvikio.n_preads > 3


def test_a_second_interrupt_does_not_end_the_wait_for_reads_under_way(
    tmp_path, device, kvikio, monkeypatch
):
    stored(tmp_path, CHAINS["zstd"], SHAPE)
    a = gpushard.open_array(tmp_path)
    n_left, get = iter([1, 1]), kvikio_standin.IOFuture.get

    def interrupted(future):
        get(future)
        if next(n_left, 0):
            raise KeyboardInterrupt

    monkeypatch.setattr(kvikio_standin.IOFuture, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_on_device(a, [whole(a.shape)], device)
    assert kvikio.n_preads > 3
    assert kvikio.under_way == []


def test_a_file_that_kvikio_cannot_open_goes_through_the_ring(tmp_path, device, kvikio):
    values = stored(tmp_path, CHAINS["zstd"])
    kvikio.refuses = True
    a = gpushard.open_array(tmp_path)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert "n_direct_requests" not in job.tally.counts


def test_small_ranges_go_through_the_ring(tmp_path, device, monkeypatch):
    kvikio = kvikio_standin.install(monkeypatch, device)
    values = stored(tmp_path, CHAINS["zstd"])
    results, _ = read_on_device(
        gpushard.open_array(tmp_path), [whole(values.shape)], device
    )
    assert_same_bits(results[0], values)
    assert kvikio.n_preads == 0


def test_open_files_are_kept_between_reads_and_not_without_end(
    tmp_path, device, kvikio
):
    stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    n_files = len([path for path in tmp_path.rglob("c/*/*") if path.is_file()])
    for _ in range(2):
        read_on_device(a, [whole(a.shape)], device)
    assert kvikio.n_opened == n_files
    few = gpushard.open_array(tmp_path, options=Options(file_handles=2))
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        read_on_device(few, [whole(a.shape)], device)
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_several_threads_are_asked_for_unless_somebody_chose(
    tmp_path, device, kvikio, monkeypatch
):
    stored(tmp_path, CHAINS["zstd"])
    monkeypatch.setenv("KVIKIO_NTHREADS", "1")
    a = gpushard.open_array(tmp_path)
    read_on_device(a, [whole(a.shape)], device)
    assert kvikio.settings["num_threads"] == 1
    monkeypatch.delenv("KVIKIO_NTHREADS")
    another = kvikio_standin.install(monkeypatch, device)
    read_on_device(a, [whole(a.shape)], device)
    assert another.settings["num_threads"] == 8
