"""How much a process grows while it reads many inner chunks in a row: a JSON line each.

Run as ``python tests/long_axes.py DIRECTORY WAY [N_SHARDS]``, with the tests' directory
and that of the package on PYTHONPATH. The arrays have `N_SHARDS` shards (19) of 2**20
inner chunks of one byte; DIRECTORY keeps them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from damaged_arrays import on_host, opened
from memory_probe import status_nbytes
from spec_shards import LITTLE, document, sharding

PER_SHARD = 1 << 20
KEYS = {
    "row": [np.s_[:], np.s_[::-1], np.s_[1::3]],
    "column": [np.s_[:], np.s_[5::7]],
    "one shard": [np.s_[:], np.s_[::2]],
}


def put(place: Path, n_shards: int, per_shard: int, ndim: int) -> None:
    """Array of `n_shards * per_shard` inner chunks along axis 0, all of it stored."""
    if place.exists():
        return
    rest = [1] * (ndim - 1)
    shape, shard = [n_shards * per_shard, *rest], [per_shard, *rest]
    codec = sharding([1] * ndim, codecs=[LITTLE], index_codecs=[LITTLE])
    entries = np.ones((per_shard, 2), "<u8")
    entries[:, 0] = np.arange(per_shard)
    for s in range(n_shards):
        path = place.joinpath("c", str(s), *map(str, [0] * (ndim - 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(values_of(s, per_shard).tobytes())
            file.write(entries.tobytes())
    (place / "zarr.json").write_text(json.dumps(document(shape, shard, codec)))


def values_of(shard: int, per_shard: int) -> Any:
    """Elements of a shard."""
    return (np.arange(per_shard) % 251 + shard).astype("u1")


def read(place: Path, way: str, key: slice, n_shards: int, per_shard: int) -> Any:
    """What reading `key` takes; the elements are compared."""
    # Indexes that are kept for later reads have a limit of their own.
    a = opened(place, way, index_cache_nbytes=0, max_index_nbytes=1 << 26)
    before = status_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    begin = perf_counter()
    result = a.read(key)
    seconds = perf_counter() - begin
    grown = status_nbytes("VmHWM") - before
    found = on_host(result).reshape(-1)
    del result
    wanted = np.concatenate([values_of(s, per_shard) for s in range(n_shards)])[key]
    assert np.array_equal(found, wanted)
    mib = (grown - found.nbytes) / (1 << 20)
    return {"beside_the_output_mib": round(mib), "seconds": round(seconds, 1)}


def main() -> None:
    root, way = Path(sys.argv[1]), sys.argv[2]
    n_shards = int(sys.argv[3]) if len(sys.argv) > 3 else 19
    arrays = {
        "row": (n_shards, PER_SHARD, 1),
        "column": (n_shards, PER_SHARD, 2),
        "one shard": (1, 4 * PER_SHARD, 1),
    }
    put(root / "warm up", 1, 1 << 10, 1)
    opened(root / "warm up", way).read()
    for name, (n, per_shard, ndim) in arrays.items():
        put(root / name, n, per_shard, ndim)
        for key in KEYS[name]:
            told = read(root / name, way, key, n, per_shard)
            row = {"array": name, "key": str(key), "way": way, **told}
            sys.stdout.write(f"{json.dumps(row)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
