"""All arrays of a run, stored ahead by several processes; and compiled loops.

    python -m benchmarks.gpu.prepare --dir DIRECTORY --sizes short

Tasks store what they read if it is not there. But they do so one array at a time, with
little more than a core, while a GPU waits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import data
from benchmarks.gpu.arrays import Layout, becoming, store, values_of
from benchmarks.gpu.replay import SCATTERS, batch_layout, scatter_layout
from benchmarks.gpu.sizes import CODECS, SIZES, Sizes
from gpushard.machine import usable_cpu_count

if TYPE_CHECKING:
    from benchmarks.gpu.run import Run


def arrays(run: Run) -> None:
    """Seconds that it takes to store them all."""
    started = perf_counter()
    n_arrays = prepare(run.sizes, run.root)
    run.put("ceilings/arrays", n_arrays=n_arrays, seconds=perf_counter() - started)


def prepare(sizes: Sizes, root: Path) -> int:
    """Store all arrays that tasks read and that are not there; how many there are."""
    wanted = list(dict.fromkeys(layouts(sizes)))
    few = dict.fromkeys(layout.few() for layout in wanted)
    missing = [layout for layout in few if not (root / layout.slug).exists()]
    # Those that take longest first: of small inner chunks.
    missing.sort(key=lambda layout: layout.inner_shape[0] * layout.inner_shape[1])
    for layout in few:
        values_of(layout, root)
    spawn = get_context("spawn")  # threads of this process would not survive a fork
    with (
        ExitStack() as kept,
        ProcessPoolExecutor(usable_cpu_count(), mp_context=spawn) as pool,
    ):
        loops = pool.submit(_compile_loops)
        parts = [kept.enter_context(becoming(root / la.slug)) for la in missing]
        begun = [data.begin(la, part) for la, part in zip(missing, parts, strict=True)]
        shards = [
            pool.submit(_fill, layout, path, root, shard)
            for layout, path in zip(missing, begun, strict=True)
            for shard in range(layout.n_shards)
        ]
        for task in (loops, *shards):
            task.result()
    for layout in wanted:
        store(layout, root)
    return len(wanted)


def _fill(layout: Layout, path: Path, root: Path, shard: int) -> None:
    """Write one shard, in a process of its own."""
    import zarr

    high = layout.shard_shape[0]
    rows = values_of(layout, root)[shard * high : (shard + 1) * high]
    with zarr.config.set({"threading.max_workers": 1}):
        data.fill(path, np.ascontiguousarray(rows), shard * high)


def _compile_loops() -> None:
    """Compile the loops of the host for later processes, as an earlier run has."""
    with suppress(ImportError):  # without the extra `fast` there are none
        from gpushard.fused.code.loading import load

        load()


def layouts(sizes: Sizes) -> Iterator[Layout]:
    """Arrays that the probes, ceilings, kernels, whole reads and peers read."""
    usual = sizes.usual
    yield Layout.of(sizes, "none", usual, sizes.distinct_nbytes)
    for inner in sizes.inner_nbytes[:2]:
        yield Layout.of(sizes, "zstd", inner, sizes.sweep_nbytes, sizes.width)
    for name in SCATTERS:
        yield scatter_layout(sizes, name)
    for codec in CODECS:
        for nbytes in (sizes.sweep_nbytes, *sizes.whole_nbytes):
            yield Layout.of(sizes, codec, usual, nbytes)
        for inner in sizes.inner_nbytes:
            yield batch_layout(sizes, codec, inner)
            for nbytes in (sizes.peer_nbytes, sizes.peer_nbytes_of(inner)):
                yield Layout.of(sizes, codec, inner, nbytes)
    for nbytes in sizes.whole_nbytes:
        yield Layout.of(sizes, "none", usual, nbytes, sizes.width)


def main(arguments: list[str] | None = None) -> None:
    """Store them, and say how long it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.prepare")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--sizes", choices=SIZES, default="full")
    given = parser.parse_args(arguments)
    started = perf_counter()
    n_arrays = prepare(SIZES[given.sizes], given.dir)
    sys.stdout.write(f"{n_arrays} arrays in {perf_counter() - started:.1f} s\n")


if __name__ == "__main__":
    main()
