"""Several arrays, read as one along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushard.arguments import integer, items
from gpushard.array import Array
from gpushard.damage import ENDS_READ, Damage, DamagePolicy
from gpushard.errors import (
    GpushardError,
    SelectionError,
    UnsupportedError,
    naming,
)
from gpushard.fetching.job import Job
from gpushard.layout import MAX_LENGTH
from gpushard.numpy_like import Manner, NumpyLike
from gpushard.placing.outputs import parsed_dtype, usable_output
from gpushard.placing.scatter import check_cast
from gpushard.reading.converted import read_converted
from gpushard.reading.joined import ArrayRead, read_joined
from gpushard.reading.results import host_job, stream_refused
from gpushard.report import ReadReport, Tally
from gpushard.selecting import expressions
from gpushard.selecting.clipping import shares_of
from gpushard.selecting.indexer import Parse, as_numpy_would
from gpushard.selecting.patches import PlannableSelection, parts_of
from gpushard.selecting.selection import Ints, ParsedSelection
from gpushard.source import Source

_Chosen = TypeVar("_Chosen")


def concat(arrays: Iterable[Array], axis: int = 0) -> ConcatArray:
    """Join `arrays` along `axis` into one array that reads them, without copying.

    Parameters
    ----------
    arrays
        At least one. They need the same data type and the same shape along all other
        axes, and may differ in stores, codecs, shards and inner chunks.
    axis
        Axis along which the arrays are joined; a negative one counts from the end.

    Raises
    ------
    SelectionError
        There are no arrays, their shapes or data types do not match, or they have more
        than 2**62 elements along `axis` together.
    UnsupportedError
        An array is on a device.
    """
    arrays = _checked(arrays)
    axis = integer(axis, "axis")
    first = arrays[0]
    if not -first.ndim <= axis < first.ndim:
        raise SelectionError(
            f"axis {axis} is out of bounds for arrays of {first.ndim} dimensions",
            hint="axes count from 0, or from -1 for the last one",
        )
    axis %= first.ndim
    for array in arrays:
        with naming(array.source.store, array.path):
            _refuse_unlike(array, first, axis)
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
                "concat does not join arrays that were concatenated before",
                hint="give it all arrays at once: concat([*joined.arrays, ...])",
            )
        if not isinstance(array, Array):
            raise SelectionError(
                "concat joins arrays that gpushard opened",
                got=type(array).__name__,
                hint="open each with gpushard.open_array; a rolling one has view()",
            )
        checked.append(array)
    if not checked:
        raise SelectionError("concat needs at least one array")
    return checked


def _refuse_unlike(array: Array, first: Array, axis: int) -> None:
    """Refuse an array that cannot follow `first` along `axis`."""
    if array.device != "cpu":
        raise UnsupportedError(
            "concat reads on the host only",
            got=array.device,
            hint="open the arrays with device='cpu'",
        )
    if _without(array.shape, axis) != _without(first.shape, axis):
        raise SelectionError(
            f"arrays to concatenate differ off axis {axis}",
            expected=first.shape,
            got=array.shape,
        )
    if array.dtype != first.dtype:
        raise SelectionError(
            "arrays to concatenate differ in data type",
            expected=first.dtype,
            got=array.dtype,
        )


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
    """Arrays joined along an axis; a read of them is one batch, and gives NumPy arrays.

    The error of a damaged inner chunk names its array by store and path.

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
        """Shape of a shard, if all arrays have the same and line up; otherwise None."""
        shapes = {array.block_shape for array in self.arrays}
        (shape, *more) = shapes
        if more or shape is None:
            return None
        lined_up = not np.any(self._starts[:-1] % shape[self.axis])
        return shape if lined_up else None

    def __getitem__(self, key: Any) -> Any:
        """Elements that `key` selects, by NumPy's rules for basic indexing."""
        return self._read_by(expressions.basic, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Refuse to write (`UnsupportedError`): each array is written to by itself."""
        self._write_by(expressions.basic, key, value)

    def __dask_tokenize__(self) -> Any:
        """The tokens of the arrays, in order."""
        tokens = tuple(array.__dask_tokenize__() for array in self.arrays)
        return "gpushard.concat", self.axis, tokens

    def __repr__(self) -> str:
        how = f"of {len(self.arrays)} along axis {self.axis}"
        return f"<gpushard.ConcatArray {how} shape={self.shape} dtype={self.dtype}>"

    def _read_over(
        self, keys: Sequence[Any], outs: Sequence[Any], manner: Manner
    ) -> list[Any]:
        with self._named():
            policy = DamagePolicy(manner.errors)
            if manner.stream is not None:
                raise stream_refused()
            chosen = [self._selection(key) for key in keys]
            wanted = self.dtype if manner.dtype is None else parsed_dtype(manner.dtype)
            arrays = [
                usable_output(o, selection.shape, wanted)
                for o, selection in zip(outs, chosen, strict=True)
            ]
            for array in arrays:
                check_cast(self.dtype, array.dtype)
            first = self.arrays[0].source.limited(manner.memory_limit)

        def read(damage: Damage) -> None:
            def read_into(source: Source, into: Sequence[NDArray[Any]]) -> None:
                taken = 0 if source is first else sum(out.nbytes for out in into)
                shares = self._into(chosen, into, manner.memory_limit, taken)
                read_joined(shares, Tally(is_wanted=False), damage)

            with self._named():
                if not read_converted(first, arrays, read_into):
                    read_into(first, arrays)

        policy.over(read)
        return [a if o is None else o for a, o in zip(arrays, outs, strict=True)]

    def explain(self, selection: Any = ...) -> ReadReport:
        """Report on reading `selection`: does the read, and drops its result.

        Counts are sums over all arrays.
        """
        with self._named():
            chosen = self._selection(selection)
            tally = Tally()
            with tally.stage("total"):
                out = np.empty(chosen.shape, self.dtype)
                reads = self._into([chosen], [out], None)
                sources = read_joined(reads, tally, ENDS_READ)
        placed = (source.pipeline.placements() for source in sources)
        return tally.report(
            array=self._label,
            device="cpu",
            out_nbytes=out.nbytes,
            codecs=tuple(dict.fromkeys(chain.from_iterable(placed))),
        )

    def _into(
        self,
        chosen: Sequence[ParsedSelection],
        outs: Sequence[NDArray[Any]],
        memory_limit: int | None,
        taken_nbytes: int = 0,
    ) -> Iterator[ArrayRead]:
        """What a read of `chosen` into `outs` takes of each array.

        `taken_nbytes` is memory that is in use beside the read.
        """
        for array, mine, which in self._divided(chosen, shares_of):
            source = array.source.limited(memory_limit)
            source = source.beside(taken_nbytes) if taken_nbytes else source
            yield ArrayRead(source, mine, [outs[i] for i in which])

    @property
    def _label(self) -> str:
        first, last = _address(self.arrays[0]), _address(self.arrays[-1])
        return f"concat of {len(self.arrays)}, from {first} to {last}"

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add all arrays to errors of the block that name no single array."""
        try:
            yield
        except GpushardError as error:
            error.add_context(array_path=self._label)
            raise

    def _read_by(self, parse: Parse, key: Any) -> Any:
        with self._named():
            selection = self._selection(key, parse)
        return as_numpy_would(self.read(selection), selection)

    def _write_by(self, parse: Parse, key: Any, value: Any) -> None:
        del parse, key, value
        raise UnsupportedError(
            "concatenated arrays can only be read",
            array_path=self._label,
            hint="write to each of them",
        )

    def _selection(self, key: Any, parse: Parse = expressions.basic) -> ParsedSelection:
        return key if isinstance(key, ParsedSelection) else parse(key, self.shape)

    def jobs(
        self,
        selections: Sequence[PlannableSelection],
        outs: Sequence[NDArray[Any]],
        tally: Tally,
    ) -> Iterator[Job]:
        """One job for each array with a part of any selection."""
        for array, mine, which in self.shares(selections):
            into = [outs[i] for i in which]
            yield host_job(array.source, mine, into, tally)

    def shares(
        self, selections: Sequence[PlannableSelection]
    ) -> Iterator[tuple[Array, list[PlannableSelection], list[int]]]:
        """Arrays with a part of any selection: the parts, and their selections."""
        return self._divided(selections, parts_of)

    def _divided(
        self,
        selections: Sequence[_Chosen],
        divide: Callable[[_Chosen, int, Ints], Iterator[tuple[int, _Chosen]]],
    ) -> Iterator[tuple[Array, list[_Chosen], list[int]]]:
        """As `shares`, of what `divide` gives the arrays of a selection."""

        def parts(i: int) -> Iterator[tuple[int, int, _Chosen]]:
            for number, part in divide(selections[i], self.axis, self._starts):
                yield number, i, part

        by_array = merge(*map(parts, range(len(selections))), key=itemgetter(0))
        for number, its in groupby(by_array, itemgetter(0)):
            _, which, mine = zip(*its, strict=True)
            yield self.arrays[number], [*mine], [*which]
