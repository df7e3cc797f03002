"""Requests to files, read in the same compiled loop that decodes and places them.

A request costs nothing in Python: the columns of all boxes of a block are made at once,
and each task takes its share of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpushard.fetching.fetch import fetch_payload
from gpushard.fetching.job import Job
from gpushard.fetching.ranged import RangedBlock
from gpushard.fused.columns import (
    FILE,
    HIGH,
    KEEP,
    LOW,
    NBYTES,
    SOURCE,
)
from gpushard.fused.room import WINDOW_NBYTES
from gpushard.fused.runner import BoxRunner
from gpushard.options import ReadOptions
from gpushard.placing.place import HostSink
from gpushard.selecting.selection import Ints
from gpushard.stores.handles import Handle, is_in_memory, read_ahead
from gpushard.stores.local import LocalStore, holds_plain_files

# Most files that a task keeps open at a time: far fewer than a process may have.
_MOST_FILES = 32


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads the inner chunks of a block and places them, request by request.

    Attributes
    ----------
    store, runner, host, job, ranged
        Store of the files; the loops; the sink for inner chunks that the loops refuse;
        the job; the wanted inner chunks with their requests.
    columns
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Boxes in the order of requests.
    row
        int64, shape (n_boxes,). Inner chunk of each box, a column of the block.
    bounds
        int64, shape (n_requests + 1,). Boxes of request r: ``bounds[r]:bounds[r + 1]``.
    """

    store: LocalStore
    runner: BoxRunner
    host: HostSink
    job: Job
    ranged: RangedBlock
    columns: Ints
    row: Ints
    bounds: Ints

    def __call__(self, requests: range) -> None:
        """Read, decode and place the inner chunks of some requests.

        Raises
        ------
        CorruptShardError, StoreError
            `HostSink` and the store raise them.
        ObjectChangedError
            A file was replaced after its index was read.
        """
        shard = self.ranged.requests.source[requests.start : requests.stop]
        cuts = np.flatnonzero(np.diff(shard)) + 1
        bounds = [0, *cuts[_MOST_FILES - 1 :: _MOST_FILES].tolist(), len(requests)]
        for first, last in pairwise(bounds):
            self._read(requests[first:last])

    def _read(self, requests: range) -> None:
        """Read some requests, which are to a few files at most."""
        shards = self.ranged.requests.source[requests.start : requests.stop]
        opened = {shard: self._open(shard) for shard in dict.fromkeys(shards.tolist())}
        first, last = self.bounds[requests.start], self.bounds[requests.stop]
        columns = self.columns[first:last]
        self._read_ahead(requests, opened)
        block = self.ranged.block
        files = np.zeros(len(block.shard_coords), np.int64)
        files[list(opened)] = [handle.fd for handle in opened.values()]
        columns[:, FILE] = files[block.shard[self.row[first:last]]]
        widest = int((columns[:, HIGH] - columns[:, LOW]).max(initial=0))
        is_placed = self.runner.run(
            columns, window_nbytes(self.job.source.options, widest)
        )
        for handle in opened.values():
            self.store.confirm(handle)
        if self.ranged.claimed is not None:
            is_decoded = is_placed & (columns[:, KEEP] != 0)
            self.ranged.claimed.keep(self.row[first:last][is_decoded])
        if not is_placed.all():
            self._read_plainly(requests, np.unique(self.row[first:last][~is_placed]))

    def _read_ahead(self, requests: range, opened: dict[int, Handle]) -> None:
        """Have the disk start on all requests, unless the first is in memory already.

        The loops themselves wait for one after the other.
        """
        shard, start, nbytes = (
            column[requests.start : requests.stop].tolist()
            for column in (
                self.ranged.requests.source,
                self.ranged.requests.start,
                self.ranged.requests.nbytes,
            )
        )
        if not is_in_memory(opened[shard[0]].fd, start[0]):
            for s, first, n in zip(shard, start, nbytes, strict=True):
                read_ahead(opened[s].fd, first, n)

    def _open(self, shard: int) -> Handle:
        version = self.ranged.located.versions[shard]
        key = self.job.source.key(tuple(self.ranged.block.shard_coords[shard].tolist()))
        return self.store.open_file(key, version)

    def _read_plainly(self, requests: range, left: Ints) -> None:
        """Read inner chunks that the loops left over, through `HostSink`."""
        source = self.job.source
        for r in requests:
            rows = self.ranged.rows_of(r)
            rows = rows[np.isin(rows, left)]
            if len(rows):
                request = self.job.byte_request(self.ranged, r)
                (answer,) = fetch_payload(source, [request])
                self.host.place_some(self.job, self.ranged, (r, answer), rows)


def file_reader(
    runner: BoxRunner, host: HostSink, job: Job, ranged: RangedBlock
) -> FileReader | None:
    """Reader of a block whose objects lie in local files; None if they do not."""
    source = job.source
    store = source.store
    if not (runner.reads_files and source.layout.levels):
        return None
    if not holds_plain_files(store):
        return None
    requests = ranged.requests
    cut = runner.cut(ranged.block, requests.order)
    if cut is None:
        return None
    columns, nth = cut
    row = requests.order[nth]
    located, spans = ranged.located, ranged.spans
    columns[:, SOURCE] = located.start[row]
    columns[:, NBYTES] = located.stop[row] - located.start[row]
    columns[:, LOW], columns[:, HIGH] = spans[0, row], spans[1, row]
    if ranged.claimed is not None:
        columns[:, KEEP] = ranged.claimed.addresses[row]
    widest = int((columns[:, HIGH] - columns[:, LOW]).max(initial=0))
    if widest > source.room.most_window_nbytes:
        return None  # the general path counts what it fetches, and uses fewer threads
    bounds = np.searchsorted(nth, requests.bounds)
    return FileReader(store, runner, host, job, ranged, columns, row, bounds)


def window_nbytes(options: ReadOptions, widest: int) -> int:
    """Memory for bytes read from files, if the widest range has `widest` bytes."""
    share = options.memory_limit // (2 * options.threads)
    return max(min(WINDOW_NBYTES, share), widest)
