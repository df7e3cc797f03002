"""What a small read costs, beside what is promised of it.

``python -m benchmarks small`` reads single inner chunks of 4 KiB (zstd) from the page
cache, one after the other at random: ``a[i]`` with its look whether the shard was
replaced, before and after the process has loaded the compiled loops, and the plan of
such a read without them. Their medians are promised of a machine that does
nothing else and on which tensorstore, with a cache, takes 28 us, so they are taken
before tensorstore is loaded. What that promises of any machine is a ratio: ``a[i]`` is
read once more in turns with tensorstore, whose threads slow both.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpushard
from benchmarks import data
from benchmarks.configs import KIB, MIB, Config
from benchmarks.machine import commit, load, machine
from gpushard.fused.choice import are_loaded
from gpushard.planning.touched import TouchedGrid
from gpushard.selecting import expressions
from gpushard.selecting.selection import with_columns

PLAN, FIRST = "plan of a[i]", "a[i] before the loops are loaded"
READ = "a[i]"
IN_TURNS, PEER = "a[i], in turns with tensorstore", "tensorstore with a cache"
LIMITS_US = {PLAN: 15.0, FIRST: 50.0, READ: 50.0}
"""What is promised of a median, where tensorstore's is `PEER_US`."""
PEER_US = 28.0
LIMIT_OVER_PEER = LIMITS_US[READ] / PEER_US
NBYTES = 16 * MIB
READS = 6000
_PER_TURN = 200

Row = dict[str, Any]


def measure(n_reads: int = READS) -> dict[str, Any]:
    """A row for each figure, with the machine they were measured on.

    Parameters
    ----------
    n_reads
        Of each kind, in turns of a few hundred.

    Raises
    ------
    RuntimeError
        A read gave other elements than were stored.
    """
    before = load()
    config = Config("tiles", 4 * KIB, "zstd", NBYTES)
    values = data.generate(config.dataset, config.shape)
    with tempfile.TemporaryDirectory() as directory:
        path = data.write(config, Path(directory), values)
        at = np.random.default_rng(data.SEED).integers(len(values), size=n_reads)
        taken = _in_turns(_without_loops(path, values), at.tolist())
        own = _with_loops(path, values)
        taken |= _in_turns(own, at.tolist())
        peer = _peer(path, values)
        if peer is not None:
            taken |= _in_turns({IN_TURNS: own[READ], PEER: peer}, at.tolist())
    rows = [_row(name, seconds) for name, seconds in taken.items()]
    return {
        "commit": commit(),
        "machine": machine(),
        "load": [before, load()],
        "has_loops": are_loaded(),
        "rows": rows,
        "over_peer": _over_peer(rows),
    }


def _without_loops(path: Path, values: Any) -> dict[str, Callable[[int], Any]]:
    """The reads of a young process, called with the number of an inner chunk."""
    a = gpushard.open_array(
        path, device="cpu", options=gpushard.Options(compile_nbytes=2**62)
    )
    grid, limit = TouchedGrid(a.source.layout), a.source.options.small_read_chunks

    def plan(i: int) -> Any:
        return grid.touched(with_columns(expressions.basic(i, a.shape)), limit)

    return {PLAN: plan, FIRST: _checked(FIRST, lambda i: a[i], values)}


def _with_loops(path: Path, values: Any) -> dict[str, Callable[[int], Any]]:
    """A read after thousands of others, which have had the loops loaded."""
    a = gpushard.open_array(path, device="cpu")
    return {READ: _checked(READ, lambda i: a[i], values)}


def _peer(path: Path, values: Any) -> Callable[[int], Any] | None:
    """A read by tensorstore, which keeps all inner chunks; None without it."""
    try:
        peer = importlib.import_module("benchmarks.contenders.tensorstore_cached")
    except ImportError:
        return None
    handle = peer.open_array(path)
    return _checked(PEER, lambda i: peer.read_box(handle, (i,)), values)


def _checked(
    name: str, read: Callable[[int], Any], values: Any
) -> Callable[[int], Any]:
    if not all(np.array_equal(read(i), v) for i, v in enumerate(values)):
        message = f"{name}: other elements than were stored"
        raise RuntimeError(message)
    return read


def _in_turns(
    kinds: dict[str, Callable[[int], Any]], numbers: list[int]
) -> dict[str, Any]:
    taken = {name: np.empty(len(numbers)) for name in kinds}
    for first in range(0, len(numbers), _PER_TURN):
        some = numbers[first : first + _PER_TURN]
        for name, read in kinds.items():
            taken[name][first : first + len(some)] = _seconds(read, some)
    return taken


def _seconds(read: Callable[[int], Any], numbers: list[int]) -> list[float]:
    seconds = []
    for i in numbers:
        start = time.perf_counter()
        read(i)
        seconds.append(time.perf_counter() - start)
    return seconds


def _row(name: str, seconds: Any) -> Row:
    tenth, median = np.quantile(seconds, (0.1, 0.5)) * 1e6
    row = {"what": name, "median_us": float(median), "fastest_tenth_us": float(tenth)}
    limit = LIMITS_US.get(name)
    if limit is None:
        return row
    return row | {"limit_us": limit, "holds": bool(median <= limit)}


def _over_peer(rows: list[Row]) -> Row | None:
    """``a[i]`` as a multiple of tensorstore's; None where that was not measured."""
    medians = {row["what"]: row["median_us"] for row in rows}
    if PEER not in medians:
        return None
    ratio = medians[IN_TURNS] / medians[PEER]
    holds = bool(ratio <= LIMIT_OVER_PEER)
    return {"ratio": ratio, "limit": LIMIT_OVER_PEER, "holds": holds}


def render(result: dict[str, Any]) -> str:
    """The rows as text, and what they are as a ratio."""
    head = f"{'median':>45}   fastest tenth   promised"
    lines = [head, *map(_line, result["rows"])]
    over = result["over_peer"]
    if over is not None:
        ratio = f"{READ} over tensorstore's in turns: {over['ratio']:.2f}"
        lines.append(f"{ratio}, at most {over['limit']:.2f}, {_verdict(over)}")
    if not result["has_loops"]:
        lines.append("no compiled loops are kept here: all reads did without them")
    loads = " and ".join(f"{n:.2f}" for n in result["load"])
    return "\n".join([*lines, f"load of the machine before and after: {loads}"])


def _line(row: Row) -> str:
    promised = ""
    if "limit_us" in row:
        promised = f"   {row['limit_us']:5.1f} us, {_verdict(row)}"
    times = f"{row['median_us']:10.1f} us   {row['fastest_tenth_us']:10.1f} us"
    return f"{row['what']:32}{times}{promised}"


def _verdict(row: Row) -> str:
    return "holds" if row["holds"] else "does NOT hold"
