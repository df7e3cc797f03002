"""Fetched bytes -> decoded inner chunks in the outputs, in compiled loops.

Whatever the loops cannot decode - damage, or a stream that is legal and rare - is
decoded once more by `HostSink`, which either reads it or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.fused import boxes
from gpushard.fused.chain import FusedChain
from gpushard.fused.columns import LZ4, NBYTES, SOURCE
from gpushard.fused.libraries import Room, address_of
from gpushard.job import Answer, Job
from gpushard.place import HostSink
from gpushard.ranged import RangedBlock
from gpushard.selection import Ints

# What stands ahead of an LZ4 block that is wrapped in a frame, on a cache line.
_WRAPPING_NBYTES = 128

# Rows whose columns are made at a time: they stay small beside the bytes they describe.
_RUN_ROWS = 16384

_room = Room()

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Loops:
    """The compiled loop and what it calls.

    Attributes
    ----------
    place_boxes, decoder
        As in `gpushard.fused.loops`.
    function
        Address of the decompressor.
    """

    place_boxes: Callable[..., Any]
    decoder: Callable[..., Any]
    function: int


class FusedSink:
    """Decodes inner chunks and writes them into host memory without the GIL.

    Parameters
    ----------
    host
        The plain way, for fill values and what the loops cannot decode.
    landings
        The parts of the plan, and where each goes.
    chain
        How inner chunks are encoded.
    loops
        The compiled loops.
    """

    def __init__(
        self,
        host: HostSink,
        landings: Sequence[boxes.Landing],
        chain: FusedChain,
        loops: Loops,
    ) -> None:
        self._host = host
        self._landings = landings
        self._chain = chain
        self._loops = loops
        self._strides = boxes.stride_columns(landings, chain.strides)

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Write the fill value where the missing inner chunks `rows` land."""
        self._host.fill(job, block, rows)

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks that requests hold and write what is wanted of them.

        Raises
        ------
        CorruptShardError
            An inner chunk is damaged.
        """
        start, stop = ranged.requests.start, ranged.requests.stop
        if any(len(answer) < stop[r] - start[r] for r, answer in fetched):
            # A store may answer less than was asked: addresses would lead astray.
            self._host.place(job, ranged, fetched)
            return
        per_request = [ranged.rows_of(r) for r, _ in fetched]
        rows = np.concatenate(per_request)
        nth = np.repeat(np.arange(len(fetched)), [len(some) for some in per_request])
        addresses = np.array(
            [address_of(answer) - int(start[r]) for r, answer in fetched]
        )
        is_left = np.ones(len(rows), np.bool_)
        for first in range(0, len(rows), _RUN_ROWS):
            run = slice(first, first + _RUN_ROWS)
            base = addresses[nth[run]]
            is_left[run] = ~self._place_run(ranged, rows[run], base)
        if is_left.any():
            for i in np.unique(nth[is_left]).tolist():
                left = rows[is_left & (nth == i)]
                self._host.place_some(job, ranged, fetched[i], left)

    def finish(self) -> None:
        """Nothing is under way once `fill` and `place` return."""

    def _place_run(self, ranged: RangedBlock, rows: Ints, base: Ints) -> Bools:
        """Whether each of `rows` was placed; `base`: address of its object's byte 0."""
        context = _room.context(self._chain.kind)
        cut = boxes.cut(self._landings, self._chain.strides, ranged.block, rows)
        if cut is None or (self._loops.function and not context):
            return np.zeros(len(rows), np.bool_)
        columns, row = cut
        located = ranged.located
        # Of plain elements, only those between the wanted ones are there.
        start = located.start[rows]
        columns[:, SOURCE] = (base + start)[row]
        columns[:, NBYTES] = (located.stop[rows] - start)[row]
        is_placed = np.ones(len(rows), np.bool_)
        is_placed[row[~self._run(columns, context)]] = False
        return is_placed

    def _run(self, columns: Ints, context: int) -> Bools:
        """Decode and copy boxes: bool, shape (n_boxes,), whether each was placed."""
        chain = self._chain
        # The scratch, and behind it what an LZ4 block is wrapped in.
        apart = -(-chain.chunk_nbytes // 64) * 64
        wrapped = chain.chunk_nbytes + _WRAPPING_NBYTES if chain.kind == LZ4 else 0
        # Held here: the loops know but the address.
        buffer = _room.buffer(apart + wrapped)
        scratch = address_of(buffer)
        decoder = self._loops.decoder(
            chain.kind,
            int(chain.has_crc),
            self._loops.function,
            context,
            chain.chunk_nbytes,
            scratch,
            scratch + apart,
            chain.dtype.itemsize,
            chain.change,
        )
        is_placed = np.zeros(len(columns), np.bool_)
        self._loops.place_boxes(decoder, columns, self._strides, _room.work, is_placed)
        return is_placed
