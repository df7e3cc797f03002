"""Histories of a group: random steps on several arrays, alone and joined.

Arrays are read through handles that were opened at any time, through the group, joined,
and by a loader, while others are written, deleted, and made anew with another data
type, shape and layout. NumPy arrays say what each read must give.
"""

from __future__ import annotations

import pickle
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

import gpushard
from fuzz.group_nodes import OF_ZARR, Node, made
from fuzz.histories import pool
from fuzz.history_arrays import Arena, Files, Output, random_options
from fuzz.history_circumstances import SMALL_BOUNDS, has_clock
from fuzz.history_keys import random_key, read_by
from fuzz.history_runs import Done, counted, run_history
from fuzz.refusals import assert_is_told
from gpushard import GpushardError
from gpushard.errors import ObjectChangedError
from gpushard.fused import kept_files
from gpushard.memory import chunk_share, chunk_slots
from gpushard.rolling import RollingArray
from gpushard.stores.local import handles
from zarr_oracle import quiet_zarr

N_STEPS = 25
_PATHS = ("a", "b", "c", "g/a", "g/b")


class GroupHistory:
    """Arrays of a group, some of them open, and what is known of them.

    `opened` has handles, each with the node that it was opened for.
    """

    def __init__(self, seed: int, place: Path) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.done: list[tuple[int, str]] = []
        self.nodes: dict[str, Node] = {}
        self.opened: list[tuple[Node, Any]] = []
        self.stale: list[Any] = []
        self.width = self.rng.choice((1, 3, 8, 20))
        self.arena = Arena(1 << 16)
        self.is_in_files = self.rng.random() < 0.8
        self.files = Files(place)
        self.place: Any = place if self.is_in_files else MemoryStore()
        self.zarr_format = self.rng.choice((2, 3, 3, 3))
        with quiet_zarr():
            zarr.create_group(self.place, zarr_format=self.zarr_format)
        options = random_options(self.rng)
        self.group = gpushard.open_group(self.place, device="cpu", options=options)
        for path in self.rng.sample(_PATHS, 3):
            self._create(path)

    def run(self, steps: Sequence[int]) -> None:
        """Do the steps of these numbers."""
        for n in steps:
            self.rng = random.Random(f"{self.seed} {n}")
            step = self.rng.choices([*STEPS], [*STEPS.values()])[0]
            self.done.append((n, step.__name__))
            step(self)

    # ---- reads

    def read(self) -> None:
        """Read arrays and joins of arrays, in one thread or several."""
        reads = [self._a_read() for _ in range(self.rng.choice((1, 3, 10)))]
        for under_way in [pool.submit(read) for read in reads]:
            under_way.result()

    def read_while_written(self) -> None:
        """Read while one array is written to: each of its elements is old or new."""
        if not self.is_in_files:  # zarr's stores tell no versions
            return
        _, node = self._some()
        others = node.values.copy()
        key = node.region(self.rng)
        others[key] = node.others(self.rng, others[key].shape)
        reads = [self._a_read({id(node): others}) for _ in range(8)]
        array = self._writable(node)
        under_way = [pool.submit(read) for read in reads]
        array[key] = others[key]
        errors = [one.exception() for one in under_way]
        node.values = others
        self._settle()
        for error in filter(None, errors):
            # A shard of nothing but the fill value is deleted.
            if not isinstance(error, ObjectChangedError):
                raise error

    def read_stale(self) -> None:
        """Read what was opened before its array was deleted, or made anew."""
        for array in self.stale:
            out = Output(self.arena, self.rng, array.shape, array.dtype)
            try:
                array.read(out=out.view)
            except GpushardError as error:
                assert_is_told(error)
            out.check_rest()

    def load(self) -> None:
        """Load two arrays of one length."""
        _, node = self._some()
        same = [n for n in self.nodes.values() if len(n.values) == len(node.values)]
        some = [node, self.rng.choice(same)]
        loader = gpushard.Loader(
            [self._handle(one) for one in some],
            batch_size=self.rng.choice((1, 5, 64)),
            shuffle=self.rng.random() < 0.5,
            seed=self.rng.randrange(99),
            return_index=True,
            device="cpu",
        )
        before, n = [one.values.copy() for one in some], 0
        is_written = self.is_in_files and self.rng.random() < 0.5
        for batch, index in loader:
            for got, old, one in zip(batch, before, some, strict=True):
                is_right = (got == old[index]) | (got == one.values[index])
                assert is_right.all(), f"{index[~is_right.all(axis=1)]}"
            if n == 0 and is_written:
                self._write(self._writable(node), node)
            n += len(index)
        assert n == len(node.values)

    def _a_read(self, others: dict[int, NDArray[Any]] | None = None) -> Any:
        """What reads, and looks at what it gave; all is drawn before it begins."""
        rng, others = self.rng, others or {}
        array, nodes, axis = self._array_or_join()
        want = np.concatenate([node.values for node in nodes], axis)
        also = [others.get(id(node), node.values) for node in nodes]
        second = np.concatenate(also, axis)
        one = random_key(rng, array, getattr(array, "block_shape", ()))
        how: dict[str, Any] = {}
        outs: list[Output] = []
        if rng.random() < 0.6:
            outs = [Output(self.arena, rng, np.shape(one.take(want)), want.dtype)]
            how["out"] = [outs[0].view]
            if rng.random() < 0.3:
                how["memory_limit"] = rng.choice((1, 3000, 1 << 20))

        def read() -> None:
            (got,) = read_by(array, [one], how)
            for out in outs:
                out.check_rest()
            is_right = np.asarray(got == one.take(want)) | (got == one.take(second))
            assert got.dtype == want.dtype
            assert is_right.all(), f"{one.key}: {np.argwhere(~is_right)[:5].tolist()}"

        return read

    def _array_or_join(self) -> tuple[Any, list[Node], int]:
        rng = self.rng
        _, node = self._some()
        n, axis = rng.choice((1, 1, 2, 3)), rng.choice((0, 1))
        like = [one for one in self.nodes.values() if one.joins(node, axis)]
        nodes = [node, *rng.choices(like, k=n - 1)]
        arrays = [self._handle(one) for one in nodes]
        if n == 1:
            return arrays[0], nodes, 0
        arrays = [one.view() if hasattr(one, "view") else one for one in arrays]
        return gpushard.concat(arrays, axis), nodes, axis

    def _handle(self, node: Node) -> Any:
        """An open array of a node: one opened before, or anew in one of many ways."""
        known = [array for one, array in self.opened if one is node]
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        array = self._open(self._path_of(node))
        self.opened.append((node, array))
        return array

    def _writable(self, node: Node) -> Any:
        if node.layout != "rolling":
            return self._handle(node)
        return RollingArray.open(self.place, self._path_of(node), device="cpu")

    def _path_of(self, node: Node) -> str:
        return self.rng.choice([p for p, one in self.nodes.items() if one is node])

    def _open(self, path: str) -> Any:
        rng = self.rng
        how = rng.choice(("group", "group below", "path", "path", "pickled"))
        if how == "group":
            return self.group[path]
        if how == "group below" and "/" in path:
            return self.group.group("g")[path.removeprefix("g/")]
        options = random_options(rng)
        if self.nodes[path].layout == "rolling" and rng.random() < 0.7:
            array = RollingArray.open(self.place, path, device="cpu", options=options)
            return array.view() if rng.random() < 0.3 else array
        array = gpushard.open_array(self.place, path, device="cpu", options=options)
        if how == "pickled" and self.is_in_files:
            return pickle.loads(pickle.dumps(array))
        return array

    # ---- changes

    def write(self) -> None:
        """Write by any handle of an array, or by zarr-python."""
        path, node = self._some()
        with quiet_zarr():
            if node.layout in OF_ZARR and self.rng.random() < 0.4:
                array = zarr.open_array(self.place, path=path, mode="r+")
            else:
                array = self._writable(node)
            self._write(array, node)

    def _write(self, array: Any, node: Node) -> None:
        key = node.region(self.rng)
        array[key] = values = node.others(self.rng, node.values[key].shape)
        node.values[key] = values
        self._settle()

    def make_anew(self) -> None:
        """Make another array, where one was or none."""
        path = self.rng.choice(_PATHS)
        if path in self.nodes:
            self._forget(path)
            if self.rng.random() < 0.5:
                self._delete(path)
        self._create(path)

    def delete(self) -> None:
        """Delete an array, which is found no more."""
        path, node = self._some()
        if all(one is node for one in self.nodes.values()):
            return
        self._forget(path)
        self._delete(path)
        for opens in (self.group.__getitem__, partial(gpushard.open_array, self.place)):
            with suppress(gpushard.NotFoundError):
                raise AssertionError(f"{opens(path)} was found")

    def list_names(self) -> None:
        """List what there is, and compare attributes."""
        group = gpushard.open_group(self.place, device="cpu")
        top = {path for path in self.nodes if "/" not in path}
        assert set(group) == top
        for path, node in self.nodes.items():
            assert path in group
            assert path in self.group
            assert group[path].attrs["mine"] == node.attrs["mine"]
        for path in set(_PATHS) - self.nodes.keys():
            assert path not in group
            assert path not in self.group

    def describe(self) -> None:
        """Change attributes by zarr."""
        path, node = self._some()
        if node.layout not in OF_ZARR:
            return
        node.attrs = {"mine": self.rng.randrange(1000)}
        with quiet_zarr():
            array = zarr.open_array(self.place, path=path, mode="r+")
            array.update_attributes(node.attrs)

    def convert(self) -> None:
        """Convert all arrays, or one of them to a place beside it."""
        _, node = self._some()
        with tempfile.TemporaryDirectory() as there:
            if self.rng.random() < 0.5:
                gpushard.convert(self.place, there)
                made = gpushard.open_group(there, device="cpu")
                for one, it in self.nodes.items():
                    assert np.array_equal(made[one][...], it.values), one
                return
            source = gpushard.open_array(self.place, self._path_of(node))
            gpushard.convert(source, there, verify=self.rng.random() < 0.5)
            got = gpushard.open_array(there, device="cpu")[...]
            assert np.array_equal(got, node.values)

    def link(self) -> None:
        """Let a symbolic link lead to an array."""
        path, node = self._some()
        free = sorted({"a", "b", "c"} - self.nodes.keys())
        if not self.is_in_files or not free or (self.place / path).is_symlink():
            return
        link = self.rng.choice(free)
        (self.place / link).symlink_to(self.place / path)
        self.nodes[link] = node

    def roll(self) -> None:
        """Append to a rolling array, and drop as much; views are dropped."""
        path, node = self._some()
        if node.layout != "rolling":
            return
        shape = (node.attrs["step"], *node.values.shape[1:])
        values = node.others(self.rng, shape)
        RollingArray.open(self.place, path, device="cpu").roll(values)
        self._forget(path)
        node.values = np.concatenate([node.values, values])[len(values) :]
        self._settle()

    def _create(self, path: str) -> None:
        shape = (self.rng.choice((1, 4, 12, 12, 12, 30)), self.width)
        with quiet_zarr():
            node = made(self.rng, (self.place, path), self.zarr_format, shape)
        self.nodes[path] = node
        self._settle()
        for _ in range(self.rng.choice((0, 1, 2))):
            self._write(self._writable(node), node)

    def _delete(self, path: str) -> None:
        if self.nodes.pop(path, None) is None:  # it was a link
            return
        if self.is_in_files:
            shutil.rmtree(self.place / path)
        else:
            held = self.place._store_dict
            for key in [key for key in held if key.startswith(f"{path}/")]:
                del held[key]

    def _forget(self, path: str) -> None:
        """Drop the handles of what is at a path, and the links that lead there."""
        node = self.nodes[path]
        self.stale = [array for one, array in self.opened if one is node]
        self.opened = [both for both in self.opened if both[0] is not node]
        for other in [p for p, one in self.nodes.items() if one is node]:
            if self.is_in_files and (self.place / other).is_symlink():
                (self.place / other).unlink()
                del self.nodes[other]

    def _some(self) -> tuple[str, Node]:
        return self.rng.choice(sorted(self.nodes.items()))

    def _settle(self) -> None:
        if self.is_in_files and not has_clock(self.seed):
            self.files.date()


STEPS: dict[Callable[[GroupHistory], None], float] = {
    GroupHistory.read: 12,
    GroupHistory.read_while_written: 2,
    GroupHistory.load: 2,
    GroupHistory.write: 4,
    GroupHistory.make_anew: 2,
    GroupHistory.delete: 1,
    GroupHistory.list_names: 1,
    GroupHistory.describe: 1,
    GroupHistory.convert: 0.7,
    GroupHistory.roll: 3,
    GroupHistory.read_stale: 2,
    GroupHistory.link: 1,
}


def circumstances(seed: int) -> Iterator[AbstractContextManager[Any]]:
    """What is other than usual in this history."""
    rng = random.Random(f"group circumstances {seed}")
    if not has_clock(seed):
        for asks in (handles, kept_files):
            yield mock.patch.object(asks, "is_settled", return_value=True)
    if rng.random() < 0.6:
        yield from (mock.patch.object(*bound) for bound in SMALL_BOUNDS)
        if rng.random() < 0.7:
            yield mock.patch.object(chunk_slots, "_SHARED_SEGMENT_NBYTES", 1024)
            limit = rng.choice((1024, 4096, 16384))
            yield mock.patch.object(chunk_share.SHARE, "_limit_nbytes", limit)


def tried(seed: int, steps: Sequence[int] = range(N_STEPS)) -> Done:
    """Steps that one history did; with fewer `steps`, a finding may be reduced."""

    def made(place: Path, _: ExitStack) -> GroupHistory:
        return GroupHistory(seed, place)

    return run_history(f"group history {seed}", steps, circumstances(seed), made)


def explored(n: int, seed: int) -> Counter[str]:
    """How often `n` histories, of that seed and those behind it, did each step."""
    return counted(tried, n, seed)
