"""Selections of an array -> arrays in device memory, by the conductor of all reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, Event
from gpushard.devices.chain import DeviceChain, compile_device_chain, host_chain
from gpushard.devices.output import DeviceOutput
from gpushard.devices.sink import DeviceSink
from gpushard.devices.target import DeviceTarget
from gpushard.errors import UnsupportedError
from gpushard.job import Job
from gpushard.place import HostSink
from gpushard.plan import plan_read
from gpushard.read import execute
from gpushard.report import CodecPlacement, Tally
from gpushard.selection import Selection
from gpushard.source import Source


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


def placements(source: Source, device: Device) -> tuple[CodecPlacement, ...]:
    """Which codec of an array is decoded where, in decoding order."""
    chain, why = choose_chain(source)
    on_host = source.pipeline.placements()
    if chain is None or why:
        return tuple(CodecPlacement(p.codec, "host", p.library, why) for p in on_host)
    decoded = [
        CodecPlacement(step.codec, "device", device.decoder.label, device.label)
        for step in chain.steps
    ]
    folded = [
        CodecPlacement(
            p.codec, "scatter", "gpushard", "strides and flags of one kernel"
        )
        for p in on_host[len(decoded) :]
    ]
    return (*decoded, *folded)


def read_to_device(
    source: Source,
    selections: Sequence[Selection],
    outputs: Sequence[DeviceOutput],
    device: Device,
    *,
    tally: Tally,
    entry: Event | None = None,
) -> Job:
    """Read selections of an array into device memory; when it returns, they are there.

    Parameters
    ----------
    outputs
        One a selection, of its shape.
    tally
        Where to count what is done.
    entry
        What has to be done before anything writes to the outputs.

    Returns
    -------
    The job, for its tally.

    Raises
    ------
    CorruptShardError, StoreError
        As for any read; the outputs hold nothing of meaning then.
    DeviceError
        The device failed, or has not enough memory.
    """
    plan = plan_read(source.layout, selections)
    chain, why = choose_chain(source)
    if chain is None:
        return _read_by_host(source, selections, outputs, device, tally)
    targets = [
        DeviceTarget.lay(part, output, chain, source.layout.fill_value)
        for part, output in zip(plan.parts, outputs, strict=True)
    ]
    sink = DeviceSink(
        device,
        chain,
        targets,
        decodes=not why,
        max_nbytes=source.options.memory_limit,
        entry=entry,
    )
    job = Job(source, plan, sink, tally)
    execute([job])
    return job


def _read_by_host(
    source: Source,
    selections: Sequence[Selection],
    outputs: Sequence[DeviceOutput],
    device: Device,
    tally: Tally,
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
    job = Job(source, plan, HostSink(plan.parts, results), tally)
    execute([job])
    stream = device.create_stream()
    for output, result in zip(outputs, results, strict=True):
        host = device.allocate_pinned(max(result.nbytes, 1))[: result.nbytes]
        host[:] = result.reshape(-1).view(np.uint8)
        if result.nbytes:
            device.upload(output.address, host, stream)
            device.wait(device.record(stream))
    return job


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
