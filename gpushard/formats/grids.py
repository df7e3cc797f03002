"""`chunk_grid` and `chunk_key_encoding` of a metadata document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.chunk_keys import ChunkKeys
from gpushard.errors import UnsupportedError
from gpushard.formats.document import (
    Named,
    as_length,
    as_lengths,
    as_list,
    as_named,
    as_separator,
    unsupported,
    wrong,
)
from gpushard.layout import MAX_LENGTH, GridAxis, cell_shape

MAX_NDIM = 32
"""Most dimensions of an array: NumPy 1 and the CUDA kernels have the same limit."""

_MAX_CELLS = 2**24
"""Cells that all rectilinear axes may spell out: 128 MiB of boundaries."""
_DEFAULT_SEPARATORS = {"default": "/", "v2": "."}


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """A parsed `chunk_grid`.

    Attributes
    ----------
    axes
        One axis per dimension.
    lengths
        Every distinct cell length of each axis, including cells beyond the extent.
    """

    axes: tuple[GridAxis, ...]
    lengths: tuple[tuple[int, ...], ...]

    @property
    def cell_shape(self) -> tuple[int, ...] | None:
        """Shape of every cell; None if an axis is rectilinear."""
        return cell_shape(self.axes)


def refuse_many_axes(shape: tuple[int, ...], json_path: str) -> None:
    """Refuse arrays of more dimensions than gpushard supports."""
    if len(shape) > MAX_NDIM:
        what = "the array has too many dimensions"
        raise unsupported(what, json_path, f"at most {MAX_NDIM}", len(shape))


def parse_chunk_grid(value: Any, shape: tuple[int, ...]) -> ChunkGrid:
    """Chunk grid of an array of `shape`."""
    named = as_named(value, "the chunk grid", "chunk_grid")
    if named.name == "regular":
        named.refuse_members_but(("chunk_shape",))
        return _regular(named, shape)
    if named.name == "rectilinear":
        named.refuse_members_but(("kind", "chunk_shapes"))
        return _rectilinear(named, shape)
    raise UnsupportedError(
        f"chunk grid {named.name!r} is not supported",
        json_path="chunk_grid.name",
        expected="regular or rectilinear",
        got=named.name,
    )


def _regular(named: Named, shape: tuple[int, ...]) -> ChunkGrid:
    path = named.at("chunk_shape")
    chunk_shape = as_lengths(
        named.required("chunk_shape"), "the chunk shape", path, least=0, ndim=len(shape)
    )
    axes = tuple(
        GridAxis(extent, regular_cell(cell, extent, f"{path}[{axis}]"))
        for axis, (extent, cell) in enumerate(zip(shape, chunk_shape, strict=True))
    )
    return ChunkGrid(axes, tuple((axis.cell,) for axis in axes))


def regular_cell(cell: int, extent: int, json_path: str) -> int:
    """Length of the cells of a regular axis, from what the metadata say."""
    # Older writers stored a chunk length of 0 for an axis of length 0, where no chunk
    # can exist.
    if cell == 0 and extent == 0:
        return 1
    return as_length(cell, "the chunk shape", json_path, least=1)


def _rectilinear(named: Named, shape: tuple[int, ...]) -> ChunkGrid:
    """Grid of the registered extension `rectilinear` (zarr-extensions, chunk-grids)."""
    kind = named.required("kind")
    if kind != "inline":
        raise UnsupportedError(
            "this kind of rectilinear chunk grid is not supported",
            json_path=named.at("kind"),
            expected="inline",
            got=kind,
        )
    path = named.at("chunk_shapes")
    per_axis = as_list(named.required("chunk_shapes"), "the chunk shapes", path)
    if len(per_axis) != len(shape):
        expected = f"{len(shape)} axes"
        raise wrong("the chunk shapes have the wrong rank", path, expected, per_axis)
    axes: list[GridAxis] = []
    lengths: list[tuple[int, ...]] = []
    most_cells = _MAX_CELLS
    for d, (extent, value) in enumerate(zip(shape, per_axis, strict=True)):
        axis, of_axis = _rectilinear_axis(value, extent, f"{path}[{d}]", most_cells)
        axes.append(axis)
        lengths.append(of_axis)
        if axis.boundaries is not None:
            most_cells -= axis.n_cells
    return ChunkGrid(tuple(axes), tuple(lengths))


def _rectilinear_axis(
    value: Any, extent: int, json_path: str, most_cells: int
) -> tuple[GridAxis, tuple[int, ...]]:
    """Axis, and its distinct cell lengths; it may spell out `most_cells` cells."""
    if not isinstance(value, list | tuple):
        cell = as_length(value, "the chunk length", json_path, least=1)
        return GridAxis(extent, cell), (cell,)
    edges, counts = _run_lengths(cast("list[Any]", value), json_path)
    covered = sum(edge * count for edge, count in zip(edges, counts, strict=True))
    if not edges or covered < extent or covered > 2 * MAX_LENGTH:
        what = "the chunk lengths do not cover the axis"
        raise wrong(what, json_path, f"a sum of {extent} or more", covered)
    if sum(counts) > most_cells:
        what = "the rectilinear axes have too many chunks"
        expected = f"at most {_MAX_CELLS} along all axes together"
        n_cells = _MAX_CELLS - most_cells + sum(counts)
        raise unsupported(what, json_path, expected, n_cells)
    boundaries = _boundaries(edges, counts, extent)
    return GridAxis(extent, 0, boundaries), tuple(sorted(set(edges)))


def _run_lengths(items: list[Any], json_path: str) -> tuple[list[int], list[int]]:
    """Lengths and repeats; an item is a length or ``[length, count]``."""
    edges: list[int] = []
    counts: list[int] = []
    for i, item in enumerate(items):
        pair = [item, 1] if type(item) is int else item
        path = f"{json_path}[{i}]"
        edge, count = as_lengths(pair, "the chunk length", path, least=1, ndim=2)
        edges.append(edge)
        counts.append(count)
    return edges, counts


def _boundaries(edges: list[int], counts: list[int], extent: int) -> NDArray[np.int64]:
    """Starts of the cells that hold elements, followed by the end of the last one."""
    ends = np.cumsum(np.repeat(np.array(edges, np.int64), counts))
    n_cells = int(np.searchsorted(ends, extent, side="left")) + 1 if extent else 0
    boundaries = np.concatenate([np.zeros(1, np.int64), ends[:n_cells]])
    boundaries.setflags(write=False)
    return boundaries


def parse_chunk_keys(value: Any) -> ChunkKeys:
    """How a key spells the coordinates of a stored object."""
    named = as_named(value, "the chunk key encoding", "chunk_key_encoding")
    if named.name not in _DEFAULT_SEPARATORS:
        raise UnsupportedError(
            f"chunk key encoding {named.name!r} is not supported",
            json_path="chunk_key_encoding.name",
            expected="default or v2",
            got=named.name,
        )
    named.refuse_members_but(("separator",))
    separator = named.configuration.get("separator", _DEFAULT_SEPARATORS[named.name])
    checked = as_separator(separator, named.at("separator"))
    return ChunkKeys(cast("Any", named.name), checked)
