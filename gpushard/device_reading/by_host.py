"""Selections that the host reads -> copies of them in device memory.

The host reads what a device cannot scatter, and what takes it less time than a device
needs to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.device_reading.host_rows import rates_here
from gpushard.devices.base import Device, Event, wait_out
from gpushard.devices.output import DeviceOutput
from gpushard.devices.placement import Rates, host_rate
from gpushard.devices.slabs import pooled_nbytes
from gpushard.errors import DeviceMemoryError, UnsupportedError
from gpushard.fused.short.ways import short_ways
from gpushard.layout import GridAxis
from gpushard.options import MIB
from gpushard.selecting.patches import PlannableSelection
from gpushard.selecting.selection import Orthogonal, ParsedSelection, Points, SliceAxis
from gpushard.source import Source

# Results are copied through pinned memory of this size.
_PIECE_NBYTES = 8 * MIB
# Time of the smallest read by a device: planning, tables, and calls of the driver take
# 4 to 6 ms (docs/gpu.md) [g].
_DEVICE_READ_S = 3e-3
# What an inner chunk takes the host beside its decoder [m].
_ROW_S, _COMPILED_ROW_S = 20e-6, 3e-6


def suits_host(
    source: Source,
    selections: Sequence[PlannableSelection | ParsedSelection],
    rates: Mapping[str, Rates],
) -> bool:
    """Whether one thread of the host is done before a device would have begun.

    That is an estimate from `rates`, those of the device.
    """
    shape = source.chunk_shape
    if source.options.placement != "cost" or shape is None:
        return False
    row_s = _ROW_S if short_ways(source).short is None else _COMPILED_ROW_S
    rate = host_rate(source.layout.chain.specs, rates_here(rates))
    seconds = 0.0
    for selection in selections:
        n_chunks = _most_touched(selection, source.layout.inner_axes)
        if n_chunks is None:
            return False
        nbytes = n_chunks * source.chunk_nbytes
        if source.raw_strides is not None:  # only what is wanted is read
            itemsize = source.layout.dtype.itemsize
            nbytes = min(nbytes, itemsize * prod(selection.shape))
        seconds += n_chunks * row_s + nbytes / rate
    return seconds < _DEVICE_READ_S


def _most_touched(
    selection: PlannableSelection | ParsedSelection, inner_axes: Sequence[GridAxis]
) -> int | None:
    """Number of inner chunks that a selection touches at most; None if not counted."""
    if isinstance(selection, Points):
        return selection.n_points
    if not isinstance(selection, Orthogonal):
        return None
    n_chunks = 1
    for axis, cells in zip(selection.axes, inner_axes, strict=True):
        if isinstance(axis, SliceAxis) and axis.length:
            n_cells = axis.last // cells.cell - axis.start // cells.cell + 1
        else:
            n_cells = cells.n_cells
        n_chunks *= min(axis.length, n_cells)
    return n_chunks


def read_by_host(
    read: Callable[[Sequence[NDArray[Any]]], object],
    outputs: Sequence[DeviceOutput],
    device: Device,
    entries: Sequence[Event],
) -> None:
    """Have `read` fill host arrays like `outputs`, and copy them there.

    Returns when the copies are done. `entries` are events that must be done before.
    Raises what `read` raises, and

    UnsupportedError
        An output is not contiguous.
    DeviceError
        The device failed.
    """
    for output in outputs:
        if not output.is_contiguous:
            raise UnsupportedError(
                "an array that the host has to read needs a contiguous output",
                got=f"strides {output.strides}",
                hint="leave out= away and copy the result",
            )
    results = [np.empty(output.shape, output.dtype) for output in outputs]
    read(results)
    stream = device.create_stream()
    try:
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
    except BaseException:
        # Also after an interrupt: a copy may still use the memory of both.
        wait_out(device, (stream,))
        raise
    finally:
        device.release_stream(stream)


def _copying_room(device: Device, nbytes: int) -> NDArray[np.uint8]:
    """Pinned memory, or pageable memory if there is none; copies are slower then."""
    try:
        return device.allocate_pinned(min(pooled_nbytes(nbytes), _PIECE_NBYTES))
    except DeviceMemoryError:
        return np.empty(max(nbytes, 1), np.uint8)
