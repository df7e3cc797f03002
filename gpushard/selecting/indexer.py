"""``a.oindex`` and the like: an array through another kind of key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpushard.selecting.selection import ParsedSelection

Parse = Callable[[Any, tuple[int, ...]], ParsedSelection]
"""A key, and the shape of an array -> a selection."""


class Indexer:
    """What ``a.oindex`` and the like are.

    Parameters
    ----------
    read
        Elements at a key.
    write
        Writes a value to the elements at a key, or raises.
    """

    def __init__(
        self, read: Callable[[Any], Any], write: Callable[[Any, Any], None]
    ) -> None:
        self._read = read
        self._write = write

    def __getitem__(self, key: Any) -> Any:
        return self._read(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._write(key, value)


def as_numpy_would(result: Any, selection: ParsedSelection) -> Any:
    """Result of a read; a scalar where NumPy's rules return one."""
    # Only the host has scalars; results on a device stay 0-d arrays.
    return result[()] if selection.scalar and _is_on_host(result) else result


def _is_on_host(result: Any) -> bool:
    return isinstance(result, np.ndarray)
