"""An array as it is stored: the shapes, sizes and strides of its inner chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import mul
from typing import Any

import numpy as np

from gpushard.layout import ENTRY_NBYTES, ArrayLayout, cell_shape
from gpushard.options import KIB, MIB
from gpushard.pipeline import HostPipeline

# Inner chunks of at least this decoded size are decoded in part if the codecs can.
_DIVISIBLE_NBYTES = 256 * KIB
# Bytes of a shard that are no elements. What codecs add to an inner chunk and its entry
# in a nested index take less than the first; the second is for gaps.
_ADDED_NBYTES, _GAPS_NBYTES = 256, 4 * MIB
# A string takes an object and a pointer to it, in addition to its text.
_STRING_NBYTES = 64


@dataclass(frozen=True)
class StoredArray:
    """What follows from the layout and the codecs of an array, wherever it lies.

    Attributes
    ----------
    layout, pipeline
        The layout of the array, and the decoder of its innermost inner chunks.
    """

    layout: ArrayLayout
    pipeline: HostPipeline

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What other modules found out about the array as it is stored, by name."""
        return {}

    @cached_property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """Shape of every inner chunk; None in a rectilinear grid without shards."""
        return cell_shape(self.layout.inner_axes)

    @cached_property
    def object_strides(self) -> tuple[int, ...]:
        """Distance of neighbours along each axis, in the numbers of `number_of`."""
        strides: list[int] = []
        step = 1
        for axis in reversed(self.layout.axes):
            strides.append(step)
            step *= axis.n_cells
        return (*reversed(strides),)

    def number_of(self, coordinate: tuple[int, ...]) -> int:
        """Number of a stored object, if all places are numbered in C order."""
        return sum(map(mul, coordinate, self.object_strides))

    def shape_of(self, coordinate: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the inner chunk at `coordinate` of the grid of inner chunks."""
        # A rectilinear grid without shards is one of inner chunks.
        return self.chunk_shape or self.layout.object_shape(coordinate)

    @cached_property
    def chunk_nbytes(self) -> int:
        """Decoded size of an inner chunk; of the first one if their sizes differ."""
        lengths = (int(a.length_of(0)) for a in self.layout.inner_axes if a.n_cells)
        return prod(lengths) * self.layout.dtype.itemsize

    @cached_property
    def mean_chunk_nbytes(self) -> float:
        """Mean decoded size of an inner chunk."""
        lengths = (
            a.cell or a.extent / max(a.n_cells, 1) for a in self.layout.inner_axes
        )
        return prod(lengths) * self.layout.dtype.itemsize

    @cached_property
    def work_nbytes(self) -> int:
        """Memory to decode the largest inner chunk, without its stored bytes."""
        if self.pipeline.is_raw:
            return 0
        axes = [self.layout.inner_axes[k] for k in self.layout.outer_order]
        return self.pipeline.working_nbytes(tuple(axis.longest for axis in axes))

    @cached_property
    def whole_nbytes(self) -> int:
        """Largest decoded size of an inner chunk, or of a shard with outer codecs."""
        layout = self.layout
        nbytes = _STRING_NBYTES if layout.dtype.kind in "OT" else layout.dtype.itemsize
        axes = layout.axes if layout.object_codecs else layout.inner_axes
        return nbytes * prod(axis.longest for axis in axes)

    @cached_property
    def largest_shard_nbytes(self) -> int:
        """Largest decoded size of a stored object, a chunk if there are no shards."""
        lengths = (axis.longest for axis in self.layout.axes)
        return prod(lengths) * self.layout.dtype.itemsize

    def added_nbytes(self, shard_shape: tuple[int, ...]) -> int:
        """Most bytes to expect in a shard of `shard_shape` beside its elements.

        Its outer index is not counted.
        """
        axes = self.layout.inner_axes
        cells = zip(shard_shape, axes, strict=True)
        n_chunks = prod(n // axis.cell for n, axis in cells)
        return _ADDED_NBYTES * n_chunks + _GAPS_NBYTES

    @cached_property
    def largest_chunk_nbytes(self) -> int:
        """Largest plausible size of a stored inner chunk; a larger size is damage."""
        axes = self.layout.inner_axes
        return self.pipeline.encoded_limit(tuple(axis.longest for axis in axes))

    @cached_property
    def raw_strides(self) -> tuple[int, ...] | None:
        """Strides of stored inner chunks of plain elements, then the item size.

        A stride is the distance in bytes between neighbours along an axis of the array.
        None if the payload is encoded or inner chunks differ in shape.
        """
        is_raw = self.pipeline.is_raw and not self.layout.object_codecs
        return self.element_strides if is_raw else None

    @cached_property
    def element_strides(self) -> tuple[int, ...] | None:
        """Strides of decoded inner chunks of plain elements, then the item size.

        As `raw_strides`, but in the bytes after the bytes-to-bytes codecs.
        """
        layout, pipeline = self.layout, self.pipeline
        shape = self.chunk_shape
        if not pipeline.has_plain_elements or shape is None:
            return None
        strides = [0] * layout.ndim
        step = itemsize = pipeline.stored_dtype.itemsize
        stored = [layout.outer_order[k] for k in pipeline.axis_order(layout.ndim)]
        for axis in reversed(stored):
            strides[axis] = step
            step *= shape[axis]
        return (*strides, itemsize)

    @cached_property
    def range_strides(self) -> tuple[int, ...] | None:
        """`element_strides` if decoding inner chunks in part pays off, else None."""
        if self.chunk_nbytes < _DIVISIBLE_NBYTES or not self.pipeline.decodes_ranges:
            return None
        return self.element_strides

    @cached_property
    def index_entries(self) -> tuple[int, ...]:
        """Entries of the largest shard index at each sharding level."""
        shape = tuple(axis.longest for axis in self.layout.axes)
        counts: list[int] = []
        for level in self.layout.levels:
            pairs = zip(shape, level.chunk_shape, strict=True)
            counts.append(prod(n // cell for n, cell in pairs))
            shape = level.chunk_shape
        return tuple(counts)

    @cached_property
    def index_nbytes(self) -> tuple[int, ...]:
        """Memory of the largest shard index at each sharding level.

        It is its encoded or its decoded size, whichever is larger.
        """
        pairs = zip(self.layout.levels, self.index_entries, strict=True)
        return tuple(max(level.index_nbytes(n), ENTRY_NBYTES * n) for level, n in pairs)

    def chunks_per_shard(
        self, coordinate: tuple[int, ...], level: int
    ) -> tuple[int, ...]:
        """Shape of the index at sharding level `level`, in the level's stored axes.

        `coordinate` is that of the stored object. It matters in rectilinear grids only.
        """
        layout = self.layout
        here = layout.levels[level]
        if level:
            parent = layout.levels[level - 1].chunk_shape
        else:
            parent = layout.object_shape(coordinate)
        return tuple(parent[d] // here.chunk_shape[d] for d in here.axis_order)

    def n_chunks_in(self, coordinate: Sequence[int]) -> int:
        """Inner chunks of the object at `coordinate` that hold elements of the array.

        The object of an unsharded array is one inner chunk.
        """
        layout = self.layout
        if not layout.levels:
            return 1
        n_chunks = 1
        shape = layout.object_shape(coordinate)
        for axis, at, n, inner in zip(
            layout.axes, coordinate, shape, layout.inner_axes, strict=True
        ):
            n_within = min(n, axis.extent - int(axis.start_of(at)))
            n_chunks *= -(-n_within // inner.cell)
        return n_chunks

    def key(self, coordinate: tuple[int, ...]) -> str:
        """Key of the stored object at `coordinate` of the chunk grid."""
        return self.layout.key_prefix + self.layout.keys.key(coordinate)

    @cached_property
    def inverse_order(self) -> tuple[int, ...] | None:
        """Axes that transpose a decoded inner chunk to the array; None if none do."""
        order = self.layout.outer_order
        if order == tuple(range(len(order))):
            return None
        return tuple(int(axis) for axis in np.argsort(order))


FACTS = frozenset(
    name
    for name, kind in vars(StoredArray).items()
    if isinstance(kind, cached_property)
)
"""Names of the cached properties of `StoredArray`."""
