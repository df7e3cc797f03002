"""Memory that a loader's samples are read into: of the host, or of a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gpushard.concatenation import ConcatArray
from gpushard.errors import DeviceError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.loader.fields import Field, Finish
from gpushard.loader.memory import Memory
from gpushard.loader.ragged import RaggedField, RaggedRows
from gpushard.loader.stopping import stoppable
from gpushard.machine import usable_memory_nbytes
from gpushard.options import GIB
from gpushard.selecting.patches import PlannableSelection
from gpushard.selecting.selection import (
    IndexAxis,
    Ints,
    Orthogonal,
    SliceAxis,
)
from gpushard.threads.stop_flag import StopFlag

if TYPE_CHECKING:
    from gpushard.devices.base import Device, Event, Stream
    from gpushard.devices.output import DeviceOutput
    from gpushard.devices.scattering.transfer import Affine
    from gpushard.loader.device_memory import DeviceRows


# On a device, loads are this much larger: there, 64 MiB are decoded in a millisecond
# (docs/decisions/2026-11-27-first-run-on-a-gpu.md).
_DEVICE_FACTOR = 4
# All loads together take at most one part in so many of the host's memory, or of what
# is free on a device when the loader is made.
_HOST_SHARE, _DEVICE_SHARE = 4, 2
_UNKNOWN_NBYTES = 8 * GIB


class Place(Protocol):
    """Memory that samples are read into."""

    @property
    def n_under_way(self) -> int:
        """Number of reads that may still be under way when the next one is begun."""
        ...

    @property
    def n_planned(self) -> int:
        """Number of reads that another thread plans ahead; 0 if only one thread may."""
        ...

    @property
    def most_load_nbytes(self) -> int:
        """Size of the largest load, of as many as may be in memory at a time."""
        ...

    def load_factor(self, *, lands_in_place: bool) -> int:
        """Size of a load, in multiples of the usual one.

        `lands_in_place` says whether all samples need only their own memory.
        """
        ...

    def check(self) -> None:
        """Raise in a process that cannot use this memory."""
        ...

    def read(self, field: Field, origins: Ints) -> tuple[list[Job], Finish]:
        """Jobs that read the samples at `origins`, and a function for their result."""
        ...

    def abandon(self, jobs: Sequence[Job]) -> None:
        """Wait until no work of jobs that were begun is under way."""
        ...

    def blame(self, error: DeviceError, jobs: Sequence[Job], stop: StopFlag) -> None:
        """Raise the damage in `jobs` that made the memory's device fail, if any."""
        ...


class HostPlace:
    """Memory of the host.

    Parameters
    ----------
    memory
        The host memory to use.
    n_loads
        Number of loads that may be in memory at a time.
    """

    n_under_way, n_planned = 0, 1

    def __init__(self, memory: Memory, n_loads: int) -> None:
        self._memory = memory
        share = (usable_memory_nbytes() or _UNKNOWN_NBYTES) // _HOST_SHARE
        self.most_load_nbytes = share // n_loads

    def load_factor(self, *, lands_in_place: bool) -> int:
        """See `Place`: others have columns, or exist twice while they are cast."""
        return 2 if lands_in_place else 1

    def check(self) -> None:
        """See `Place`: every process can use it."""

    def read(self, field: Field, origins: Ints) -> tuple[list[Job], Finish]:
        """See `Place`."""
        return field.read(origins, self._memory)

    def abandon(self, jobs: Sequence[Job]) -> None:
        """See `Place`: no work is under way after a read on the host."""

    def blame(self, error: DeviceError, jobs: Sequence[Job], stop: StopFlag) -> None:
        """See `Place`: there is no device."""


class DevicePlace:
    """Memory of a device.

    Kernels put the samples in order and convert them when they write them. Arrays that
    kernels cannot handle, and little ones, are read on the host and copied.

    Parameters
    ----------
    device
        The device.
    host
        Host memory to use.
    n_kept
        Number of free pieces of device memory to keep.
    n_loads
        Number of loads that may be in memory at a time.
    consumer
        Returns the stream that batches are used on.
    n_arrays
        Number of stored arrays that a load reads.
    """

    n_under_way, n_planned = 1, 0

    def __init__(
        self,
        device: Device,
        host: Memory,
        n_kept: int,
        consumer: Callable[[], Stream],
        *,
        n_loads: int,
        n_arrays: int,
    ) -> None:
        from gpushard.loader.device_memory import DeviceMemory

        self._memory = DeviceMemory(device, n_kept, consumer)
        self._device = device
        self._host = host
        self._pid = os.getpid()
        self.most_load_nbytes = device.free_nbytes() // _DEVICE_SHARE // n_loads
        self._n_sharing = n_arrays * (1 + self.n_under_way)

    def load_factor(self, *, lands_in_place: bool) -> int:
        """See `Place`: a read takes the host some 6 ms, whatever its size."""
        del lands_in_place
        return _DEVICE_FACTOR

    def check(self) -> None:
        """Raise in a forked process.

        Raises
        ------
        UnsupportedError
            The loader was made in another process.
        """
        if os.getpid() != self._pid:
            raise UnsupportedError(
                "a loader of batches on a device does not work in a forked process",
                got=self._device.label,
                hint="pass num_workers=0: the loader reads ahead in threads; or read"
                " on the host in the workers, with device='cpu'",
            )

    def read(self, field: Field, origins: Ints) -> tuple[list[Job], Finish]:
        """See `Place`."""
        if not _kernels_place(field):
            return self._read_by_host(field, origins)
        shape = (len(origins), *field.cut.sample_shape)
        whole_rows = _rows(field, origins) if field.lists_rows_on_device else None
        to_read = whole_rows or _patches(field, origins)
        if self._suits_host(field, to_read.selection):
            return self._read_by_host(field, origins)
        rows = self._memory.take(to_read.shape, field.conversion.dtype)
        if to_read.has_gaps:
            self._prefill(field, rows)
        entries = (self._device.record(self._memory.stream),)
        out = rows.output(_affine(field))
        jobs = self._jobs(field, to_read.selection, out, entries)
        if jobs is None:
            return self._read_by_host(field, origins)
        field.tally.add(loaded_samples=len(origins))
        return jobs, lambda: rows.reshaped(shape)

    def _suits_host(self, field: Field, selection: PlannableSelection) -> bool:
        """Whether the host has read, say, labels before the device would have begun."""
        from gpushard.device_reading.by_host import suits_host

        if isinstance(field.array, ConcatArray):
            return False
        return suits_host(field.array.source, [selection], self._device.rates)

    def _read_by_host(self, field: Field, origins: Ints) -> tuple[list[Job], Finish]:
        jobs, finish = field.read(origins, self._host)
        return jobs, lambda: self._uploaded(finish())

    def _uploaded(self, rows: Any) -> Any:
        if isinstance(rows, RaggedRows):
            return rows.moved(self._memory.uploaded)
        return self._memory.uploaded(rows)

    def _prefill(self, field: Field, rows: DeviceRows) -> None:
        """Write the fill value to all elements, which is done on return.

        No job waits for this copy if all rows are gaps, or if the load fails before its
        first batch. The memory at both ends of the copy would then be free too early.
        """
        filled = field.conversion.of_one(field.fill_value)
        self._memory.fill(rows, np.full(rows.shape, filled, rows.dtype))

    def _jobs(
        self,
        field: Field,
        selection: PlannableSelection,
        out: DeviceOutput,
        entries: Sequence[Event],
    ) -> list[Job] | None:
        """Jobs of all arrays; None if the tables of one do not fit the device."""
        from gpushard.device_reading.read import DeviceRead, device_job

        how = self._device, field.tally, entries
        if not isinstance(field.array, ConcatArray):
            reads = [DeviceRead(field.array.source, [selection], [out], *how)]
        else:
            reads = [
                DeviceRead(array.source, mine, [out], *how)
                for array, mine, _ in field.array.shares([selection])
            ]
        jobs: list[Job] = []
        try:
            for read in reads:
                job = device_job(read, self._n_sharing)
                if job is None:
                    self.abandon(jobs)
                    return None
                jobs.append(job)
        except BaseException:  # nobody else knows of those before
            self.abandon(jobs)
            raise
        field.count(jobs)
        return jobs

    def abandon(self, jobs: Sequence[Job]) -> None:
        """See `Place`."""
        from gpushard.device_reading.read import abandon

        abandon(jobs)

    def blame(self, error: DeviceError, jobs: Sequence[Job], stop: StopFlag) -> None:
        """See `Place`."""
        from gpushard.device_reading.suspects import blame

        blame(error, jobs, lambda job: stoppable(job, stop))


def _kernels_place(field: Field) -> bool:
    """Whether kernels can write an array's samples to their final places."""
    from gpushard.device_reading.choice import kernels_scatter

    dtype, affine = field.conversion.dtype, _affine(field)
    return not isinstance(field, RaggedField) and all(
        kernels_scatter(a.source, dtype, affine) for a in field.members
    )


def _affine(field: Field) -> Affine | None:
    """Scale and offset that kernels apply to the elements."""
    from gpushard.devices.scattering.transfer import Affine

    factors = field.conversion.factors
    return None if factors is None else Affine(*factors)


class _RowsToRead(NamedTuple):
    """A selection to read, and the shape of the rows that it is written to.

    Attributes
    ----------
    has_gaps
        Whether some elements of the rows are not read.
    """

    shape: tuple[int, ...]
    selection: PlannableSelection
    has_gaps: bool


def _rows(field: Field, origins: Ints) -> _RowsToRead:
    """Whole rows, each copied straight to its place by a kernel."""
    flat = field.cut.rows(origins).ravel()
    shape = field.cut.shape
    place = np.flatnonzero((flat >= 0) & (flat < shape[0]))
    first = IndexAxis(flat[place], place)
    rest = (SliceAxis(0, 1, extent) for extent in shape[1:])
    landed = (len(flat), *shape[1:])
    selection = Orthogonal((first, *rest), landed)
    return _RowsToRead(landed, selection, len(place) < len(flat))


def _patches(field: Field, origins: Ints) -> _RowsToRead:
    patches, is_whole = field.cut.patches(origins)
    return _RowsToRead(patches.shape, patches, not is_whole)
