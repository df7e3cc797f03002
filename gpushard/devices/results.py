"""Results in device memory: arrays made here, or the caller's own."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpushard.devices.base import Device, Stream
from gpushard.devices.output import DeviceOutput
from gpushard.devices.reading import read_to_device
from gpushard.errors import SelectionError
from gpushard.report import Tally
from gpushard.results import ReadRequest
from gpushard.scatter import check_cast
from gpushard.source import Source


def read_on_device(source: Source, request: ReadRequest, device: Device) -> list[Any]:
    """One array in device memory a selection, complete when it returns.

    What was queued on the caller's stream before is done before anything is written.

    Raises
    ------
    SelectionError
        An array of the caller's does not fit, the cast is refused, or the stream is
        none.
    CorruptShardError, StoreError, DeviceError
        As the stages of a read raise them.
    """
    device.check()
    results: list[Any] = []
    outputs: list[DeviceOutput] = []
    for selection, out in zip(request.selections, request.outs, strict=True):
        made = device.empty(selection.shape, request.dtype) if out is None else out
        output = _output_of(made)
        if output.shape != selection.shape:
            raise SelectionError(
                "out= has another shape than the selection",
                expected=selection.shape,
                got=output.shape,
            )
        check_cast(source.layout.dtype, output.dtype)
        results.append(made)
        outputs.append(output)
    if not any(prod(output.shape) for output in outputs):
        # Nothing would wait for what a sink queues when it is made.
        return results
    entry = device.record(_handle(request.stream, device))
    tally = request.tally or Tally()
    read_to_device(
        source,
        request.selections,
        outputs,
        device,
        entry=entry,
        tally=tally,
        damage=request.damage,
    )
    return results


def _output_of(array: Any) -> DeviceOutput:
    """Where an array lies (CUDA Array Interface, version 3)."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise SelectionError(
            "out= is no array in device memory",
            got=type(array).__name__,
            hint="pass a CuPy array or a CUDA tensor, or open with device='cpu'",
        )
    address, is_read_only = interface["data"]
    if is_read_only:
        raise SelectionError("out= is read-only", hint="pass a writable array")
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = _contiguous(shape, dtype.itemsize)
    return DeviceOutput(address, shape, tuple(strides), dtype)


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


def _handle(stream: Any, device: Device) -> Stream:
    if stream is None:
        return device.current_stream()
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
        return int(handle)
    for name in ("ptr", "cuda_stream"):  # CuPy's, torch's
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise SelectionError(
        "stream= is no CUDA stream",
        got=type(stream).__name__,
        hint="pass a CuPy or torch stream, or its handle",
    )
