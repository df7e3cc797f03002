"""Questions that only a GPU answers, each asked in a process of its own.

A row says what came out. Where the process dies of a question, its row says so: it is
put down as "crashed" before it is asked.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from itertools import product
from time import perf_counter, process_time
from typing import Any

import crc32c
import numpy as np
import zstandard

from benchmarks.configs import KIB, MIB
from benchmarks.gpu.arrays import DTYPE, Layout, store
from benchmarks.gpu.gpu import fetched, rate
from benchmarks.gpu.run import Run, Skipped
from benchmarks.gpu.streams import ENCODERS, Batch
from benchmarks.gpu.vendor_crc import VendorCrc
from gpushard import Options, open_array
from gpushard.device_reading.payload.kvikio_file import kvikio_facts
from gpushard.devices.nvcomp import StreamTables
from gpushard.devices.nvcomp_abi import Algorithm, DecompressOptions

_NBYTES = 300_000


def _plain(nbytes: int = _NBYTES) -> bytes:
    rng = np.random.default_rng(11)
    return np.round(rng.normal(0, 8, nbytes)).astype("i1").tobytes()


def _ask(
    run: Run,
    name: str,
    algorithm: Algorithm,
    encoded: bytes,
    plain: bytes,
    **knobs: int,
) -> None:
    """Row: what the decoder says of one stream, and whether it came out right."""
    if not run.wants(name):
        return
    run.put(name, crashed=True)
    capacity = knobs.pop("capacity", len(plain))
    batch = Batch.lay(run.machine.device, algorithm, [encoded], [capacity], **knobs)
    status, claimed, decoded = batch.results()[0]
    run.put(
        name,
        status=status,
        claimed_nbytes=claimed,
        is_right=claimed == len(plain) and decoded[: len(plain)] == plain,
    )


def zstd_frames(name: str, run: Run) -> None:
    """Frames of every valid kind."""
    plain = _plain()
    for kind, encoded, decoded in _zstd_frames(plain):
        _ask(run, f"{name}/{kind}", Algorithm.ZSTD, encoded, decoded)


def _zstd_frames(plain: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    def encoded(**knobs: Any) -> bytes:
        return zstandard.ZstdCompressor(**knobs).compress(plain)

    without_size = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    yield "no-size", without_size.compress(plain) + without_size.flush(), plain
    yield "checksum", encoded(write_checksum=True), plain
    for level in (1, 19, 22):
        yield f"level-{level}", encoded(level=level), plain
    # Only where the size is not told beforehand does the window stay so wide.
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    widely = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    yield "window-128-mib", widely.compress(plain) + widely.flush(), plain
    half = len(plain) // 2
    compress = zstandard.ZstdCompressor().compress
    yield "two-frames", compress(plain[:half]) + compress(plain[half:]), plain
    skippable = bytes.fromhex("502a4d1804000000") + b"skip"
    yield "skippable-before", skippable + encoded(), plain
    yield "skippable-behind", encoded() + skippable, plain
    yield "one-byte", compress(plain[:1]), plain[:1]


def capacities(name: str, run: Run) -> None:
    """Buffers of exactly the decoded size, larger and smaller ones."""
    plain = _plain()
    for algorithm in ENCODERS:
        encoded = ENCODERS[algorithm](plain)
        for more in (0, 1, 4096, -1):
            row = f"{name}/{algorithm.value}/{more:+d}"
            _ask(run, row, algorithm, encoded, plain, capacity=len(plain) + more)


def misaligned(name: str, run: Run) -> None:
    """Streams that begin at any byte; Deflate asks for multiples of 4."""
    plain = _plain()
    # Last the one that may end the process: a task is not begun again for ever.
    for algorithm in sorted(ENCODERS, key=lambda each: each is Algorithm.DEFLATE):
        encoded = ENCODERS[algorithm](plain)
        for offset in (1, 2, 3):
            row = f"{name}/{algorithm.value}/{offset}"
            if run.is_emulated and algorithm is Algorithm.DEFLATE:
                continue
            _ask(run, row, algorithm, encoded, plain, offset=offset)


def damaged(name: str, run: Run) -> None:
    """What decoders say of streams with one bit changed, or cut short.

    Each is asked alone: one of them may end the process, and is then left behind.
    """
    plain = _plain(20_000)
    for algorithm in ENCODERS:
        for kind, stream in _damaged(ENCODERS[algorithm](plain)):
            _ask(run, f"{name}/{algorithm.value}/{kind}", algorithm, stream, plain)


def _damaged(encoded: bytes) -> Iterator[tuple[str, bytes]]:
    """Damaged streams, each with the place of its damage in thousandths."""
    for part in (0, 2, 10, 100, 300, 500, 700, 900, 999):
        at = len(encoded) * part // 1000
        wrong = bytearray(encoded)
        wrong[at] ^= 0x10
        yield f"bit-at-{part}", bytes(wrong)
    for part in (300, 900, 999):
        yield f"cut-at-{part}", encoded[: len(encoded) * part // 1000]


def overruns(name: str, run: Run) -> None:
    """Whether decoders write behind a buffer that a valid stream does not fit."""
    plain = _plain()
    for algorithm in ENCODERS:
        encoded = ENCODERS[algorithm](plain)
        for less in (1, 4096, len(plain) // 2):
            row = f"{name}/{algorithm.value}/-{less}"
            if not run.wants(row):
                continue
            run.put(row, crashed=True)
            device, capacity = run.machine.device, len(plain) - less
            # Room for all of it: what is written there is seen, and ends no process.
            room = len(plain) + MIB
            batch = Batch.lay(device, algorithm, [encoded], [capacity], behind=room)
            status, claimed, decoded = batch.results()[0]
            n_changed, last = batch.changed_behind(0)
            run.put(
                row,
                status=status,
                claimed_nbytes=claimed,
                is_right=decoded == plain[:capacity],
                n_changed_behind=n_changed,
                changed_up_to=last,
            )


def checksums(name: str, run: Run) -> None:
    """The vendor's CRC-32C: whether its options are laid out as we think."""
    device: Any = run.machine.device
    plain = [_plain(n) for n in (1, 4, 1000, 65536)]
    batch = Batch.lay(device, Algorithm.LZ4, plain, [1] * len(plain))
    stream = device.create_stream()
    longest = max(map(len, plain))
    vendor = VendorCrc(device.decoder.path)
    conf = vendor.chosen_conf(len(plain), longest, stream)
    tables: StreamTables = batch.tables
    vendor.enqueue(tables, tables.actual_nbytes, conf, stream)
    device.wait_for(stream)
    found = fetched(device, tables.actual_nbytes, 4 * len(plain)).view(np.uint32)
    run.put(name, is_right=found.tolist() == [crc32c.crc32c(p) for p in plain])


def scratch(name: str, run: Run) -> None:
    """Scratch for zstd: by an estimate, once the data was seen, and for encoding."""
    device: Any = run.machine.device
    for nbytes, count in ((4 * KIB, 64), (64 * KIB, 16), (MIB, 4)):
        encoded = [ENCODERS[Algorithm.ZSTD](_plain(nbytes))] * count
        batch = Batch.lay(device, Algorithm.ZSTD, encoded, [nbytes] * count)
        seen = None if run.is_emulated else _seen_scratch(device, batch, nbytes)
        encoding = device.decoder.encoding_temp_nbytes(Algorithm.ZSTD, count, nbytes)
        run.put(
            f"{name}/{count}x{nbytes}",
            estimated=batch.temp_nbytes,
            with_data=seen,
            encoding=encoding,
        )


def _seen_scratch(device: Any, batch: Batch, nbytes: int) -> int:
    library = ctypes.CDLL(device.decoder.path)
    found, tables, stream = ctypes.c_size_t(), batch.tables, device.create_stream()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    ask = library.nvcompBatchedZstdDecompressGetTempSizeSync
    ask.argtypes = (pointer, pointer, size, size, pointer, size)
    ask.argtypes += (DecompressOptions, pointer, pointer)
    status = ask(
        tables.src,
        tables.src_nbytes,
        tables.count,
        nbytes,
        ctypes.byref(found),
        batch.nbytes,
        DecompressOptions.with_kernels(),
        tables.statuses,
        stream,
    )
    return -status if status else found.value


def calls(name: str, run: Run) -> None:
    """Seconds of the host in a call of the decoder, by the number of streams."""
    device = run.machine.device
    encoded = ENCODERS[Algorithm.ZSTD](_plain(4 * KIB))
    for count in (1, 64, 4096 if not run.is_emulated else 65):
        batch = Batch.lay(device, Algorithm.ZSTD, [encoded], [4 * KIB], repeat=count)
        stream, seconds = device.create_stream(), []
        for _ in range(5):
            started = perf_counter()
            batch.enqueue(stream)
            seconds.append(perf_counter() - started)
            device.wait_for(stream)
        run.put(f"{name}/{count}", seconds=seconds)


def slots(name: str, run: Run) -> None:
    """How many pinned slots saturate the bus, with the limits that reads have."""
    sizes = run.sizes
    for codec in ("none", "zstd"):
        layout = Layout.of(sizes, codec, sizes.usual, sizes.sweep_nbytes)
        stored = store(layout, run.root)
        device: Any = run.machine.device
        out = device.empty(layout.shape, DTYPE)
        for n_slots, threads in product((2, 4, 8, 16), (8, 16)):
            row = f"{name}/{codec}/{n_slots}x{threads}"
            if not run.wants(row):
                continue
            options = Options(placement="device", pinned_slots=n_slots, threads=threads)
            a = open_array(stored.path, device=device, options=options)
            seconds = [_read(a, out) for _ in range(sizes.repetitions + 1)][1:]
            run.put(row, fetch=a.explain().fetch, **rate(layout.nbytes, seconds))


def _read(a: Any, out: Any) -> float:
    started = perf_counter()
    a.read(out=out)
    return perf_counter() - started


def limits(name: str, run: Run) -> None:
    """How much a read may hold: large batches keep a GPU busy, small ones overlap.

    A read is fetched, copied and decoded in pieces, and what is encoded in less than a
    piece overlaps with nothing.
    """
    sizes = run.sizes
    layout = Layout.of(sizes, "zstd", sizes.usual, sizes.sweep_nbytes)
    stored = store(layout, run.root)
    device: Any = run.machine.device
    for parts in (256, 1024, 4096, 8192):
        row = f"{name}/{parts}"
        if not run.wants(row):
            continue
        nbytes = layout.nbytes * parts // 1024
        options = Options(placement="device", memory_limit=nbytes)
        a = open_array(stored.path, device=device, options=options)
        out = device.empty(layout.shape, a.dtype)
        began = process_time()
        seconds = [_read(a, out) for _ in range(sizes.repetitions + 1)][1:]
        cpu_seconds = (process_time() - began) / (sizes.repetitions + 1)
        run.put(
            row,
            memory_limit=nbytes,
            cpu_seconds=cpu_seconds,  # threads that wait for a GPU may spin
            **rate(layout.nbytes, seconds),
        )


def small_reads(name: str, run: Run) -> None:
    """Seconds for a few rows at random, as a loader without batches would read.

    As placed, and by the device.
    """
    sizes = run.sizes
    for inner in sizes.inner_nbytes[:2]:
        # As wide as the array, or else parts of one row.
        layout = Layout.of(sizes, "zstd", inner, sizes.sweep_nbytes, sizes.width)
        stored = store(layout, run.root)
        device: Any = run.machine.device
        for n, placement in product((1, 256), ("cost", "device")):
            options = Options(placement=placement)
            a = open_array(stored.path, device=device, options=options)
            rng, seconds = np.random.default_rng(5), []
            for _ in range(sizes.repetitions + 1):
                rows = rng.integers(0, layout.shape[0], n)
                started = perf_counter()
                _ = a.oindex[rows]
                seconds.append(perf_counter() - started)
            nbytes = n * layout.shape[1] * 4
            run.put(f"{name}/{inner}/{n}/{placement}", **rate(nbytes, seconds[1:]))


def kvikio(name: str, run: Run) -> None:
    """Whether kvikio reads by GPUDirect Storage, and what it says of itself."""
    found = kvikio_facts()
    if not found:
        try:
            importlib.import_module("kvikio")
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise Skipped(f"kvikio: {why}") from error
    run.put(name, **found)


PROBES = {
    "zstd-frames": zstd_frames,
    "capacities": capacities,
    "misaligned": misaligned,
    "damaged": damaged,
    "overruns": overruns,
    "crc32c": checksums,
    "scratch": scratch,
    "calls": calls,
    "slots": slots,
    "limits": limits,
    "small-reads": small_reads,
    "kvikio": kvikio,
}
