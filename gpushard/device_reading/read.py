"""Selections of an array -> arrays in device memory, by way of `reading.read`.

`read_on_device` reads a request of the user, `device_job` prepares what a loader reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpushard.damage import ENDS_READ, Damage
from gpushard.device_reading.by_host import read_by_host, suits_host
from gpushard.device_reading.choice import choose_chain, room_nbytes
from gpushard.device_reading.sink import DeviceSink
from gpushard.device_reading.suspects import blame
from gpushard.devices.base import Device, Event, Stream
from gpushard.devices.budget import Budget
from gpushard.devices.output import DeviceOutput, output_of, stream_handle
from gpushard.devices.scattering.targets import lay_targets
from gpushard.errors import DeviceError, DeviceMemoryError, SelectionError
from gpushard.fetching.index_room import least_limit
from gpushard.fetching.job import Job
from gpushard.fetching.pieces import columns_nbytes, indexes_nbytes
from gpushard.placing.scatter import check_cast
from gpushard.planning.plan import ReadPlan, plan_read
from gpushard.reading.read import execute
from gpushard.reading.results import ReadRequest, read_on_host
from gpushard.reading.rounds import read_in_rounds
from gpushard.report import Tally
from gpushard.selecting.patches import PlannableSelection
from gpushard.selecting.selection import Selection
from gpushard.source import Source

# Tables of a listed element: the host makes them, pins a copy, and uploads that.
_LISTED_NBYTES = 128
# A small result lies in memory of the host, and in pinned memory.
_SMALL_COPIES = 2
# The host lays out each inner chunk that it decodes, and copies it to pinned memory.
_PINNED_COPIES = 2
# A shard with codecs around it is held as it is stored, and decoded.
_HELD_COPIES = 2


class DeviceRead(NamedTuple):
    """Which selections of an array to read together, and into which device arrays.

    Attributes
    ----------
    outputs
        One output for each selection, of the same shape.
    entries
        Events that must be done before anything writes to the outputs.
    damage
        What happens at damaged inner chunks.
    """

    source: Source
    selections: Sequence[PlannableSelection]
    outputs: Sequence[DeviceOutput]
    device: Device
    tally: Tally
    entries: Sequence[Event] = ()
    damage: Damage = ENDS_READ


def read_on_device(source: Source, request: ReadRequest, device: Device) -> list[Any]:
    """One array in device memory for each selection, complete on return.

    Work queued earlier on the caller's stream is done before anything is written.

    Raises
    ------
    SelectionError
        An array of the caller does not fit, the cast is refused, or `stream` is not a
        stream.
    CorruptShardError, StoreError, DeviceError
        As the stages of a read. If the device broke of damage, the host names it.
    """
    device.check()
    results, outputs, streams = _outputs(source.layout.dtype, request, device)
    if not any(prod(output.shape) for output in outputs):
        # No batch would wait for the copies that a new sink queues.
        return results
    try:
        _read_into(source, request, outputs, device, streams)
    except BaseException:
        device.keep(results)
        raise
    return results


def _read_into(
    source: Source,
    request: ReadRequest,
    outputs: Sequence[DeviceOutput],
    device: Device,
    streams: set[Stream],
) -> None:
    """Read into outputs, which earlier work on `streams` uses."""
    entries = [device.record(stream) for stream in sorted(streams)]
    wanted = request.selections
    is_contiguous = all(output.is_contiguous for output in outputs)
    if is_contiguous and suits_host(source, wanted, device.rates):
        nbytes = _SMALL_COPIES * sum(o.dtype.itemsize * prod(o.shape) for o in outputs)
        reader = partial(_read_small, source.beside(nbytes), request)
        read_by_host(reader, outputs, device, entries)
        return
    tally = request.tally or Tally(is_wanted=False)

    def read(
        part: Source, selections: Sequence[Selection], outputs: Sequence[Any]
    ) -> None:
        what = _beside_columns(source, part, device), selections, outputs, device
        if read_to_device(DeviceRead(*what, tally, entries, request.damage)) is None:
            raise _LeftToHostError

    try:
        read_in_rounds(source, wanted, outputs, read, _LISTED_NBYTES)
    except _LeftToHostError:
        # All of it: the host copies whole results, and so not those of one round.
        reader = partial(_read_on_host, source, request)
        read_by_host(reader, outputs, device, entries)


def _outputs(
    dtype: np.dtype[Any], request: ReadRequest, device: Device
) -> tuple[list[Any], list[DeviceOutput], set[Stream]]:
    """Result of each selection, the same as outputs, and the streams that use them.

    `dtype` is that of the array. Raises `SelectionError` as `read_on_device`.
    """
    results: list[Any] = []
    outputs: list[DeviceOutput] = []
    streams = {stream_handle(request.stream, device)}
    for selection, out in zip(request.selections, request.outs, strict=True):
        made = device.empty(selection.shape, request.dtype) if out is None else out
        output, stream = output_of(made, device)
        if output.shape != selection.shape:
            raise SelectionError(
                "out= has another shape than the selection",
                expected=selection.shape,
                got=output.shape,
            )
        check_cast(dtype, output.dtype)
        results.append(made)
        outputs.append(output)
        if out is None:  # earlier work may still use the memory of a new array
            streams.add(device.current_stream())
        elif stream is not None and request.stream is None:
            streams.add(stream)
    return results, outputs, streams


def _read_small(source: Source, request: ReadRequest, arrays: Sequence[Any]) -> None:
    """Read on the host what would take a device longer."""
    _read_on_host(source, request, arrays)
    tally = request.tally
    if tally is not None:
        tally.note(fetch="into the host's memory (it is estimated to be done sooner)")
        left_out = "n_missing_inner_chunks", "n_kept_inner_chunks"
        n_decoded = tally.counts.get("n_inner_chunks", 0)
        n_decoded -= sum(tally.counts.get(name, 0) for name in left_out)
        tally.add(n_decoded_on_host=n_decoded)


def _read_on_host(source: Source, request: ReadRequest, arrays: Sequence[Any]) -> None:
    read_on_host(source, request._replace(outs=arrays, stream=None))


def _beside_columns(source: Source, part: Source, device: Device) -> Source:
    """The array `part` that a round reads, with batches as large as a device may hold.

    The columns of a round lie on the host and count against its limit, but must not
    reduce further what the device may hold.
    """
    if part is source:
        return part
    columns_nbytes = source.options.memory_limit - part.options.memory_limit
    return part.with_batches(
        room_nbytes(source, device) - columns_nbytes,
        is_left_open=source.options.is_left_open,
    )


class _LeftToHostError(Exception):
    """The device cannot scatter, so that the host has to read."""


def read_to_device(read: DeviceRead) -> Job | None:
    """Read into device memory; on return all elements are there.

    Gives the job; None, with nothing read, if the host has to scatter.

    Raises
    ------
    CorruptShardError, StoreError
        As for any read; the contents of the outputs are then undefined.
    DeviceError
        The device failed or has not enough memory, or it failed before in a way that a
        process cannot recover from. If it failed of damage, that is raised instead.
    """
    job = device_job(read)
    if job is None:
        return None
    try:
        execute([job])
    except BaseException as error:
        abandon([job])
        if isinstance(error, DeviceError):
            blame(error, [job])
        raise
    return job


def device_job(read: DeviceRead, n_sharing: int = 1) -> Job | None:
    """Job of a `read_to_device`; None if the host has to scatter.

    Call `abandon` on a job that fails, or that was begun and is not finished.
    `n_sharing` jobs run at the same time and share the free memory.
    """
    read.device.check()
    plan = plan_read(read.source.layout, read.selections, apart=True)
    room = room_nbytes(read.source, read.device, n_sharing)
    source = _beside_pinned(read.source, room)
    try:
        sink = _device_sink(read._replace(source=_beside_held(source, plan)), plan)
    except DeviceMemoryError:
        # Not even the tables of the targets fit. A read by the host needs none.
        if not all(output.is_contiguous for output in read.outputs):
            raise
        read.tally.add(n_memory_failures=1)
        return None
    if sink is None:
        return None
    read.tally.note(fetch=sink.fetch_label)
    if not read.source.options.is_left_open:
        source = _beside_sink(source, sink.pinned_nbytes)
    return Job(source, plan, sink, read.tally, read.damage)


def abandon(jobs: Sequence[Job]) -> None:
    """Wait until no work of these jobs is under way; see `DeviceSink.abandon`."""
    for job in jobs:
        if isinstance(job.sink, DeviceSink):
            job.sink.abandon()


def _beside_pinned(source: Source, batches_nbytes: int) -> Source:
    """The array with batches that a device holds, which take so many bytes there.

    There is less room for inner chunks on the host: they are also copied to a device.
    """
    options = source.options
    pinned_nbytes = _PINNED_COPIES * source.work_nbytes
    fewer = replace(
        options,
        memory_limit=batches_nbytes,
        is_left_open=False,
        alone_nbytes=max(1, options.alone_nbytes - pinned_nbytes),
    )
    return source.with_options(fewer)


def _beside_held(source: Source, plan: ReadPlan) -> Source:
    """The array, with smaller batches beside indexes, columns and whole objects."""
    options = source.options
    limit, bound = options.memory_limit, max(options.memory_limit, options.bound_nbytes)
    nbytes = indexes_nbytes(source, plan) + columns_nbytes(source, plan)
    if source.layout.object_codecs:
        nbytes += _HELD_COPIES * source.whole_nbytes
    return source.with_batches(min(limit, max(bound - nbytes, limit // 4, 1)))


def _beside_sink(source: Source, pinned_nbytes: int) -> Source:
    """The array, with less room for indexes, columns and objects that are held.

    What is pinned has no part in the limit for a single inner chunk, which has it
    already (`_beside_pinned`), nor in the largest index that is read.
    """
    options = source.options
    limit, bound = options.memory_limit, max(options.memory_limit, options.bound_nbytes)
    left = max(bound - pinned_nbytes, limit // 4, least_limit(source), 1)
    most = max(options.bound_nbytes - pinned_nbytes, options.bound_nbytes // 4)
    narrower = replace(options, memory_limit=min(limit, left), bound_nbytes=most)
    return source.with_options(narrower)


def _device_sink(read: DeviceRead, plan: ReadPlan) -> DeviceSink | None:
    """Sink that writes a plan into outputs; None if the device cannot scatter.

    Raises `DeviceMemoryError` if not even the tables of the sink fit.
    """
    source = read.source
    chain, why = choose_chain(source)
    shape = source.chunk_shape
    if chain is None or shape is None:
        return None
    fill_value = source.layout.fill_value
    targets = lay_targets(plan.parts, read.outputs, chain, fill_value, shape)
    is_left = source.options.placement != "host"
    decodes = is_left and not why and Budget.fits_one(chain, source.options)
    return DeviceSink(
        read.device,
        chain,
        targets,
        source=source,
        decodes=decodes,
        entries=read.entries,
    )
