"""Samples in their stored order, cut into blocks along the axes of their windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import GridAxis
from gpushard.selecting.selection import Ints


@dataclass(frozen=True)
class SampleGrid:
    """A grid of samples, numbered in C order, and of blocks, numbered likewise.

    Attributes
    ----------
    axes
        The samples along each axis, cut into blocks. Single rows have one axis.
    """

    axes: tuple[GridAxis, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of samples along each axis."""
        return tuple(axis.extent for axis in self.axes)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return prod(self.counts)

    @cached_property
    def block_counts(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(axis.n_cells for axis in self.axes)

    @cached_property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return prod(self.block_counts)

    def end(self, position: int, last: int) -> int:
        """First sample, from `position` on, that a read should end before.

        That is where blocks end along axis 0, if it is not behind `last`. If it is, the
        read should end with the blocks along the first axis where that is nearer, among
        samples that only differ along this axis and those behind it.
        """
        if position <= 0 or position >= self.n:
            return min(max(position, 0), self.n)
        at = [int(k) for k in np.unravel_index(position - 1, self.counts)]
        stop, first, n_behind = self.n, 0, self.n
        for axis, k in zip(self.axes, at, strict=True):
            n_behind //= axis.extent
            cell = axis.cell_at(k)
            within = min(int(axis.start_of(cell) + axis.length_of(cell)), axis.extent)
            stop = first + within * n_behind
            if stop <= last:
                break
            first += k * n_behind
        return stop

    def block_sizes(self, blocks: Ints) -> Ints:
        """Number of samples of each block: int64, shape (n_blocks,)."""
        sizes: Ints = self._bounds(blocks)[1].prod(axis=0)
        return sizes

    def of_blocks(self, blocks: Ints) -> Ints:
        """Samples of the blocks, one block after the other: int64, (n_samples,)."""
        cell, extent = self.axes[0].cell, self.axes[0].extent
        if len(self.axes) == 1 and cell and (blocks < extent // cell).all():
            return np.add.outer(blocks * cell, np.arange(cell)).ravel()
        bounds = self._bounds(blocks)
        size = bounds[1].prod(axis=0)
        nth = np.repeat(np.arange(len(blocks)), size)
        place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        return self._numbered(bounds, nth, place)

    def in_blocks(self, blocks: Ints, place: Ints) -> Ints:
        """Samples at some places of `of_blocks`: int64, shape (n_places,)."""
        bounds = self._bounds(blocks)
        stop = np.cumsum(bounds[1].prod(axis=0))
        nth = np.searchsorted(stop, place, side="right")
        return self._numbered(bounds, nth, place - np.append(0, stop)[nth])

    def most_in_blocks(self, n_blocks: int) -> int:
        """Number of samples that `n_blocks` blocks may have."""
        return n_blocks * prod(min(axis.longest, axis.extent) for axis in self.axes)

    def _numbered(self, bounds: tuple[Ints, Ints], nth: Ints, place: Ints) -> Ints:
        """Samples from their places in the `nth` of the blocks with these bounds."""
        first, length = bounds
        samples, n_behind = np.zeros(len(place), np.int64), 1
        for d in reversed(range(len(self.axes))):
            place, within = np.divmod(place, length[d][nth])
            samples += (first[d][nth] + within) * n_behind
            n_behind *= self.counts[d]
        return samples

    def _bounds(self, blocks: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each axis and block the first sample and how many there are, in rows."""
        first = np.empty((len(self.axes), len(blocks)), np.int64)
        length = np.empty_like(first)
        cells = np.unravel_index(blocks, self.block_counts)
        for d, (axis, cell) in enumerate(zip(self.axes, cells, strict=True)):
            first[d] = axis.start_of(cell)
            stop = np.minimum(first[d] + axis.length_of(cell), axis.extent)
            length[d] = stop - first[d]
        return first, length

    def facts(self) -> Any:
        """Where blocks lie, as JSON: of each axis, and of an only axis by itself."""
        facts = [
            axis.cell
            if axis.boundaries is None
            else f"crc {crc32(axis.boundaries.tobytes())}"
            for axis in self.axes
        ]
        return facts if len(facts) > 1 else facts[0]
