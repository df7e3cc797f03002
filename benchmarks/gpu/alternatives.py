"""Two ways to do the same, measured beside each other: `choices` says which to take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from benchmarks import data
from benchmarks.configs import MIB
from benchmarks.gpu.arrays import Layout, store
from benchmarks.gpu.gpu import fetched, rate
from benchmarks.gpu.run import Skipped
from benchmarks.gpu.streams import ENCODERS, Batch, uploaded
from benchmarks.gpu.vendor_crc import VendorCrc
from benchmarks.gpu.vendor_gzip import LookaheadGzip
from gpushard import Options, open_array
from gpushard.device_reading.payload.device_slots import PAGE_NBYTES
from gpushard.device_reading.payload.kvikio_file import (
    FileRange,
    KvikioFiles,
    kvikio_facts,
)
from gpushard.device_reading.sink import most_rows
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.gpu.run import Run

_CRC_NBYTES = 4
_DISTINCT_NBYTES = 128 * MIB  # more than a GPU's cache holds
_TICK_S = 1e-7  # what is shorter is not told apart
N_THREADS, TASK_MIB = (1, 4, 8, 16), (1, 4, 16)


def checksums(run: Run) -> None:
    """CRC-32C of inner chunks: our kernel, which compares too, and nvCOMP's preset."""
    for inner in run.sizes.inner_nbytes:
        row = f"alternatives/crc32c/{inner}"
        if run.wants(row):
            run.put(row, **_checksums_of(run, inner))


def _checksums_of(run: Run, inner: int) -> dict[str, Any]:
    device: Any = run.machine.device
    count = max(1, min(most_rows(inner), run.sizes.stream_nbytes // inner))
    stream, rng = device.create_stream(), np.random.default_rng(1)
    n_distinct = min(count, max(1, _DISTINCT_NBYTES // inner))
    room = -(-(inner + _CRC_NBYTES) // 64) * 64
    content = rng.integers(0, 256, (n_distinct, room), np.uint8)
    right = np.array([crc32c.crc32c(m[:inner].tobytes()) for m in content], "<u4")
    content[:, inner : inner + _CRC_NBYTES] = right.view(np.uint8).reshape(-1, 4)
    source = uploaded(device, content.reshape(-1), stream)
    which = np.arange(count) % n_distinct
    src = (source.address + room * which).astype(np.uint64)
    own, is_own_right = _own(run, src, inner + _CRC_NBYTES, stream)
    vendor, found = _vendors(run, src, inner, stream)
    return {
        "nbytes": count * inner,
        "own_gb_s": rate(count * inner, own)["gb_s"],
        "nvcomp_gb_s": rate(count * inner, vendor)["gb_s"],
        "is_right": is_own_right and (found == right[which]).all().item(),
    }


def _own(
    run: Run, src: NDArray[np.uint64], nbytes: int, stream: int
) -> tuple[list[float], bool]:
    """Seconds of `gs_crc32c_verify`, and whether it found all as it should be."""
    device, n = run.machine.device, len(src)
    # The kernel takes the checksums off: it goes behind its tables each time.
    columns = src, np.full(n, nbytes, np.uint64), np.zeros(n, np.uint32)
    host = device.allocate_pinned(20 * n)[: 20 * n]
    host[:] = np.concatenate([column.view(np.uint8) for column in columns])
    tables = device.allocate(20 * n)
    at = [np.uint64(tables.address + k * n) for k in (0, 8, 16)]

    def upload() -> None:
        device.upload(tables.address, host, stream)

    def verify() -> None:
        upload()
        device.launch("gs_crc32c_verify", (n, 1), [*at, np.uint32(n)], stream)

    alone = float(np.median(run.timed(stream, upload)))
    seconds = [max(s - alone, _TICK_S) for s in run.timed(stream, verify)]
    told = fetched(device, tables.address + 8 * n, 12 * n)
    sizes, statuses = told[: 8 * n].view(np.uint64), told[8 * n :].view(np.uint32)
    return seconds, bool((sizes == nbytes - _CRC_NBYTES).all() and not statuses.any())


def _vendors(
    run: Run, src: NDArray[np.uint64], nbytes: int, stream: int
) -> tuple[list[float], NDArray[np.uint32]]:
    """Seconds of nvCOMP with its choice of kernel, and the checksums."""
    device: Any = run.machine.device
    n = len(src)
    columns = src, np.full(n, nbytes, np.uint64)
    packed = np.concatenate([column.view(np.uint8) for column in columns])
    table, told = uploaded(device, packed, stream), device.allocate(8 * n)
    at = table.address, table.address + 8 * n
    tables = StreamTables(n, *at, 0, 0, 0, told.address + 4 * n)
    vendor = VendorCrc(device.decoder.path)
    conf = vendor.chosen_conf(n, nbytes, stream)
    seconds = run.timed(
        stream,
        lambda: vendor.enqueue(tables, told.address, conf, stream),
    )
    return seconds, fetched(device, told.address, 4 * n).view(np.uint32)


def gzip(run: Run) -> None:
    """Streams of gzip by the decoder that reads use, and by nvCOMP's other one."""
    if run.is_emulated:
        raise Skipped("no emulated device has more than one decoder of gzip")
    for inner in run.sizes.inner_nbytes:
        row = f"alternatives/gzip/{inner}"
        if run.wants(row):
            run.put(row, crashed=True)
            run.put(row, **_gzip_of(run, inner))


def _gzip_of(run: Run, inner: int) -> dict[str, Any]:
    device: Any = run.machine.device
    count = max(1, min(most_rows(inner), run.sizes.stream_nbytes // inner))
    plain = np.random.default_rng(2).integers(-4, 5, inner, np.int8).tobytes()
    batch = Batch.lay(
        device, Algorithm.GZIP, [ENCODERS[Algorithm.GZIP](plain)], [inner], repeat=count
    )
    stream = device.create_stream()
    usual = run.timed(stream, lambda: batch.enqueue(stream))
    other = LookaheadGzip(device.decoder.path)
    temp_nbytes = other.temp_nbytes(count, inner, batch.nbytes, stream)
    temp = device.allocate(max(temp_nbytes, 1))
    seconds = run.timed(
        stream,
        lambda: other.enqueue(batch.tables, temp.address, temp_nbytes, stream),
    )
    told = fetched(device, batch.tables.statuses, 4 * count)
    first = fetched(device, batch.decoded, inner)
    return {
        "nbytes": batch.nbytes,
        "usual_gb_s": rate(batch.nbytes, usual)["gb_s"],
        "lookahead_gb_s": rate(batch.nbytes, seconds)["gb_s"],
        "temp_nbytes": temp_nbytes,
        "is_right": not told.any() and first.tobytes() == plain,
    }


def fetch(run: Run) -> None:
    """Files into device memory: the ring of slots, and kvikio by its settings."""
    sizes = run.sizes
    layout = Layout.of(sizes, "none", sizes.usual, sizes.distinct_nbytes)
    path = store(layout, run.root).path
    device: Any = run.machine.device
    out = device.empty(layout.shape, np.dtype("f4"))
    a = open_array(path, device=device, options=Options(gds=False, placement="device"))
    _put(run, "alternatives/fetch/ring", path, layout.nbytes, lambda: a.read(out=out))
    try:
        import kvikio
        import kvikio.defaults
    except (ImportError, OSError, RuntimeError) as error:
        run.put("alternatives/fetch/kvikio", skipped=f"kvikio: {error}")
        return
    module: Any = kvikio
    if kvikio_facts().get("is_gds_available") is not True:
        # cuFile would try what is not there, and may hang of it.
        module.defaults.set("compat_mode", module.CompatMode.ON)
    is_compat = bool(module.defaults.is_compat_mode_preferred())
    files = KvikioFiles(module)
    for n_threads in N_THREADS:
        for task_mib in TASK_MIB:
            module.defaults.set("num_threads", n_threads)
            module.defaults.set("task_size", task_mib * MIB)
            row = f"alternatives/fetch/kvikio/{n_threads}x{task_mib}"
            _put_kvikio(run, row, path, files, is_compat=is_compat)


def _put_kvikio(
    run: Run, row: str, path: Path, files: KvikioFiles, *, is_compat: bool
) -> None:
    """Whole files, each to a page of its own."""
    found = [file for file in data.files_of(path) if file.name != "zarr.json"]
    nbytes = [file.stat().st_size for file in found]
    rooms = [-(-n // PAGE_NBYTES) * PAGE_NBYTES for n in nbytes]
    memory = run.machine.device.allocate(sum(rooms) + PAGE_NBYTES)
    base = -(-memory.address // PAGE_NBYTES) * PAGE_NBYTES
    places = (base + np.cumsum(rooms) - rooms).tolist()

    def read() -> None:
        with_files = []
        for file, n, place in zip(found, nbytes, places, strict=True):
            with file.open("rb") as held:
                opened = files.file_of(held.fileno(), file, len(found))
            with_files.append(FileRange(opened, 0, n, place))
        files.read(with_files)

    _put(run, row, path, sum(nbytes), read, is_compat=is_compat)


def _put(
    run: Run,
    row: str,
    path: Path,
    nbytes: int,
    read: Callable[[], object],
    **more: object,
) -> None:
    """Row: bytes a second from the disk, as far as the page cache lets go, and warm."""
    if not run.wants(row):
        return
    read()
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(run.sizes.repetitions):
        data.evict(path)
        for cache in seconds:
            started = perf_counter()
            read()
            seconds[cache].append(perf_counter() - started)
    rates = {f"{c}_gb_s": rate(nbytes, s)["gb_s"] for c, s in seconds.items()}
    run.put(row, nbytes=nbytes, seconds=seconds, **rates, **more)
