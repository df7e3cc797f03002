"""Reads from the file to device memory, in one call."""

from __future__ import annotations

import gc
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.arrays import Layout, Stored, store
from benchmarks.gpu.gpu import fetched, rate
from gpushard import Options, open_array
from gpushard.options import GIB

if TYPE_CHECKING:
    from benchmarks.gpu.run import Run


def large(codec: str, run: Run) -> None:
    """The usual inner chunks, arrays of growing size."""
    for nbytes in run.sizes.whole_nbytes:
        layout = Layout.of(run.sizes, codec, run.sizes.usual, nbytes)
        _read(run, f"whole/{codec}/{nbytes}", layout)
        if codec == "none":
            width = run.sizes.width
            layout = Layout.of(run.sizes, codec, run.sizes.usual, nbytes, width)
            # Inner chunks of whole rows land as they are stored.
            _read(run, f"straight/{nbytes}", layout)


def sweep(codec: str, inner: int, run: Run) -> None:
    """Inner chunks of one size; by the device, and as placed by cost."""
    layout = Layout.of(run.sizes, codec, inner, run.sizes.peer_nbytes)
    _read(run, f"sweep/{codec}/{inner}", layout)
    _read(run, f"sweep/{codec}/{inner}/cost", layout, placement="cost")
    nbytes = run.sizes.peer_nbytes_of(inner)
    if nbytes != run.sizes.peer_nbytes:
        # The array that others read, beside which ours are compared.
        few = Layout.of(run.sizes, codec, inner, nbytes)
        _read(run, f"sweep/{codec}/{inner}/few", few)
        _read(run, f"sweep/{codec}/{inner}/few/cost", few, placement="cost")


def _read(run: Run, name: str, layout: Layout, placement: str = "device") -> None:
    if not run.wants(name):
        return
    stored = store(layout, run.root)
    device: Any = run.machine.device
    options = Options(placement=placement, memory_limit=_limit(run))
    a = open_array(stored.path, device=device, options=options)
    out = device.empty(layout.shape, a.dtype)
    a.read(out=out)  # kernels are compiled, files opened
    seconds = []
    for _ in range(run.sizes.repetitions):
        started = perf_counter()
        a.read(out=out)
        seconds.append(perf_counter() - started)
    report = a.explain()
    run.put(
        name,
        is_right=_is_right(run, stored, out),
        encoded_nbytes=_encoded_nbytes(stored.path),
        n_on_device=report.n_decoded_on_device,
        n_on_host=report.n_decoded_on_host,
        fetch=report.fetch,
        stages={k: round(v, 3) for k, v in report.milliseconds.items()},
        **rate(layout.nbytes, seconds),
    )
    del out
    gc.collect()


def _limit(run: Run) -> int:
    """Staging: what a GPU of a data centre has to spare."""
    free = run.machine.device.free_nbytes()
    return max(GIB // 1024, min(8 * GIB, free // 4))


def _is_right(run: Run, stored: Stored, out: Any) -> bool:
    """Whether the first and the last shard are what is stored."""
    layout, first = stored.layout, stored.first
    address = out.__cuda_array_interface__["data"][0]
    shard_nbytes = first.nbytes // layout.n_distinct
    last = (layout.n_shards - 1) % layout.n_distinct
    pairs = ((0, 0), (layout.n_shards - 1, last))
    flat = np.ascontiguousarray(first).reshape(-1).view(np.uint8)
    return all(
        np.array_equal(
            fetched(run.machine.device, address + at * shard_nbytes, shard_nbytes),
            flat[k * shard_nbytes : (k + 1) * shard_nbytes],
        )
        for at, k in pairs
    )


def _encoded_nbytes(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("c/*/*"))
