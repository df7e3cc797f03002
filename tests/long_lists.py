"""How much a process grows while it reads many listed elements: a JSON line each.

Run as ``python tests/long_lists.py DIRECTORY WAY [MILLIONS]``, with the tests'
directory and that of the package on PYTHONPATH. So many million elements (20) of a row
are read, and a quarter as many points of a square array; DIRECTORY keeps the arrays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import zarr

from damaged_arrays import on_host, opened
from memory_probe import status_nbytes

SIDE = 4096


def put(place: Path, shape: tuple[int, ...], chunk: int, shard: int) -> None:
    """Array of its elements' numbers, plain."""
    if place.exists():
        return
    grid = {"shards": (shard,) * len(shape), "chunks": (chunk,) * len(shape)}
    made = zarr.create_array(place, shape=shape, dtype="i4", compressors=None, **grid)
    made[...] = np.arange(made.size, dtype="i4").reshape(shape)


def keys(n: int) -> dict[str, tuple[str, Any]]:
    """What is read, and of which array."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, n, n)
    points = tuple(rng.integers(0, SIDE, n // 4) for _ in range(2))
    return {
        "in any order": ("row", index),
        "ascending": ("row", np.sort(index)),
        "mask": ("row", np.ones(n, bool)),
        "points": ("square", points),
        "mask of a square": ("square", np.ones((SIDE, SIDE), bool)),
    }


def read(place: Path, way: str, key: Any) -> dict[str, float]:
    """What reading `key` takes; the elements are compared."""
    a = opened(place, way)
    index = a.vindex if a.ndim > 1 else a.oindex
    index[([0, 1],) * a.ndim]  # what is loaded once
    before = status_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    begin = process_time()
    result = index[key]
    seconds = process_time() - begin
    grown = status_nbytes("VmHWM") - before
    found = on_host(result)
    wanted = np.arange(a.size, dtype="i4").reshape(a.shape)[key]
    assert np.array_equal(found, wanted)
    mib = (grown - found.nbytes) / (1 << 20)
    return {"beside_the_output_mib": round(mib), "cpu_seconds": round(seconds, 1)}


def main() -> None:
    root, way = Path(sys.argv[1]), sys.argv[2]
    n = int(sys.argv[3]) * 10**6 if len(sys.argv) > 3 else 20 * 10**6
    put(root / "row", (n,), n // 200, n // 20)
    put(root / "square", (SIDE, SIDE), 128, 1024)
    for name, (array, key) in keys(n).items():
        told = read(root / array, way, key)
        sys.stdout.write(f"{json.dumps({'key': name, 'way': way, **told})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
