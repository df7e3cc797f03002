"""Reads that cast once they have read: little, or what the compiled loops do not cast.

They read the array's own data type, into memory for that, and NumPy casts it. Of much,
Python would place one inner chunk after the other, which takes two to five times as
long; of little, the short ways are for the array's own data type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.fused.choice import are_casts_lacking
from gpushard.options import KIB
from gpushard.placing.outputs import new_output
from gpushard.source import Source

# Fewer bytes are little. They need no room, and take less time than to look for a way.
_LITTLE_NBYTES = 64 * KIB


def read_converted(
    source: Source,
    outs: Sequence[NDArray[Any]],
    read: Callable[[Source, Sequence[NDArray[Any]]], object],
) -> bool:
    """Whether `outs` were read in the array's own data type, and then cast.

    If not, the loops cast on the way, or do not read the array, or there is no room.

    Parameters
    ----------
    outs
        Host arrays, all elements of which are to be read.
    read
        Reads an array with less memory into other arrays, of the same shapes.
    """
    dtype = source.layout.dtype
    n_cast = sum(out.size for out in outs if out.dtype != dtype)
    if not n_cast or dtype.hasobject:
        return False
    nbytes = n_cast * dtype.itemsize
    if nbytes >= _LITTLE_NBYTES:
        is_much = nbytes > source.options.memory_limit // 2  # the rest is for the read
        if is_much or not are_casts_lacking(source, outs):
            return False
        source = source.beside(nbytes)
    own = [o if o.dtype == dtype else new_output(o.shape, dtype) for o in outs]
    try:
        read(source, own)
    except LimitError:  # inner chunks do not fit beside it
        return False
    for out, values in zip(outs, own, strict=True):
        if values is not out:
            with np.errstate(all="ignore"):
                np.copyto(out, values, casting="unsafe")
    return True
