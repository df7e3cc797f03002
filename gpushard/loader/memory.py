"""Memory that comes back when nobody looks at it any more."""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Memory:
    """Arrays that are written again once the caller has let go of the ones before.

    An epoch then takes as much memory as is in use at a time, and no page is faulted in
    twice. Nothing is written again that anything still refers to: not a batch, not a
    view of one, not a tensor that shares its memory.

    Parameters
    ----------
    n_kept
        Pieces of memory kept for later.
    """

    def __init__(self, n_kept: int) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=n_kept)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array of any content."""
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind == "T" or not nbytes:
            return np.empty(shape, dtype)
        lease = _Lease(self._block(nbytes), self._free)
        return np.asarray(lease)[:nbytes].view(dtype).reshape(shape)

    def _block(self, nbytes: int) -> NDArray[np.uint8]:
        """Free memory of at least `nbytes`, and not of much more."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:
                break
            if nbytes <= len(block) <= 2 * nbytes:
                return block
            self._free.append(block)
        return np.empty(nbytes, np.uint8)


class _Lease:
    """Owner of an array's memory, which goes back when the last view of it is gone."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(
        self, block: NDArray[np.uint8], free: deque[NDArray[np.uint8]]
    ) -> None:
        self.__array_interface__ = block.__array_interface__
        self._block = block
        self._free = free

    def __del__(self) -> None:
        # Without a lock: the collector may run this anywhere, also within `take`.
        self._free.append(self._block)
