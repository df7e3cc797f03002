"""Arrays to write a result into: made here, or the caller's own."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard.arguments import items
from gpushard.errors import SelectionError
from gpushard.memory.lent import lender
from gpushard.options import MIB

# What is as large stays in no cache of a core. It begins on a line of the cache, which
# is where the memory of large arrays of NumPy never begins: rows that fill lines can
# then be written past it.
LARGE_NBYTES = 16 * MIB
_LINE_NBYTES = 64


def parsed_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Data type that ``dtype=`` names.

    Raises
    ------
    SelectionError
        It names none.
    """
    try:
        return np.dtype(dtype)
    except TypeError as error:
        raise SelectionError("dtype= is no data type", got=repr(dtype)) from error


def many(selections: Any, out: Any) -> tuple[list[Any], list[Any]]:
    """Keys of several selections, and the array to write each into, or None.

    Raises
    ------
    OptionError
        Either cannot be iterated over.
    SelectionError
        There is not one array a selection.
    """
    keys = items(selections, "selections", "a list of keys as in a[key]")
    if out is None:
        return keys, [None] * len(keys)
    outs = items(out, "out=", "a list with an array a selection")
    if len(outs) != len(keys):
        raise SelectionError(
            "out= needs one array for each selection", expected=len(keys), got=len(outs)
        )
    return keys, outs


def usable_output(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Array of `shape` to write into: a view on `out`, or a new one of `dtype`.

    Parameters
    ----------
    out
        None, a NumPy array, or anything on the host that NumPy can view (a torch
        tensor, what exports itself by DLPack).

    Raises
    ------
    SelectionError
        `out` has another shape, is read-only, or cannot be viewed without a copy; or
        there is not enough memory for the result.
    """
    if out is None:
        return _new(shape, dtype)
    array = out if isinstance(out, np.ndarray) else _viewed(out)
    if array.shape != shape:
        raise SelectionError(
            "out= has another shape than the selection", expected=shape, got=array.shape
        )
    if not array.flags.writeable:
        raise SelectionError("out= is read-only", hint="pass a writable array")
    return array


def _new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < LARGE_NBYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        memory = lender.take(nbytes)
        if memory is None:
            memory = np.empty(nbytes + _LINE_NBYTES, np.uint8)
        first = -memory.__array_interface__["data"][0] % _LINE_NBYTES
        return np.ndarray(shape, dtype, memory, first)
    except (ValueError, MemoryError) as error:
        raise SelectionError(
            "there is not enough memory for the result",
            got=f"shape {shape} of {dtype}",
            hint="select less at a time",
        ) from error


def _viewed(out: Any) -> NDArray[Any]:
    try:
        array, again = _asked_for_view(out), _asked_for_view(out)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise _no_shared_memory(out) from error
    # Not every object can be asked for a view and nothing else; but copies never lie
    # in the same place.
    if array.size and not np.may_share_memory(array, again):
        raise _no_shared_memory(out)
    return array


def _asked_for_view(out: Any) -> NDArray[Any]:
    # NumPy takes what only speaks DLPack for an object of its own.
    only_dlpack = hasattr(out, "__dlpack__") and not hasattr(out, "__array__")
    return np.from_dlpack(out) if only_dlpack else np.asarray(out)


def _no_shared_memory(out: Any) -> SelectionError:
    return SelectionError(
        "out= shares no memory with NumPy",
        got=type(out).__name__,
        hint="pass a NumPy array or a tensor on the host without gradient",
    )
