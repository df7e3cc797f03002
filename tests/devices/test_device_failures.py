"""What a read does when its device runs out of memory, or breaks.

On the emulated device, where every allocation and launch can be made to fail in turn.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from gpushard.device_reading import read as device_read
from gpushard.device_reading.sink import DeviceSink
from gpushard.errors import DeviceError, DeviceMemoryError
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
CHAINS = {
    "none": None,
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip": [GzipCodec()],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="bitshuffle", blocksize=64)],
}
chains = pytest.mark.parametrize("chain", CHAINS)


def emulated(**knobs):
    return EmulatedDevice(KERNELS, load_standin(), **knobs)


@pytest.fixture
def stored(tmp_path, chain):
    """Array of 12 inner chunks, four of them missing, and its values."""
    made = zarr.create_array(
        tmp_path,
        shape=(24, 16),
        chunks=(4, 8),
        shards=(12, 16),
        dtype="i4",
        compressors=CHAINS[chain],
        fill_value=7,
    )
    values = np.random.default_rng(5).integers(0, 50, (24, 16)).astype("i4")
    values[16:] = 7
    made[:16] = values[:16]
    return gpushard.open_array(tmp_path, device="cpu"), values


def read(a, device, **knobs):
    return read_on_device(a, [whole(a.shape)], device, **knobs)


class Greedy:
    """A decoder that asks for more scratch than any device has."""

    def __init__(self, decoder):
        self.alignments = decoder.alignments

    def temp_nbytes(self, *_):
        return 1 << 40


def calls_that_take_memory(a):
    """Kinds of the calls of one read, in order."""
    kinds = []
    device = emulated(refuses=lambda kind, _: kinds.append(kind))
    read(a, device, max_rows=5)
    return kinds


@chains
def test_a_call_that_fails_once_for_lack_of_memory_changes_no_result(stored):
    a, values = stored
    kinds = calls_that_take_memory(a)
    assert kinds.count("allocate") > 4
    assert kinds.count("launch") > 2
    n_failed = 0
    for victim in range(len(kinds)):
        device = emulated(refuses=lambda _, n, victim=victim: n == victim, seed=victim)
        try:
            results, job = read(a, device, max_rows=5)
        except DeviceMemoryError:  # there is no result to write to
            n_failed += 1
            assert victim == 0
        else:
            assert_same_bits(results[0], values)
            # Without the tables of its targets the device cannot place anything.
            assert isinstance(job.sink, DeviceSink) == (victim not in (1, 2))
        assert device.is_idle
    assert n_failed == 1


@chains
def test_memory_that_runs_out_for_good_is_told_or_not_needed(stored):
    a, values = stored
    n_calls = len(calls_that_take_memory(a))
    n_done = 0
    for first in range(0, n_calls + 1, 3):
        device = emulated(refuses=lambda _, n, first=first: n >= first, seed=first)
        with suppress(DeviceMemoryError):
            results, _ = read(a, device, max_rows=5)
            n_done += 1
            assert_same_bits(results[0], values)
        assert device.is_idle
    assert n_done <= 1


@pytest.mark.parametrize("chain", ["zstd-crc32c"])
def test_a_batch_that_does_not_fit_is_split(stored):
    a, values = stored
    device = emulated()
    read(a, device)
    needed = max(int(what) for _, kind, what in device.log if kind == "upload")
    sizes = []
    for limit in range(120_000, 2_000, -2_000):
        device = emulated(limit_nbytes=limit)
        try:
            results, job = read(a, device)
        except DeviceMemoryError:
            break
        sizes.append(job.sink.max_rows)
        assert_same_bits(results[0], values)
    assert limit > needed
    assert sizes[0] > 4096
    assert min(sizes) <= 2
    assert sorted(sizes, reverse=True) == sizes


@pytest.mark.parametrize("chain", ["zstd-crc32c", "blosc-zlib"])
def test_what_cannot_be_decoded_there_for_lack_of_memory_the_host_decodes(stored):
    a, values = stored
    device = emulated()
    device.decoder = Greedy(device.decoder)
    results, job = read(a, device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_memory_failures"] > 0


@chains
def test_a_broken_device_is_told_and_never_asked_again(stored):
    a, _ = stored
    device = emulated()
    read(a, device, max_rows=5)
    n_runs = device.n_runs
    for victim in range(n_runs):
        device = emulated(breaks=lambda n, victim=victim: n == victim, seed=victim)
        # A read that ends before is right: the last operations are the test's own.
        with suppress(DeviceError):
            read(a, device, max_rows=5)
            assert victim >= n_runs - 4
        if device.is_broken:
            n_ran = device.n_runs
            with pytest.raises(DeviceError, match="broken"):
                read(a, device)
            assert device.n_runs == n_ran


@pytest.mark.parametrize("chain", ["zstd-crc32c"])
@pytest.mark.usefixtures("device_begins_at_once")
def test_the_callers_array_comes_back_from_no_failed_read(stored):
    a, _ = stored
    device = emulated(refuses=lambda _, n: n > 8)
    on_device = gpushard.open_array(a.source.store.url, device=device)
    with pytest.raises(DeviceMemoryError, match="memory") as failed:
        on_device[...]
    assert failed.value.store_url == a.source.store.url
    assert isinstance(failed.value, MemoryError)
    assert device.is_idle


@pytest.mark.parametrize("chain", ["none"])
def test_an_interrupted_copy_of_what_the_host_read_ends_before_its_memory_goes(
    stored, monkeypatch
):
    """Another read would get that memory, and the copy would bring its bytes."""
    a, _ = stored
    device, waits = emulated(), []
    wait_for = device.wait_for

    def interrupted(stream):
        waits.append(stream)
        if len(waits) == 1:
            raise KeyboardInterrupt
        wait_for(stream)

    monkeypatch.setattr(device_read, "_device_sink", lambda *_: None)
    monkeypatch.setattr(device, "wait_for", interrupted)
    with suppress(KeyboardInterrupt):
        read(a, device)
    device.drain()
    assert device.create_stream() == waits[0]


@pytest.mark.parametrize("chain", ["zstd-crc32c", "gzip"])
def test_nothing_is_under_way_after_damage(stored, tmp_path):
    a, _ = stored
    shard = tmp_path / "c/0/0"
    data = bytearray(shard.read_bytes())
    data[20] ^= 0x55
    shard.write_bytes(bytes(data))
    for seed in range(8):
        device = emulated(seed=seed)
        with pytest.raises(gpushard.CorruptShardError):
            read(a, device, max_rows=2)
        assert device.is_idle
