"""The host's and a device's reads, compared element by element, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.cli.comparison import differing_positions
from gpushard.cli.pieces import AxisItem, Piece, cut_selection, per_axis
from gpushard.devices.base import Device
from gpushard.inspection.findings import MOST_FINDINGS, Check, Finding, Verification
from gpushard.inspection.verify import Progress
from gpushard.layout import ArrayLayout
from gpushard.options import MIB
from gpushard.source import Source

# Size of a piece; both results of a piece are held.
_PIECE_NBYTES = 64 * MIB


def compare_devices(
    source: Source, device: Device | None, result: Verification, progress: Progress
) -> None:
    """Read everything on the host and on `device`; add differences to `result`.

    Damaged inner chunks read as the fill value on both, and are in `result` already.
    Raises `StoreError` or `DeviceError` if the store or the device failed.
    """
    layout = source.layout
    # All of it by the device, which reads of little might otherwise leave to the host.
    options = source.options.but(placement="device")
    host, other = Array(source), Array(replace(source, options=options), device)
    n_elements = 0
    for piece in _pieces_along_chunks(per_axis((...,), layout.shape), layout):
        expected = host.read(piece.key, errors=_ignore_damage)
        got = _on_host(other.read(piece.key, errors=_ignore_damage))
        positions = differing_positions(np.ascontiguousarray(expected), got)
        n_elements += expected.size
        if len(positions):
            _add_findings(layout, source, piece, positions, result)
        progress(
            layout.n_objects * expected.size / max(1, layout.size), expected.nbytes
        )
    how = f"{n_elements:,} elements read on {other.device} and on the host, compared"
    result.checks.append(Check("device", True, how))


def _ignore_damage(error: object) -> None:
    """Ignore damage, which the verification has reported already."""


def _on_host(result: Any) -> NDArray[Any]:
    return np.asarray(result.get() if hasattr(result, "get") else result)


def _pieces_along_chunks(
    items: tuple[AxisItem, ...], layout: ArrayLayout
) -> Iterator[Piece]:
    """Pieces along the borders of inner chunks, as small as these allow."""
    pieces = cut_selection(
        items, layout.inner_axes, layout.dtype.itemsize, _PIECE_NBYTES
    )
    for piece in pieces:
        nbytes = prod(piece.shape) * layout.dtype.itemsize
        if len(pieces) > 1 and nbytes > 2 * _PIECE_NBYTES:
            yield from _pieces_along_chunks(piece.items, layout)
        else:
            yield piece


def _add_findings(
    layout: ArrayLayout,
    source: Source,
    piece: Piece,
    positions: NDArray[np.intp],
    result: Verification,
) -> None:
    """Note each inner chunk with elements at `positions` of a piece."""
    at = np.unravel_index(positions, piece.shape)
    starts = [item.start if isinstance(item, range) else item for item in piece.items]
    elements = [column + start for column, start in zip(at, starts, strict=True)]
    chunks = np.array(
        [
            axis.cell_at(column)
            for axis, column in zip(layout.inner_axes, elements, strict=True)
        ],
        np.int64,
    ).reshape(layout.ndim, len(positions))
    unique, first, counts = np.unique(
        chunks, axis=1, return_index=True, return_counts=True
    )
    for column, i, n in zip(unique.T.tolist(), first, counts.tolist(), strict=True):
        element = tuple(int(along[i]) for along in elements)
        shard = tuple(
            int(axis.cell_at(at)) for axis, at in zip(layout.axes, element, strict=True)
        )
        result.n_findings += 1
        result.n_damage += 1
        result.n_damaged_inner_chunks += 1
        if len(result.findings) < MOST_FINDINGS:
            message = f"the device reads {n} elements otherwise than the host"
            what = f"{message}, the first at {element}"
            key = source.key(shard)
            result.findings.append(Finding("device", key, tuple(column), 1, what))
