"""Several arrays, read as one along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard import expressions
from gpushard.arguments import integer, items
from gpushard.array import Array
from gpushard.damage import ENDS_READ, Damage, DamagePolicy, OnDamage
from gpushard.errors import GpushardError, SelectionError, UnsupportedError
from gpushard.formats.document import MAX_LENGTH
from gpushard.indexer import Indexer
from gpushard.job import Job
from gpushard.numpy_like import NumpyLike
from gpushard.outputs import many, parsed_dtype, usable_output
from gpushard.read import execute
from gpushard.report import ReadReport, Tally
from gpushard.results import host_job
from gpushard.scatter import check_cast
from gpushard.selection import (
    AxisSelection,
    IndexAxis,
    Orthogonal,
    Points,
    Selection,
    SliceAxis,
)


def concat(arrays: Iterable[Array], axis: int = 0) -> ConcatArray:
    """Array that reads `arrays` one after the other along `axis`, without copying them.

    Parameters
    ----------
    arrays
        At least one; shapes agree in all other axes. They may lie in different stores
        and differ in codecs and chunking.
    axis
        Axis along which they follow one another; negative counts from the end.

    Raises
    ------
    SelectionError
        There are no arrays, or shapes or data types do not fit, or the arrays are
        longer together than any array may be (2**62).
    UnsupportedError
        An array is on a device.
    """
    arrays = _checked(arrays)
    axis = integer(axis, "axis")
    first = arrays[0]
    if not -first.ndim <= axis < first.ndim:
        raise SelectionError(
            f"axis {axis} is out of bounds for arrays of {first.ndim} dimensions"
        )
    axis %= first.ndim
    for array in arrays:
        if array.device != "cpu":
            raise UnsupportedError(
                "concat reads on the host only",
                store_url=array.source.store.url,
                array_path=array.path,
                got=array.device,
                hint="open the arrays with device='cpu'",
            )
    for array in arrays[1:]:
        if _without(array.shape, axis) != _without(first.shape, axis):
            raise SelectionError(
                f"arrays to concatenate differ off axis {axis}",
                store_url=array.source.store.url,
                array_path=array.path,
                expected=first.shape,
                got=array.shape,
            )
        if array.dtype != first.dtype:
            raise SelectionError(
                "arrays to concatenate differ in data type",
                store_url=array.source.store.url,
                array_path=array.path,
                expected=first.dtype,
                got=array.dtype,
            )
    _refuse_long(arrays, axis)
    return ConcatArray(tuple(arrays), axis)


def _checked(arrays: Iterable[Any]) -> list[Array]:
    """At least one array, each of them opened by `open_array`."""
    if isinstance(arrays, Array | ConcatArray):
        raise SelectionError(
            "concat takes a list of arrays", hint="write concat([first, second])"
        )
    checked: list[Array] = []
    for array in items(arrays, "arrays", "a list of arrays"):
        if isinstance(array, ConcatArray):
            raise UnsupportedError(
                "concat joins arrays, not what it has joined",
                hint="give it all arrays at once: concat([*joined.arrays, ...])",
            )
        if not isinstance(array, Array):
            raise SelectionError(
                "concat joins arrays that gpushard opened",
                got=type(array).__name__,
                hint="open each with gpushard.open_array",
            )
        checked.append(array)
    if not checked:
        raise SelectionError("concat needs at least one array")
    return checked


def _refuse_long(arrays: Sequence[Array], axis: int) -> None:
    n = sum(array.shape[axis] for array in arrays)
    if n > MAX_LENGTH:
        raise SelectionError(
            f"the arrays are too long together along axis {axis}",
            expected=f"at most {MAX_LENGTH} elements",
            got=n,
        )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _address(array: Array) -> str:
    return f"{array.source.store.url}/{array.path}".rstrip("/")


class ConcatArray(NumpyLike):
    """Arrays that follow one another along an axis; a read of them is one batch.

    Parameters
    ----------
    arrays, axis
        See `concat`.
    """

    def __init__(self, arrays: tuple[Array, ...], axis: int) -> None:
        self.arrays = arrays
        self.axis = axis
        lengths = [array.shape[axis] for array in arrays]
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        shape = list(self.arrays[0].shape)
        shape[self.axis] = int(self._starts[-1])
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        return self.arrays[0].dtype

    @property
    def device(self) -> str:
        """Where results lie: always the host."""
        return "cpu"

    @property
    def block_shape(self) -> tuple[int, ...] | None:
        """Shape of a shard of all arrays; None if they differ or do not line up."""
        shapes = {array.block_shape for array in self.arrays}
        (shape, *more) = shapes
        if more or shape is None:
            return None
        lined_up = not np.any(self._starts[:-1] % shape[self.axis])
        return shape if lined_up else None

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules; see `expressions.basic`."""
        return self._indexer(expressions.basic)[key]

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: ``a.oindex[[0, 5], :, mask]``."""
        return self._indexer(expressions.orthogonal)

    @property
    def vindex(self) -> Indexer:
        """Indexing by coordinates or a mask: ``a.vindex[[0, 5], [1, 2]]``."""
        return self._indexer(expressions.points)

    def __dask_tokenize__(self) -> Any:
        """Those of the arrays, in order."""
        tokens = tuple(array.__dask_tokenize__() for array in self.arrays)
        return "gpushard.concat", self.axis, tokens

    def __repr__(self) -> str:
        how = f"of {len(self.arrays)} along axis {self.axis}"
        return f"<gpushard.ConcatArray {how} shape={self.shape} dtype={self.dtype}>"

    def read(
        self,
        selection: Any = ...,
        *,
        out: Any = None,
        dtype: DTypeLike | None = None,
        errors: OnDamage = "raise",
        memory_limit: int | None = None,
    ) -> NDArray[Any]:
        """Elements that `selection` selects, in your array or a new one.

        Parameters, result and errors are those of `Array.read`; the error of a damaged
        inner chunk tells which array it is of, by store and path.
        """
        (result,) = self._read_over([selection], [out], dtype, errors, memory_limit)
        return result

    def read_many(
        self,
        selections: Sequence[Any],
        *,
        out: Sequence[Any] | None = None,
        dtype: DTypeLike | None = None,
        errors: OnDamage = "raise",
        memory_limit: int | None = None,
    ) -> list[Any]:
        """One result a selection, all read in one batch.

        Parameters, result and errors are those of `Array.read_many`.
        """
        return self._read_over(selections, out, dtype, errors, memory_limit)

    def _read_over(
        self,
        selections: Sequence[Any],
        out: Sequence[Any] | None,
        dtype: DTypeLike | None,
        errors: OnDamage,
        memory_limit: int | None,
    ) -> list[Any]:
        """Results, over damage as the caller asked for."""
        with self._named():
            policy = DamagePolicy(errors)
            keys, outs = many(selections, out)
            chosen = [self._selection(key, expressions.basic) for key in keys]
            wanted = self.dtype if dtype is None else parsed_dtype(dtype)
            arrays = [
                usable_output(o, selection.shape, wanted)
                for o, selection in zip(outs, chosen, strict=True)
            ]
            for array in arrays:
                check_cast(self.dtype, array.dtype)
            tally = Tally()
            execute([*self.jobs(chosen, arrays, memory_limit, tally, policy.damage)])
        policy.warn(stacklevel=3)
        return [a if o is None else o for a, o in zip(arrays, outs, strict=True)]

    def explain(self, selection: Any = ...) -> ReadReport:
        """What reading `selection` takes; the read is done and its result dropped.

        Counts are those of all arrays together.
        """
        with self._named():
            chosen = self._selection(selection, expressions.basic)
            tally = Tally()
            with tally.stage("total"):
                out = np.empty(chosen.shape, self.dtype)
                with tally.stage("plan"):
                    jobs = list(self.jobs([chosen], [out], None, tally))
                execute(jobs)
        placed = (job.source.pipeline.placements() for job in jobs)
        return tally.report(
            array=self._label,
            device="cpu",
            out_nbytes=out.nbytes,
            codecs=tuple(dict.fromkeys(chain.from_iterable(placed))),
        )

    @property
    def _label(self) -> str:
        first, last = _address(self.arrays[0]), _address(self.arrays[-1])
        return f"concat of {len(self.arrays)}, from {first} to {last}"

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors of the block that are about no single array name all of them."""
        try:
            yield
        except GpushardError as error:
            if error.array_path is None:
                error.add_context(array_path=self._label)
            raise

    def _indexer(self, parse: Callable[[Any, tuple[int, ...]], Selection]) -> Indexer:
        def parsed(key: Any) -> Selection:
            with self._named():
                return self._selection(key, parse)

        return Indexer(self.read, parsed)

    def _selection(
        self, key: Any, parse: Callable[[Any, tuple[int, ...]], Selection]
    ) -> Selection:
        return key if isinstance(key, Orthogonal | Points) else parse(key, self.shape)

    def jobs(
        self,
        selections: Sequence[Selection],
        outs: Sequence[NDArray[Any]],
        memory_limit: int | None,
        tally: Tally,
        damage: Damage = ENDS_READ,
    ) -> Iterator[Job]:
        """One job an array that serves a part of any selection."""
        for array, mine, which in self.shares(selections):
            into = [outs[i] for i in which]
            source = array.source.limited(memory_limit)
            costs = damage.of_array(source.store.url)
            yield host_job(source, mine, into, tally, costs)

    def shares(
        self, selections: Sequence[Selection]
    ) -> Iterator[tuple[Array, list[Selection], list[int]]]:
        """Arrays that serve a part of any selection: the parts, and of which."""
        for k, array in enumerate(self.arrays):
            start, stop = int(self._starts[k]), int(self._starts[k + 1])
            parts = [self._share(selection, start, stop) for selection in selections]
            mine = {i: part for i, part in enumerate(parts) if part is not None}
            if mine:
                yield array, list(mine.values()), list(mine)

    def _share(self, selection: Selection, start: int, stop: int) -> Selection | None:
        """The part of a selection that elements ``start:stop`` of the axis serve."""
        if isinstance(selection, Points):
            along = selection.coordinates[self.axis]
            mine = np.flatnonzero((along >= start) & (along < stop))
            coordinates = tuple(
                c[mine] - start if d == self.axis else c[mine]
                for d, c in enumerate(selection.coordinates)
            )
            out_index = selection.out_index[mine]
            return (
                Points(coordinates, out_index, selection.shape) if len(mine) else None
            )
        axis = _clipped(selection.axes[self.axis], start, stop)
        if axis is None:
            return None
        axes = (*selection.axes[: self.axis], axis, *selection.axes[self.axis + 1 :])
        return selection._replace(axes=axes)


def _clipped(axis: AxisSelection, start: int, stop: int) -> AxisSelection | None:
    """What of one axis of a selection lies in elements ``start:stop``, from `start`."""
    if isinstance(axis, IndexAxis):
        mine = np.flatnonzero((axis.element >= start) & (axis.element < stop))
        if not len(mine):
            return None
        return IndexAxis(axis.element[mine] - start, axis.out_index[mine])
    first = max(-((axis.start - start) // axis.step), 0)
    last = min(-((axis.start - stop) // axis.step), axis.length)
    if last <= first:
        return None
    return SliceAxis(
        axis.start + first * axis.step - start,
        axis.step,
        last - first,
        axis.out_start + first * axis.out_step,
        axis.out_step,
        axis.drop,
    )
