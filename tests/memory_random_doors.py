"""Doors of `memory_random`: random reads of an array of any shape."""

from __future__ import annotations

import ctypes
import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr

import gpushard
from gpushard import Options
from gpushard.inspection.verify import verify_array
from gpushard.options import MIB
from memory_probe import status_nbytes
from memory_uses import Nothing, Results, linked, somewhere

# Results are the caller's, so they may be large; but they take time.
_MOST_OUT_NBYTES = 256 * MIB


@dataclass
class Drawn:
    """What a door is given."""

    given: Any
    place: Path
    options: Options
    rng: np.random.Generator
    before: int = 0  # what the process holds without what is measured
    owed: int = 0  # output of a read, which may be there although the read fails

    def begin(self) -> None:
        """Measure from here on: what was made until now is the caller's."""
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self.before = status_nbytes("VmRSS")

    def opened(self, **changes: Any) -> gpushard.Array:
        options = self.options.but(**changes)
        return gpushard.open_array(self.given, device="cpu", options=options)


def grown_by(use: Callable[[Drawn], Any], drawn: Drawn) -> tuple[str, int]:
    """What became of a use, and by how much the process grew beside its output."""
    gc.collect()
    drawn.begin()
    came, made_nbytes = "read", 0
    try:
        made_nbytes = use(drawn).nbytes
    except Exception as error:  # noqa: BLE001 - of zarr too, and told
        came, made_nbytes = type(error).__name__, drawn.owed
    return came, status_nbytes("VmHWM") - drawn.before - made_nbytes


def nbytes_of(result: Any) -> int:
    """Bytes of a result; of strings, with their text beyond the array."""
    nbytes = result.nbytes
    if result.dtype.kind == "T":
        # NumPy keeps text in memory that it makes a quarter larger each time.
        nbytes += (
            sum(len(s.encode()) + 8 for s in result.ravel() if len(s) > 7) * 5 // 4
        )
    return nbytes


def n_of(key: Sequence[Any], shape: tuple[int, ...]) -> int:
    """Number of elements that slices, lists and masks select."""
    return prod(map(_n_along, key, shape))


def _n_along(key: Any, n: int) -> int:
    if isinstance(key, slice):
        return len(range(*key.indices(n)))
    return int(np.count_nonzero(key)) if key.dtype.kind == "b" else len(key)


def taken(d: Drawn, a: Any, key: Any) -> Results:
    """The result of a read."""
    d.owed = n_of(key, a.shape) * a.dtype.itemsize
    return Results(nbytes_of(np.asarray(a[key])))


def box(
    rng: Any, shape: tuple[int, ...], item: int, *, part: float = 1.0
) -> tuple[slice, ...]:
    key: list[slice] = []
    for n in shape:
        want = max(1, int(n * part * rng.uniform(0.3, 1)))
        first = int(rng.integers(0, n - want + 1))
        key.append(slice(first, first + want))
    item = 400 if item == 16 else item  # of strings, or of little else
    while prod(s.stop - s.start for s in key) * item > _MOST_OUT_NBYTES:
        axis = int(np.argmax([s.stop - s.start for s in key]))
        s = key[axis]
        key[axis] = slice(s.start, s.start + max(1, (s.stop - s.start) // 2))
    return tuple(key)


def whole(d: Drawn) -> Any:
    a = d.opened()
    return taken(d, a, box(d.rng, a.shape, a.dtype.itemsize, part=1))


def into(d: Drawn) -> Any:
    a = d.opened()
    key = box(d.rng, a.shape, a.dtype.itemsize)
    shape = tuple(s.stop - s.start for s in key)
    out = np.full(shape, a.dtype.type() if a.dtype.kind != "V" else 0, a.dtype)
    d.begin()
    return Results(nbytes_of(a.read(key, out=out)) - out.nbytes)


def strided(d: Drawn) -> Any:
    a = d.opened()
    steps = [int(d.rng.choice([1, 2, 7, 100])) for _ in a.shape]
    key = tuple(
        slice(int(d.rng.integers(min(s, n))), None, s)
        for n, s in zip(a.shape, steps, strict=True)
    )
    count = prod(len(range(*s.indices(n))) for s, n in zip(key, a.shape, strict=True))
    if count * a.dtype.itemsize > _MOST_OUT_NBYTES:
        key = tuple(slice(s.start, None, s.step * 7) for s in key)
    return taken(d, a, key)


def thin(d: Drawn) -> Any:
    """A line or plane through everything."""
    a = d.opened()
    key = tuple(
        slice(i := int(d.rng.integers(n)), i + 1)
        if d.rng.random() < 0.6
        else slice(None, None, max(1, n // 3000))
        for n in a.shape
    )
    return taken(d, a, key)


def filled(d: Drawn) -> Any:
    a = d.opened()
    key = box(d.rng, a.shape, a.dtype.itemsize)
    d.owed = n_of(key, a.shape) * a.dtype.itemsize
    return Results(nbytes_of(a.read(key, errors="fill")))


def many(d: Drawn) -> Any:
    a = d.opened()
    n = int(d.rng.choice([3, 50, 400]))
    keys = [
        box(d.rng, a.shape, a.dtype.itemsize * n, part=d.rng.uniform(0, 0.5))
        for _ in range(n)
    ]
    return Results(*(nbytes_of(r) for r in a.read_many(keys)))


def outer(d: Drawn) -> Any:
    a = d.opened()
    key: list[Any] = []
    for n in a.shape:
        kind = d.rng.integers(4)
        if kind == 0:
            key.append(np.sort(d.rng.integers(0, n, min(n, 500))))
        elif kind == 1:
            key.append(d.rng.permutation(n)[: max(1, n // 3)].copy())
        elif kind == 2:
            key.append(d.rng.random(n) < 0.2)
        else:
            key.append(slice(None, None, max(1, n // 400)))
    while n_of(key, a.shape) * a.dtype.itemsize > _MOST_OUT_NBYTES:
        axis = int(
            np.argmax([n_of([k], (n,)) for k, n in zip(key, a.shape, strict=True)])
        )
        n, wanted = a.shape[axis], n_of([key[axis]], (a.shape[axis],)) // 2
        key[axis] = np.arange(0, n, max(1, n // wanted))[:wanted]
    return key, a


def oindex(d: Drawn) -> Any:
    key, a = outer(d)
    d.begin()
    d.owed = n_of(key, a.shape) * a.dtype.itemsize
    return Results(nbytes_of(a.oindex[tuple(key)]))


def points(d: Drawn, a: Any) -> Any:
    n = int(d.rng.choice([200, 20_000, 2_000_000]))
    n = min(n, 64 * MIB // a.dtype.itemsize)
    key = [d.rng.integers(0, k, n) for k in a.shape]
    if d.rng.random() < 0.5:
        key[0].sort()
    return tuple(key)


def vindex(d: Drawn) -> Any:
    a = d.opened()
    key = points(d, a)
    d.begin()
    d.owed = len(key[0]) * a.dtype.itemsize
    return Results(nbytes_of(a.vindex[key]))


def masked(d: Drawn) -> Any:
    a = d.opened()
    n = prod(a.shape)
    if n > 128 * MIB:
        return Nothing
    mask = np.zeros(a.shape, bool)
    mask.ravel()[:: int(d.rng.choice([3, 100, 10_000]))] = True
    if int(mask.sum()) * a.dtype.itemsize > _MOST_OUT_NBYTES:
        mask.ravel()[: n - n // 50] = False
    d.begin()
    d.owed = int(mask.sum()) * a.dtype.itemsize
    return Results(nbytes_of(a.vindex[mask]))


def repeated(d: Drawn) -> Any:
    """200 small reads in a row: none keeps anything."""
    a = d.opened()
    most = 0
    for _ in range(200):
        key = box(d.rng, a.shape, a.dtype.itemsize * 1000, part=0.02)
        most = max(most, nbytes_of(a[key]))
    return Results(2 * most)


def verified(d: Drawn) -> Any:
    verify_array(d.opened().source, decodes=True)
    return Nothing


def pipeline(d: Drawn) -> Any:
    settings = {
        "gpushard.memory_limit": d.options.memory_limit,
        "gpushard.threads": d.options.threads,
        "codec_pipeline.path": "gpushard.GpushardCodecPipeline",
        "array.rectilinear_chunks": True,
    }
    with zarr.config.set(settings):
        a = zarr.open_array(d.given, mode="r")
        item = max(16, a.dtype.itemsize if a.dtype.kind != "T" else 16)
        return taken(d, a, box(d.rng, a.shape, item, part=0.7))


def converted(d: Drawn) -> Any:
    with somewhere(d.place) as directory:
        gpushard.convert(d.given, directory / "to", options=d.options)
    return Nothing


def side_by_side(d: Drawn) -> Any:
    """Eight reads at once: each may hold the limit, so the sum counts by eighths."""
    a = d.opened()
    keys = [box(d.rng, a.shape, a.dtype.itemsize * 8, part=0.5) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(a.__getitem__, keys))
    made = sum(nbytes_of(r) for r in results)
    promised = max(d.options.memory_limit, 64 * MIB)
    return Results(made, 7 * promised)


def lone_threads(d: Drawn) -> Any:
    """The same one after the other, each in a thread of its own."""
    a = d.opened()
    most = 0
    for _ in range(12):
        key = box(d.rng, a.shape, a.dtype.itemsize * 8, part=0.5)
        with ThreadPoolExecutor(1) as pool:
            most = max(most, nbytes_of(pool.submit(a.__getitem__, key).result()))
    lent = 2 * most if most >= 16 * MIB else 0  # kept for later results
    return Results(most + lent)


def epochs(d: Drawn) -> Any:
    """Batches of four epochs; later ones take no more than the first."""
    a = d.opened()
    more: dict[str, Any] = {"shuffle": True} if d.rng.random() < 0.75 else {}
    row_nbytes = max(1, prod(a.shape[1:]) * a.dtype.itemsize)
    rows = max(1, min(64, 4 * MIB // row_nbytes))
    threads = d.options.threads
    loader = gpushard.Loader(a, batch_size=rows, seed=3, num_threads=threads, **more)
    first_nbytes = 0
    with closing(loader):
        for epoch in range(4):
            for _ in islice(loader, 400):
                pass
            if not epoch:
                first_nbytes = status_nbytes("VmHWM") - d.before
    return Results(first_nbytes)


@contextmanager
def variable(d: Drawn, **opening: Any) -> Iterator[tuple[Any, gpushard.Array]]:
    """The array as a variable of a dataset, and as it is."""
    with somewhere(d.place) as group:
        (group / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
        a = d.opened()
        names = [f"x{i}" for i in range(len(a.shape))]
        with (
            linked(d.place, group / "u", dimension_names=names),
            xarray.open_dataset(
                group, engine="gpushard", options=d.options, **opening
            ) as found,
        ):
            yield found["u"], a


def in_blocks(d: Drawn) -> Any:
    with variable(d, chunks={}) as (u, a):
        key = box(d.rng, a.shape, a.dtype.itemsize, part=0.7)
        got = u[key].compute(scheduler="synchronous").values
        return Results(2 * nbytes_of(got))  # dask joins blocks


def lazily(d: Drawn) -> Any:
    with variable(d) as (u, a):
        key = box(d.rng, a.shape, a.dtype.itemsize)
        return Results(nbytes_of(u[key].values))


def copied(d: Drawn, directory: Path) -> gpushard.Array:
    shutil.copytree(d.place, directory, dirs_exist_ok=True)
    return gpushard.open_array(directory, device="cpu", options=d.options)


def written(d: Drawn) -> Any:
    with somewhere(d.place) as directory:
        a = copied(d, directory)
        key = box(d.rng, a.shape, a.dtype.itemsize, part=1)
        d.owed = n_of(key, a.shape) * a.dtype.itemsize
        values = a[key]
        d.begin()
        d.owed = 0
        a[key] = values
        return Nothing


def written_one(d: Drawn) -> Any:
    with somewhere(d.place) as directory:
        a = copied(d, directory)
        key = tuple(slice(n // 3, n // 3 + max(1, n // 4)) for n in a.shape)
        value = a[tuple(0 for _ in a.shape)]
        d.begin()
        a[key] = value
        return Nothing


DOORS: dict[str, Callable[[Drawn], Any]] = {
    "whole": whole,
    "into": into,
    "strided": strided,
    "thin": thin,
    "filled": filled,
    "many": many,
    "oindex": oindex,
    "vindex": vindex,
    "masked": masked,
    "repeated": repeated,
    "verify": verified,
    "pipeline": pipeline,
    "convert": converted,
    "side by side": side_by_side,
    "lone threads": lone_threads,
    "epochs": epochs,
    "dask": in_blocks,
    "xarray": lazily,
    "written": written,
    "written one": written_one,
}
