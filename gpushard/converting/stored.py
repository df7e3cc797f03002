"""Which shards of a conversion have stored elements, where a listing tells it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpushard.layout import ArrayLayout
from gpushard.listed import listed_coordinates
from gpushard.source import Source

Bools = NDArray[np.bool_]


def stored_shards(target: ArrayLayout, source: Source) -> Bools | None:
    """Shards in which `source`, an array of the same shape, may have stored elements.

    All elements of the others are fill value.

    Returns
    -------
    bool, shape of the target's grid, host. None if the source's listing does not tell,
    as in `listed_coordinates`.
    """
    listed = listed_coordinates(source)
    if listed is None:
        return None
    bounds: list[NDArray[np.int64]] = []
    for axis, to, at in zip(source.layout.axes, target.axes, listed.T, strict=True):
        first = axis.start_of(at)
        last = np.minimum(first + axis.length_of(at), axis.extent) - 1
        bounds += [to.cell_at(first), to.cell_at(last) + 1]
    found = np.zeros(target.grid, np.bool_)
    # Many objects may meet the same shards.
    for box in np.unique(np.stack(bounds, axis=1), axis=0).tolist():
        found[tuple(map(slice, box[::2], box[1::2]))] = True
    return found
