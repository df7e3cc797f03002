"""Memory that comes back when nobody looks at it any more."""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any
from weakref import ref

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
        self._n_kept = n_kept
        self._lent: dict[int, _Loan] = {}
        self._back: deque[_Loan] = deque()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array of any content."""
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind == "T" or not nbytes:
            return np.empty(shape, dtype)
        owner = _Owner(self._block(nbytes))
        # What is called when the owner is gone runs no line of Python: an interrupt
        # that came there would be lost.
        loan = _Loan(owner, self._back.append)
        loan.block = owner.block
        self._lent[id(loan)] = loan
        return np.asarray(owner)[:nbytes].view(dtype).reshape(shape)

    def _block(self, nbytes: int) -> NDArray[np.uint8]:
        """Free memory of at least `nbytes`, and not of much more."""
        for n_left in range(len(self._back), 0, -1):
            try:
                loan = self._back.popleft()
            except IndexError:  # two threads take: one that reads, one that joins
                break
            fits = nbytes <= len(loan.block) <= 2 * nbytes
            if not fits and n_left <= self._n_kept:
                self._back.append(loan)
                continue
            del self._lent[id(loan)]
            if fits:
                return loan.block
        return np.empty(nbytes, np.uint8)


class _Owner:
    """Owner of an array's memory: gone when the last view of it is."""

    __slots__ = ("__array_interface__", "__weakref__", "block")

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__
        self.block = block


class _Loan(ref[_Owner]):
    """A block while it has an owner, and then until it has the next one."""

    __slots__ = ("block",)

    block: NDArray[np.uint8]
