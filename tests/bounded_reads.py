"""How much a process grows over reads of large inner chunks: a JSON line a read.

Run as ``python tests/bounded_reads.py DIRECTORY WAY LIMIT KEY...``: DIRECTORY has one
array a case, WAY is one of `damaged_arrays.WAYS`, LIMIT a number of bytes or ``None``,
KEY one of `KEYS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gpushard
from damaged_arrays import opened
from memory_probe import status_nbytes

KEYS = {"all": ..., "few": slice(5, 9), "step": slice(None, None, 1 << 20)}


def read(place: Path, way: str, limit: int | None, key: Any) -> tuple[str, int]:
    """What becomes of a read, and by how much the process grew beside the output."""
    before = status_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    came, out_nbytes = "read", 0
    try:
        a = opened(place, way, memory_limit=limit, threads=8, index_cache_nbytes=0)
        out_nbytes = np.asarray(a.read(key)).nbytes
    except gpushard.GpushardError as error:
        came = f"{type(error).__name__}: {error}"
    return came, status_nbytes("VmHWM") - before - out_nbytes


def main() -> None:
    directory, way = Path(sys.argv[1]), sys.argv[2]
    limit = None if sys.argv[3] == "None" else int(sys.argv[3])
    read(directory / "warm up", way, limit, ...)
    for place in sorted(directory.iterdir()):
        for name in sys.argv[4:]:
            came, grown = read(place, way, limit, KEYS[name])
            told = {"case": place.name, "key": name, "came": came, "grown": grown}
            sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main()
