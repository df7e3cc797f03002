"""Boxes handed to the compiled loop, with what the calling thread needs for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.fused import boxes
from gpushard.fused.chain import FusedChain
from gpushard.fused.columns import BLOSC, COPY, NBYTES, RAW
from gpushard.fused.libraries import Library
from gpushard.fused.room import Room, address_of
from gpushard.selection import Ints

if TYPE_CHECKING:
    from gpushard.fused.loading import Compiled

_room = Room()

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Loops:
    """The compiled loops and what they call.

    Attributes
    ----------
    compiled
        The loops, and the types of what they take.
    library
        The decompressor.
    read
        Address of the system's `pread`; 0 where the loops cannot read files.
    """

    compiled: Compiled
    library: Library
    read: int


class BoxRunner:
    """Cuts a plan's inner chunks into boxes, decodes and copies them, without the GIL.

    Parameters
    ----------
    landings
        The parts of the plan, and where each goes.
    chain
        How inner chunks are encoded.
    loops
        The compiled loops.

    Attributes
    ----------
    library_name
        What they decode with.
    """

    def __init__(
        self, landings: Sequence[boxes.Landing], chain: FusedChain, loops: Loops
    ) -> None:
        self.chain = chain
        self.reads_files = bool(loops.read)
        self._landings = landings
        self._loops = loops
        self.library_name = loops.library.name
        self._strides = boxes.stride_columns(landings, chain.strides)

    def cut(self, block: ShardBlock, rows: Ints) -> tuple[Ints, Ints] | None:
        """Boxes of the inner chunks `rows` of a block (see `boxes.cut`)."""
        return boxes.cut(self._landings, self.chain.strides, block, rows)

    def planner(
        self, target: int, fill: int, limit_nbytes: int, *, is_plain: bool
    ) -> Callable[..., Any]:
        """`plan_boxes` for this read, as `Planned` and the strides are given to it."""
        chain = self.chain
        planned = self._loops.compiled.planned(
            chain.chunk_nbytes,
            chain.dtype.itemsize,
            limit_nbytes,
            int(is_plain),
            fill,
            target,
        )
        return partial(self._loops.compiled.plan_boxes, planned, self._strides)

    def run(self, columns: Ints, window_nbytes: int = 0) -> Bools:
        """Decode and copy boxes: bool, shape (n_boxes,), whether each was placed.

        `window_nbytes` is the room for what is read from files.
        """
        chain, library = self.chain, self._loops.library
        context = _room.context(chain.kind)
        if library.function and not context:
            return np.zeros(len(columns), np.bool_)
        # Held here: the loops know but the addresses.
        window = _room.buffer("window", window_nbytes)
        scratch = _room.buffer("scratch", chain.chunk_nbytes)
        widest = int(columns[:, NBYTES].max(initial=0)) if chain.kind == BLOSC else 0
        staging = _room.buffer("staging", widest)
        decoder = self._loops.compiled.decoder(
            library.decoder,
            int(chain.has_crc),
            library.function,
            context,
            library.reset,
            self._loops.read,
            chain.chunk_nbytes,
            address_of(scratch),
            address_of(staging),
            len(staging),
            address_of(window),
            len(window),
            chain.dtype.itemsize,
            chain.change,
        )
        return self._place(decoder, columns)

    def copy(self, columns: Ints) -> Bools:
        """Copy boxes out of decoded inner chunks: as `run` does."""
        chain = self.chain
        nothing = dict.fromkeys(self._loops.compiled.decoder._fields, 0)
        nothing |= {"kind": RAW, "change": COPY, "itemsize": chain.dtype.itemsize}
        nothing["chunk_nbytes"] = chain.chunk_nbytes
        return self._place(self._loops.compiled.decoder(**nothing), columns)

    def _place(self, decoder: Any, columns: Ints) -> Bools:
        is_placed = np.zeros(len(columns), np.bool_)
        self._loops.compiled.place_boxes(
            decoder, columns, self._strides, _room.work, is_placed
        )
        return is_placed
