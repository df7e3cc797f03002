"""A loader on a device: gaps in its samples, and the room that its arrays share."""

from __future__ import annotations

import gc
from contextlib import suppress

import numpy as np
import pytest
import zarr

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.device_reading import read as device_reading
from gpushard.device_reading.sink import DeviceSink
from gpushard.loader import reading

pytestmark = pytest.mark.usefixtures("device_begins_at_once")

SCANS = np.arange(12 * 10, dtype="i2").reshape(12, 10)


@pytest.fixture
def device():
    return EmulatedDevice(Kernels(), load_standin(), seed=3)


def damaged_scans(place, n_damaged):
    """Array whose last shards are cut off in their indexes: no batch of them begins."""
    made = zarr.create_array(
        place, shape=SCANS.shape, chunks=(2, 5), shards=(4, 10), dtype="i2"
    )
    made[...] = SCANS
    for k in range(3 - n_damaged, 3):
        shard = place / f"c/{k}/0"
        shard.write_bytes(shard.read_bytes()[:-3])
    return gpushard.open_array(place, device="cpu")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("n_damaged", [1, 3])
@pytest.mark.parametrize("window", [3, (3, 4)], ids=["rows", "patches"])
def test_a_load_that_fails_leaves_nothing_under_way_and_no_memory_in_use(
    device, tmp_path, window, n_damaged, on_error
):
    array = damaged_scans(tmp_path, n_damaged)
    options = {"window": window, "padding": "fill", "batch_size": 4}
    with gpushard.Loader(array, device=device, on_error=on_error, **options) as loader:
        if on_error == "raise":
            with pytest.raises(gpushard.CorruptShardError):
                list(loader)
        else:
            assert bool(list(loader)) == (n_damaged < 3)
    del loader
    gc.collect()
    device.drain()
    assert device.is_idle


def test_the_fill_value_is_there_before_a_load_can_fail(device, tmp_path, monkeypatch):
    made = zarr.create_array(tmp_path, shape=SCANS.shape, chunks=(2, 5), dtype="i2")
    made[...] = SCANS
    array = gpushard.open_array(tmp_path, device="cpu")

    def fails(*_):
        assert "upload" in [kind for _, kind, _ in device.log]
        raise gpushard.StoreError("the store failed")

    monkeypatch.setattr(device_reading, "device_job", fails)
    monkeypatch.setattr(reading, "_PAUSES", ())
    options = {"window": (3, 4), "padding": "fill", "batch_size": 4}
    with (
        gpushard.Loader(array, device=device, **options) as loader,
        pytest.raises(gpushard.StoreError),
    ):
        list(loader)


@pytest.mark.parametrize("window", [None, 1, (2, 2)], ids=["rows", "filled", "patches"])
@pytest.mark.parametrize("n_arrays", [1, 2])
def test_the_host_reads_what_there_is_no_room_to_lay_out_on_the_device(
    device, tmp_path, window, n_arrays
):
    array = damaged_scans(tmp_path, 0)
    arrays = gpushard.concat([array] * n_arrays) if n_arrays > 1 else array
    options = {"padding": "fill", "lead": -1} if window else {}
    options |= {"window": window, "batch_size": 100, "prefetch_factor": 0}
    (want,) = gpushard.Loader(arrays, device="cpu", **options)
    for victim in range(4):
        device.refuses = lambda *_: False
        loader = gpushard.Loader(arrays, device=device, **options)
        nth = device.n_takes + victim
        device.refuses = lambda kind, n, nth=nth: kind == "allocate" and n == nth
        with suppress(gpushard.DeviceMemoryError):  # not even for the samples
            (got,) = loader
            assert np.array_equal(got.get(), want)


@pytest.mark.parametrize(
    ("n_files", "free_nbytes", "room_nbytes"),
    [
        (1, 64 << 30, 2 << 30),  # of two loads
        (2, 64 << 30, 1 << 30),
        (2, 8 << 30, 256 << 20),  # no less than on the host
    ],
)
def test_arrays_of_a_loader_share_the_room_of_a_device(
    tmp_path, monkeypatch, n_files, free_nbytes, room_nbytes
):
    files = []
    for k in range(n_files):
        made = zarr.create_array(tmp_path / str(k), shape=64, chunks=8, dtype="i4")
        made[:] = k
        files.append(gpushard.open_array(tmp_path / str(k), device="cpu"))
    device = EmulatedDevice(Kernels(), load_standin(), limit_nbytes=free_nbytes)
    seen = []

    class Noting(DeviceSink):
        def __init__(self, *arguments, source, **named):
            super().__init__(*arguments, source=source, **named)
            seen.append(source.options.memory_limit)

    monkeypatch.setattr(device_reading, "DeviceSink", Noting)
    values = gpushard.concat(files) if n_files > 1 else files[0]
    for _ in gpushard.Loader({"x": values}, batch_size=32, device=device):
        pass
    assert len(seen) >= n_files
    assert max(seen) <= room_nbytes
    assert min(seen) > room_nbytes * 0.999


def test_jobs_of_a_load_that_is_not_planned_to_the_end_are_abandoned(
    device, tmp_path, monkeypatch
):
    made = zarr.create_array(tmp_path, shape=SCANS.shape, chunks=(2, 5), dtype="i2")
    made[...] = SCANS
    array = gpushard.open_array(tmp_path, device="cpu")
    jobs, make = [], device_reading.device_job

    def second_fails(read, n_sharing):
        if jobs:
            raise gpushard.StoreError("the store failed")
        jobs.append(make(read, n_sharing))
        return jobs[-1]

    monkeypatch.setattr(device_reading, "device_job", second_fails)
    monkeypatch.setattr(reading, "_PAUSES", ())
    joined = gpushard.concat([array, array])
    options = {"sampler": [0, 23], "batch_size": 2, "prefetch_factor": 0}
    loader = gpushard.Loader(joined, device=device, **options)
    with pytest.raises(gpushard.StoreError):
        list(loader)
    # All but the default one, and that of the loader, although `jobs` has the job.
    assert len(device._idle_streams) == len(device._streams) - 2
