"""Several arrays, read as one along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard import expressions
from gpushard.array import Array
from gpushard.errors import SelectionError, UnsupportedError
from gpushard.indexer import Indexer
from gpushard.job import Job
from gpushard.outputs import usable_output
from gpushard.read import execute
from gpushard.report import Tally
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


def concat(arrays: Sequence[Array], axis: int = 0) -> ConcatArray:
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
        There are no arrays, or shapes or data types do not fit.
    UnsupportedError
        An array is on a device.
    """
    if not arrays:
        raise SelectionError("concat needs at least one array")
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
                array_path=array.path,
                got=array.device,
                hint="open the arrays with device='cpu'",
            )
    for array in arrays[1:]:
        if _without(array.shape, axis) != _without(first.shape, axis):
            raise SelectionError(
                f"arrays to concatenate differ off axis {axis}",
                array_path=array.path,
                expected=first.shape,
                got=array.shape,
            )
        if array.dtype != first.dtype:
            raise SelectionError(
                "arrays to concatenate differ in data type",
                array_path=array.path,
                expected=first.dtype,
                got=array.dtype,
            )
    return ConcatArray(tuple(arrays), axis)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


class ConcatArray:
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
    def ndim(self) -> int:
        """Number of axes."""
        return self.arrays[0].ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        return self.arrays[0].dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(array.size for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules; see `expressions.basic`."""
        return Indexer(self.read, self._selection)[key]

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: ``a.oindex[[0, 5], :, mask]``."""
        return Indexer(self.read, lambda key: expressions.orthogonal(key, self.shape))

    @property
    def vindex(self) -> Indexer:
        """Indexing by coordinates or a mask: ``a.vindex[[0, 5], [1, 2]]``."""
        return Indexer(self.read, lambda key: expressions.points(key, self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        how = f"of {len(self.arrays)} along axis {self.axis}"
        return f"<gpushard.ConcatArray {how} shape={self.shape} dtype={self.dtype}>"

    def read(
        self,
        selection: Any = ...,
        *,
        out: Any = None,
        dtype: DTypeLike | None = None,
        memory_limit: int | None = None,
    ) -> NDArray[Any]:
        """Elements that `selection` selects, in your array or a new one.

        Parameters, result and errors are those of `Array.read`.
        """
        chosen = self._selection(selection)
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        array = usable_output(out, chosen.shape, wanted)
        check_cast(self.dtype, array.dtype)
        execute(list(self._jobs(chosen, array, memory_limit)))
        return array if out is None else out

    def _selection(self, selection: Any) -> Selection:
        if isinstance(selection, Orthogonal | Points):
            return selection
        return expressions.basic(selection, self.shape)

    def _jobs(
        self, selection: Selection, out: NDArray[Any], memory_limit: int | None
    ) -> Iterator[Job]:
        for k, array in enumerate(self.arrays):
            start, stop = int(self._starts[k]), int(self._starts[k + 1])
            share = self._share(selection, start, stop)
            if share is not None:
                source = array.source.limited(memory_limit)
                yield host_job(source, [share], [out], Tally())

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
