"""Selections of an array -> arrays in device memory, by the conductor of all reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import ENDS_READ, Damage
from gpushard.devices.base import Device, Event
from gpushard.devices.budget import Budget
from gpushard.devices.chain import (
    COMPRESSED,
    DeviceChain,
    Step,
    compile_device_chain,
    host_chain,
)
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scattering.targets import lay_targets
from gpushard.devices.scattering.transfer import Affine, plan_transfer
from gpushard.devices.sink import DeviceSink
from gpushard.errors import DeviceMemoryError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.options import GIB, MIB
from gpushard.placing.place import HostSink
from gpushard.planning.plan import ReadPlan, plan_read
from gpushard.reading.read import execute
from gpushard.report import CodecPlacement, Tally
from gpushard.selecting.selection import Selection
from gpushard.source import Source

# What a read may hold of the memory that is free, if nobody says how much: room for two
# batches of 4,096 inner chunks of 64 KiB, with what zstd takes beside them.
_FREE_SHARE, _LARGEST_ROOM_NBYTES = 8, 4 * GIB
# Results of the host go through so much pinned memory at a time.
_PIECE_NBYTES = 8 * MIB
# An inner chunk that the host decodes is laid out, and copied to pinned memory.
_PINNED_COPIES = 2


def choose_chain(source: Source) -> tuple[DeviceChain | None, str]:
    """What a device does to the inner chunks of an array, and why not more.

    Returns
    -------
    chain
        None if the device cannot even scatter them: then the host reads the array.
    why
        Why the host decodes; empty if the device does.
    """
    shape = source.chunk_shape
    try:
        return compile_device_chain(source.layout, shape), ""
    except UnsupportedError as error:
        why = error.what if error.codec is None else f"{error.codec}: {error.what}"
    dtype = source.layout.dtype
    if shape is None or dtype.hasobject or dtype.kind == "T" or not dtype.itemsize:
        return None, why
    return host_chain(source.layout, shape), why


def placements(
    source: Source, device: Device, tally: Tally
) -> tuple[CodecPlacement, ...]:
    """Which codec of an array was decoded where, in decoding order.

    Parameters
    ----------
    tally
        Of the read that is told about.
    """
    chain, why = choose_chain(source)
    if not why and not tally.counts.get("n_decoded_on_device"):
        n_on_host = tally.counts.get("n_decoded_on_host")
        why = "by the option placement, or its estimates" if n_on_host else ""
    on_host = source.pipeline.placements()
    if chain is None or why:
        return tuple(CodecPlacement(p.codec, "host", p.library, why) for p in on_host)
    steps = list(chain.steps)
    found: list[CodecPlacement] = []
    for p in on_host:
        if steps and steps[0].codec == p.codec:
            found.append(_on_device(steps.pop(0), device))
        else:
            why = "strides and flags of one kernel"
            if p.codec == "numcodecs.bitround":
                why = "rounded numbers are numbers: there is nothing to undo"
            found.append(CodecPlacement(p.codec, "scatter", "gpushard", why))
    return tuple(found)


def _on_device(step: Step, device: Device) -> CodecPlacement:
    is_decoded = step.kind in COMPRESSED
    library = device.decoder.label if is_decoded else "gpushard"
    return CodecPlacement(step.codec, "device", library, device.label)


def read_to_device(  # noqa: PLR0913  what a caller may wish is a keyword each
    source: Source,
    selections: Sequence[Selection],
    outputs: Sequence[DeviceOutput],
    device: Device,
    *,
    tally: Tally,
    entries: Sequence[Event] = (),
    damage: Damage = ENDS_READ,
) -> Job:
    """Read selections of an array into device memory; when it returns, they are there.

    Parameters
    ----------
    outputs
        One a selection, of its shape.
    tally
        Where to count what is done.
    entries
        What has to be done before anything writes to the outputs.
    damage
        What becomes of damaged inner chunks.

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
    what = source, selections, outputs, device
    job = device_job(*what, tally=tally, entries=entries, damage=damage)
    if job is None:
        return _read_by_host(*what, entries=entries, tally=tally, damage=damage)
    try:
        execute([job])
    except BaseException:
        abandon([job])
        raise
    return job


def device_job(  # noqa: PLR0913  as `read_to_device`
    source: Source,
    selections: Sequence[Selection],
    outputs: Sequence[DeviceOutput],
    device: Device,
    *,
    tally: Tally,
    entries: Sequence[Event] = (),
    damage: Damage = ENDS_READ,
    n_sharing: int = 1,
) -> Job | None:
    """Job that does what `read_to_device` does; None if the host has to scatter.

    If it is begun and not finished, or fails, `abandon` it.

    Parameters
    ----------
    n_sharing
        Jobs that are under way at the same time, and share what is free.
    """
    device.check()
    plan = plan_read(source.layout, selections)
    source = source.with_batches(room_nbytes(source, device, n_sharing))
    source = _beside_pinned(source)
    try:
        sink = _device_sink(source, plan, outputs, device, entries)
    except DeviceMemoryError:
        # Not even the tables of the targets fit: what needs none is left.
        if not all(map(_is_contiguous, outputs)):
            raise
        tally.add(n_memory_failures=1)
        return None
    if sink is None:
        return None
    tally.note(fetch=sink.fetch_label)
    return Job(source, plan, sink, tally, damage)


def abandon(jobs: Sequence[Job]) -> None:
    """Let nothing of jobs of `device_job` be under way any more; see `DeviceSink`."""
    for job in jobs:
        if isinstance(job.sink, DeviceSink):
            job.sink.abandon()


def kernels_scatter(
    source: Source, dtype: np.dtype[Any], affine: Affine | None = None
) -> bool:
    """Whether kernels put an array's elements into outputs of `dtype`."""
    chain, _ = choose_chain(source)
    if chain is None:
        return False
    try:
        plan_transfer(chain.dtype, dtype, is_swapped=chain.is_swapped, affine=affine)
    except UnsupportedError:
        return False
    return True


def room_nbytes(source: Source, device: Device, n_sharing: int = 1) -> int:
    """What batches of an array may hold, so that they keep a device busy.

    A GPU is busy with thousands of streams, of which a host's default has room for few.
    Whoever lowers or raises the limit is heeded.
    """
    limit = source.options.memory_limit
    chain, why = choose_chain(source)
    decodes = chain is not None and not why and chain.steps
    if not decodes or not source.options.is_left_open:
        return limit
    share = min(device.free_nbytes() // _FREE_SHARE, _LARGEST_ROOM_NBYTES)
    return max(share // n_sharing, limit)


def _beside_pinned(source: Source) -> Source:
    """The array, its inner chunks held to what leaves room to copy them to a device."""
    options = source.options
    pinned_nbytes = _PINNED_COPIES * source.work_nbytes
    alone_nbytes = max(1, options.alone_nbytes - pinned_nbytes)
    return replace(source, options=replace(options, alone_nbytes=alone_nbytes))


def _device_sink(
    source: Source,
    plan: ReadPlan,
    outputs: Sequence[DeviceOutput],
    device: Device,
    entries: Sequence[Event],
) -> DeviceSink | None:
    """Sink that writes a plan into outputs; None if the device cannot place elements.

    Raises
    ------
    DeviceMemoryError
        Not even its tables fit.
    """
    chain, why = choose_chain(source)
    shape = source.chunk_shape
    if chain is None or shape is None:
        return None
    fill_value = source.layout.fill_value
    targets = lay_targets(plan.parts, outputs, chain, fill_value, shape)
    decodes = not why and Budget.fits_one(chain, source.options)
    return DeviceSink(
        device, chain, targets, source=source, decodes=decodes, entries=entries
    )


def _read_by_host(  # noqa: PLR0913  as its caller
    source: Source,
    selections: Sequence[Selection],
    outputs: Sequence[DeviceOutput],
    device: Device,
    *,
    entries: Sequence[Event],
    tally: Tally,
    damage: Damage,
) -> Job:
    """Read on the host, and copy the results: for what a device cannot scatter."""
    plan = plan_read(source.layout, selections)
    results: list[NDArray[Any]] = []
    for output in outputs:
        if not _is_contiguous(output):
            raise UnsupportedError(
                "an array that the host has to read needs a contiguous output",
                got=f"strides {output.strides}",
                hint="leave out= away and copy the result",
            )
        results.append(np.empty(output.shape, output.dtype))
    job = Job(source, plan, HostSink(plan.parts, results), tally, damage)
    execute([job])
    stream = device.create_stream()
    for entry in entries:
        device.await_event(stream, entry)
    largest = max((result.nbytes for result in results), default=0)
    room = _copying_room(device, min(largest, _PIECE_NBYTES))
    for output, result in zip(outputs, results, strict=True):
        plain = result.reshape(-1).view(np.uint8)
        for first in range(0, len(plain), _PIECE_NBYTES):
            piece = plain[first : first + _PIECE_NBYTES]
            room[: len(piece)] = piece
            device.upload(output.address + first, room[: len(piece)], stream)
            device.wait_for(stream)
    device.release_stream(stream)
    return job


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
