"""An inner chunk of fill values, from which the loops copy missing ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import FILE, FILLED, SOURCE
from gpushard.options import KIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source

Fill = NDArray[Any]

# A larger one exists only while an inner chunk is missing, and if there is room.
_LITTLE_NBYTES = 256 * KIB


def little_fill(source: Source, chunk_nbytes: int) -> Fill | None:
    """An inner chunk of fill values for planning; None if it would be large."""
    return None if chunk_nbytes > _LITTLE_NBYTES else stored_fill(source)


def fill_for(boxes: Ints, source: Source, fill: Fill | None) -> Fill | None:
    """The inner chunk of fill values that boxes are copied from; hold it meanwhile.

    Parameters
    ----------
    fill
        The one that exists already, if any. Otherwise one is made if a box is missing.
        Without room for it, such boxes get no source and are not placed.
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
    """An inner chunk of fill values in its stored form: shape (n_elements,)."""
    value = source.layout.fill_value
    stored = value.astype(source.pipeline.stored_dtype)
    return np.full(source.chunk_nbytes // stored.itemsize, stored)
