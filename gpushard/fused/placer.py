"""Passes boxes to the compiled loops, with what the calling thread needs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.blosc_frame import LARGE_BLOCK_NBYTES
from gpushard.fused.addresses import address_of
from gpushard.fused.boxes import Landings, cut, stride_columns
from gpushard.fused.chain import FusedChain, plan_parameters
from gpushard.fused.columns import FIRST_LENGTH, PART
from gpushard.fused.libraries import Library
from gpushard.fused.shares import Shares
from gpushard.fused.thread_memory import ThreadMemory
from gpushard.fused.words import (
    BUFFERS_NBYTES,
    STATUS_NBYTES,
    TILE_NBYTES,
    Decoder,
    Opener,
)
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.placing.outputs import LARGE_NBYTES
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.source import Source

if TYPE_CHECKING:
    from gpushard.fused.code.loading import CompiledLoops

_memory = ThreadMemory()

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LinkedLoops:
    """The compiled loops, and the functions that they call for one codec chain.

    Attributes
    ----------
    compiled
        The loops.
    library
        The decompressor.
    read
        Address of the system's `pread`; 0 if the loops cannot read files.
    """

    compiled: CompiledLoops
    library: Library
    read: int


class _HeldDecoder(NamedTuple):
    """A decoder of the calling thread, and what holds the memory that it points to."""

    decoder: Decoder
    held: tuple[Any, ...]


class BoxPlacer:
    """Decodes and copies the boxes of one read, without the GIL.

    Parameters
    ----------
    chain
        Encoding of the inner chunks.
    loops
        The compiled loops.
    strides
        Bytes between wanted neighbours (see `boxes.stride_columns`).
    room
        The part of the memory limit that is for inner chunks.
    out_nbytes
        Size of all outputs together.

    Attributes
    ----------
    library_name
        Name of the library that decodes.
    """

    def __init__(
        self,
        chain: FusedChain,
        loops: LinkedLoops,
        strides: Ints,
        room: ChunkRoom,
        out_nbytes: int = 0,
    ) -> None:
        self.chain = chain
        self.library_name = loops.library.name
        self._loops = loops
        self._strides = strides
        self._room = room
        self._writes_past_cache = int(out_nbytes >= LARGE_NBYTES)

    def run(
        self,
        boxes: Ints,
        window_nbytes: int = 0,
        shares: Shares | None = None,
        opener: Opener | None = None,
    ) -> Bools:
        """Decode and copy boxes: bool, shape (n_boxes,), whether each was placed.

        Parameters
        ----------
        window_nbytes
            Memory for bytes that are read from files.
        shares
            Shares to claim boxes from, until none are left or the time of one call is
            over. Several threads may claim at the same time; all note what they placed
            in the same array. None: place all boxes.
        opener
            Opens the file of each box (see `chunk_files`); there are shares.
        """
        is_placed = (
            np.zeros(len(boxes), np.bool_) if shares is None else shares.is_placed
        )
        ready = self._ready(window_nbytes, not self._room.is_crowded)
        if ready is not None:
            compiled = self._loops.compiled
            arrays = boxes, self._strides, _memory.work, is_placed
            if opener is None or shares is None:
                compiled.place_boxes(ready.decoder, *arrays, shares)
            else:
                nbytes = 2 * STATUS_NBYTES + opener.path_nbytes
                status = _memory.buffer("status", nbytes)
                own_opener = opener._replace(status=status.address)
                compiled.place_chunk_files((ready.decoder, own_opener), *arrays, shares)
        elif shares is not None:
            shares.stop_claims()
        return is_placed

    def reaches(self, boxes: Ints) -> Ints:
        """Bytes from the first to the last element of each box: int64, (n_boxes,)."""
        last = boxes[:, FIRST_LENGTH:] - 1
        reaches: Ints = (last * self._strides[0][boxes[:, PART]]).sum(axis=1)
        return reaches

    def spanned_nbytes(self, boxes: Ints) -> int:
        """Bytes that the box with the longest reach has, its last element included."""
        return int(self.reaches(boxes).max(initial=0)) + self.chain.dtype.itemsize

    @property
    def n_made(self) -> int:
        """Number that changes when this thread's memory moves."""
        return _memory.n_made

    @property
    def held(self) -> tuple[Any, ...]:
        """Memory of the thread and contexts, which stay while this is held."""
        return _memory.held

    def ready(
        self, window_nbytes: int, memory_nbytes: int
    ) -> tuple[Decoder, int, int] | None:
        """What reads in one call need of this thread, until its memory moves.

        Returns
        -------
        The decoder, the address of `ThreadMemory.work`, and the address of memory of
        `memory_nbytes` bytes; None if the thread gets no context. The thread keeps all
        of this memory, because it is at most 4 MiB for each use.
        """
        ready = self._ready(window_nbytes, keeps=True)
        if ready is None:
            return None
        memory = _memory.buffer("plan", memory_nbytes).address
        return ready.decoder, address_of(_memory.work), memory

    def _ready(self, window_nbytes: int, keeps: bool) -> _HeldDecoder | None:
        """What the loops need; None if this thread gets no context.

        `keeps` is whether the thread may keep large memory.
        """
        chain, library = self.chain, self._loops.library
        context = _memory.context(library)
        if library.decode and not context:
            return None
        if chain.has_frames:
            staging_nbytes = TILE_NBYTES + min(chain.chunk_nbytes, LARGE_BLOCK_NBYTES)
        else:
            staging_nbytes = BUFFERS_NBYTES if library.decode_part else 0
        planes_nbytes = chain.chunk_nbytes if chain.shuffle_itemsize else 0
        if not keeps:
            taken = window_nbytes + chain.chunk_nbytes + staging_nbytes + planes_nbytes
            self._room.note_taken(taken)
        window = _memory.buffer("window", window_nbytes, keeps=keeps)
        scratch = _memory.buffer("scratch", chain.chunk_nbytes, keeps=keeps)
        staging = _memory.buffer("staging", staging_nbytes, keeps=keeps)
        held = [window, scratch, staging]
        if planes_nbytes:
            held.append(_memory.buffer("planes", planes_nbytes, keeps=keeps))
        decoder = Decoder(
            kind=library.kind,
            has_crc=int(chain.has_crc),
            decode=library.decode,
            context=context,
            reset=library.reset,
            decode_part=library.decode_part,
            read=self._loops.read,
            chunk_nbytes=chain.chunk_nbytes,
            scratch=scratch.address,
            staging=staging.address,
            window=window.address,
            window_nbytes=window.nbytes,
            itemsize=chain.dtype.itemsize,
            out_itemsize=chain.out_itemsize,
            change=chain.change,
            writes_past_cache=self._writes_past_cache,
            shuffle_itemsize=chain.shuffle_itemsize,
            planes=held[-1].address if planes_nbytes else 0,
        )
        return _HeldDecoder(decoder, (*held, _memory.held))


class PlanPlacer(BoxPlacer):
    """Cuts a plan's inner chunks into boxes, and places them as `BoxPlacer` does.

    Parameters
    ----------
    landings
        The parts of the plan, with the output of each.
    chain, loops, room
        As in `BoxPlacer`.

    Attributes
    ----------
    n_elements
        Number of elements of all outputs together.
    """

    def __init__(
        self,
        landings: Landings,
        chain: FusedChain,
        loops: LinkedLoops,
        room: ChunkRoom,
    ) -> None:
        strides = stride_columns(landings, chain.strides)
        self.n_elements = sum(prod(landing.extents) for landing in landings)
        nbytes = self.n_elements * chain.dtype.itemsize
        super().__init__(chain, loops, strides, room, nbytes)
        self._landings = landings

    def cut(self, block: ShardBlock, rows: Ints) -> tuple[Ints, Ints]:
        """Boxes of the inner chunks `rows` of a block (see `boxes.cut`)."""
        return cut(self._landings, self.chain.strides, block, rows)

    def planner(self, target: int, fill: int, source: Source) -> Callable[..., Any]:
        """`plan_boxes` with the `PlanParameters` and the strides of this read."""
        planned = plan_parameters(source, self.chain, fill, target)
        return partial(self._loops.compiled.plan_boxes, planned, self._strides)
