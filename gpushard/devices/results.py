"""Read request -> arrays in device memory: new ones, or the caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from gpushard.devices.base import Device, Stream
from gpushard.devices.choice import room_nbytes
from gpushard.devices.output import (
    DeviceOutput,
    contiguous_strides,
    is_immutable,
    lies_on,
    stream_of,
)
from gpushard.devices.reading import DeviceRead, read_to_device
from gpushard.errors import SelectionError
from gpushard.placing.scatter import check_cast
from gpushard.reading.results import ReadRequest
from gpushard.reading.rounds import read_in_rounds
from gpushard.report import Tally
from gpushard.selecting.selection import Selection
from gpushard.source import Source

# Tables of a listed element: the host makes them, pins a copy, and uploads that.
LISTED_NBYTES = 128
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def read_on_device(source: Source, request: ReadRequest, device: Device) -> list[Any]:
    """One array in device memory for each selection, complete on return.

    Work queued earlier on the caller's stream is done before anything is written.

    Raises
    ------
    SelectionError
        An array of the caller does not fit, the cast is refused, or `stream` is not a
        stream.
    CorruptShardError, StoreError, DeviceError
        As the stages of a read.
    """
    device.check()
    results: list[Any] = []
    outputs: list[DeviceOutput] = []
    streams = {_handle(request.stream, device)}
    for selection, out in zip(request.selections, request.outs, strict=True):
        made = device.empty(selection.shape, request.dtype) if out is None else out
        output, stream = _output_of(made, device)
        if output.shape != selection.shape:
            raise SelectionError(
                "out= has another shape than the selection",
                expected=selection.shape,
                got=output.shape,
            )
        check_cast(source.layout.dtype, output.dtype)
        results.append(made)
        outputs.append(output)
        if out is None:  # earlier work may still use the memory of a new array
            streams.add(device.current_stream())
        elif stream is not None and request.stream is None:
            streams.add(stream)
    if not any(prod(output.shape) for output in outputs):
        # No batch would wait for the copies that a new sink queues.
        return results
    entries = [device.record(stream) for stream in sorted(streams)]
    tally = request.tally or Tally()

    def read(
        part: Source, selections: Sequence[Selection], outputs: Sequence[Any]
    ) -> None:
        if part is not source:
            # The columns of a round lie on the host and count against its limit, but
            # must not reduce further what the device may hold.
            columns_nbytes = source.options.memory_limit - part.options.memory_limit
            part = part.with_batches(room_nbytes(source, device) - columns_nbytes)
        what = part, selections, outputs, device
        read_to_device(DeviceRead(*what, tally, entries, request.damage))

    read_in_rounds(source, request.selections, outputs, read, LISTED_NBYTES)
    return results


def _output_of(array: Any, device: Device) -> tuple[DeviceOutput, Stream | None]:
    """Output that describes an array, and the stream that the array names, if any.

    Uses the CUDA Array Interface, version 3, or DLPack.
    """
    given = array
    array, interface = _told(array, device)
    if interface is None:
        raise SelectionError(
            "out= is no array in device memory",
            got=type(array).__name__,
            hint="pass a CuPy array or a CUDA tensor, or open with device='cpu'",
        )
    if not lies_on(array, device):
        raise SelectionError(
            "out= lies on another device than the array is read on",
            expected=device.label,
            got=str(array.device),
            hint="open the array with that device, or pass an array on this one",
        )
    address, is_read_only = interface["data"]
    if is_read_only or is_immutable(given):
        raise SelectionError("out= is read-only", hint="pass a writable array")
    dtype = np.dtype(interface["typestr"])
    named = getattr(array, "dtype", None)
    if dtype.kind == "V" and isinstance(named, np.dtype):
        dtype = named  # bfloat16 and its like are raw bytes to the interface
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = contiguous_strides(shape, dtype.itemsize)
    output = DeviceOutput(address, shape, tuple(strides), dtype)
    return output, stream_of(array, interface)


def _told(array: Any, device: Device) -> tuple[Any, Mapping[str, Any] | None]:
    """Array and its interface, if any; adopted if its own description is not enough."""
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except RuntimeError as error:  # torch's, of a tensor with a gradient
        raise SelectionError(
            f"out= does not tell where its memory is ({error})",
            got=type(array).__name__,
            hint="pass a tensor without gradient, such as tensor.detach()",
        ) from error
    is_named = isinstance(getattr(array, "dtype", None), np.dtype)
    is_raw = interface is not None and np.dtype(interface["typestr"]).kind == "V"
    # Some arrays have DLPack only; and only DLPack says that raw bytes are bfloat16.
    if (interface is None or (is_raw and not is_named)) and _is_on_gpu(array):
        array = device.adopt(array)
        interface = array.__cuda_array_interface__
    return array, interface


def _is_on_gpu(array: Any) -> bool:
    tell = getattr(array, "__dlpack_device__", None)
    return tell is not None and int(tell()[0]) in _DLPACK_CUDA


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
