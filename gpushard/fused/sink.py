"""Encoded bytes -> decoded inner chunks in the outputs, in compiled loops.

If the store keeps its objects in files, the loops read these, too. What they cannot do
(damage, a legal but rare stream, a file that fails) `HostSink` does once more: it reads
the inner chunk or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpushard.fetching.job import Answer, Job, JobReader, RequestReader
from gpushard.fetching.ranged import CacheSlots, RangedBlock
from gpushard.fused.addresses import address_of
from gpushard.fused.boxes import GridLanding, Landings
from gpushard.fused.columns import FILE, FILLED, NBYTES, NO_FILE, SOURCE
from gpushard.fused.files import file_reader
from gpushard.fused.filling import little_fill
from gpushard.fused.placer import Bools, PlanPlacer
from gpushard.fused.sharded import sharded_read
from gpushard.fused.unsharded import unsharded_read
from gpushard.placing.place import HostSink
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import Ints

# Number of rows whose columns are made together: far smaller than what they describe.
_MOST_ROWS = 16384


class FusedSink:
    """Decodes inner chunks and writes them into host memory without the GIL.

    Parameters
    ----------
    host
        The sink for what the loops cannot decode.
    placer
        The loops, with the state of this read.
    landings
        The parts of the plan, with the output of each.
    """

    def __init__(self, host: HostSink, placer: PlanPlacer, landings: Landings) -> None:
        self._host = host
        self._placer = placer
        self._landings = landings
        self.fetch = host.fetch
        self.batch_nbytes = self.batch_cut = None

    def job_reader(self, job: Job) -> JobReader | None:
        """Reader of a job from local files, if the loops can do all of it."""
        job.tally.note(loops=self._placer.library_name)
        if not job.source.layout.levels:
            return unsharded_read(self._placer, self._host, job)
        first, *others = self._landings
        if others or not isinstance(first, GridLanding):
            return None
        return sharded_read(self._placer, first, job)

    def request_reader(self, job: Job, ranged: RangedBlock) -> RequestReader | None:
        """Reader of requests to local files; None if the objects lie elsewhere."""
        return file_reader(self._placer, self._host, job, ranged)

    def place_kept(
        self, job: Job, block: ShardBlock, rows: Ints, kept: CacheSlots
    ) -> None:
        """Write the wanted elements of inner chunks that are kept decoded."""
        if not self._copy(block, rows, kept.addresses[rows]):
            self._host.place_kept(job, block, rows, kept)

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Write the fill value where the missing inner chunks `rows` land."""
        # Larger inner chunks are filled one by one.
        chunk = little_fill(job.source, self._placer.chain.chunk_nbytes)
        if chunk is not None:
            addresses = np.full(len(rows), address_of(chunk))
            if self._copy(block, rows, addresses):
                return
        self._host.fill(job, block, rows)

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks in some requests and write their wanted elements.

        Raises
        ------
        CorruptShardError
            An inner chunk is damaged.
        """
        start, stop = ranged.requests.start, ranged.requests.stop
        if any(len(answer) < stop[r] - start[r] for r, answer in fetched):
            # An answer may be shorter than requested, and addresses would leave it.
            self._host.place(job, ranged, fetched)
            return
        per_request = [ranged.rows_of(r) for r, _ in fetched]
        rows = np.concatenate(per_request)
        nth = np.repeat(np.arange(len(fetched)), list(map(len, per_request)))
        addresses = np.array(
            [address_of(answer) - int(start[r]) for r, answer in fetched]
        )
        is_left = np.ones(len(rows), np.bool_)
        for first in range(0, len(rows), _MOST_ROWS):
            these = slice(first, first + _MOST_ROWS)
            base = addresses[nth[these]]
            is_left[these] = ~self._place_rows(ranged, rows[these], base)
        if is_left.any():
            for i in distinct(nth[is_left]).tolist():
                left = rows[is_left & (nth == i)]
                self._host.place_some(job, ranged, fetched[i], left)

    def finish(self) -> None:
        """Return at once: `fill` and `place` finish their work before they return."""

    def _copy(self, block: ShardBlock, rows: Ints, addresses: Ints) -> bool:
        """Whether inner chunks could be copied from decoded ones at `addresses`."""
        boxes, row = self._placer.cut(block, rows)
        boxes[:, SOURCE], boxes[:, NBYTES] = addresses[row], 0
        boxes[:, FILE] = FILLED
        return bool(self._placer.run(boxes).all())

    def _place_rows(self, ranged: RangedBlock, rows: Ints, base: Ints) -> Bools:
        """Whether each row was placed; `base`: address of byte 0 of its object."""
        boxes, row = self._placer.cut(ranged.block, rows)
        located = ranged.located
        # If elements are plain, only those from first to last wanted are in memory.
        start = located.start[rows]
        boxes[:, SOURCE] = (base + start)[row]
        boxes[:, NBYTES] = (located.stop[rows] - start)[row]
        boxes[:, FILE] = NO_FILE
        is_placed = np.ones(len(rows), np.bool_)
        is_placed[row[~self._placer.run(boxes)]] = False
        return is_placed
