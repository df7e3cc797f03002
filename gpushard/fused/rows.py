"""Encoded inner chunks -> decoded ones, each where it is wanted, in compiled loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpushard.fused.chain import FusedChain
from gpushard.fused.columns import (
    COPY,
    FILE,
    FIRST_LENGTH,
    NBYTES,
    NO_FILE,
    SOURCE,
    TARGET,
)
from gpushard.fused.placer import Bools, BoxPlacer, LinkedLoops
from gpushard.fused.shares import Shares
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.selecting.selection import Ints
from gpushard.threads.workers import run_side_by_side

# The one axis of an inner chunk that stays as it is stored: its bytes.
_BYTES = (1,)


class RowDecoder:
    """Decodes whole inner chunks to the bytes that their elements are stored as.

    Parameters
    ----------
    chain
        Encoding of the inner chunks. Its change of elements is left out.
    loops
        The compiled loops.
    room
        The part of the memory limit that is for inner chunks.

    Attributes
    ----------
    library_name
        Name of the library that decodes.
    """

    def __init__(self, chain: FusedChain, loops: LinkedLoops, room: ChunkRoom) -> None:
        plain = replace(chain, strides=_BYTES, dtype=np.dtype(np.uint8), change=COPY)
        strides = np.ones((2, 1, 1), np.int64)
        self._placer = BoxPlacer(plain, loops, strides, room)
        self.library_name = self._placer.library_name

    def decode(self, source: Ints, nbytes: Ints, target: Ints, n_threads: int) -> Bools:
        """Whether each inner chunk was decoded to its target: bool, shape (n,).

        Parameters
        ----------
        source, nbytes
            int64, shape (n,). Address and size of the encoded bytes of each.
        target
            int64, shape (n,). Address of memory for the decoded bytes of each.
        n_threads
            Number of threads that decode.
        """
        chunk_nbytes = self._placer.chain.chunk_nbytes
        boxes = np.zeros((len(source), FIRST_LENGTH + 1), np.int64)
        boxes[:, SOURCE], boxes[:, NBYTES], boxes[:, FILE] = source, nbytes, NO_FILE
        boxes[:, TARGET], boxes[:, FIRST_LENGTH] = target, chunk_nbytes
        shares = Shares.of(boxes, chunk_nbytes, n_threads)

        def claim(_thread: int) -> None:
            while shares.are_left:
                self._placer.run(boxes, shares=shares)

        n_shares = len(shares.cuts) - 1
        run_side_by_side(claim, range(min(n_threads, n_shares)), n_threads)
        return shares.is_placed
