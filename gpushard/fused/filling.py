"""Fill values in a row, from which the loops copy what is wanted of missing chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import FILE, FILLED, OFFSET, SOURCE
from gpushard.options import KIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source

Fill = NDArray[Any]

# An inner chunk of them that is larger is not made. Where one is missing, there are as
# many fill values as a box reaches over, if there is room.
_LITTLE_NBYTES = 256 * KIB


def little_fill(source: Source, chunk_nbytes: int) -> Fill | None:
    """An inner chunk of fill values for planning; None if it would be large."""
    if chunk_nbytes > _LITTLE_NBYTES:
        return None
    return stored_fill(source, source.chunk_nbytes)


def fill_for(
    boxes: Ints,
    source: Source,
    fill: Fill | None,
    spanned_nbytes: Callable[[Ints], int],
) -> Fill | None:
    """The fill values that boxes are copied from; hold them meanwhile.

    Parameters
    ----------
    fill
        Those that exist already, if any. Otherwise they are made if a box is missing.
        Without room for them, such boxes get no source and are not placed.
    spanned_nbytes
        Of some boxes, the bytes from the first to the last element of any that is read
        with `fill`.
    """
    if fill is not None and fill.nbytes == source.chunk_nbytes <= _LITTLE_NBYTES:
        return fill
    is_missing = (boxes[:, FILE] == FILLED) & (boxes[:, SOURCE] == 0)
    if not is_missing.any():
        return fill
    if fill is None:
        nbytes = spanned_nbytes(boxes[is_missing])
        if nbytes <= source.room.most_filling_nbytes:
            fill = stored_fill(source, nbytes)
    if fill is not None:
        boxes[is_missing, SOURCE] = address_of(fill) - boxes[is_missing, OFFSET]
    return fill


def stored_fill(source: Source, nbytes: int) -> Fill:
    """Fill values in their stored form: shape (n_elements,), `nbytes` together."""
    value = source.layout.fill_value
    stored = value.astype(source.pipeline.stored_dtype)
    return np.full(nbytes // stored.itemsize, stored)
