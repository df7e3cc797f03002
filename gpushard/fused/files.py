"""Inner chunks in files, read in the same compiled loop that decodes and places them.

A request costs nothing in Python: the columns of all boxes of a block are made at once,
and threads claim shares of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from threading import Lock

import numpy as np

from gpushard.fetching.fetch import fetch_payload
from gpushard.fetching.job import Job, RequestsDone
from gpushard.fetching.ranged import RangedBlock
from gpushard.fused.columns import (
    ENTRY,
    FILE,
    GAP_NBYTES,
    HIGH,
    KEEP,
    LOW,
    NBYTES,
    OFFSET,
    SOURCE,
)
from gpushard.fused.placer import BoxPlacer, PlanPlacer
from gpushard.fused.shares import Shares
from gpushard.fused.thread_memory import WINDOW_NBYTES
from gpushard.fused.words import Opener
from gpushard.options import ReadOptions
from gpushard.placing.place import HostSink
from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import Ints
from gpushard.stores.local.handles import FileHandle, is_in_memory, read_ahead
from gpushard.stores.local.store import LocalStore
from gpushard.threads.work_queue import Task

# Most files that are kept open at a time: far fewer than a process may have.
_MOST_FILES = 32


@dataclass
class FileBoxes:
    """Boxes in some files, and the progress of the threads that place them.

    Attributes
    ----------
    placer
        The loops.
    handles
        Files of the boxes' shards; None if there is no file.
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes).
    shares
        Shares of the boxes, which threads claim.
    window_nbytes
        Memory for bytes read from files.
    finish
        Called with this object by the last thread, when all boxes have been tried;
        never after a thread has failed.
    opener
        Opens the files, if they are not open yet.
    """

    placer: BoxPlacer
    handles: Sequence[FileHandle | None]
    boxes: Ints
    shares: Shares
    window_nbytes: int
    finish: Callable[[FileBoxes], None]
    opener: Opener | None = None
    _n_announced: int = 0
    _is_on_disk: bool = False
    _n_under_way: int = 0
    _is_over: bool = False
    _lock: Lock = field(default_factory=Lock)

    def tasks(self) -> Iterator[Task]:
        """Tasks that claim, read, decode and place boxes, each for one call."""
        while self.shares.are_left:
            if self.opener is None:
                self._announce()
            yield self.place

    def place(self) -> None:
        """Claim, read, decode and place boxes, for the time of one call."""
        with self._lock:
            self._n_under_way += 1
        try:
            self.placer.run(self.boxes, self.window_nbytes, self.shares, self.opener)
        except BaseException:
            # Boxes that were not tried are not left over: nobody may read them now.
            self._is_over = True
            self.shares.stop_claims()
            raise
        finally:
            with self._lock:
                self._n_under_way -= 1
                is_last = not (
                    self._n_under_way or self.shares.are_left or self._is_over
                )
                self._is_over |= is_last
        if is_last:
            self.finish(self)

    def left_of(self, bounds: Ints) -> list[int]:
        """Groups of boxes, ``bounds[i]:bounds[i + 1]``, that are not all placed."""
        if self.shares.is_placed.all():
            return []
        at = np.flatnonzero(~self.shares.is_placed)
        return distinct(np.searchsorted(bounds, at, "right") - 1).tolist()

    def _announce(self) -> None:
        """Have the disk start on the shares that will be claimed soon.

        Shares behind one that waits are not asked for: the system may have read on into
        their first bytes.
        """
        shares = self.shares
        last = shares.end_of_next()
        for s in range(max(self._n_announced, shares.first_left), last):
            boxes = self.boxes[shares.cuts[s] : shares.cuts[s + 1]]
            self._is_on_disk = self._is_on_disk or starts_on_disk(boxes)
            if self._is_on_disk:
                announce(boxes)
        self._n_announced = last


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads the inner chunks of a block and places them.

    Attributes
    ----------
    store, placer, host, job, ranged
        Store of the files; the loops; the sink for inner chunks that the loops refuse;
        the job; the wanted inner chunks with their requests.
    boxes
        int64, shape (n_boxes, FIRST_LENGTH + n_axes). Boxes in the order of requests.
    row
        int64, shape (n_boxes,). Inner chunk of each box, a column of the block.
    bounds
        int64, shape (n_requests + 1,). Boxes of request r: ``bounds[r]:bounds[r + 1]``.
    """

    store: LocalStore
    placer: PlanPlacer
    host: HostSink
    job: Job
    ranged: RangedBlock
    boxes: Ints
    row: Ints
    bounds: Ints

    def __call__(self, n_workers: int, done: RequestsDone) -> Iterator[Task]:
        """Tasks that read, decode and place all inner chunks of the requests.

        Parameters
        ----------
        done
            Called when requests are read, with what the loops left over.

        Raises
        ------
        ObjectChangedError
            A file was replaced after its index was read.
        StoreError
            The store failed.
        """
        shard = self.ranged.requests.source
        cuts = np.flatnonzero(np.diff(shard)) + 1
        bounds = [0, *cuts[_MOST_FILES - 1 :: _MOST_FILES].tolist(), len(shard)]
        for first, last in pairwise(bounds):
            yield from self._boxes_of(range(first, last), n_workers, done).tasks()

    def _boxes_of(
        self, requests: range, n_workers: int, done: RequestsDone
    ) -> FileBoxes:
        """Boxes of some requests, which are to a few files at most."""
        shards = self.ranged.requests.source[requests.start : requests.stop]
        opened = {shard: self._open(shard) for shard in dict.fromkeys(shards.tolist())}
        first, last = self.bounds[requests.start], self.bounds[requests.stop]
        boxes = self.boxes[first:last]
        block = self.ranged.block
        files = np.zeros(len(block.shard_coords), np.int64)
        files[list(opened)] = [handle.fd for handle in opened.values()]
        boxes[:, FILE] = files[block.shard[self.row[first:last]]]
        return FileBoxes(
            self.placer,
            list(opened.values()),
            boxes,
            Shares.of(boxes, self.placer.chain.chunk_nbytes, n_workers),
            window_nbytes(self.job.source.options, widest_nbytes(boxes)),
            partial(self._finish, requests, done),
        )

    def _open(self, shard: int) -> FileHandle:
        version = self.ranged.located.versions[shard]
        key = self.job.source.key(tuple(self.ranged.block.shard_coords[shard].tolist()))
        return self.store.open_file(key, version)

    def _finish(
        self, requests: range, done: RequestsDone, file_boxes: FileBoxes
    ) -> None:
        for handle in file_boxes.handles:
            if handle is not None:
                self.store.confirm(handle)
        bounds = self.bounds[requests.start : requests.stop + 1]
        row, is_placed = self.row[bounds[0] : bounds[-1]], file_boxes.shares.is_placed
        if self.ranged.claimed is not None:
            self.ranged.claimed.keep(row[is_placed & (file_boxes.boxes[:, KEEP] != 0)])
        left: list[tuple[int, Task]] = []
        for i in file_boxes.left_of(bounds - bounds[0]):
            of_request = slice(*(bounds[i : i + 2] - bounds[0]).tolist())
            rows = self.ranged.rows_of(requests[i])
            # In a table: otherwise NumPy may do as `distinct` says.
            tried_row, was_placed = row[of_request], is_placed[of_request]
            rows = rows[np.isin(rows, tried_row[~was_placed], kind="table")]
            left.append((requests[i], partial(self._read_left, requests[i], rows)))
        done(requests, left)

    def _read_left(self, r: int, rows: Ints) -> None:
        """Read inner chunks of a request that the loops left over."""
        (request,) = self.job.byte_requests(self.ranged, range(r, r + 1))
        (answer,) = fetch_payload(self.job.source, [request])
        self.host.place_some(self.job, self.ranged, (r, answer), rows)


def file_reader(
    placer: PlanPlacer, host: HostSink, job: Job, ranged: RangedBlock
) -> FileReader | None:
    """Reader of a block whose objects lie in local files; None if they do not.

    Each job is asked: of an array in files, some objects are fetched whole before.
    """
    source = job.source
    store = placer.chain.shard_store
    if store is None or source.is_held:
        return None
    requests = ranged.requests
    boxes, nth = placer.cut(ranged.block, requests.order)
    row = requests.order[nth]
    located, spans = ranged.located, ranged.spans
    boxes[:, SOURCE] = located.start[row]
    boxes[:, NBYTES] = located.stop[row] - located.start[row]
    if source.raw_strides is None:
        boxes[:, LOW], boxes[:, HIGH] = spans[0, row], spans[1, row]
    else:  # each box has its own part of an inner chunk
        boxes[:, LOW] = boxes[:, SOURCE] + boxes[:, OFFSET]
        reach = placer.reaches(boxes) + source.raw_strides[-1]
        boxes[:, HIGH] = boxes[:, LOW] + reach
    boxes[:, ENTRY] = 0  # the place of its bytes tells an inner chunk from others
    if ranged.claimed is not None:
        boxes[:, KEEP] = ranged.claimed.addresses[row]
    if widest_nbytes(boxes) > source.room.most_window_nbytes:
        return None  # the general path counts what it fetches, and uses fewer threads
    bounds = np.searchsorted(nth, requests.bounds)
    return FileReader(store, placer, host, job, ranged, boxes, row, bounds)


def window_nbytes(options: ReadOptions, widest: int) -> int:
    """Memory for bytes read from files, if the widest range has `widest` bytes."""
    share = options.memory_limit // (2 * options.threads)
    return max(min(WINDOW_NBYTES, share), widest)


def widest_nbytes(boxes: Ints) -> int:
    """Largest size of the bytes that a box needs."""
    return int((boxes[:, HIGH] - boxes[:, LOW]).max(initial=0))


def spanned_nbytes(boxes: Ints) -> int:
    """Largest span of the bytes of one inner chunk's boxes, each byte counted once.

    With that much memory the loops read no byte twice. Otherwise they would: if some
    places are taken of every row of plain elements, each place makes a box that spans
    nearly all of the inner chunk.
    """
    if not len(boxes):
        return 0
    source = boxes[:, SOURCE]
    firsts = np.flatnonzero(np.append(True, source[1:] != source[:-1]))
    low = np.minimum.reduceat(boxes[:, LOW], firsts)
    return int((np.maximum.reduceat(boxes[:, HIGH], firsts) - low).max())


def starts_on_disk(boxes: Ints) -> bool:
    """Whether the first box in a file has to be read from the disk.

    Asking has the system read it, so that a later answer may be another.
    """
    if len(boxes) and boxes.item(0, FILE) < 0:
        boxes = boxes[boxes[:, FILE] >= 0]
    return len(boxes) > 0 and not is_in_memory(boxes.item(0, FILE), boxes.item(0, LOW))


def announce(boxes: Ints) -> None:
    """Have the disk start on all boxes.

    The loops themselves wait for one after the other. The disk is told once of boxes
    that the loops read together.
    """
    file, low, high = boxes[boxes[:, FILE] >= 0][:, [FILE, LOW, HIGH]].T
    if not len(file):
        return
    is_near = (low[1:] >= low[:-1]) & (low[1:] <= high[:-1] + GAP_NBYTES)
    is_first = np.append(True, ~is_near | (file[1:] != file[:-1]))
    starts = np.flatnonzero(is_first)
    stop = np.maximum.reduceat(high, starts)
    for fd, first, last in zip(
        file[starts].tolist(), low[starts].tolist(), stop.tolist(), strict=True
    ):
        read_ahead(fd, first, last - first)
