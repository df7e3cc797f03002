"""What a thread keeps between batches: contexts, and memory in its caches."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import WORK_AXES, WORK_ROWS
from gpushard.fused.libraries import Library
from gpushard.options import KIB, MIB
from gpushard.pages import LINE_NBYTES, in_pages

# A window of this size stays in a core's cache until its bytes are decoded.
WINDOW_NBYTES = 256 * KIB
# Larger memory is returned after each use.
_KEPT_NBYTES = 4 * MIB


class Buffer(NamedTuple):
    """Memory, with the object that holds it and its address."""

    address: int
    memory: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return len(self.memory)


class ThreadMemory(threading.local):
    """Contexts and memory that a thread keeps between batches.

    Attributes
    ----------
    work
        Memory for `loops.place_boxes`.
    n_made
        Number of buffers made so far: as long as it is the same, all stay in place.
    """

    def __init__(self) -> None:
        self.n_made = 0
        self._contexts: dict[Library, tuple[int, Any]] = {}
        self._kept: dict[str, Buffer] = {}
        self.work = np.empty((WORK_ROWS, WORK_AXES), np.int64)

    def context(self, library: Library) -> int:
        """Address of this thread's context of a decompressor; 0 if there is none."""
        made = self._contexts.get(library)
        if made is None:
            # Meanwhile a signal's handler may have read, and packed its own context's
            # address for later reads, so that one stays.
            made = self._contexts.setdefault(library, library.make_context())
        return made[0]

    @property
    def held(self) -> tuple[Any, ...]:
        """All that is kept; it stays where it is as long as this is held.

        Whoever passes addresses on to loops holds it until they return. What only the
        thread has goes when the interpreter ends, while a daemon thread still decodes.
        """
        return (self.work, self._contexts, *self._kept.values())

    def buffer(self, use: str, nbytes: int, *, keeps: bool = True) -> Buffer:
        """Memory of at least `nbytes`, on a cache line.

        The 16 bytes before it may be used, too. It is the caller's until this thread
        asks for memory for the same use again.

        Parameters
        ----------
        use
            Name of what the memory is for.
        keeps
            Whether the thread may keep up to `_KEPT_NBYTES` for this use; otherwise
            only as much as stays in a core's cache.
        """
        kept = self._kept.get(use)
        if kept is not None and kept.nbytes >= nbytes:
            return kept
        padded_nbytes = nbytes + 2 * LINE_NBYTES
        memory = np.empty(padded_nbytes, np.uint8) if keeps else in_pages(padded_nbytes)
        memory = memory[LINE_NBYTES - address_of(memory) % LINE_NBYTES :]
        buffer = Buffer(address_of(memory), memory)
        self.n_made += 1
        if nbytes <= (_KEPT_NBYTES if keeps else WINDOW_NBYTES):
            self._kept[use] = buffer
        return buffer
