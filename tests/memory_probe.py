"""How much a process grows while it reads, or writes to, arrays: a JSON line a row.

Run as ``python tests/memory_probe.py DIRECTORY WAY``; DIRECTORY has one array a row.
WAY is one of `damaged_arrays.WAYS`, or a write strategy: then elements are written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import damaged_arrays
import gpushard
from gpushard.write_options import WriteOptions

KIB = 1 << 10
# Results of this size are read whole: they are part of what the process grows by.
_MOST_READ_NBYTES = 4 << 20


def status_nbytes(name: str) -> int:
    """A figure of this process, of those that Linux gives in KiB."""
    text = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) * 1024
        for line in text.splitlines()
        if line.startswith(name)
    )


def read(place: Path, way: str) -> list[str]:
    """Names of the errors that reads of an array meet."""
    came: set[str] = set()
    try:
        # Indexes that are kept for later reads have a limit of their own.
        a = damaged_arrays.opened(place, way, index_cache_nbytes=0)
        # Few at first: of a million damaged inner chunks each is an error of its own.
        for key in (slice(8 * KIB), slice(None, None, max(1, a.size // 4096))):
            ignored: list[gpushard.CorruptShardError] = []
            a.read(key, errors=ignored.append)
            came.update(type(error).__name__ for error in ignored)
        if a.nbytes <= _MOST_READ_NBYTES:
            a.read()
    except gpushard.GpushardError as error:
        came.add(type(error).__name__)
    return sorted(came)


def write(place: Path, strategy: str) -> list[str]:
    """Names of the errors that a write to a part of an array meets."""
    write = WriteOptions(strategy)  # type: ignore[arg-type]  # checked there
    options = gpushard.Options(threads=4, memory_limit=8 << 20, write=write)
    key = slice(100, -100 if "all" in place.name else 103)
    try:
        gpushard.open_array(place, options=options)[key] = 7
    except gpushard.GpushardError as error:
        return [type(error).__name__]
    return []


def main() -> None:
    directory, way = Path(sys.argv[1]), sys.argv[2]
    meets = read if way in damaged_arrays.WAYS else write
    for place in sorted(directory.glob("warm up*")):
        meets(place, way)
    for place in sorted(directory.iterdir()):
        before = status_nbytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
        came = meets(place, way)
        grown = status_nbytes("VmHWM") - before
        told = json.dumps({"row": place.name, "came": came, "grown": grown})
        sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main()
