"""Fields of a loader: what a sample takes of each array, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.concatenation import ConcatArray
from gpushard.errors import OptionError, naming
from gpushard.fetching.job import Job
from gpushard.fused.chain import casts_into
from gpushard.layout import GridAxis
from gpushard.loader.conversion import ElementConversion, converted
from gpushard.loader.memory import Memory
from gpushard.loader.windows import Cut, rows_of_all
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.patches import PlannableSelection
from gpushard.selecting.selection import Ints

LoaderArray = Array | ConcatArray

# Windows of rows shorter than this are patches: columns over such rows would take many
# times their bytes.
_LONG_NBYTES = 512


class SampleRows(Protocol):
    """Samples one after the other: a host array, or rows on a device."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> SampleRows: ...


Box = Sequence[tuple[int, int]]
"""First and last element, the latter plus one, along each axis of an array."""

Finish = Callable[[], Any]
"""Called when the jobs are done; returns `SampleRows`, with one sample per row."""


def _summing_tally() -> Tally:
    return Tally(is_wanted=False, is_summed=True)


@dataclass(frozen=True)
class Field:
    """One array of a loader, and how samples are read from it.

    Attributes
    ----------
    name
        Key of the array, or its number in a tuple.
    array
        The array to read.
    cut
        What a sample takes of the array.
    conversion
        How the elements change.
    tally
        Counts of the reads of this array.
    """

    name: str
    array: LoaderArray
    cut: Cut
    conversion: ElementConversion
    tally: Tally = field(default_factory=_summing_tally)

    @property
    def sample_nbytes(self) -> int:
        """Size of a sample before the conversion, in bytes."""
        size = int(np.prod(self.cut.sample_shape, dtype=np.int64))
        return size * self.array.dtype.itemsize

    @property
    def is_row_wise(self) -> bool:
        """Whether a sample is one row, which is in one inner chunk along axis 0."""
        return self.cut.drop

    @property
    def load_nbytes(self) -> int:
        """Memory for a sample during the read, without the converted copy."""
        return self.sample_nbytes

    @cached_property
    def on_read(self) -> ElementConversion:
        """What a read on the host does of the conversion: all or nothing of it."""
        whole = self.conversion
        if whole.factors is not None or not all(
            casts_into(member.source, whole.dtype) for member in self.members
        ):
            return ElementConversion(whole.stored, whole.stored)
        return whole

    @property
    def after_read(self) -> ElementConversion:
        """What is left of the conversion after a read on the host."""
        whole = self.conversion
        if self.on_read is whole:
            return ElementConversion(whole.dtype, whole.dtype)
        return whole

    @property
    def lands_in_place(self) -> bool:
        """Whether samples on the host are long rows that need only their own memory."""
        rows = self.cut.takes_rows and self._has_long_rows
        return rows and self.after_read.is_none and not self.on_read.widens

    @property
    def lists_rows(self) -> bool:
        """Whether samples are read as rows, not as patches (windows of short rows)."""
        is_row = self.cut.window[0] == 1
        return self.cut.takes_rows and (self._has_long_rows or is_row)

    @property
    def lists_rows_on_device(self) -> bool:
        """As `lists_rows`, for a device, which would decode each patch separately."""
        is_short = self.row_nbytes * self.cut.window[0] < _LONG_NBYTES
        return self.lists_rows or (self.cut.takes_rows and is_short)

    @property
    def _has_long_rows(self) -> bool:
        """Whether columns over rows take little beside the rows themselves."""
        return self.row_nbytes >= _LONG_NBYTES

    @property
    def row_nbytes(self) -> int:
        """Size of a row of the array as stored, in bytes."""
        return prod(self.array.shape[1:]) * self.array.dtype.itemsize

    @property
    def n_listed(self) -> int:
        """Entries of a sample in columns: 1 for a short row or a patch, else 0."""
        return int(not (self.lists_rows and self._has_long_rows))

    def nbytes_of(self, origins: Ints) -> int:
        """Memory for the samples at `origins` during the read, in bytes."""
        return len(origins) * self.load_nbytes

    @property
    def touched_part(self) -> float:
        """Expected share of all inner chunks that one sample at random touches."""
        cut, axes = self.cut, self.members[0].source.layout.inner_axes
        part = 1.0
        # A sample takes the other axes whole.
        for length, extent, axis in zip(cut.window, cut.shape, axes, strict=False):
            mean_cell = axis.extent / max(axis.n_cells, 1)
            reach = length - 1 + mean_cell
            part *= min(reach / max(extent, 1), 1.0)
        return part

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks of the array, stored or not."""
        return sum(prod(m.source.layout.inner_grid) for m in self.members)

    def axis(self, unit: str, d: int = 0) -> GridAxis:
        """Axis `d` of the array, cut at the borders of its shards or inner chunks.

        Parameters
        ----------
        unit
            "shard" or "chunk".
        """
        return stored_axis(self.array, unit, d)

    def touches(self, origins: Ints, box: Box) -> NDArray[np.bool_]:
        """Which samples have any elements of a box: bool, shape (n_samples,)."""
        found = np.ones(len(origins), np.bool_)
        # Samples take the other axes whole.
        for d, length in enumerate(self.cut.window):
            first, stop = box[d]
            begin = origins[:, d] + (self.cut.lead if d == 0 else 0)
            found &= (begin < stop) & (begin + length > first)
        return found

    def facts(self) -> list[Any]:
        """Properties that decide where samples lie, as JSON."""
        cut = self.cut
        facts: list[Any] = [list(cut.shape), str(self.array.dtype), *self.origins]
        if cut.drop:
            return [*facts, cut.lead] if cut.lead else facts
        return [*facts, list(cut.window), cut.lead]

    @property
    def origins(self) -> list[dict[str, Any]]:
        """Origins of arrays that have rolled, as JSON; empty if none has."""
        found = [list(member.source.layout.keys.offset) for member in self.members]
        return [{"origins": found}] if any(map(any, found)) else []

    @property
    def members(self) -> tuple[Array, ...]:
        """The stored arrays that make up this array."""
        if isinstance(self.array, ConcatArray):
            return self.array.arrays
        return (self.array,)

    @property
    def keeps_chunks(self) -> bool:
        """Whether a load may leave inner chunks in memory that the next one needs."""
        caches = (member.source.chunks for member in self.members)
        # A sparing cache rarely serves a load, which is not to wait for it.
        return any(cache is not None and not cache.is_sparing for cache in caches)

    @property
    def is_far(self) -> bool:
        """Whether reads of the array wait for a network."""
        return all(m.source.store.costs.prefers_whole_objects for m in self.members)

    def naming_errors(self) -> naming:
        """Add the array to errors of a block, the first one of several."""
        first = self.members[0]
        return naming(first.source.store, first.path)

    @property
    def fill_value(self) -> Any:
        """What the elements of samples beyond the array are."""
        return self.members[0].fill_value

    def read(self, origins: Ints, memory: Memory) -> tuple[list[Job], Finish]:
        """Jobs that read the samples at `origins`, and a function for their result."""
        self.tally.add(loaded_samples=len(origins))
        if self.lists_rows:
            return self._read_rows(origins, memory)
        return self._read_patches(origins, memory)

    def _read_rows(self, origins: Ints, memory: Memory) -> tuple[list[Job], Finish]:
        """Jobs that copy each row from its inner chunk to its places in the result.

        Rows are read in the order of storage.
        """
        wanted = self.cut.rows(origins)
        flat = wanted.ravel()
        n_rows = self.cut.shape[0]
        rows, outside = flat, None
        if flat.min(initial=0) < 0 or flat.max(initial=0) >= n_rows:
            outside = (flat < 0) | (flat >= n_rows)
            inside = flat[~outside]
            if not len(inside):
                return self._read_patches(origins, memory)
            # Rows outside stand for others that are read anyway: one that no sample
            # wants may be damaged.
            rows = flat.clip(inside.min(), inside.max())
        values = memory.take((len(rows), *self.cut.shape[1:]), self.on_read.dtype)
        jobs = self._jobs([rows_of_all(rows, self.cut.shape)], [values])
        return jobs, partial(self._finish, values, outside, memory)

    def _finish(
        self, values: NDArray[Any], outside: Any, memory: Memory
    ) -> NDArray[Any]:
        out = self._converted(values, memory)
        if outside is not None:
            out[outside] = self.conversion.of_one(self.fill_value)
        n = len(out) // self.cut.window[0]
        return out.reshape(n, *self.cut.sample_shape)

    def _read_patches(self, origins: Ints, memory: Memory) -> tuple[list[Job], Finish]:
        shape = (len(origins), *self.cut.sample_shape)
        values = memory.take(shape, self.on_read.dtype)
        patches, is_whole = self.cut.patches(origins)
        if not is_whole:
            values[...] = self.on_read.of_one(self.fill_value)
        jobs = self._jobs([patches], [values.reshape(patches.shape)])
        return jobs, partial(self._converted, values, memory)

    def _converted(self, values: NDArray[Any], memory: Memory) -> NDArray[Any]:
        """Samples as they are handed out; see `converted`."""
        n_threads = self.members[0].source.options.threads
        return converted(values, self.after_read, memory, n_threads)

    def _jobs(
        self, selections: Sequence[PlannableSelection], outs: Sequence[NDArray[Any]]
    ) -> list[Job]:
        if isinstance(self.array, ConcatArray):
            jobs = list(self.array.jobs(selections, outs, self.tally))
        else:
            jobs = [host_job(self.array.source, selections, outs, self.tally)]
        self.count(jobs)
        return jobs

    def count(self, jobs: Sequence[Job]) -> None:
        """Note how many inner chunks the jobs read."""
        self.tally.add(loaded_chunks=sum(job.plan.n_chunks for job in jobs))


def concatenated(parts: Sequence[Any]) -> SampleRows:
    """Samples of all parts, one after the other, in new memory."""
    if isinstance(parts[0], np.ndarray):
        # Without dtype=, NumPy turns them to the byte order of the machine.
        return np.concatenate(parts, dtype=parts[0].dtype)
    return parts[0].joined(parts)


def usable_source(array: Any, name: str, num_threads: int | None) -> LoaderArray:
    """Array of a loader on the host, with a limited number of threads.

    Raises
    ------
    OptionError
        The object is no array of gpushard, or it has no axis to take samples from.
    """
    if not isinstance(array, LoaderArray):
        kind = type(array)  # zarr has an Array, too
        module = kind.__module__.partition(".")[0].removeprefix("builtins")
        raise OptionError(
            f"the loader's {name} must be an array of gpushard",
            got=f"{module}.{kind.__name__}".removeprefix("."),
            hint=(
                "pass return_index=True and index it with the sample numbers"
                if isinstance(array, np.ndarray)
                else "open it with gpushard.open_array"
            ),
        )
    if not array.ndim:
        raise OptionError(f"the loader's {name} has no axes, so it has no samples")
    if isinstance(array, ConcatArray):
        members = tuple(_on_host(a, num_threads) for a in array.arrays)
        return ConcatArray(members, array.axis)
    return _on_host(array, num_threads)


def _on_host(array: Array, num_threads: int | None) -> Array:
    if num_threads is None:
        return Array(array.source)
    options = array.source.options.but(threads=num_threads)
    return Array(replace(array.source, options=options))


def stored_axis(array: LoaderArray, unit: str, d: int = 0) -> GridAxis:
    """Axis `d` of an array, cut at the borders of its shards or inner chunks.

    Parameters
    ----------
    unit
        "shard" or "chunk".
    """
    if not isinstance(array, ConcatArray):
        return _axis(array, unit, d)
    axes = [_axis(member, unit, d) for member in array.arrays]
    if array.axis != d:
        return axes[0]
    bounds, before = [np.zeros(1, np.int64)], 0
    for axis in axes:
        ends = axis.start_of(np.arange(1, axis.n_cells)) + before
        before += axis.extent
        bounds.append(np.append(ends, before) if axis.extent else ends)
    return GridAxis(before, 0, np.concatenate(bounds).astype(np.int64))


def _axis(array: Array, unit: str, d: int) -> GridAxis:
    layout = array.source.layout
    return (layout.axes if unit == "shard" else layout.inner_axes)[d]
