"""How the cost of a read grows: with what is read, not with the size of the array.

``python -m benchmarks scaling`` reads one box out of ever larger arrays, and ever
larger parts of one array, from a warm page cache, with CPU seconds of all threads
beside the wall time. And it takes the peak memory of full reads: of the first one of a
process, which loads what it decodes with, and of the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpushard
from benchmarks import data
from benchmarks.configs import KIB, MIB, Config
from benchmarks.machine import commit, load, machine
from benchmarks.worker import peak_nbytes, start_of_peak
from gpushard.cli.diagnosis import are_loops_ready, can_have_loops
from gpushard.fused.choice import are_loaded

DEFAULT_NBYTES = 64 * MIB
REPETITIONS = 15
_GROWTH = (1, 10, 100, 1000)
_PARTS = (16, 8, 4, 2, 1)
_WITHOUT_LOOPS = "gpushard ran without its compiled loops; run: pip install '.[bench]'"

Row = dict[str, Any]


def measure(nbytes: int, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """Rows of both questions, with the machine they were answered on.

    Parameters
    ----------
    nbytes
        Decoded bytes of the array that parts are read of.
    repetitions
        Reads of each kind; the least time counts.
    """
    _have_loops_kept()
    before = load()
    with tempfile.TemporaryDirectory() as directory:
        config = Config("field", 4 * KIB, "zstd", nbytes)
        values = data.generate(config.dataset, config.shape)
        path = data.write(config, Path(directory), values)
        peaks = [_full_read_peak(path) for _ in range(3)]
        parts = [_part(path, values, n, repetitions) for n in _PARTS]
        grown = [_grown(path, config, n, repetitions) for n in _GROWTH]
    return {
        "commit": commit(),
        "machine": machine(),
        "load": [before, load()],
        "has_loops": are_loaded(),
        "nbytes": values.nbytes,
        "peak_nbytes_of_full_reads": peaks,
        "same_box_of_larger_arrays": grown,
        "larger_parts_of_one_array": parts,
    }


def _have_loops_kept() -> None:
    """Let another process compile the loops if none has: else rows are of two kinds."""
    if can_have_loops() and not are_loops_ready():
        program = "from gpushard.fused.code.loading import load; load()"
        subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 - fixed


def _full_read_peak(path: Path) -> int:
    """Resident bytes that a full read adds at its peak; the result is among them."""
    a = gpushard.open_array(path, device="cpu")
    start = start_of_peak() or 0
    a[...]
    return peak_nbytes() - start


def _part(path: Path, values: Any, n: int, repetitions: int) -> Row:
    """Cost of the first n-th of an array along its last axis."""
    a = gpushard.open_array(path, device="cpu")
    key = (slice(None), slice(None), slice(0, a.shape[2] // n))
    if not np.array_equal(a[key], values[key]):
        message = f"a read of a {n}-th gave other elements than were stored"
        raise RuntimeError(message)
    n_chunks = a.explain(key).n_inner_chunks
    row = {"n_inner_chunks": n_chunks, **_least(a, key, repetitions)}
    return row | {"cpu_us_per_inner_chunk": row["cpu_ms"] * 1e3 / n_chunks}


def _grown(path: Path, config: Config, n: int, repetitions: int) -> Row:
    """Cost of one box once the array is `n` times as long, shards missing there."""
    document = config.document()
    document["shape"] = [n * config.shape[0], *config.shape[1:]]
    (path / "zarr.json").write_text(json.dumps(document), encoding="utf-8")
    a = gpushard.open_array(path, device="cpu")
    # Where the array that is there is, aligned to nothing.
    box = tuple(slice(n // 20 + 1, n * 2 // 5) for n in config.shape)
    n_all = int(np.prod(document["shape"])) * 4 // config.inner_nbytes
    return {"n_inner_chunks_of_array": n_all, **_least(a, box, repetitions)}


def _least(a: gpushard.Array, key: Any, repetitions: int) -> Row:
    walls, cpus = [], []
    for _ in range(repetitions):
        cpu, wall = time.process_time(), time.perf_counter()
        a[key]
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall_ms": min(walls) * 1e3, "cpu_ms": min(cpus) * 1e3}


def render(result: dict[str, Any]) -> str:
    """The rows as text."""
    without = [] if result["has_loops"] else [_WITHOUT_LOOPS]
    peaks = [f"{peak / MIB:.0f}" for peak in result["peak_nbytes_of_full_reads"]]
    return "\n".join(
        [
            *without,
            "the same box of larger arrays",
            *(
                f"  {row['n_inner_chunks_of_array']:>12,} inner chunks{_cost(row)}"
                for row in result["same_box_of_larger_arrays"]
            ),
            "larger parts of one array",
            *(
                f"  {row['n_inner_chunks']:>12,} inner chunks{_cost(row)}"
                f"  {row['cpu_us_per_inner_chunk']:6.2f} us of CPU each"
                for row in result["larger_parts_of_one_array"]
            ),
            f"peak memory of full reads of {result['nbytes'] / MIB:.0f} MiB, one after"
            f" the other, in MiB: {', '.join(peaks)}",
        ]
    )


def _cost(row: Row) -> str:
    return f"  {row['wall_ms']:8.2f} ms, {row['cpu_ms']:8.2f} ms of CPU"
