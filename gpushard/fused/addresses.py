"""Addresses of what the compiled loops read, write and call."""

from __future__ import annotations

from ctypes import addressof, c_char, c_void_p, cast
from typing import Any

from numpy.typing import NDArray


def address_of(array: NDArray[Any] | None) -> int:
    """Address of an array's first element; 0 if there is none."""
    if array is None or not array.size:
        return 0
    try:
        # In a third of the time that NumPy takes to describe an array.
        return addressof(c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, with gaps, or of times
        return int(array.__array_interface__["data"][0])


def function_address(function: Any) -> int:
    """Address of a function that ctypes has loaded; 0 for None."""
    return cast(function, c_void_p).value or 0
