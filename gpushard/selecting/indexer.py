"""``a[...]``, ``a.oindex`` and the like: a way to parse a key, and one to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpushard.selecting.selection import Wanted


class Indexer:
    """``a.oindex`` and the like: reads an array through another kind of index.

    Parameters
    ----------
    read
        Reads a selection.
    parse
        Turns a key into a selection.
    write
        Writes to a selection, or raises if the array cannot be written to.
    """

    def __init__(
        self,
        read: Callable[[Wanted], Any],
        parse: Callable[[Any], Wanted],
        write: Callable[[Wanted, Any], None],
    ) -> None:
        self._read = read
        self._write = write
        self._parse = parse

    def __getitem__(self, key: Any) -> Any:
        selection = self._parse(key)
        return as_numpy_would(self._read(selection), selection)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._write(self._parse(key), value)


def as_numpy_would(result: Any, selection: Wanted) -> Any:
    """Result of a read; a scalar where NumPy's rules return one."""
    # Only the host has scalars; results on a device stay 0-d arrays.
    return result[()] if selection.scalar and _is_on_host(result) else result


def _is_on_host(result: Any) -> bool:
    return isinstance(result, np.ndarray)
