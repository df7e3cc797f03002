"""The assigned value -> an array of the written data type, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.small_floats import are_held, is_small_float
from gpushard.devices.output import refuse_unresolved, tells_memory
from gpushard.errors import GpushardError, SelectionError, UnsupportedError
from gpushard.options import MIB
from gpushard.placing.outputs import bits_of_tensor
from gpushard.placing.scatter import holds_kind_of

# Values that take more than this in the written data type stay as they were given. They
# are cast as they are copied into inner chunks.
_CAST_NBYTES = MIB
# Elements of such values that are cast together to see whether they fit.
_TRIED_ELEMENTS = 1 << 16
_ONLY_TEXT = np.dtypes.StringDType(coerce=False)
# Axes of a NumPy array, and so lists in one another.
_MOST_AXES = 64
# Elements that first become as long as it takes.
_UNSIZED: dict[str, Any] = {"S": "S", "U": _ONLY_TEXT, "T": _ONLY_TEXT, "O": "O"}


def fitting_values(
    value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """`value` as an array of `shape` on the host, possibly a view.

    It has `dtype`, unless it is large: then it has any data type that NumPy casts to
    `dtype` in assignments. Floats are rounded to narrower ones; no other value may
    change.

    Raises
    ------
    SelectionError
        The value cannot be broadcast to the shape, or the data type cannot hold it, or
        it is a tensor of torch that has other values than its memory.
    UnsupportedError
        The value lies on a device and has no method `get`.
    """
    refuse_unresolved(value)
    if tells_memory(value):
        value = _fetched(value)
    try:
        with np.errstate(over="raise"):
            array = _array_of(value, dtype)
            # Elements are looked at only if there are as many as there should be.
            values = _broadcast(array, shape)
            if array.dtype != dtype:
                values = _broadcast(_cast(_without_repeats(array), dtype), shape)
    except GpushardError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise SelectionError(
            f"the value does not fit what is written to: {str(error).rstrip('.')}",
            expected=f"{dtype} values that can be broadcast to {shape}",
            got=repr(type(value).__name__),
        ) from error
    return values


def _without_repeats(array: NDArray[Any]) -> NDArray[Any]:
    """View of `array` with length 1 along axes on which it repeats its elements."""
    strides = zip(array.strides, array.shape, strict=True)
    repeats = [stride == 0 and length > 1 for stride, length in strides]
    return array[..., *(slice(1) if one else slice(None) for one in repeats)]


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """View of `array` in `shape`, by the rules of NumPy's assignment."""
    if array.shape == shape:
        return array
    # Unlike `broadcast_to`, an assignment also drops leading axes of length 1.
    n_more = max(0, array.ndim - len(shape))
    is_longer_by_ones = array.shape[:n_more] == (1,) * n_more
    try:
        given = array.reshape(array.shape[n_more:]) if is_longer_by_ones else array
        return np.broadcast_to(given, shape)
    except ValueError as error:
        raise SelectionError(
            "the values have another shape than what is written to",
            expected=f"a shape that can be broadcast to {shape}",
            got=str(array.shape),
        ) from error


def _array_of(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The value as an array of its own data type, or of `dtype`."""
    if hasattr(value, "dtype"):
        if getattr(value, "requires_grad", False):  # for which torch has RuntimeError
            raise TypeError("a tensor needs its gradient, pass its detach()")
        bits = bits_of_tensor(value)
        array = np.asarray(value) if bits is None else bits
        # A column of text in pandas is an array of objects.
        is_column = array.dtype.kind == "O" and dtype.kind in "TU"
        return array.astype(_ONLY_TEXT) if is_column else array
    if dtype.kind in _UNSIZED:
        return np.asarray(value, _UNSIZED[dtype.kind])
    if dtype.names is not None and _is_of_tuples(value):
        raise SelectionError(
            "tuples are no records, because NumPy would cut what their fields hold",
            expected=f"an array of {dtype}",
            got=repr(type(value).__name__),
            hint="if they fit, write np.array(values, a.dtype)",
        )
    array = np.asarray(value)
    if not array.size:  # to NumPy, an empty list has floats
        return array.astype(dtype)
    if dtype.kind in "mM" and array.dtype.kind in "UO":
        found = np.asarray(value, dtype)
        # Python's own times have microseconds.
        _refuse_other_times(np.asarray(value, f"{dtype.kind}8[us]"), found)
        return found
    # Python's own numbers have no width, so NumPy checks them against the array's.
    if array.dtype.kind in "biufc" and dtype.kind in "biufc":
        check = np.result_type(array.dtype, dtype)
        if (array.dtype.kind in "iu" and dtype.kind in "iu") or check == dtype:
            return np.asarray(value, dtype)
    return array


def _is_of_tuples(value: Any) -> bool:
    first = value
    for _ in range(_MOST_AXES):  # a list may hold itself
        first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, tuple)


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in another data type, which must hold its values, or as it is."""
    both_whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    both_text = array.dtype.kind in "TU" and dtype.kind in "TU"
    if both_whole:
        if array.size:
            _refuse_beyond(array, dtype)
    elif not both_text and not holds_kind_of(array.dtype, dtype):
        raise SelectionError(
            "the array's data type is of another kind than the values",
            expected=f"values that {dtype} holds",
            got=_kind_of(array, dtype),
            hint="convert them first, such as by np.asarray(values, dtype)",
        )
    # NumPy's check of records is no more than one of the kinds of their fields.
    for name, given in zip(dtype.names or (), array.dtype.names or (), strict=True):
        try:
            _cast(array[given], dtype[name].base)
        except SelectionError as error:
            error.what = f"in the field {name!r}: {error.what}"
            raise
    if array.size * dtype.itemsize <= _CAST_NBYTES:
        return _cast_of(array, dtype)
    if not both_whole:
        pieces: Any = np.nditer(
            array,
            ("external_loop", "buffered", "refs_ok"),
            [["readonly"]],
            buffersize=_TRIED_ELEMENTS,
        )
        for piece in pieces:
            _cast_of(piece, dtype)
    return array


def _kind_of(array: NDArray[Any], dtype: np.dtype[Any]) -> str:
    """Kind of the values, for an error; integers above 64 bits are out of range."""
    if array.dtype.kind != "O" or not array.size:
        return str(array.dtype)
    others = (one for one in array.flat if not isinstance(one, int))
    shown = next(others, 0)
    if isinstance(shown, int) and dtype.kind in "iu":
        _refuse_beyond(array, dtype)
    return f"Python objects such as {type(shown).__name__}"


def _refuse_beyond(array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse integers that the data type does not hold."""
    bounds, least, most = np.iinfo(dtype), int(array.min()), int(array.max())
    if not bounds.min <= least <= most <= bounds.max:
        raise _out_of_range(f"{bounds.min} to {bounds.max}", f"{least} to {most}")


def _cast_of(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in another data type of the same kind, which must hold its values."""
    if array.dtype.kind == "T":
        _refuse_missing(array)
    try:
        cast = array.astype(dtype)
    except FloatingPointError as error:
        raise _out_of_range(f"values that {dtype} holds", "an overflow") from error
    if is_small_float(dtype) and not are_held(array, cast):
        raise _out_of_range(f"values that {dtype} holds", "other values")
    if dtype.kind in "SU":
        _refuse_cut(array, dtype)
    if dtype.kind in "mM":
        _refuse_other_times(array, cast)
    return cast


def _refuse_missing(array: NDArray[Any]) -> None:
    """Refuse missing text, which NumPy casts to text such as "nan"."""
    try:
        np.strings.str_len(array)
    except ValueError as error:
        raise SelectionError(
            "a text is missing among the values",
            expected="text, which may be empty",
            hint="replace missing text first",
        ) from error


def _refuse_cut(array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse text that is longer than the data type allows."""
    n_most = dtype.itemsize // (4 if dtype.kind == "U" else 1)
    n_longest = int(np.strings.str_len(array).max(initial=0))
    if n_longest > n_most:
        raise _out_of_range(f"text of up to {n_most}", f"one of {n_longest}")


def _refuse_other_times(array: NDArray[Any], cast: NDArray[Any]) -> None:
    """Refuse times that are not whole units of the data type, or too many units."""
    # The comparison uses the given units: in finer units both sides may wrap around
    # alike.
    if not np.array_equal(array, cast.astype(array.dtype), equal_nan=True):
        raise _out_of_range(f"whole units of {cast.dtype}", str(array.dtype))


def _out_of_range(expected: str, got: str) -> SelectionError:
    return SelectionError(
        "a value is out of the data type's range", expected=expected, got=got
    )


def _fetched(value: Any) -> Any:
    if not hasattr(value, "get"):
        raise UnsupportedError(
            "the value lies on a device and cannot be fetched from there",
            got=f"a {type(value).__name__}",
            hint="pass a NumPy or CuPy array, a tensor after .cpu()",
        )
    return value.get()
