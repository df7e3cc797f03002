"""An inner chunk of fill values, which the loops copy missing ones from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import FILE, FILLED, SOURCE
from gpushard.fused.room import address_of
from gpushard.options import KIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source

Fill = NDArray[Any]

# It is larger only while an inner chunk is missing, and there is room for it.
_LITTLE_NBYTES = 256 * KIB


def little_fill(source: Source, chunk_nbytes: int) -> Fill | None:
    """An inner chunk of fill values to plan with; None where it would take much."""
    return None if chunk_nbytes > _LITTLE_NBYTES else stored_fill(source)


def fill_for(boxes: Ints, source: Source, fill: Fill | None) -> Fill | None:
    """What boxes of missing inner chunks are copied from, to be held while they are.

    Parameters
    ----------
    fill
        What there is of it already. Else it is made, where one is missing; without room
        for it these boxes have no source, and will not be placed.
    """
    if fill is not None and fill.nbytes <= _LITTLE_NBYTES:
        return fill
    is_missing = (boxes[:, FILE] == FILLED) & (boxes[:, SOURCE] == 0)
    if not is_missing.any():
        return fill
    if fill is None and source.chunk_nbytes <= source.room.most_filling_nbytes:
        fill = stored_fill(source)
    boxes[is_missing, SOURCE] = address_of(fill)
    return fill


def stored_fill(source: Source) -> Fill:
    """An inner chunk of fill values, as it would be stored: shape (n_elements,)."""
    value = source.layout.fill_value
    stored = value.astype(source.pipeline.stored_dtype)
    return np.full(source.chunk_nbytes // stored.itemsize, stored)
