"""Reads of an array on an emulated device, by the same conductor as all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import gpushard
from gpushard.device_reading import sink
from gpushard.device_reading.by_host import read_by_host
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.output import DeviceOutput
from gpushard.fetching.job import Job
from gpushard.reading.read import execute
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.selection import Selection

if TYPE_CHECKING:
    from cuda_host.device import EmulatedDevice


def read_on_device(
    array: gpushard.Array,
    selections: Sequence[Selection],
    device: EmulatedDevice,
    *,
    dtype: Any = None,
    max_rows: int = sink.MAX_ROWS,
    placement: str = "device",
) -> tuple[list[NDArray[Any]], Job]:
    """Results of the selections, read into device memory and copied to the host."""
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    outs = [np.empty(selection.shape, wanted) for selection in selections]
    buffers = [device.allocate(out.nbytes) for out in outs]
    outputs = [
        DeviceOutput(buffer.address, out.shape, out.strides, wanted)
        for buffer, out in zip(buffers, outs, strict=True)
    ]
    with mock.patch.object(sink, "MAX_ROWS", max_rows):
        source = array.source
        if source.options.placement != placement:
            source = replace(source, options=source.options.but(placement=placement))
        read = DeviceRead(source, selections, outputs, device, Tally())
        job = read_by_either(read)
    results = [
        buffer.read().view(wanted).reshape(out.shape)
        for buffer, out in zip(buffers, outs, strict=True)
    ]
    return results, job


def read_by_either(read: DeviceRead) -> Job:
    """A read to a device; the host reads what the device does not scatter.

    So it is for users of `gpushard.Array`, too.
    """
    job = read_to_device(read)
    if job is not None:
        return job
    jobs: list[Job] = []

    def read_here(results: Sequence[NDArray[Any]]) -> None:
        jobs.append(host_job(read.source, read.selections, results, read.tally))
        execute(jobs)

    read_by_host(read_here, read.outputs, read.device, read.entries)
    return jobs[0]
