"""What a reader must know about an array: shape, data type, chunk grid, codec chains.

Every on-disk format (`formats/`) is parsed into these classes. An `ArrayLayout` that
exists is valid, so nothing downstream checks it again. All shapes are in the array's
own axis order: transposes of the codec chain are folded into `axis_order` fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.chunk_keys import ChunkKeys

MAX_LENGTH = 2**62
"""Largest extent or chunk length: one cell beyond it still fits an int64."""
Coordinate = tuple[int, ...]
"""Number of a cell along each axis: of a shard, or of an inner chunk."""

# Grids of up to so many cells are walked by `itertools.product`, which holds its axes
# in memory.
_HELD_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class GridAxis:
    """One dimension cut into cells.

    Attributes
    ----------
    extent
        Length of the array along this axis; the last cell may reach beyond it.
    cell
        Length of every cell of a regular axis; 0 for a rectilinear one.
    boundaries
        For a rectilinear axis: int64, shape (n_cells + 1,), host. The start of each
        cell, followed by the end of the last one. None for a regular axis.
    """

    extent: int
    cell: int
    boundaries: NDArray[np.int64] | None = field(default=None, repr=False)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        if self.boundaries is None:
            return -(-self.extent // self.cell)
        return len(self.boundaries) - 1

    def start_of(self, index: Any) -> Any:
        """First element of cell `index` (int or int64 array)."""
        if self.boundaries is None:
            return index * self.cell
        return self.boundaries[index]

    def length_of(self, index: Any) -> Any:
        """Length of cell `index`, not cut at the extent (int or int64 array)."""
        if self.boundaries is None:
            return self.cell
        return self.boundaries[index + 1] - self.boundaries[index]

    @property
    def lengths(self) -> int | tuple[int, ...]:
        """Length of every cell; of a rectilinear axis, those of all, cut at its end."""
        if self.boundaries is None:
            return self.cell
        within = np.minimum(self.boundaries, self.extent)
        return tuple(np.diff(within).tolist()) or (0,)

    @property
    def longest(self) -> int:
        """Length of the longest cell."""
        if self.boundaries is None:
            return self.cell
        # Computed in runs, since all lengths would take as much memory as the
        # boundaries.
        runs = range(0, self.n_cells, _HELD_CELLS)
        cuts = (self.boundaries[first : first + _HELD_CELLS + 1] for first in runs)
        return max((int(np.diff(cut).max()) for cut in cuts), default=0)

    def cell_at(self, element: Any) -> Any:
        """Cell that holds `element` (int or int64 array)."""
        if self.boundaries is None:
            return element // self.cell
        search: Any = np.searchsorted  # its stubs know arrays only
        cell: Any = search(self.boundaries, element, side="right")
        return cell - 1


def cell_shape(axes: Sequence[GridAxis]) -> tuple[int, ...] | None:
    """Shape of every cell of a grid; None if an axis is rectilinear."""
    if any(axis.boundaries is not None for axis in axes):
        return None
    return tuple(axis.cell for axis in axes)


@dataclass(frozen=True, slots=True)
class Elements:
    """What codecs must know of the elements that they encode.

    Attributes
    ----------
    dtype
        Data type in memory, native byte order.
    data_type_json, fill_value_json
        Their spelling in the metadata, for codecs that only zarr knows.
    fill_value
        0-d array of `dtype`.
    """

    dtype: np.dtype[Any]
    data_type_json: Any
    fill_value_json: Any
    fill_value: NDArray[Any]


_ENTRY = np.zeros((), np.uint64)
INDEX_ELEMENTS = Elements(_ENTRY.dtype, "uint64", 0, _ENTRY)
"""Elements of a shard index: offsets and sizes (sharding codec 1.0)."""
ENTRY_NBYTES = 16
"""Size of a decoded entry of a shard index."""


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """One entry of a `codecs` list, in the spelling of the metadata."""

    name: str
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    json_path: str = ""


# Compressors of Blosc frames that decode as fast as plain LZ4.
_FAST_BLOSC = ("lz4", "lz4hc", "blosclz")


@dataclass(frozen=True, slots=True)
class CodecChain:
    """Codecs between an inner chunk and its bytes, each tuple in encoding order."""

    array_array: tuple[CodecSpec, ...]
    array_bytes: CodecSpec
    bytes_bytes: tuple[CodecSpec, ...]

    @property
    def specs(self) -> tuple[CodecSpec, ...]:
        """All codecs, in encoding order."""
        return (*self.array_array, self.array_bytes, *self.bytes_bytes)

    @property
    def decodes_fast(self) -> bool:
        """Whether bytes are compressed by LZ4, or as fast, alone or in Blosc frames."""
        first = self.bytes_bytes[0] if self.bytes_bytes else None
        if first is None or "blosc" not in first.name:
            return first is not None and first.name == "numcodecs.lz4"
        return first.configuration.get("cname") in _FAST_BLOSC

    @property
    def blosc_compressor(self) -> Any:
        """What the metadata names as the compressor of Blosc frames, or None.

        Frames may have other compressors.
        """
        names = [
            spec.configuration.get("cname")
            for spec in self.bytes_bytes
            if "blosc" in spec.name
        ]
        return names[0] if names else None


class IndexSize(NamedTuple):
    """Encoded size of an index: bytes per entry, and bytes in addition.

    An entry has `ENTRY_NBYTES` unless a codec changes the element size.
    """

    entry_nbytes: int
    trailer_nbytes: int

    def of(self, n_entries: int) -> int:
        """Encoded size of an index of `n_entries`."""
        return n_entries * self.entry_nbytes + self.trailer_nbytes


@dataclass(frozen=True, slots=True)
class ShardLevel:
    """One `sharding_indexed` codec: how a shard is cut and where its index lies.

    Attributes
    ----------
    chunk_shape
        Shape of the inner chunks at this level, in array axes.
    axis_order
        The index counts inner chunks in C order over the stored axes; stored axis k
        is array axis ``axis_order[k]``.
    index_location
        Where in the shard the index lies.
    index_chain
        Codecs of the index, a uint64 array of shape (*chunks_per_shard, 2) with chunks
        per shard in stored axes. All have a fixed encoded size, `index_size`.
    """

    chunk_shape: tuple[int, ...]
    axis_order: tuple[int, ...]
    index_location: Literal["start", "end"]
    index_chain: CodecChain
    index_size: IndexSize

    def index_nbytes(self, n_entries: int) -> int:
        """Encoded size of an index of `n_entries`."""
        return self.index_size.of(n_entries)


@dataclass(frozen=True)
class ArrayLayout:
    """An array as a reader sees it.

    Attributes
    ----------
    path
        Path of the array in its store; "" is the root.
    shape
        Elements along each axis.
    dtype
        Data type of the elements in memory, native byte order.
    data_type_json
        The data type in the spelling of the metadata, for zarr's own codecs.
    fill_value
        0-d array of `dtype`: the value of missing inner chunks, bit for bit.
    fill_value_json
        The fill value in the spelling of the metadata.
    axes
        The chunk grid: each cell is one stored object (shard).
    levels
        Sharding codecs from the outside in; empty for an unsharded array.
    chain
        Codecs of the innermost inner chunks. Transposes before a sharding codec are
        folded into `levels` and into `outer_order`.
    outer_order
        Axis order of an inner chunk for the innermost chain: its axis k is array axis
        ``outer_order[k]`` (product of all transposes around it).
    object_codecs
        Bytes-to-bytes codecs around a whole shard, in encoding order. With any such
        codec, byte ranges inside the stored object have no meaning, so it is fetched
        whole.
    keys
        Coordinates of a stored object -> key below `path` or `data_path`.
    chunks
        Inner chunk shape in elements, as zarr gives it (that of the outermost sharding
        codec); the chunk shape of an unsharded array; None if rectilinear.
    shards
        Shard shape in elements; None if the array is not sharded or rectilinear.
    data_path
        Path below which the stored objects lie; None means `path`.
    fill_is_missing
        Whether an element that equals the fill value is a missing one to xarray: in
        Zarr v2, unless the fill value is null.
    is_v2
        Whether the metadata are those of Zarr v2.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data_type_json: Any
    fill_value: NDArray[Any] = field(repr=False)
    fill_value_json: Any
    axes: tuple[GridAxis, ...]
    levels: tuple[ShardLevel, ...]
    chain: CodecChain
    outer_order: tuple[int, ...]
    object_codecs: tuple[CodecSpec, ...]
    keys: ChunkKeys
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    attributes: Mapping[str, Any]
    dimension_names: tuple[str | None, ...] | None
    data_path: str | None = None
    fill_is_missing: bool = False
    is_v2: bool = False

    @property
    def elements(self) -> Elements:
        """The elements, as `chain` encodes them."""
        return Elements(
            self.dtype, self.data_type_json, self.fill_value_json, self.fill_value
        )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def digest(self, *beside: Any) -> str:
        """SHA-256 of all of this and of what stands beside it, as hexadecimal digits.

        It is the same in every process. NumPy's texts are not part of it: it prints
        some dates not at all, and of long arrays a part.
        """
        digest = sha256(repr((self, beside)).encode())
        for axis in self.axes:
            if axis.boundaries is not None:
                digest.update(axis.boundaries)
        return digest.hexdigest()

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, the text of strings aside."""
        return self.size * self.dtype.itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Stored objects along each axis: shards, or chunks of an unsharded array."""
        return tuple(axis.n_cells for axis in self.axes)

    @property
    def n_objects(self) -> int:
        """Stored objects, of which any may be missing."""
        return prod(self.grid)

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Coordinate of each stored object in the chunk grid, in C order."""
        return in_c_order(self.grid)

    def object_shape(self, coordinate: Sequence[int]) -> tuple[int, ...]:
        """Shape of the object at `coordinate`, not cut at the edge of the array."""
        axes = zip(self.axes, coordinate, strict=True)
        return tuple(int(axis.length_of(at)) for axis, at in axes)

    @property
    def inner_grid(self) -> tuple[int, ...]:
        """Innermost inner chunks along each axis."""
        return tuple(axis.n_cells for axis in self.inner_axes)

    @cached_property
    def inner_axes(self) -> tuple[GridAxis, ...]:
        """The grid of innermost inner chunks (the chunk grid if unsharded)."""
        if not self.levels:
            return self.axes
        return tuple(
            GridAxis(extent, cell)
            for extent, cell in zip(
                self.shape, self.levels[-1].chunk_shape, strict=True
            )
        )

    def over(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> ArrayLayout:
        """Array of `shape` over the objects whose keys begin at `offset`.

        Only for regular axes.
        """
        axes = zip(self.axes, shape, strict=True)
        return replace(
            self,
            shape=shape,
            axes=tuple(replace(axis, extent=extent) for axis, extent in axes),
            keys=replace(self.keys, offset=offset),
        )

    @cached_property
    def key_prefix(self) -> str:
        """Prefix of every object's key."""
        below = self.path if self.data_path is None else self.data_path
        return f"{below}/" if below else ""


def in_c_order(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates of a grid with `counts` cells along each axis, in C order.

    The same as `itertools.product` of ranges, which would hold each range as a tuple: a
    few bytes of metadata may describe axes of 2**60 cells.
    """
    n_cells = prod(counts)
    if n_cells <= _HELD_CELLS:
        yield from product(*map(range, counts)) if n_cells else ()
        return
    for first in range(counts[0]):
        for others in in_c_order(counts[1:]):
            yield first, *others
