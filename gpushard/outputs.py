"""Arrays to write a result into: made here, or the caller's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import SelectionError


def usable_output(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Array of `shape` to write into: a view on `out`, or a new one of `dtype`.

    Parameters
    ----------
    out
        None, a NumPy array, or anything on the host that NumPy can view (a torch
        tensor).

    Raises
    ------
    SelectionError
        `out` has another shape, is read-only, or cannot be viewed without a copy.
    """
    if out is None:
        return np.empty(shape, dtype)
    array = out if isinstance(out, np.ndarray) else _viewed(out)
    if array.shape != shape:
        raise SelectionError(
            "out= has another shape than the selection", expected=shape, got=array.shape
        )
    if not array.flags.writeable:
        raise SelectionError("out= is read-only", hint="pass a writable array")
    return array


def _viewed(out: Any) -> NDArray[Any]:
    try:
        array, again = np.asarray(out), np.asarray(out)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise _no_shared_memory(out) from error
    # Not every object can be asked for a view and nothing else; but copies never lie
    # in the same place.
    if array.size and not np.may_share_memory(array, again):
        raise _no_shared_memory(out)
    return array


def _no_shared_memory(out: Any) -> SelectionError:
    return SelectionError(
        "out= shares no memory with NumPy",
        got=type(out).__name__,
        hint="pass a NumPy array or a tensor on the host without gradient",
    )
