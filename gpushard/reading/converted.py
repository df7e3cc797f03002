"""Reads into data types that the compiled loops do not write.

They read the array's own data type, into memory for that, and NumPy casts it. Python,
which would place one inner chunk after the other, takes two to five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.fused.choice import are_casts_lacking
from gpushard.placing.outputs import new_output
from gpushard.reading.rounds import Reader
from gpushard.selecting.selection import Selection, fills
from gpushard.source import Source

# The elements of the array's own data type may take one in so many bytes of the limit.
_SHARE = 8


def read_converted(
    source: Source,
    selections: Sequence[Selection],
    outs: Sequence[NDArray[Any]],
    read: Reader,
) -> bool:
    """Whether selections were read in the array's own data type, and cast into `outs`.

    If not, the loops write `outs`, or do not read the array, or there is no room.
    """
    dtype = source.layout.dtype
    if all(out.dtype == dtype for out in outs) or not are_casts_lacking(source, outs):
        return False
    # Of an output of which this read is a part, the rest must stay as it is.
    if not all(map(fills, selections, outs)):
        return False
    nbytes = sum(out.size for out in outs if out.dtype != dtype) * dtype.itemsize
    if nbytes > source.options.memory_limit // _SHARE:
        return False
    own = [o if o.dtype == dtype else new_output(o.shape, dtype) for o in outs]
    try:
        read(source.beside(nbytes), selections, own)
    except LimitError:  # inner chunks do not fit beside it
        return False
    for out, values in zip(outs, own, strict=True):
        if values is not out:
            with np.errstate(all="ignore"):
                np.copyto(out, values, casting="unsafe")
    return True
