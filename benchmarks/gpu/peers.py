"""What others take to get the same arrays into device memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu.arrays import Layout, Stored, store
from benchmarks.gpu.gpu import Machine, rate
from benchmarks.gpu.run import Run, Skipped

_EVERYTHING = (slice(None), slice(None))
# What is spent on repeating a read.
_AGAIN_S = 3.0


def _copying(module: str) -> Callable[[Stored, Machine], Callable[[], Any]]:
    """A reader of the host, and a copy to the device behind it."""

    def opened(stored: Stored, machine: Machine) -> Callable[[], Any]:
        try:
            contender = import_module(f"benchmarks.contenders.{module}")
        except ImportError as error:
            raise Skipped(str(error)) from error
        handle = contender.open_array(stored.path)
        return lambda: machine.to_device(contender.read_box(handle, _EVERYTHING))

    return opened


def _zarr_on_gpu(stored: Stored, machine: Machine) -> Callable[[], Any]:
    """zarr-python with its buffers on the GPU."""
    import zarr

    if machine.is_emulated:
        raise Skipped("zarr-python knows no emulated device")
    zarr.config.enable_gpu()
    handle = zarr.open_array(str(stored.path), mode="r")

    def read() -> Any:
        import cupy

        found = handle[...]
        cupy.cuda.get_current_stream().synchronize()
        return found

    return read


PEERS = {
    "zarr-gpu": _zarr_on_gpu,
    "zarr": _copying("zarr_default"),
    "zarrs": _copying("zarrs_pipeline"),
    "tensorstore": _copying("tensorstore_uncached"),
}
# They take a millisecond for each inner chunk, so they read fewer of the smallest ones.
_SLOW = ("zarr-gpu", "zarr")


def read(name: str, codec: str, run: Run) -> None:
    """Seconds of one peer for one codec, by the size of inner chunks."""
    for inner in run.sizes.inner_nbytes:
        row = f"peers/{name}/{codec}/{inner}"
        if not run.wants(row):
            continue
        sizes = run.sizes
        nbytes = sizes.peer_nbytes_of(inner) if name in _SLOW else sizes.peer_nbytes
        layout = Layout.of(sizes, codec, inner, nbytes)
        stored = store(layout, run.root)
        try:
            again = PEERS[name](stored, run.machine)
            first = _seconds(again)
        except Skipped:
            raise
        except Exception as error:  # noqa: BLE001 - a peer may raise anything
            run.put(row, refused=f"{type(error).__name__}: {str(error)[:300]}")
            continue
        # Slow ones have said enough.
        n = min(run.sizes.repetitions, int(_AGAIN_S / first))
        seconds = [_seconds(again) for _ in range(n)]
        run.put(row, **rate(layout.nbytes, seconds or [first]))


def _seconds(read: Callable[[], Any]) -> float:
    started = perf_counter()
    found = read()
    seconds = perf_counter() - started
    assert np.prod(found.shape)  # noqa: S101 - something was read
    return seconds
