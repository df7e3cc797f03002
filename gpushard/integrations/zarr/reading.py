"""One read by zarr: the chunks that it asks for -> its output, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushard.devices.find import find_device
from gpushard.errors import UnsupportedError
from gpushard.integrations.zarr.arrays import PipelineArray
from gpushard.integrations.zarr.batch import extent_of, selection_of
from gpushard.integrations.zarr.pieces import Entry, grown_irregularly
from gpushard.layout import GridAxis
from gpushard.reading.results import ReadRequest, read_on_host
from gpushard.remade import naming_source
from gpushard.report import Tally
from gpushard.selecting.selection import ParsedSelection
from gpushard.source import Source
from gpushard.stores.base import ByteRequest

if TYPE_CHECKING:
    import asyncio

    from zarr.core.buffer import NDBuffer

    from gpushard.integrations.zarr.arrays import Batch
    from gpushard.layout import ArrayLayout

    Statuses = tuple[dict[str, str], ...]


def read_batch(
    pipeline_array: PipelineArray,
    batch: Batch,
    out: NDBuffer,
    drop_axes: tuple[int, ...],
    loop: asyncio.AbstractEventLoop,
) -> Statuses:
    """Read the chunks of a batch into `out`; returns as `GpushardCodecPipeline.read`.

    It waits for `loop`, and so must not run in that loop's thread.
    """
    source, entries = pipeline_array.wanted(batch, loop)
    array: Any = out.as_ndarray_like()
    with naming_source(source):
        spec = batch[0][1]
        axes = source.layout.axes
        selection = selection_of(entries, axes, tuple(array.shape), drop_axes)
        source = _grown(source, extent_of(selection))
        _check_dtype(source.layout, array.dtype)
        asks = not getattr(spec.config, "read_missing_chunks", True)
        tally = Tally() if asks else None
        _read_into(source, selection, array, tally)
        if tally is None or not tally.counts.get("n_missing_shards"):
            return ({"status": "present"},) * len(batch)
        return _statuses(source, entries)


def _grown(source: Source, needed: tuple[int, ...]) -> Source:
    """The same array, at least of shape `needed`; zarr does not tell of a resize."""
    layout = source.layout
    pairs = list(zip(needed, layout.axes, strict=True))
    if all(n <= axis.extent for n, axis in pairs):
        return source
    if any(n > axis.extent and axis.boundaries is not None for n, axis in pairs):
        raise grown_irregularly()
    axes = tuple(GridAxis(n, a.cell) if n > a.extent else a for n, a in pairs)
    shape = tuple(axis.extent for axis in axes)
    return replace(source, layout=replace(layout, shape=shape, axes=axes))


def _check_dtype(layout: ArrayLayout, dtype: np.dtype[Any]) -> None:
    """Refuse an output of another data type, which zarr makes to read one field."""
    if dtype != layout.dtype and dtype.newbyteorder("=") != layout.dtype:
        raise UnsupportedError(
            "the output is of another data type than the array",
            expected=layout.dtype,
            got=dtype,
        )


def _read_into(
    source: Source, selection: ParsedSelection, array: Any, tally: Tally | None
) -> None:
    request = ReadRequest([selection], [array], source.layout.dtype, tally=tally)
    if not hasattr(array, "__cuda_array_interface__"):
        read_on_host(source, request)
        return
    from gpushard.device_reading.read import read_on_device

    read_on_device(source, request, _device(array.device.id))


def _statuses(source: Source, entries: Sequence[Entry]) -> Statuses:
    """Whether each chunk is stored; the store is asked after the read."""
    requests = [ByteRequest(source.key(entry.coordinate), 0, 1) for entry in entries]
    answers = source.read(requests)
    return tuple(
        {"status": "missing" if answer is None else "present"} for answer in answers
    )


def _device(ordinal: int) -> Any:  # never None: only "auto" and "cpu" mean the host
    return find_device(f"cuda:{ordinal}").device
