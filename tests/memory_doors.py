"""How much a process grows beside the output through other doors: JSON lines.

Run as ``python tests/memory_doors.py DIRECTORY [DOOR [ARRAY]]``, with the tests'
directory and that of the package on PYTHONPATH: words that stand in the names of the
doors (`memory_uses`) and of the arrays (`memory_arrays`), which DIRECTORY keeps.
SWEEP_THREADS has other numbers of threads. Each has a process of its own, as in
`memory_sweep`; what a device holds has a row of its own (`memory_device`). At the end
each door has a line: by how much it grew at most, and for which array. Inner chunks of
hundreds of MiB are read with the limit left open.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore

from damaged_arrays import emulated
from gpushard import Options
from gpushard.fused import choice
from gpushard.options import KIB, MIB
from hostile_shards import ZSTD
from memory_arrays import ARRAYS, LARGE, chunks_of, zstd
from memory_device import grown as grown_on_device
from memory_sweep import LIMIT, grown
from memory_uses import (
    COMMANDS,
    OF_FILES,
    OF_STORES,
    TO_DEVICE,
    array_nbytes,
    ascending,
    positions,
)
from range_server import RangeServer

THREADS = [int(n) for n in os.environ.get("SWEEP_THREADS", "2,8,16").split(",")]
STORES = ("files", "memory", "zarr local", "fsspec", "http", "rangeless", "s3")
# What answers of a few hundred MiB at a time.
LARGE_STORES = ("files", "fsspec", "http", "s3")
# What zarr writes in minutes, an object of its own for each inner chunk.
SLOW = ("a million of 64 B", "64 indexes of 1 MiB", "plain 4 KiB", "zstd 4 KiB")
S3 = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


def store_of(kind: str, place: Path, urls: Mapping[str, str]) -> Any:
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


def ways(is_large: bool) -> Iterator[tuple[str, str, Any, list[int]]]:
    """Name of a door, store that it is tried with, the door, numbers of threads."""
    for kind in LARGE_STORES if is_large else STORES:
        for door, read in OF_STORES.items():
            if not (is_large and door in ("joined", "filled", "verify")):
                yield f"{door} {kind}", kind, read, THREADS
    if not is_large:
        for door, read in (OF_FILES | TO_DEVICE).items():
            yield f"{door} files", "files", read, THREADS
        for door, read in COMMANDS.items():  # which have as many threads as CPUs
            yield door, "files", read, THREADS[:1]


def measure(
    root: Path, word: str, array_word: str, urls: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """What became of each read, and by how many MiB it grew the process."""
    warm = root / "warm up"
    if not warm.exists():
        chunks_of(64 * KIB, [ZSTD], zstd, total=512 * KIB)(warm)
    ascending(array_nbytes(warm))
    for name, make in (ARRAYS | LARGE).items():
        wanted = [
            way
            for way in ways(name in LARGE)
            if word in way[0] and not (name in SLOW and "pipeline write" in way[0])
        ]
        if array_word not in name or not wanted:
            continue
        place = root / name
        if not place.exists():
            make(place)
        positions.cache_clear()
        for one in (warm, place):
            ascending(array_nbytes(one))
        for door, kind, read, threads in wanted:
            given = store_of(kind, place, urls), store_of(kind, warm, urls)
            for n in threads:
                limit = None if name in LARGE else LIMIT
                options = Options(threads=n, memory_limit=limit, index_cache_nbytes=0)
                reads = [partial(read, one, options) for one in given]
                yield from rows({"array": name, "door": door, "threads": n}, *reads)


def rows(told: dict[str, Any], read: Any, warm_up: Any) -> Iterator[dict[str, Any]]:
    """What became of a read: a row, and for a device's memory another."""
    begun = time.perf_counter()
    if told["door"].startswith("device"):
        came, nbytes, held_nbytes = grown_on_device(read, warm_up)
        grew = {"": nbytes, ": its memory": held_nbytes}
    else:
        came, nbytes = grown(read, warm_up, 0)
        grew = {"": nbytes}
    took = {"came": came, "seconds": round(time.perf_counter() - begun, 2)}
    for what, nbytes in grew.items():
        door = {"door": f"{told['door']}{what}"}
        yield told | door | {"MiB": round(nbytes / MIB, 1)} | took


def say(told: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    word, array_word = [*sys.argv[2:4], "", ""][:2]
    choice._load()
    if word in "device files" or "device" in word:
        emulated()
    servers = {
        "http": serve(root),
        "rangeless": serve(root, answers_ranges=False),
        "s3": serve(root.parent),
    }
    urls = {kind: url for kind, (_, url) in servers.items()}
    os.environ |= S3 | {"AWS_ENDPOINT_URL": urls["s3"]}
    urls["s3"] = f"s3://{root.name}"
    top: dict[str, dict[str, Any]] = {}
    try:
        for told in measure(root, word, array_word, urls):
            say(told)
            kind = "left open: " if told["array"] in LARGE else ""
            most = top.setdefault(f"{kind}{told['door']}", told)
            if told["MiB"] > most["MiB"]:
                top[f"{kind}{told['door']}"] = told
    finally:
        for child, _ in servers.values():
            os.kill(child, signal.SIGKILL)
    for door, told in top.items():
        say({"at most": door} | {k: told[k] for k in ("MiB", "array", "threads")})


if __name__ == "__main__":
    main()
