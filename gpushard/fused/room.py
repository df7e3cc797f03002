"""What a thread keeps between batches: contexts, and room in its caches."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import WORK_AXES, WORK_ROWS
from gpushard.fused.libraries import Library
from gpushard.memory.pages import in_pages
from gpushard.options import KIB, MIB

# Bytes read from a file at a time stay in a core's cache until they are decoded.
WINDOW_NBYTES = 256 * KIB
# Larger rooms are given back after each use.
_KEPT_NBYTES = 4 * MIB
_CACHE_LINE = 64


class Buffer(NamedTuple):
    """Room in memory that its holder keeps there, and where it lies."""

    address: int
    memory: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """How large it is."""
        return len(self.memory)


class Room(threading.local):
    """What a thread keeps between batches."""

    def __init__(self) -> None:
        self._contexts: dict[Library, tuple[int, Any]] = {}
        self._kept: dict[str, Buffer] = {}
        self.work = np.empty((WORK_ROWS, WORK_AXES), np.int64)

    def context(self, library: Library) -> int:
        """Address of this thread's context of a decompressor; 0 if there is none."""
        made = self._contexts.get(library)
        if made is None:
            made = self._contexts[library] = library.make_context()
        return made[0]

    def buffer(self, use: str, nbytes: int, *, keeps: bool = True) -> Buffer:
        """Room of at least `nbytes` on a cache line.

        The 16 bytes ahead of it are room too. It is the caller's until this thread asks
        for the same use again. Unless a thread `keeps` more, it keeps what stays in a
        core's cache.
        """
        kept = self._kept.get(use)
        if kept is not None and kept.nbytes >= nbytes:
            return kept
        room_nbytes = nbytes + 2 * _CACHE_LINE
        memory = np.empty(room_nbytes, np.uint8) if keeps else in_pages(room_nbytes)
        memory = memory[_CACHE_LINE - address_of(memory) % _CACHE_LINE :]
        room = Buffer(address_of(memory), memory)
        if nbytes <= (_KEPT_NBYTES if keeps else WINDOW_NBYTES):
            self._kept[use] = room
        return room


def address_of(array: NDArray[Any] | None) -> int:
    """Where the first element of an array lies in memory; 0 where there is none."""
    if array is None:
        return 0
    return int(array.__array_interface__["data"][0])
