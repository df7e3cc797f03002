"""Rows of bytes as kernels get them: tables of addresses, and parameters by value."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

POISON = 0xA5


def held(data: bytes, misalignment: int = 0) -> NDArray[np.uint8]:
    """Array of `data` that ends where its allocation ends, for ASan to guard.

    It begins `misalignment` bytes after an address that is a multiple of 16.
    """
    room = np.empty(misalignment + len(data), np.uint8)
    array = room[misalignment:]
    array[:] = np.frombuffer(data, np.uint8)
    return array


def outputs(n_rows: int, nbytes: int) -> list[NDArray[np.uint8]]:
    """Poisoned arrays, each an allocation of its own."""
    return [np.full(nbytes, POISON, np.uint8) for _ in range(n_rows)]


def addresses(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Where each array begins."""
    return np.array([array.ctypes.data for array in arrays], np.uint64)


def sizes(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Bytes of each array."""
    return np.array([array.nbytes for array in arrays], np.uint64)


def bytes_at(address: int, nbytes: int) -> bytes:
    """Copy of the bytes at an address that a kernel gave."""
    return ctypes.string_at(int(address), int(nbytes))


def struct(**fields: NDArray[Any] | np.generic) -> np.void:
    """Parameter by value, laid out as C does: arrays are pointers, the rest numbers.

    The caller keeps the arrays alive.
    """
    values = {
        name: np.uint64(field.ctypes.data) if isinstance(field, np.ndarray) else field
        for name, field in fields.items()
    }
    layout = np.dtype([(name, v.dtype) for name, v in values.items()], align=True)
    return np.array([tuple(values.values())], layout)[0]
