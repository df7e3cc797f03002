"""Relays of files that change, and with drivers that refuse."""

from __future__ import annotations

import os

import crc32c
import numpy as np
import pytest

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import (
    CHAINS,
    stored,
)
from gpushard.device_reading import relayed
from gpushard.fused.code import loading
from gpushard.selecting.selection import whole
from relaying_cases import OPTIONS, in_small_batches, opened, relaying, use_small_pieces
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

SHAPE = (120, 80)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    use_small_pieces(monkeypatch)


@pytest.fixture
def device():
    return relaying()


def test_a_file_overwritten_while_it_is_relayed_is_read_again(tmp_path, device):
    values = stored(tmp_path, None)
    a = opened(tmp_path)
    shard = tmp_path / "c/0/0"
    later = bytearray(shard.read_bytes())
    later[:4] = np.int32(-1).tobytes()

    def overwrite():
        device.copier.before_bytes = lambda: None
        with shard.open("r+b") as file:
            file.write(later)
        os.utime(shard, ns=(1, 1))

    device.copier.before_bytes = overwrite
    results, _ = read_on_device(a, [whole(a.shape)], device)
    values[0, 0] = -1
    assert_same_bits(results[0], values)


def test_a_file_overwritten_again_and_again_is_refused(tmp_path, device):
    stored(tmp_path, None)
    times = iter(range(1, 10**6))

    def overwrite():
        for shard in tmp_path.rglob("c/*/*"):
            os.utime(shard, ns=(1, next(times)))

    device.copier.before_bytes = overwrite
    with pytest.raises(gpushard.ObjectChangedError):
        read_on_device(opened(tmp_path), [whole((60, 40))], device)


def test_copies_of_a_file_that_was_emptied_meanwhile_are_waited_for(tmp_path, device):
    stored(tmp_path, None, (16, 20))
    a = opened(tmp_path)
    empty = np.full(8, 2**64 - 1, "<u8").tobytes()
    empty += crc32c.crc32c(empty).to_bytes(4, "little")

    def overwrite():
        device.copier.before_bytes = lambda: None
        with (tmp_path / "c/0/0").open("r+b") as file:
            file.seek(-len(empty), os.SEEK_END)
            file.write(empty)

    device.copier.before_bytes = overwrite
    # Nothing is relayed after that, so no batch waits for what was.
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], np.full(a.shape, 7, "i4"))
    assert device.copier.n_copies


def test_a_file_cut_short_before_is_refused_as_on_the_host(tmp_path, device):
    stored(tmp_path, None)
    shard = tmp_path / "c/0/0"
    shard.write_bytes(shard.read_bytes()[-68:])
    a = opened(tmp_path)
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as refused:
        read_on_device(a, [whole(a.shape)], device)
    assert refused.value.what == host.value.what


def test_a_file_cut_short_meanwhile_is_refused(tmp_path, device):
    stored(tmp_path, None)
    a = opened(tmp_path)

    def cut():
        for shard in tmp_path.rglob("c/*/*"):
            os.truncate(shard, 100)

    device.copier.before_bytes = cut
    with pytest.raises((gpushard.ObjectChangedError, gpushard.CorruptShardError)):
        read_on_device(a, [whole(a.shape)], device)


def test_bytes_that_cannot_be_relayed_are_read_by_the_ring(
    tmp_path, device, monkeypatch
):
    """Which tells the system's reason if it cannot either."""
    values = stored(tmp_path, None)
    a = opened(tmp_path)
    real = relayed.Pieces.cut
    # A descriptor that nobody has: the files themselves did not change.
    monkeypatch.setattr(
        relayed.Pieces, "cut", lambda files, *rest: real(files * 0 - 1, *rest)
    )
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts


@pytest.mark.parametrize("n_before", [0, 3])
def test_a_copy_that_the_driver_refuses_is_an_error_with_its_number(tmp_path, n_before):
    stored(tmp_path, CHAINS["zstd"])
    device = relaying(refuses={n_before: 700})
    with pytest.raises(gpushard.DeviceError, match="700"):
        read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert device.copier.is_left


def test_once_memory_runs_out_slots_give_theirs_back_to_lanes(
    tmp_path, device, monkeypatch
):
    values = stored(tmp_path, CHAINS["zstd"], SHAPE)
    in_small_batches(monkeypatch)
    a = opened(tmp_path, OPTIONS.but(threads=1))
    launches = []

    def refuse_the_fifth(kind, _):
        launches.extend([kind] * (kind == "launch"))
        return kind == "launch" and len(launches) == 5

    device.refuses = refuse_the_fifth
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    counts = job.tally.counts
    assert counts["n_memory_failures"] == 1
    assert 0 < counts["n_relayed_requests"] < counts["n_payload_requests"]


def test_threads_that_get_no_context_relay_nothing(tmp_path):
    stored(tmp_path, CHAINS["zstd"])
    device = relaying(refuses={-1: 1})
    with pytest.raises(gpushard.DeviceError, match="could use the driver"):
        read_on_device(opened(tmp_path), [whole((60, 40))], device)


def test_an_interrupt_leaves_no_thread_behind(tmp_path, device, monkeypatch):
    values = stored(tmp_path, CHAINS["zstd"], SHAPE)
    in_small_batches(monkeypatch)
    a = opened(tmp_path)
    real = loading.CompiledLoops.relay
    n_left = iter([1, 1])

    def interrupted(*arguments):
        real(*arguments)
        if not next(n_left, 0):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loading.CompiledLoops, "relay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_on_device(a, [whole(a.shape)], device)
    assert device.is_idle
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
