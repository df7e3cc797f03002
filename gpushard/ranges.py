"""Byte ranges of a block -> requests -> tasks that fetch, decode and place them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

from gpushard.blocks import ShardBlock
from gpushard.coalesce import Requests, coalesce, cut_batches
from gpushard.errors import CorruptShardError
from gpushard.job import SMALLEST_SHARE_NBYTES, Job, RequestReader
from gpushard.locate import find_indexes, locate, refuse_oversized
from gpushard.pieces import cut_rows
from gpushard.ranged import Located, RangedBlock
from gpushard.selection import Ints
from gpushard.source import Source
from gpushard.spans import byte_spans
from gpushard.workers import Task

# What a request costs beside its bytes: a batch of tiny ones is a batch of objects.
_REQUEST_NBYTES = 64


def range_tasks(job: Job, block: ShardBlock, n_workers: int) -> Iterator[Task]:
    """Tasks that read a block: one for all that is missing, one a batch of ranges.

    The shards' indexes are read before the first task is given.
    """
    found = find_indexes(job, block)
    for piece in cut_rows(job, block):
        yield from _piece_tasks(job, piece, locate(job, piece, found), n_workers)


def _piece_tasks(
    job: Job, block: ShardBlock, located: Located, n_workers: int
) -> Iterator[Task]:
    refuse_oversized(job, block, located)
    missing = np.flatnonzero(located.missing)
    if len(missing):
        job.tally.add(n_missing_inner_chunks=len(missing))
        yield partial(job.sink.fill, job, block, missing)
    rows = np.flatnonzero(~located.missing)
    if not len(rows):
        return
    start, stop = _wanted_ranges(job, block, located, rows)
    budget = job.batch_nbytes(int((stop - start).sum()), n_workers)
    requests = _requests(job.source, block.shard[rows], start, stop, budget)
    spans = np.zeros((2, len(block.shard)), np.int64)
    spans[:, rows] = start, stop
    ranged = RangedBlock(
        block, located, spans, requests._replace(order=rows[requests.order])
    )
    reader = job.sink.reader(job, ranged)
    if reader is None:
        batches = cut_batches(requests.nbytes + _REQUEST_NBYTES, budget)
    else:
        batches = cut_batches(*_shares_of_work(job, ranged, n_workers))
    for first, last in batches:
        yield partial(_read_requests, job, ranged, range(first, last), reader)


def _shares_of_work(job: Job, ranged: RangedBlock, n_workers: int) -> tuple[Ints, int]:
    """Bytes that each request gives when decoded, and how many of them make a task.

    Nothing is held but what a worker decodes, so only the work is to be shared out.
    """
    source, requests = job.source, ranged.requests
    work = requests.nbytes
    if source.raw_strides is None:
        work = np.diff(requests.bounds) * source.chunk_nbytes
    return work, max(int(work.sum()) // (4 * n_workers), 2 * SMALLEST_SHARE_NBYTES)


def _requests(
    source: Source, shard: Ints, start: Ints, stop: Ints, budget: int
) -> Requests:
    costs = source.store.costs
    return coalesce(
        shard,
        start,
        stop,
        gap_nbytes=costs.gap_nbytes,
        max_request_nbytes=min(costs.max_request_nbytes, budget),
    )


def _wanted_ranges(
    job: Job, block: ShardBlock, located: Located, rows: Ints
) -> tuple[Ints, Ints]:
    """Byte ranges to fetch: of plain elements only those between the wanted ones."""
    source = job.source
    start, stop = located.start[rows], located.stop[rows]
    strides = source.raw_strides
    if strides is None:
        return start, stop
    # An entry of another size is fetched as it is and refused by the decoder.
    fits = stop - start == source.chunk_nbytes
    for p, part in enumerate(job.plan.parts):
        mine = np.flatnonzero(fits & (block.part[rows] == p))
        low, high = byte_spans(part, block.position[:, rows[mine]], strides)
        stop[mine] = start[mine] + high
        start[mine] += low
    return start, stop


def _read_requests(
    job: Job, ranged: RangedBlock, requests: range, reader: RequestReader | None
) -> None:
    """Fetch some requests and put the inner chunks that they hold in place."""
    try:
        if reader is None:
            _fetch_and_place(job, ranged, requests)
        else:
            with job.tally.stage("fetch, decode and scatter"):
                reader(requests)
    except CorruptShardError as error:
        # Of one inner chunk it is known already; else an object ended too early.
        if not job.damage.replaces or error.inner_chunk is not None:
            raise
        _read_what_is_left(job, ranged, requests, error)
        return
    if job.tally.is_wanted or job.tally.is_summed:
        _count(job, ranged, requests)


def _fetch_and_place(job: Job, ranged: RangedBlock, requests: range) -> None:
    byte_requests = [job.byte_request(ranged, r) for r in requests]
    with job.sink.fetch(job, byte_requests) as answers:
        begin = perf_counter()
        numbered = list(zip(requests, answers, strict=True))
        found = [(r, answer) for r, answer in numbered if answer is not None]
        if found:
            job.sink.place(job, ranged, found)
    for r in (r for r, answer in numbered if answer is None):
        rows = ranged.rows_of(r)
        job.tally.add(n_missing_shards=1, n_missing_inner_chunks=len(rows))
        job.sink.fill(job, ranged.block, rows)
    job.tally.add_seconds("decode and scatter", perf_counter() - begin)


def _read_what_is_left(
    job: Job, ranged: RangedBlock, requests: range, error: CorruptShardError
) -> None:
    """Read requests one by one, and of a request that failed the inner chunks."""
    if len(requests) > 1:
        for r in requests:
            _read_requests(job, ranged, range(r, r + 1), None)
        return
    rows = ranged.rows_of(requests[0])
    if len(rows) == 1:
        job.give_up(error, ranged.block, rows)
        job.sink.fill(job, ranged.block, rows)
        return
    source = np.full(len(rows), ranged.requests.source[requests[0]])
    start, stop = ranged.spans[:, rows]
    alone = Requests(source, start, stop, np.arange(len(rows) + 1), rows)
    _read_requests(job, replace(ranged, requests=alone), range(len(rows)), None)


def _count(job: Job, ranged: RangedBlock, requests: range) -> None:
    fetched = int(ranged.requests.nbytes[requests.start : requests.stop].sum())
    bounds = ranged.requests.bounds
    rows = ranged.requests.order[bounds[requests.start] : bounds[requests.stop]]
    wanted = int((ranged.spans[1, rows] - ranged.spans[0, rows]).sum())
    job.tally.add(
        n_payload_requests=len(requests),
        payload_nbytes=fetched,
        # Shared and overlapping ranges are wanted more often than fetched.
        gap_nbytes=max(fetched - wanted, 0),
    )
