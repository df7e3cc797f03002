"""How much a process grows beside the output of uses of random arrays: JSON lines.

Run as ``python tests/memory_random.py DIRECTORY SEED [COUNT [WORD]]``, with the tests'
directory and that of the package on PYTHONPATH: COUNT arrays from SEED on, each used
from a random store, with random options, through some doors; WORD stands in the names
of the doors. `memory_sweep` and `memory_doors` try few arrays, of bytes in a row, in
all ways; here nothing is tried twice. Each read has a process of its own. A line tells
what became of it, and whether that is more than was promised.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import obstore.store
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

from damaged_arrays import WAYS
from gpushard.errors import GpushardError
from gpushard.fused import choice
from gpushard.options import MIB
from memory_doors import S3, serve
from memory_random_arrays import draw, make, shrunk
from memory_random_doors import DOORS, Drawn, grown_by
from memory_sweep import in_a_child

LEAST_NBYTES = 64 * MIB  # what any use may hold, whatever its limit
NO_ZARR = ("zip", "rangeless", "s3", "slow s3", "slow http")


def zipped(place: Path) -> Path:
    """A directory in a zip file beside it."""
    path = place.with_name(f"{place.name}.zip")
    if not path.exists():
        with zipfile.ZipFile(path, "w") as file:
            for one in place.rglob("*"):
                if one.is_file():
                    file.write(one, one.relative_to(place).as_posix())
    return path


def objects_in(place: Path) -> dict[str, bytes]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def in_memory(place: Path) -> MemoryStore:
    make_buffer = default_buffer_prototype().buffer.from_bytes
    return MemoryStore({k: make_buffer(data) for k, data in objects_in(place).items()})


def in_fsspec_memory(place: Path) -> FsspecStore:
    system = fsspec.filesystem("memory")
    for name, data in objects_in(place).items():
        system.pipe(f"/{place.name}/{name}", data)
    return FsspecStore.from_url(f"memory://{place.name}", read_only=True)


def in_obstore(place: Path) -> ObjectStore:
    store = obstore.store.MemoryStore()
    for name, data in objects_in(place).items():
        obstore.put(store, name, data)
    return ObjectStore(store, read_only=True)


def store_of(kind: str, place: Path, urls: dict[str, str]) -> Any:
    """What an array is opened by, through a store of a kind."""
    if kind in urls:
        return f"{urls[kind]}/{place.name}"
    of_url = partial(FsspecStore.from_url, read_only=True)
    makers: dict[str, Callable[[], Any]] = {
        "files": lambda: place,
        "memory": lambda: in_memory(place),
        "zarr local": lambda: LocalStore(place, read_only=True),
        "fsspec": lambda: of_url(f"file://{place}"),
        "fsspec memory": lambda: in_fsspec_memory(place),
        "fsspec http": lambda: of_url(f"{urls['http']}/{place.name}"),
        "obstore": lambda: in_obstore(place),
        "zip": lambda: zipped(place),
        "zarr zip": lambda: ZipStore(zipped(place), mode="r"),
    }
    return makers[kind]()


def measured(
    root: Path, drawn: dict[str, Any], door: str, key_seed: int, urls: dict[str, str]
) -> dict[str, Any]:
    """What became of a use of an array in a process of its own, and what it took."""

    def use() -> tuple[str, int]:
        if drawn["store"] == "slow s3":
            os.environ["AWS_ENDPOINT_URL"] = os.environ["SLOW"]
        options = WAYS[drawn["way"]].but(
            threads=drawn["threads"],
            memory_limit=drawn["limit"],
            index_cache_nbytes=0,
        )
        arrays: list[Drawn] = []
        for place in (root / "warm", root / "array"):
            given = store_of(drawn["store"], place, urls)
            rng = np.random.default_rng(key_seed)
            arrays.append(Drawn(given, place, options, rng))
        with suppress(GpushardError):
            DOORS[door](arrays[0])
        return grown_by(DOORS[door], arrays[1])

    begun = time.perf_counter()
    came, nbytes = in_a_child(use, ("died", 0))
    promised = max(drawn["limit"], LEAST_NBYTES)
    return {
        "door": door,
        "came": came,
        "MiB": round(nbytes / MIB, 1),
        "of": promised // MIB,
        "seconds": round(time.perf_counter() - begun, 2),
        "key_seed": key_seed,
        "broken": nbytes > promised,
    }


def tried(root: Path, seed: int, word: str, urls: Any) -> Iterator[dict[str, Any]]:
    """What became of each use of an array; with all of it, if anything is wrong."""
    drawn = draw(seed) | json.loads(os.environ.get("CHANGES", "{}"))
    for name, what in (("array", drawn), ("warm", shrunk(drawn))):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / f"{name}.zip").unlink(missing_ok=True)
        if in_a_child(partial(make, root / name, what), None) is None:
            yield {"seed": seed, "came": "not made", "drawn": drawn}
            return
    rng = np.random.default_rng(seed)
    doors = [name for name in DOORS if re.search(word, name)]
    n_doors = int(os.environ.get("N_DOORS", "4"))
    for door in rng.permutation(doors)[:n_doors].tolist():
        key_seed = int(rng.integers(1000))
        if door == "pipeline" and drawn["store"] in NO_ZARR:
            continue
        told = measured(root, drawn, door, key_seed, urls)
        brief = {key: drawn[key] for key in ("seed", "kind", "store")}
        is_fine = not told["broken"] and told["came"] in ("read", "LimitError")
        yield brief | told | ({} if is_fine else {"drawn": drawn})


def main() -> None:
    root, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    word = sys.argv[4] if len(sys.argv) > 4 else ""
    root.mkdir(parents=True, exist_ok=True)
    choice._load()
    servers = {
        "http": serve(root),
        "rangeless": serve(root, answers_ranges=False),
        "s3": serve(root.parent),
        "slow http": serve(root, silence_s=0.03),
        "slow s3": serve(root.parent, silence_s=0.03),
    }
    urls = {kind: url for kind, (_, url) in servers.items()}
    os.environ |= S3 | {"AWS_ENDPOINT_URL": urls["s3"], "SLOW": urls["slow s3"]}
    urls["s3"] = urls["slow s3"] = f"s3://{root.name}"
    zarr.config.set({"array.rectilinear_chunks": True})
    try:
        for one in range(seed, seed + count):
            for told in tried(root, one, word, urls):
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()
    finally:
        for child, _ in servers.values():
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
