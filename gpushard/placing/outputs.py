"""Arrays to write a result into: new ones, or the caller's own."""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpushard.arguments import items
from gpushard.codecs.small_floats import SMALL_FLOAT_NAMES
from gpushard.errors import SelectionError
from gpushard.formats.data_types import dtype_of_numbers
from gpushard.memory.lent import lender
from gpushard.options import MIB
from gpushard.pages import on_a_line

# An array of at least this size does not fit the cache of a core. It starts on a cache
# line, which the memory of large arrays of NumPy never does, so that rows that fill
# lines can be written past the cache.
LARGE_NBYTES = 16 * MIB
# NumPy keeps shorter texts (up to 15 bytes) in the elements.
_LONG_TEXT = 16 * " "


def parsed_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The data type that ``dtype=`` names; raises `SelectionError` if it names none.

    torch's data types have the names of NumPy's and ml_dtypes'.
    """
    is_torchs = type(dtype).__module__ == "torch"
    name = _name_of_torchs(dtype) if is_torchs else dtype
    try:
        return dtype_of_numbers(name) if isinstance(name, str) else np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SelectionError(
            "dtype= does not name a data type",
            got=repr(dtype),
            hint="pass what numpy.dtype accepts, such as 'float32' or 'bfloat16'",
        ) from error


def _name_of_torchs(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def many(selections: Any, out: Any) -> tuple[list[Any], list[Any]]:
    """Keys of several selections, and for each an array to write into or None.

    Raises
    ------
    OptionError
        `selections` or `out` is not iterable.
    SelectionError
        The number of arrays differs from the number of selections.
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
        None, a NumPy array, or any host object that NumPy can view, such as a torch
        tensor or an object that supports DLPack.

    Raises
    ------
    SelectionError
        `out` has another shape, is read-only, or cannot be viewed without a copy; or
        there is not enough memory for the result.
    """
    if out is None:
        return new_output(shape, dtype)
    # A subclass may write in a way of its own: a masked array leaves elements out.
    array = out if type(out) is np.ndarray else _viewed(out)
    if array.shape != shape:
        raise SelectionError(
            "out= has another shape than the selection", expected=shape, got=array.shape
        )
    if not array.flags.writeable:
        raise SelectionError("out= is read-only", hint="pass a writable array")
    return array


def new_output(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """New array of `shape`, not written yet.

    Raises `SelectionError` if there is not enough memory for it.
    """
    try:
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < LARGE_NBYTES or dtype.hasobject:
            made = np.empty(shape, dtype)
            return _with_text_memory(made) if dtype.kind == "T" else made
        memory = lender.take(nbytes)
        if memory is None:
            memory = on_a_line(nbytes)
        return np.ndarray(shape, dtype, memory)
    except (ValueError, MemoryError) as error:
        raise SelectionError(
            "there is not enough memory for the result",
            got=f"shape {shape} of {dtype}",
            hint="select less at a time",
        ) from error


def _with_text_memory(made: NDArray[Any]) -> NDArray[Any]:
    """A new array of text, whose memory for text this thread has taken.

    NumPy enlarges that memory as texts come, and glibc does so where it lay first. It
    would keep, for each thread that happens to place the first text of a result, as
    much as that one took.
    """
    if made.size:
        made.reshape(-1)[0] = _LONG_TEXT
    return made


def _viewed(out: Any) -> NDArray[Any]:
    try:
        array, again = _asked_for_view(out), _asked_for_view(out)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        from gpushard.devices.output import refuse_unresolved

        refuse_unresolved(out)
        raise _no_shared_memory(out) from error
    # Some objects cannot be asked to give a view and never a copy. Two copies, however,
    # never share memory.
    if array.size and not np.may_share_memory(array, again):
        raise _no_shared_memory(out)
    return array


def _asked_for_view(out: Any) -> NDArray[Any]:
    bits = bits_of_tensor(out)
    if bits is not None:
        return bits
    # NumPy would wrap an object that supports only DLPack in an object array.
    only_dlpack = hasattr(out, "__dlpack__") and not hasattr(out, "__array__")
    return np.from_dlpack(out) if only_dlpack else np.asarray(out)


def bits_of_tensor(value: Any) -> NDArray[Any] | None:
    """View of a tensor of a type that torch does not hand NumPy; None for any other."""
    # Whoever has a tensor has imported torch. Others may just be importing it.
    torch: Any = sys.modules.get("torch")
    if not isinstance(value, getattr(torch, "Tensor", ())) or value.requires_grad:
        return None
    name = _name_of_torchs(value.dtype)
    if name not in SMALL_FLOAT_NAMES:
        return None
    dtype = dtype_of_numbers(name)
    words = value.view(getattr(torch, f"int{8 * dtype.itemsize}"))
    return words.numpy().view(dtype)


def _no_shared_memory(out: Any) -> SelectionError:
    return SelectionError(
        "out= shares no memory with NumPy",
        got=type(out).__name__,
        hint="pass a NumPy array or a tensor on the host without gradient",
    )
