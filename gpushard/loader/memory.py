"""Host memory that is reused once nothing refers to it any more."""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray


class Memory:
    """Arrays whose memory is reused once the caller has dropped them.

    An epoch then takes only the memory that is in use at one time, and no page is
    faulted in twice. Memory is not reused while anything refers to it: a batch, a view
    of a batch, or a tensor that shares its memory.

    `memory.lent.Lender` is for single large results instead, and tells the system that
    it may take the pages that come back. A loader needs its memory again within
    milliseconds: its pages stay, and go with the loader. It also takes small pieces,
    and as many as its queue is long, where the other has whole huge pages, and two.

    Parameters
    ----------
    n_kept
        Number of free pieces of memory to keep.
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept = n_kept
        self._back: deque[_Loan] = deque()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array of undefined content."""
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind == "T" or not nbytes:
            return _empty(shape, dtype)
        block = self._block(nbytes)
        owner = _Owner(block)
        # The callback for a dropped owner must not run Python code: an interrupt that
        # came during that code would be lost.
        owner.loan = _Loan(owner, self._back.append)
        owner.loan.block = block
        return np.asarray(owner)[:nbytes].view(dtype).reshape(shape)

    def _block(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of at least `nbytes` bytes; a reused piece has at most twice that."""
        for n_left in range(len(self._back), 0, -1):
            try:
                loan = self._back.popleft()
            except IndexError:  # the reading and the joining thread both take memory
                break
            block = loan.block
            if block is None:  # an interrupt kept it from getting one
                continue
            if nbytes <= len(block) <= 2 * nbytes:
                return block
            if n_left <= self._n_kept:
                self._back.append(loan)
        return _empty((nbytes,), np.dtype(np.uint8))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Array of undefined content; raises `MemoryError` if there is no room for it."""
    try:
        return np.empty(shape, dtype)
    except ValueError as error:  # more elements than any array can have
        raise MemoryError(str(error)) from error


class _Owner:
    """Owner of an array's memory; it dies with the last view of the array."""

    __slots__ = ("__array_interface__", "__weakref__", "loan")

    loan: _Loan

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__


class _Loan(ref[_Owner]):
    """A block from when it gets an owner until it gets the next owner."""

    block: NDArray[np.uint8] | None = None
