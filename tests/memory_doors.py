"""How much a process grows beside the output through other doors: JSON lines.

Run as ``python tests/memory_doors.py DIRECTORY [DOOR [ARRAY]]``, with the tests'
directory and that of the package on PYTHONPATH: words that stand in the names of the
doors and of the arrays (`memory_arrays`), which DIRECTORY keeps. SWEEP_THREADS has
other numbers of threads. Each has a process of its own, as in `memory_sweep`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore

import gpushard
from damaged_arrays import opened
from gpushard import Options
from gpushard.cli.description import describe
from gpushard.cli.mapping import open_map
from gpushard.fused import choice
from gpushard.inspection.verify import verify_array
from gpushard.options import KIB, MIB
from hostile_shards import ZSTD
from memory_arrays import ARRAYS, chunks_of, zstd
from memory_sweep import LIMIT, THREADS, grown
from range_server import RangeServer

STEP = 4097


class Nothing:
    """What is no output."""

    nbytes = 0


class Results:
    """Several outputs."""

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays = arrays
        self.nbytes = sum(a.nbytes for a in arrays)


Door = Callable[[Any, Options], Any]


def part(way: str, array: Any, options: Options) -> Any:
    return array_of(way, array, options)[::STEP]


def array_of(way: str, array: Any, options: Options) -> gpushard.Array:
    given = {"threads": options.threads, "memory_limit": options.memory_limit}
    return opened(array, way, **given, index_cache_nbytes=0)


def joined(array: Any, options: Options) -> Any:
    """A few MiB of each of twelve arrays in a row."""
    a = array_of("plain", array, options)
    n = a.shape[0]
    keys = [slice(k * n + n // 7, (k + 1) * n - n // 9, n // 20) for k in range(12)]
    return Results(gpushard.concat([a] * 12).read_many(keys))


def verified(array: Any, options: Options) -> Any:
    verify_array(array_of("plain", array, options).source, decodes=True)
    return Nothing


def info(array: Any, options: Options) -> Any:
    describe(str(array), options, advise=True)
    return Nothing


def mapped(array: Any, options: Options) -> Any:
    open_map(str(array), None, options)
    return Nothing


def pipeline(array: Any, options: Options) -> Any:
    limit = {"gpushard.memory_limit": options.memory_limit}
    path = "gpushard.GpushardCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": path, **limit}):
        return zarr.open_array(array, mode="r")[::STEP]


DOORS: dict[str, Door] = {
    "plain": partial(part, "plain"),
    "compiled": partial(part, "compiled"),
    "joined": joined,
    "verify": verified,
    "info": info,
    "map": mapped,
    "pipeline": pipeline,
}
STORES = ("files", "memory", "zarr local", "fsspec", "http", "rangeless")
OF_PATHS = ("info", "map", "pipeline")


def store_of(kind: str, place: Path, urls: dict[str, str]) -> Any:
    if kind == "memory":
        make = default_buffer_prototype().buffer.from_bytes
        files = [path for path in place.rglob("*") if path.is_file()]
        names = [path.relative_to(place).as_posix() for path in files]
        held = [make(path.read_bytes()) for path in files]
        return MemoryStore(dict(zip(names, held, strict=True)))
    if kind == "zarr local":
        return LocalStore(place, read_only=True)
    if kind == "fsspec":
        return FsspecStore.from_url(f"file://{place}", read_only=True)
    return f"{urls[kind]}/{place.name}" if kind in urls else place


def serve(root: Path, **settings: Any) -> tuple[int, str]:
    """A server in a process of its own: its number, and its address."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        with RangeServer(root, **settings) as server:
            os.write(sender, server.url.encode())
            os.close(sender)
            while True:
                time.sleep(60)
    os.close(sender)
    with os.fdopen(receiver) as told:
        return child, told.read()


def measure(root: Path, word: str, array_word: str, urls: dict[str, str]) -> None:
    warm = root / "warm up"
    if not warm.exists():
        chunks_of(64 * KIB, [ZSTD], zstd, total=512 * KIB)(warm)
    for name, make in ARRAYS.items():
        if array_word not in name:
            continue
        place = root / name
        if not place.exists():
            make(place)
        for kind in STORES:
            for door, read in DOORS.items():
                is_wanted = word in f"{door} {kind}"
                if not is_wanted or (door in OF_PATHS and kind != "files"):
                    continue
                given = store_of(kind, place, urls), store_of(kind, warm, urls)
                for threads in THREADS:
                    options = Options(threads=threads, memory_limit=LIMIT)
                    reads = [partial(read, one, options) for one in given]
                    came, nbytes = grown(*reads, 0)
                    told = {"array": name, "door": f"{door} {kind}", "came": came}
                    told |= {"threads": threads, "MiB": round(nbytes / MIB, 1)}
                    sys.stdout.write(f"{json.dumps(told)}\n")
                    sys.stdout.flush()


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    word, array_word = [*sys.argv[2:4], "", ""][:2]
    choice._load()
    servers = {
        "http": serve(root),
        "rangeless": serve(root, answers_ranges=False),
    }
    try:
        urls = {kind: url for kind, (_, url) in servers.items()}
        measure(root, word, array_word, urls)
    finally:
        for child, _ in servers.values():
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
