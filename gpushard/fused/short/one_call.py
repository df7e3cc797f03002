"""Small reads of local files, each in one call of the compiled loops.

The words of a call say all that the loops must know, so that nothing is shared with
another read of the same thread that begins before the call (in a signal's handler). The
words that are the same for every read are packed once a thread.
"""

from __future__ import annotations

import threading
from itertools import chain as joined
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from gpushard.fused.addresses import address_of
from gpushard.fused.chain import FusedChain
from gpushard.fused.columns import (
    AXIS_ROWS,
    FIRST_LENGTH,
    RAW,
    WORK_AXES,
    WORK_ROWS,
    laying_words,
)
from gpushard.fused.files import window_nbytes
from gpushard.fused.meshes import MOST_BOXES, MOST_SHARDS, Mesh
from gpushard.fused.placer import BoxPlacer, LinkedLoops
from gpushard.fused.shares import NO_SHARES
from gpushard.fused.words import (
    READ_AXES,
    READ_BOX,
    WORDS,
    Decoder,
    PlanParameters,
    pack_placing,
    pack_planning,
)
from gpushard.memory.chunk_room import usual_stored
from gpushard.options import MIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source

# Each thread keeps memory for an inner chunk of this size, stored and decoded.
MOST_NBYTES = 2 * MIB
# Distance of what follows the words of a call from the first word.
_BEHIND_BOX = 8 * (WORDS + len(Decoder._fields))
_BEHIND_AXES = 8 * (WORDS + len(PlanParameters._fields)) + _BEHIND_BOX


class _Words(NamedTuple):
    """Words of a thread, as long as its memory stays where it is.

    Attributes
    ----------
    n_made
        `BoxPlacer.n_made` of the time at which they were packed.
    box, axes
        Words of `READ_BOX`, and the later words of `READ_AXES`; empty if the thread
        gets no context.
    memory
        Address of memory to plan in.
    """

    n_made: int = -1
    box: bytes = b""
    axes: bytes = b""
    memory: int = 0


class _Local(threading.local):
    words = _Words()


class OneCall:
    """Reads boxes of one array, each in one call.

    Parameters
    ----------
    source, chain, loops
        The array, its encoding, and the loops that decode it.
    window_nbytes
        Memory for the stored bytes of an inner chunk.
    """

    def __init__(
        self, source: Source, chain: FusedChain, loops: LinkedLoops, window_nbytes: int
    ) -> None:
        ndim = self._ndim = source.layout.ndim
        nothing = np.zeros((2, 1, ndim), np.int64)
        self._placer = BoxPlacer(chain, loops, nothing, source.room)
        self._run = loops.compiled.read
        self._window_nbytes = window_nbytes
        self._local = _Local()
        self._pack_axes = Struct(f"={AXIS_ROWS * ndim}q").pack
        self._boxes_nbytes = 8 * MOST_BOXES * (FIRST_LENGTH + ndim)
        n_words = laying_words(MOST_BOXES, MOST_SHARDS, ndim)
        self._memory_nbytes = self._boxes_nbytes + MOST_BOXES + 8 * n_words

    def read_box(self, own: bytes) -> bool:
        """Read, decode and place one box; False if that failed.

        Parameters
        ----------
        own
            Its strides in the inner chunk and in the output, and its columns, int64.
        """
        words, _held = self._words_here()
        return bool(words.box) and self._run(words.box + own)

    def read_axes(self, planned: PlanParameters, mesh: Mesh, rows: Ints) -> bool:
        """Plan, read, decode and place all boxes of a mesh; False if that failed.

        Parameters
        ----------
        planned
            The array and the output; its memory to work in is set here.
        mesh
            The selection.
        rows
            Rows of its shards (from `columns.OFFSETS` on).
        """
        words, _held = self._words_here()
        if not words.axes:
            return False
        boxes = words.memory
        is_placed = boxes + self._boxes_nbytes
        elements = mesh.elements
        head = pack_planning(
            *(READ_AXES, _BEHIND_AXES, 1, self._ndim, boxes, mesh.n_most),
            *(address_of(rows), len(rows), address_of(elements), elements.shape[1]),
            *(_BEHIND_AXES, 0, *planned._replace(work=is_placed + MOST_BOXES)),
        )
        rest = joined.from_iterable(zip(*mesh.columns, strict=True))
        return self._run(head + words.axes + self._pack_axes(*rest))

    def _words_here(self) -> tuple[_Words, tuple[Any, ...]]:
        """Words of the calling thread, and the memory whose addresses they have.

        Until the call, another read of this thread may begin (in a signal's handler),
        which may need larger memory.
        """
        while True:
            words = self._local.words
            held = self._placer.held
            if words.n_made == self._placer.n_made:
                return words, held
            self._local.words = self._packed()

    def _packed(self) -> _Words:
        # Asked before: whatever moves from here on has the words packed again.
        n_made = self._placer.n_made
        ready = self._placer.ready(self._window_nbytes, self._memory_nbytes)
        if ready is None:
            return _Words(n_made)
        decoder, work, memory = ready
        # Only rows of `work` before the last are used in every column.
        is_placed = work + 8 * (WORK_ROWS * WORK_AXES - 1)
        box = _BEHIND_BOX + 16 * self._ndim
        head = READ_BOX, _BEHIND_BOX, 1, self._ndim, box, 1, work
        one = pack_placing(*head, is_placed, *NO_SHARES, *decoder)
        is_placed = memory + self._boxes_nbytes
        head = 0, 0, 0, 0, memory, 0, work
        axes = pack_placing(*head, is_placed, *NO_SHARES, *decoder)
        return _Words(n_made, one, axes, memory)


def one_call(source: Source, chain: FusedChain, loops: LinkedLoops) -> OneCall | None:
    """What reads a source's boxes in one call.

    None if inner chunks are too large for what threads keep, or for the memory limit.
    """
    room = source.room
    widest = source.chunk_nbytes
    if chain.kind != RAW or chain.has_crc:
        widest = usual_stored(widest)
    window = window_nbytes(source.options, widest)
    if source.chunk_nbytes > MOST_NBYTES or room.is_crowded:
        return None
    if window > room.most_window_nbytes:
        return None
    return OneCall(source, chain, loops, window)
