"""How long whole arrays take to write, beside zarr-python, zarrs and tensorstore.

``python -m benchmarks writing`` lets each contender write the same elements into a new
array, in turns. The first write of each is not timed: zarr-python reads the array and
compares. gpushard and tensorstore write in two ways: they wait until the disk has the
bytes, or leave that to the system, as zarr-python and zarrs do. Each way is compared
with those that do the same.
"""

from __future__ import annotations

import importlib
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpushard
from benchmarks import data
from benchmarks.configs import MIB, Config, configs
from benchmarks.machine import commit, load, machine

DEFAULT_NBYTES = 16 * MIB
REPETITIONS = 5
OURS = "gpushard"
# Contenders that wait for the disk, ours first, and those that do not.
SYNCED = (f"{OURS} synced", "ts synced")
UNSYNCED = (OURS, "zarr", "zarr fused", "zarrs", "tensorstore")
_PIPELINE = "zarr.core.codec_pipeline."

Row = dict[str, Any]
Values = NDArray[Any]
Write = Callable[[Path, Values], None]


def _gpushard(path: Path, values: Values, *, syncs: bool) -> None:
    options = gpushard.Options(write=gpushard.WriteOptions(durable=syncs))
    gpushard.open_array(path, device="cpu", options=options)[...] = values


def _zarr(pipeline: str) -> Write:
    def write(path: Path, values: Values) -> None:
        import zarr

        with zarr.config.set({"codec_pipeline.path": pipeline}):
            zarr.open_array(str(path), mode="r+")[...] = values

    return write


def _zarrs() -> Write:
    importlib.import_module("zarrs")  # registers its pipeline
    return _zarr("zarrs.ZarrsCodecPipeline")


def _tensorstore(*, syncs: bool) -> Write:
    tensorstore: Any = importlib.import_module("tensorstore")

    def write(path: Path, values: Values) -> None:
        kvstore = {"driver": "file", "path": f"{path}/", "file_io_sync": syncs}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        tensorstore.open(spec, open=True).result().write(values).result()

    return write


_MAKERS: dict[str, Callable[[], Write]] = {
    SYNCED[0]: lambda: partial(_gpushard, syncs=True),
    SYNCED[1]: lambda: _tensorstore(syncs=True),
    OURS: lambda: partial(_gpushard, syncs=False),
    "zarr": lambda: _zarr(f"{_PIPELINE}BatchedCodecPipeline"),
    "zarr fused": lambda: _zarr(f"{_PIPELINE}FusedCodecPipeline"),
    "zarrs": _zarrs,
    "tensorstore": lambda: _tensorstore(syncs=False),
}


def measure(
    nbytes: int,
    inner_nbytes: Sequence[int],
    codecs: Sequence[str],
    repetitions: int = REPETITIONS,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Least wall times of each contender, with the machine they were taken on.

    A contender that is missing, or cannot write an array, has no time in its row.
    `say` is told each row as soon as it is known, since all take minutes.
    """
    before, writers, rows = load(), _writers(), list[Row]()
    say(_head())
    for config in configs(("field",), tuple(inner_nbytes), tuple(codecs), nbytes):
        values = data.generate(config.dataset, config.shape)
        rows.append(_row(config, values, writers, repetitions))
        say(_line(rows[-1]))
    packages = ("zarr", "zarrs", "tensorstore")
    return {
        "commit": commit(),
        "machine": machine(),
        "load": [before, load()],
        "versions": {name: version(name) for name in packages if name in writers},
        "rows": rows,
    }


def _writers() -> dict[str, Write]:
    found: dict[str, Write] = {}
    for name, make in _MAKERS.items():
        try:
            found[name] = make()
        except ImportError:
            continue
    return found


def _row(
    config: Config, values: Values, writers: dict[str, Write], repetitions: int
) -> Row:
    walls: dict[str, list[float]] = {}
    for name, write in writers.items():
        try:
            _written(config, values, write, compares=True)
        except (ValueError, NotImplementedError, AttributeError):
            continue  # no such codec, or no such pipeline
        walls[name] = []
    for _ in range(repetitions):
        for name, taken in walls.items():
            taken.append(_written(config, values, writers[name]))
    return {
        "inner_nbytes": config.inner_nbytes,
        "codec": config.codec,
        "nbytes": values.nbytes,
        "wall_ms": {name: min(taken) * 1e3 for name, taken in walls.items()},
    }


def _written(
    config: Config, values: Values, write: Write, *, compares: bool = False
) -> float:
    """Seconds that a write into a new array takes."""
    root = Path(tempfile.mkdtemp())
    try:
        path = data.begin(config, root)
        with warnings.catch_warnings():
            # zarrs warns of each array that it leaves to zarr-python.
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            write(path, values)
            seconds = time.perf_counter() - start
        if compares:
            _refuse_other(path, values)
        return seconds
    finally:
        shutil.rmtree(root)


def _refuse_other(path: Path, values: Values) -> None:
    import zarr

    with zarr.config.set({"codec_pipeline.path": f"{_PIPELINE}BatchedCodecPipeline"}):
        found = zarr.open_array(str(path), mode="r")[...]
    if not np.array_equal(np.asarray(found), values):
        message = f"{path.name}: zarr-python reads other elements than were written"
        raise RuntimeError(message)


def ratio(row: Row, group: Sequence[str]) -> float | None:
    """Time of the best peer of a group over that of its first; None without a peer."""
    ours, *peers = [row["wall_ms"].get(name) for name in group]
    found = [wall for wall in peers if wall is not None]
    return min(found) / ours if found else None


def render(result: dict[str, Any]) -> str:
    """Means of the ratios to the best peer of each group, as text."""
    lines: list[str] = []
    for name, group in (("not synced", UNSYNCED), ("synced", SYNCED)):
        ratios = [r for row in result["rows"] if (r := ratio(row, group)) is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"{name}: geometric mean of {len(ratios)} rows: {mean:.2f}")
    return "\n".join(lines) or "no other library is installed"


def _head() -> str:
    names = "".join(f"{name:>16}" for name in _MAKERS)
    return f"{'ms':18}{names}{'best / ours: synced, not':>28}"


def _line(row: Row) -> str:
    size, walls = f"{row['inner_nbytes'] // 1024}K", row["wall_ms"]
    times = "".join(
        f"{walls[name]:16.1f}" if name in walls else f"{'':16}" for name in _MAKERS
    )
    found = [ratio(row, group) for group in (SYNCED, UNSYNCED)]
    told = "".join(f"{'' if r is None else f'{r:.2f}':>14}" for r in found)
    return f"{size:>6} {row['codec']:11}{times}{told}"
