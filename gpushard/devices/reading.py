"""Selections of an array -> arrays in device memory, by the conductor of all reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import ENDS_READ, Damage
from gpushard.devices.base import Device, Event
from gpushard.devices.budget import Budget
from gpushard.devices.choice import choose_chain, room_nbytes
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scattering.targets import lay_targets
from gpushard.devices.sink import DeviceSink
from gpushard.errors import DeviceMemoryError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.options import MIB
from gpushard.placing.place import HostSink
from gpushard.planning.plan import ReadPlan, plan_read
from gpushard.reading.read import execute
from gpushard.report import Tally
from gpushard.selecting.patches import Taken
from gpushard.source import Source

# Results of the host go through so much pinned memory at a time.
_PIECE_NBYTES = 8 * MIB
# An inner chunk that the host decodes is laid out, and copied to pinned memory.
_PINNED_COPIES = 2


class DeviceRead(NamedTuple):
    """What to read of an array into device memory, and where to.

    Attributes
    ----------
    source
        The array.
    selections
        What to read, in one batch.
    outputs
        One a selection, of its shape.
    device
        Where the outputs are.
    tally
        Where to count what is done.
    entries
        What has to be done before anything writes to the outputs.
    damage
        What becomes of damaged inner chunks.
    """

    source: Source
    selections: Sequence[Taken]
    outputs: Sequence[DeviceOutput]
    device: Device
    tally: Tally
    entries: Sequence[Event] = ()
    damage: Damage = ENDS_READ


def read_to_device(read: DeviceRead) -> Job:
    """Read into device memory; when it returns, all elements are there.

    Returns
    -------
    The job, for its tally.

    Raises
    ------
    CorruptShardError, StoreError
        As for any read; the outputs hold nothing of meaning then.
    DeviceError
        The device failed, has not enough memory, or failed before in a way that a
        process cannot recover from.
    """
    job = device_job(read)
    if job is None:
        return _read_by_host(read)
    try:
        execute([job])
    except BaseException:
        abandon([job])
        raise
    return job


def device_job(read: DeviceRead, n_sharing: int = 1) -> Job | None:
    """Job that does what `read_to_device` does; None if the host has to scatter.

    If it is begun and not finished, or fails, `abandon` it.

    Parameters
    ----------
    n_sharing
        Jobs that are under way at the same time, and share what is free.
    """
    read.device.check()
    plan = plan_read(read.source.layout, read.selections, apart=True)
    source = read.source.with_batches(room_nbytes(read.source, read.device, n_sharing))
    source = _beside_pinned(source)
    try:
        sink = _device_sink(read._replace(source=source), plan)
    except DeviceMemoryError:
        # Not even the tables of the targets fit: what needs none is left.
        if not all(map(_is_contiguous, read.outputs)):
            raise
        read.tally.add(n_memory_failures=1)
        return None
    if sink is None:
        return None
    read.tally.note(fetch=sink.fetch_label)
    return Job(source, plan, sink, read.tally, read.damage)


def abandon(jobs: Sequence[Job]) -> None:
    """Let nothing of jobs of `device_job` be under way any more; see `DeviceSink`."""
    for job in jobs:
        if isinstance(job.sink, DeviceSink):
            job.sink.abandon()


def _beside_pinned(source: Source) -> Source:
    """The array, its inner chunks held to what leaves room to copy them to a device."""
    options = source.options
    pinned_nbytes = _PINNED_COPIES * source.work_nbytes
    alone_nbytes = max(1, options.alone_nbytes - pinned_nbytes)
    return replace(source, options=replace(options, alone_nbytes=alone_nbytes))


def _device_sink(read: DeviceRead, plan: ReadPlan) -> DeviceSink | None:
    """Sink that writes a plan into outputs; None if the device cannot place elements.

    Raises
    ------
    DeviceMemoryError
        Not even its tables fit.
    """
    source = read.source
    chain, why = choose_chain(source)
    shape = source.chunk_shape
    if chain is None or shape is None:
        return None
    fill_value = source.layout.fill_value
    targets = lay_targets(plan.parts, read.outputs, chain, fill_value, shape)
    decodes = not why and Budget.fits_one(chain, source.options)
    return DeviceSink(
        read.device,
        chain,
        targets,
        source=source,
        decodes=decodes,
        entries=read.entries,
    )


def _read_by_host(read: DeviceRead) -> Job:
    """Read on the host, and copy the results: for what a device cannot scatter."""
    plan = plan_read(read.source.layout, read.selections)
    results: list[NDArray[Any]] = []
    for output in read.outputs:
        if not _is_contiguous(output):
            raise UnsupportedError(
                "an array that the host has to read needs a contiguous output",
                got=f"strides {output.strides}",
                hint="leave out= away and copy the result",
            )
        results.append(np.empty(output.shape, output.dtype))
    sink = HostSink(plan.parts, results)
    job = Job(read.source, plan, sink, read.tally, read.damage)
    execute([job])
    _copy_results(read, results)
    return job


def _copy_results(read: DeviceRead, results: Sequence[NDArray[Any]]) -> None:
    """Copy arrays of the host to the outputs, and wait until they are there."""
    device = read.device
    stream = device.create_stream()
    for entry in read.entries:
        device.await_event(stream, entry)
    largest = max((result.nbytes for result in results), default=0)
    room = _copying_room(device, min(largest, _PIECE_NBYTES))
    for output, result in zip(read.outputs, results, strict=True):
        plain = result.reshape(-1).view(np.uint8)
        for first in range(0, len(plain), _PIECE_NBYTES):
            piece = plain[first : first + _PIECE_NBYTES]
            room[: len(piece)] = piece
            device.upload(output.address + first, room[: len(piece)], stream)
            device.wait_for(stream)
    device.release_stream(stream)


def _copying_room(device: Device, nbytes: int) -> NDArray[np.uint8]:
    """Pinned memory; where there is none any, from which a copy takes longer."""
    try:
        return device.allocate_pinned(max(nbytes, 1))
    except DeviceMemoryError:
        return np.empty(max(nbytes, 1), np.uint8)


def _is_contiguous(output: DeviceOutput) -> bool:
    if 0 in output.shape:
        return True
    step = output.dtype.itemsize
    for extent, stride in zip(
        reversed(output.shape), reversed(output.strides), strict=True
    ):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True
