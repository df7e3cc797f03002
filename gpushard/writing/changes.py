"""Changes to regions of the array, cut into those of inner chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gpushard.options import MIB
from gpushard.writing.on_device import DeviceValues
from gpushard.writing.regions import Part
from gpushard.writing.shard import Region

# Columns of listed elements that a batch may have, those of its last inner chunk aside.
_COLUMNS_NBYTES = MIB


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a region: which elements are written, and the values for them."""

    part: Part
    values: NDArray[Any] | DeviceValues

    def put_into(self, chunk: NDArray[Any]) -> None:
        """Copy the values into a region in host memory."""
        values = self.values
        on_host = values.on_host() if isinstance(values, DeviceValues) else values
        self.part.assign(chunk, on_host)


Cell = tuple[int, Region, Change]
"""Entry of a changed inner chunk, the inner chunk, and its change."""


def changed_cells(region: Region, change: Change) -> Iterator[Cell]:
    """Entry of each changed inner chunk, the inner chunk, and its change."""
    for cell, part in change.part.cells(region.grid):
        yield region.entry(cell), region.inner(cell), Change(part, change.values)


def batches(cells: Iterator[Cell], n_most: int) -> Iterator[list[Cell]]:
    """Changed inner chunks, so many at a time, or as many as have long columns."""
    batch: list[Cell] = []
    nbytes = 0
    for cell in cells:
        batch.append(cell)
        nbytes += cell[2].part.columns_nbytes
        if len(batch) == n_most or nbytes > _COLUMNS_NBYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
