"""What bounds any reader: copies, storage, and the vendor's decoders alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import data
from benchmarks.configs import MIB
from benchmarks.gpu.arrays import Layout, store, values_of
from benchmarks.gpu.gpu import rate
from benchmarks.gpu.streams import ENCODERS, Batch
from gpushard.cli.measuring import USUAL_AMOUNTS, Amounts, measure_rates
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.machine import usable_cpu_count

if TYPE_CHECKING:
    from benchmarks.gpu.run import Run

ALGORITHMS = {
    "zstd": Algorithm.ZSTD,
    "lz4": Algorithm.LZ4,
    "deflate": Algorithm.DEFLATE,
    "gzip": Algorithm.GZIP,
}
_READ_NBYTES = 4 * MIB


def copies(run: Run) -> None:
    """Within the device's memory, from pinned memory to it, and back."""
    device, nbytes = run.machine.device, run.sizes.copy_nbytes
    stream = device.create_stream()
    one, other = device.allocate(nbytes), device.allocate(nbytes)
    seconds = run.timed(
        stream, lambda: run.machine.copy(other.address, one.address, nbytes, stream)
    )
    run.put("ceilings/device-copy", **rate(nbytes, seconds))
    host = device.allocate_pinned(nbytes)[:nbytes]
    host[:] = 1
    size = nbytes
    while size >= nbytes // 4096 and size >= 4096:
        part = host[:size]
        seconds = run.timed(
            stream, lambda p=part: device.upload(one.address, p, stream)
        )
        run.put(f"ceilings/host-to-device/{size}", **rate(size, seconds))
        size //= 8
    seconds = run.timed(stream, lambda: device.download(host, one.address, stream))
    run.put("ceilings/device-to-host", **rate(nbytes, seconds))


def storage(run: Run) -> None:
    """Files into pinned memory, by several threads; from the page cache and without."""
    sizes = run.sizes
    layout = Layout.of(sizes, "none", sizes.usual, sizes.distinct_nbytes)
    path = store(layout, run.root).path
    files = [file for file in data.files_of(path) if file.name != "zarr.json"]
    for n_threads in sorted({1, 8, usable_cpu_count()}):
        for cache in ("cold", "warm"):
            if cache == "cold":
                data.evict(path)
            repetitions = 1 if cache == "cold" else sizes.repetitions
            seconds = [_read(files, run, n_threads) for _ in range(repetitions)]
            nbytes = sum(file.stat().st_size for file in files)
            run.put(f"ceilings/storage/{cache}/{n_threads}", **rate(nbytes, seconds))


def _read(files: list, run: Run, n_threads: int) -> float:
    device = run.machine.device
    rooms = [device.allocate_pinned(_READ_NBYTES) for _ in range(n_threads)]
    pieces = [
        (file, offset)
        for file in files
        for offset in range(0, file.stat().st_size, _READ_NBYTES)
    ]

    def work(first: int) -> None:
        for file, offset in pieces[first::n_threads]:
            fd = os.open(file, os.O_RDONLY)
            os.preadv(fd, [rooms[first]], offset)
            os.close(fd)

    started = perf_counter()
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, range(n_threads)))
    return perf_counter() - started


def placement(run: Run) -> None:
    """What placement goes by, as `gpushard doctor --measure` would find it."""
    tiny = Amounts(256, 1024, 8, 512, 1)
    found = measure_rates(
        run.machine.device, tiny if run.is_emulated else USUAL_AMOUNTS
    )
    for coding, rates in found.items():
        run.put(f"ceilings/placement/{coding}", **asdict(rates))


def decoder(name: str, run: Run) -> None:
    """The vendor's decoder alone, by the size of its streams, at its best batch."""
    algorithm = ALGORITHMS[name]
    for inner in run.sizes.inner_nbytes:
        row = f"ceilings/{name}/{inner}"
        if run.wants(row):
            found = _best_batch(run, algorithm, inner)
            run.put(row, **max(found, key=lambda f: f["gb_s"]), tried=found)


def _best_batch(run: Run, algorithm: Algorithm, inner: int) -> list[dict]:
    """Rates of batches of growing size, as far as memory goes."""
    sizes = run.sizes
    layout = Layout.of(sizes, "none", inner, sizes.distinct_nbytes)
    flat = values_of(layout, run.root).reshape(-1).view(np.uint8)
    # More than the caches of a GPU hold, encoded.
    n_distinct = max(1, min(len(flat), 128 * MIB) // inner)
    pieces = [flat[k * inner : (k + 1) * inner].tobytes() for k in range(n_distinct)]
    with ThreadPoolExecutor(usable_cpu_count()) as pool:
        encoded = list(pool.map(ENCODERS[algorithm], pieces))
    return [
        _rate_of(run, algorithm, encoded, inner, count)
        for count in sizes.n_streams
        if count * inner <= sizes.stream_nbytes or count == sizes.n_streams[0]
    ]


def _rate_of(
    run: Run, algorithm: Algorithm, encoded: list[bytes], inner: int, count: int
) -> dict:
    device = run.machine.device
    count = max(1, min(count, run.sizes.stream_nbytes // inner))
    some = encoded[: min(count, len(encoded))]
    repeat = max(1, count // len(some))
    batch = Batch.lay(device, algorithm, some, [inner] * len(some), repeat=repeat)
    stream = device.create_stream()
    seconds = run.timed(stream, lambda: batch.enqueue(stream))
    return {
        "n_streams": batch.tables.count,
        "encoded_nbytes": repeat * sum(map(len, some)),
        "temp_nbytes": batch.temp_nbytes,
        **rate(batch.nbytes, seconds),
    }
