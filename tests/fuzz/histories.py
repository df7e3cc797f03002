"""Histories: random steps on one open array, after each of which it is as NumPy says.

In a step, up to four threads read, by any door and into outputs of any strides; or
gpushard or zarr-python writes; or an object is deleted, damaged, mended, or replaced by
what it was before, maybe while it is read. Outputs lie at random places beside what the
store answers with, have guards around them, and hold a byte that differs each time.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

import gpushard
from fuzz.history_arrays import (
    Arena,
    Files,
    Output,
    named,
    objects_of,
    random_document,
    random_options,
    random_write_options,
    target_of,
)
from fuzz.history_circumstances import circumstances, has_clock
from fuzz.history_historic import HistoricArray
from fuzz.history_keys import (
    Cell,
    Chosen,
    Doubt,
    grids_of,
    n_cells,
    random_key,
    read_by,
    region,
)
from fuzz.history_runs import Done, counted, run_history
from fuzz.refusals import assert_is_told
from gpushard import GpushardError, Options
from gpushard.errors import OptionError, UnsupportedError
from zarr_oracle import quiet_zarr

if TYPE_CHECKING:
    from contextlib import AbstractContextManager, ExitStack

N_STEPS = 30
_CASTS = {"b": "u1", "u": "i4", "i": "f8", "f": ">f8"}
pool = ThreadPoolExecutor(4)


class History:
    """An open array, and what is known of it.

    Parameters
    ----------
    seed
        Chooses the array, and each step, whatever the other steps are.
    place
        A directory for files.

    Attributes
    ----------
    done
        The steps so far: number and name of each.
    """

    may_be_historic = True

    def __init__(self, seed: int, place: Path) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.done: list[tuple[int, str]] = []
        self.hurt: dict[str, bytes] = {}
        self.saved: list[tuple[str, bytes | None, NDArray[Any]]] = []
        self.arena = Arena(self.rng.choice((1 << 14, 1 << 16, 1 << 20)))
        self.is_historic = self.may_be_historic and seed % 7 == 6
        make = self._make_historic if self.is_historic else self._make
        self.cell, chunks = make(place)
        dtype = self.zarr.dtype.newbyteorder("=")
        chunk_nbytes = math.prod(map(np.max, chunks)) * dtype.itemsize
        self.target = target_of(self.objects, self.arena, self.rng, chunk_nbytes)
        self.array = self.opened(self.target, random_options(self.rng))
        self.fill = np.array(self.zarr.fill_value, dtype)
        self.want = np.full(self.zarr.shape, self.fill)
        for at in np.ndindex(*n_cells(self.want.shape, chunks)):
            if self.rng.random() < 0.7:
                inside = self.want[region(at, chunks)]
                inside[...] = self._values(inside.shape)
        with quiet_zarr():
            self.zarr[...] = self.want

    def _make(self, place: Path) -> tuple[Cell, Cell]:
        document, self.sees_flips = self.document()
        where = place if self.rng.random() < 0.5 else None
        self.objects = objects_of(named(document), where)
        with quiet_zarr():
            self.zarr: Any = zarr.open_array(self.objects.place, mode="r+")
        return grids_of(document, self.zarr)

    def _make_historic(self, place: Path) -> tuple[Cell, Cell]:
        self.zarr, self.sees_flips = HistoricArray(self.rng), False
        where = place if self.rng.random() < 0.5 else None
        self.objects = objects_of(self.zarr.documents, where)
        self.zarr.reach(self.objects)
        return self.zarr.shards, self.zarr.chunks

    def run(self, steps: Sequence[int]) -> None:
        """Do the steps of these numbers."""
        weights = self.steps()
        for n in steps:
            self.rng = random.Random(f"{self.seed} {n}")
            step = self.rng.choices([*weights], [*weights.values()])[0]
            self.done.append((n, step))
            getattr(self, step)()

    # ---- what is other on a device (`device_histories`)

    @staticmethod
    def circumstances(seed: int) -> Iterator[AbstractContextManager[Any]]:
        """What else is other than usual."""
        del seed
        yield from ()

    def steps(self) -> dict[str, float]:
        """Names of the steps, and how often each is done."""
        return STEPS

    def document(self) -> tuple[dict[str, Any], bool]:
        """See `random_document`."""
        return random_document(self.rng)

    def opened(self, target: Any, options: Options) -> gpushard.Array:
        """The array, read from a store."""
        return gpushard.open_array(target, device="cpu", options=options)

    def output(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory to read into."""
        return Output(self.arena, self.rng, shape, dtype)

    def on_host(self, result: Any) -> Any:
        """Elements of a result."""
        return result

    def given(self, values: NDArray[Any]) -> Any:
        """Values as they are written."""
        return values

    def may_refuse(self, error: GpushardError, outs: Sequence[Any]) -> bool:
        """Whether a read of intact elements may end so."""
        del error, outs
        return False

    def close(self) -> None:
        """Undo what was patched."""

    # ---- reads

    def read(self) -> None:
        """Read in one thread or several."""
        mask = np.zeros(self.want.shape, np.bool_)
        for key in self.hurt:
            mask[self._region_of(key)] = True
        doubt = Doubt(mask, np.full_like(self.want, self.fill))
        n = self.rng.choice((1, 2, 4, 12))
        self._read_beside([self._a_read(doubt) for _ in range(n)])

    def replace_while_read(self) -> None:
        """Put an object back while others read: each element is of before or after."""
        tells = isinstance(self.objects, Files) or getattr(
            self.target, "tells_version", 0
        )
        if not self.saved or not tells:
            return
        self.mend()
        key, data, values = self.rng.choice(self.saved)
        doubt = Doubt(np.zeros(self.want.shape, np.bool_), self.want.copy())
        doubt.mask[self._region_of(key)] = True
        doubt.others[self._region_of(key)] = values
        reads = [self._a_read(doubt) for _ in range(12)]
        self._read_beside(reads, lambda: self.objects.put(key, data))
        self.want = doubt.others

    def _read_beside(
        self, reads: list[Callable[[], None]], change: Callable[[], None] | None = None
    ) -> None:
        under_way = [pool.submit(read) for read in reads]
        if change is not None:
            change()
        errors = [one.exception() for one in under_way]
        for error in filter(None, errors):
            raise error

    def _a_read(self, doubt: Doubt) -> Callable[[], None]:
        """What reads, and looks at what it gave; all is drawn before it begins."""
        rng, how = self.rng, dict[str, Any]()
        form = rng.choice(("door", "read", "out", "out", "many", "many into"))
        some = [
            self._a_key() for _ in range(rng.choice((1, 2, 4)) if "many" in form else 1)
        ]
        if "many" in form and rng.random() < 0.5:
            some += some[:1]
        if form != "door":
            if rng.random() < 0.3:
                how["memory_limit"] = rng.choice((1, 3000, 20_000, 1 << 20))
            if rng.random() < 0.3:
                how["errors"] = rng.choice(("fill", list[Any]().append))
        is_cast = form != "door" and rng.random() < 0.2
        dtype = np.dtype(_CASTS[self.want.dtype.kind]) if is_cast else self.want.dtype
        if form in ("read", "many"):
            how["dtype"] = dtype
        outs = []
        if form in ("out", "many into"):
            shapes = [np.shape(one.take(self.want)) for one in some]
            outs = [self.output(shape, dtype) for shape in shapes]
            how["out"] = [out.view for out in outs]
        return partial(self._check_read, some, (dtype, outs), how, doubt)

    def _check_read(
        self, some: list[Chosen], into: tuple[Any, list[Output]], how: Any, doubt: Doubt
    ) -> None:
        dtype, outs = into
        in_doubt = [one.take(doubt.mask) for one in some]
        try:
            got = read_by(self.array, some, how)
        except GpushardError as error:
            if not (any(map(np.any, in_doubt)) or self.may_refuse(error, outs)):
                raise
            assert_is_told(error)
            got = []
        for out in outs:
            out.check_rest()
        for one, held, mask in zip(some, got, in_doubt, strict=False):
            result = self.on_host(held)
            want = np.asarray(one.take(self.want)).astype(dtype)
            assert (np.shape(result), result.dtype) == (want.shape, dtype)
            is_right = result == want
            if "errors" in how or not self.hurt:
                is_right |= mask & (result == one.take(doubt.others).astype(dtype))
            is_wrong = ~np.asarray(is_right)
            assert not is_wrong.any(), (
                f"{one.key}: {np.argwhere(is_wrong)[:5].tolist()}"
            )

    def _a_key(self, *, is_written: bool = False) -> Chosen:
        return random_key(self.rng, self.array, self.cell, is_written=is_written)

    # ---- changes

    def write(self) -> None:
        """Write by gpushard, by the array that is read or by another one."""
        self.mend()
        rng, one = self.rng, self._a_key(is_written=True)
        array, how = self.array, random_write_options(rng)
        if rng.random() < 0.5 or self.target is not self.objects.place:
            options = random_options(rng).but(write=how)
            array = self.opened(self.objects.place, options)
        # Of numbers of the elements, the key takes those that are written.
        numbers = one.take(np.arange(self.want.size).reshape(self.want.shape))
        values = self._values(np.shape(numbers))
        self.written = numbers, values
        try:
            door = getattr(array, one.door) if one.door else array
            door[one.key] = self.given(values)
        except (UnsupportedError, OptionError):
            if how.strategy == "rewrite":  # others do not suit every array
                raise
        else:
            self.want.reshape(-1)[numbers] = values
        self.settle()

    def write_by_zarr(self) -> None:
        """Write by zarr-python, or what stands for it; it finds what was written."""
        self.mend()
        with quiet_zarr():
            assert np.array_equal(self.zarr[...], self.want)
        bounds = [
            sorted(self.rng.randrange(n + 1) for _ in range(2)) for n in self.want.shape
        ]
        key = tuple(slice(*both) for both in bounds)
        self.want[key] = self._values(self.want[key].shape)
        with quiet_zarr():
            self.zarr[key] = self.want[key]
        self.settle()

    def save(self) -> None:
        """Note what an object is, to put it back later."""
        self.mend()
        for key in self._some_key():
            values = self.want[self._region_of(key)].copy()
            self.saved.append((key, self.objects.get(key), values))

    def put_back(self) -> None:
        """Replace an object by what it was before."""
        if self.saved:
            self._put(*self.rng.choice(self.saved))

    def delete(self) -> None:
        """Delete an object."""
        for key in self._some_key():
            self._put(key, None, self.fill)

    def _put(self, key: str, data: bytes | None, values: NDArray[Any]) -> None:
        self.hurt.pop(key, None)
        self.objects.put(key, data)
        self.want[self._region_of(key)] = values

    def damage(self) -> None:
        """Cut an object off, or flip a bit of it where that is seen."""
        rng = self.rng
        for key in self._some_key():
            data = bytearray(self.objects.get(key) or b"\0")
            self.hurt.setdefault(key, bytes(data))
            at = rng.randrange(len(data))
            if self.sees_flips and rng.random() < 0.5:
                data[at] ^= 1 << rng.randrange(8)
            else:
                # Nothing tells a part of a historic index from another one.
                at = 0 if self.is_historic else at
                del data[rng.choice((0, at, len(data) - 1)) :]
            self.objects.put(key, bytes(data), in_place=rng.random() < 0.5)
        self.settle()

    def mend(self) -> None:
        """Mend all that is damaged."""
        for key, data in self.hurt.items():
            self.objects.put(key, data, in_place=self.rng.random() < 0.5)
        self.hurt.clear()
        self.settle()

    def settle(self) -> None:
        """Date the changes, unless the file system's clock is to do so."""
        if not has_clock(self.seed):
            self.objects.date()

    def _some_key(self) -> list[str]:
        keys = self.objects.keys()
        return [self.rng.choice(keys)] if keys else []

    def _region_of(self, key: str) -> tuple[slice, ...]:
        return region([*map(int, re.findall("[0-9]+", key))], self.cell)

    def _values(self, shape: tuple[int, ...]) -> NDArray[Any]:
        rng = np.random.default_rng(self.rng.getrandbits(32))
        most = 2 if self.want.dtype.kind == "b" else 120
        noise = rng.integers(0, most, shape)
        alike = np.full(shape, self.fill), np.full(shape, rng.integers(most))
        return self.rng.choice((noise, noise, *alike)).astype(self.want.dtype)


STEPS: dict[str, float] = {
    "read": 16,
    "replace_while_read": 2,
    "write": 3,
    "write_by_zarr": 2,
    "save": 2,
    "put_back": 2,
    "delete": 1,
    "damage": 2,
    "mend": 1,
}


def tried(
    seed: int, steps: Sequence[int] = range(N_STEPS), kind: type[History] = History
) -> Done:
    """Steps that one history did; with fewer `steps`, a finding may be reduced."""

    def made(place: Path, stack: ExitStack) -> History:
        history = kind(seed, place)
        stack.callback(history.close)
        history.settle()
        return history

    contexts = chain(circumstances(seed), kind.circumstances(seed))
    return run_history(f"history {seed}", steps, contexts, made)


def explored(n: int, seed: int, kind: type[History] = History) -> Counter[str]:
    """How often `n` histories, of that seed and those behind it, did each step."""
    return counted(partial(tried, kind=kind), n, seed)
