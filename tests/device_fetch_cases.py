"""Arrays and devices for the tests of how payload comes into device memory."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from cuda_host import kvikio_standin
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from gpushard.device_reading.payload import direct
from gpushard.devices.budget import Budget
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

if TYPE_CHECKING:
    from cuda_host.arrays import EmulatedBuffer

KERNELS = Kernels()
CHAINS = {
    "none": None,
    "crc32c": [Crc32cCodec()],
    "zstd": [ZstdCodec()],
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip": [GzipCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle", blocksize=256)],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="noshuffle")],
}


class MeasuredDevice(EmulatedDevice):
    """Notes the most memory that was held at once, pinned memory included."""

    held_nbytes = peak_nbytes = 0

    def _note(self, nbytes: int) -> None:
        self.held_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        buffer = super().allocate(nbytes)
        self._note(nbytes)
        return buffer

    def free(self, memory) -> None:
        super().free(memory)
        self.held_nbytes -= memory.nbytes

    def allocate_pinned(self, nbytes: int):
        memory = super().allocate_pinned(nbytes)
        self._note(nbytes)
        weakref.finalize(memory, self._note, -nbytes)
        return memory


class LazyDevice(EmulatedDevice):
    """Runs what somebody waits for, and other streams only where that needs them."""

    def record(self, stream: int):
        marker = super().record(stream)
        self._streams_of = getattr(self, "_streams_of", {})
        self._streams_of[id(marker)] = marker, stream
        return marker

    def wait(self, event) -> None:
        _, stream = self._streams_of[id(event)]
        while not event.done and self._is_ready(self._streams[stream]):
            self._run_next(stream)
        super().wait(event)


class LockedDevice(EmulatedDevice):
    """One call at a time: drivers may be called from several threads, this one not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lock = threading.RLock()
        for name in (
            *("allocate", "free", "allocate_pinned", "record", "await_event", "wait"),
            *("queue", "drain", "create_stream", "free_nbytes"),
        ):
            setattr(self, name, _one_at_a_time(self.lock, getattr(self, name)))

    @contextmanager
    def open_memory(self):
        with self.lock, super().open_memory():
            yield


def _one_at_a_time(lock, function):
    def locked(*arguments):
        with lock:
            return function(*arguments)

    return locked


def emulated(kind=EmulatedDevice, **knobs) -> EmulatedDevice:
    return kind(KERNELS, load_standin(), **knobs)


def small_batches(encoded_nbytes: int) -> Budget:
    """Budget of batches with few encoded bytes, and room for all else."""
    return Budget(
        encoded_nbytes=encoded_nbytes,
        rows_nbytes=1 << 30,
        row_nbytes=1 << 17,
        row_streams_nbytes=1 << 17,
        home_nbytes=encoded_nbytes,
    )


def stored(place, compressors, shape=(60, 40), chunks=(8, 10), shards=(16, 20)):
    """Array of which the last rows are missing, and its values."""
    made = zarr.create_array(
        place,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype="i4",
        compressors=compressors,
        fill_value=7,
    )
    values = np.random.default_rng(5).integers(0, 50, shape).astype("i4")
    n_stored = shape[0] * 5 // 6
    made[:n_stored] = values[:n_stored]
    values[n_stored:] = 7
    return values


def read_three_ways(a, values, device, max_rows):
    """Job that read all, steps backwards, and listed rows; they came out right."""
    selections = [
        whole(a.shape),
        expressions.basic((slice(30, 2, -3), 5, None), a.shape),
        expressions.orthogonal(([3, 1, 119], slice(None)), a.shape),
    ]
    results, job = read_on_device(a, selections, device, max_rows=max_rows)
    assert_same_bits(results[0], values)
    assert_same_bits(results[1], values[30:2:-3, 5, None])
    assert_same_bits(results[2], values[[3, 1, 119]])
    return job


def standing_in(monkeypatch, device) -> kvikio_standin.Standin:
    """The stand-in for kvikio, which reads ranges of any size."""
    monkeypatch.setattr(direct, "MIN_MEAN_NBYTES", 1)
    monkeypatch.delenv("KVIKIO_NTHREADS", raising=False)
    monkeypatch.delenv("KVIKIO_NUM_THREADS", raising=False)
    return kvikio_standin.install(monkeypatch, device, seed=2)
