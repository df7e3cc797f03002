"""A block -> work that fetches its byte ranges, decodes and places inner chunks.

A request suits the store, a share of the work suits a thread. What the requests of
`gpushard.reading.requests` bring is therefore decoded in shares, by as many threads as
there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter

import numpy as np

from gpushard.errors import CorruptShardError
from gpushard.fetching.job import Answer, Job
from gpushard.fetching.locate import (
    find_indexes,
    locate,
    refuse_oversized,
    refuse_stale,
)
from gpushard.fetching.pieces import cut_rows
from gpushard.fetching.ranged import RangedBlock
from gpushard.placing.kept_rows import claim, find_kept, placing_tasks
from gpushard.planning.blocks import Block
from gpushard.planning.coalesce import Requests, coalesce, cut_batches
from gpushard.reading.requests import batches_of, is_waited_for, requests_of
from gpushard.selecting.selection import Ints
from gpushard.stores.base import end_of
from gpushard.threads.work_queue import Spawner, Task, Work


def range_tasks(job: Job, block: Block, n_workers: int) -> Iterator[Work]:
    """Work that reads a block: one piece for the missing, one per batch of requests.

    The indexes of the shards are read before the first piece of work is yielded.
    """
    began_at_s = monotonic()
    found = find_indexes(job, block)
    for piece in cut_rows(job, block, n_workers):
        located = locate(job, piece, found)
        refuse_oversized(job, piece, located)
        missing = np.flatnonzero(located.missing)
        if len(missing):
            refuse_stale(job, piece, found, located.missing, began_at_s)
            job.tally.add(n_missing_inner_chunks=len(missing))
            yield partial(job.sink.fill, job, piece, missing)
        rows, claimed = np.flatnonzero(~located.missing), None
        kept = find_kept(job, piece, found, rows)
        if kept is not None:
            is_kept = kept.addresses[rows] != 0
            yield from placing_tasks(job, piece, kept, rows[is_kept])
            rows = rows[~is_kept]
            claimed = claim(job, kept, rows)
        if len(rows):
            ranged = partial(RangedBlock, piece, located, claimed=claimed)
            divided = requests_of(job, piece, located, rows, n_workers)
            for spans, requests, share_nbytes in divided:
                requested = ranged(spans, requests)
                yield from _reading_tasks(job, requested, n_workers, share_nbytes)


def _reading_tasks(
    job: Job, ranged: RangedBlock, n_workers: int, share_nbytes: int
) -> Iterator[Work]:
    """Work that fetches the requests of a block, and decodes and places the bytes."""
    reader = job.sink.request_reader(job, ranged)
    if reader is not None:
        for task in reader(n_workers, partial(_finish_requests, job, ranged)):
            yield partial(_run_timed, job, task)
        return
    requests = ranged.requests
    copied = _copied_nbytes(job, ranged)
    for first, last in batches_of(job, requests, n_workers, share_nbytes):
        nbytes = int(requests.nbytes[first:last].sum())
        if job.sink.batch_nbytes is not None:
            nbytes = 0  # it waits for a slot, and only the slots take memory
        elif copied is not None:
            widest = int(copied[first:last].max())
            nbytes += min(nbytes, n_workers * widest)
        fetch = partial(_fetch, job, ranged, range(first, last), share_nbytes)
        yield Spawner(fetch, nbytes)


def _copied_nbytes(job: Job, ranged: RangedBlock) -> Ints | None:
    """Most bytes of each request that one thread copies; None if none are copied.

    An inner chunk of plain elements that is fetched in part is copied to its place in
    memory for the whole inner chunk.
    """
    if job.source.raw_strides is None or job.sink.batch_nbytes is not None:
        return None
    requests, located = ranged.requests, ranged.located
    start, stop = ranged.spans[:, requests.order]
    nbytes = stop - start
    whole = (located.stop - located.start)[requests.order]
    nbytes[nbytes == whole] = 0
    return np.maximum.reduceat(nbytes, requests.bounds[:-1])


def _run_timed(job: Job, task: Task) -> None:
    with job.tally.stage("fetch, decode and scatter"):
        task()


def _finish_requests(
    job: Job, ranged: RangedBlock, requests: range, left: Sequence[tuple[int, Task]]
) -> None:
    """Count requests that the sink has read itself, and read what it left of them."""
    first = requests.start
    for r, read in left:
        try:
            read()
        except CorruptShardError as error:
            _count(job, ranged, range(first, r))
            _continue_or_raise(job, ranged, range(r, r + 1), error)
            first = r + 1
    _count(job, ranged, range(first, requests.stop))


def _fetch(
    job: Job, ranged: RangedBlock, requests: range, share_nbytes: int
) -> Sequence[Task]:
    """Fetch some requests and place their inner chunks, or return tasks that do."""
    try:
        placing = _fetch_and_place(job, ranged, requests, share_nbytes)
    except CorruptShardError as error:
        _continue_or_raise(job, ranged, requests, error)
        return ()
    _count(job, ranged, requests)
    return placing


def _fetch_and_place(
    job: Job, ranged: RangedBlock, requests: range, share_nbytes: int
) -> Sequence[Task]:
    byte_requests = job.byte_requests(ranged, requests)
    bounds = ranged.requests.bounds
    n_rows = int(bounds[requests.stop] - bounds[requests.start])
    with job.sink.fetch(job, byte_requests, n_rows) as answers:
        numbered = list(zip(requests, answers, strict=True))
        found = [(r, answer) for r, answer in numbered if answer is not None]
        is_shared = len(requests) == 1 or is_waited_for(job)
        if job.sink.batch_nbytes is None and is_shared and len(found) == len(requests):
            return _tasks_for_shares(job, ranged, found, share_nbytes)
        if found:
            _place(job, ranged, found)
    missing = [ranged.rows_of(r) for r, answer in numbered if answer is None]
    if missing:
        rows = np.concatenate(missing)
        job.tally.add(n_missing_shards=len(missing), n_missing_inner_chunks=len(rows))
        job.sink.fill(job, ranged.block, rows)
    return ()


def _tasks_for_shares(
    job: Job, ranged: RangedBlock, found: Sequence[Answer], share_nbytes: int
) -> Sequence[Task]:
    """Tasks that each place a share of the inner chunks in some answers."""
    sizes = ranged.requests.nbytes[[r for r, _ in found]]
    tasks: list[Task] = []
    for first, last in cut_batches(sizes, share_nbytes):
        if last - first > 1:
            tasks.append(partial(_place, job, ranged, found[first:last]))
        else:
            tasks += _tasks_for_parts(job, ranged, found[first], share_nbytes)
    return tasks


def _tasks_for_parts(
    job: Job, ranged: RangedBlock, answer: Answer, share_nbytes: int
) -> Sequence[Task]:
    """Tasks that each place a share of the inner chunks in one answer."""
    r, data = answer
    rows = ranged.rows_of(r)
    if len(rows) == 1 or ranged.requests.nbytes[r] <= share_nbytes:
        return [partial(_place, job, ranged, [answer])]
    base = int(ranged.requests.start[r])
    start, stop = ranged.spans[:, rows]
    shares = coalesce(
        np.full(len(rows), ranged.requests.source[r]),
        start,
        stop,
        gap_nbytes=len(data),
        max_request_nbytes=share_nbytes,
    )
    shared = replace(ranged, requests=shares._replace(order=rows[shares.order]))
    return [
        partial(_place, job, shared, [(s, data[first - base : last - base])])
        for s, (first, last) in enumerate(
            zip(shares.start.tolist(), shares.stop.tolist(), strict=True)
        )
    ]


def _place(job: Job, ranged: RangedBlock, found: Sequence[Answer]) -> None:
    begin = perf_counter()
    job.sink.place(job, ranged, found)
    job.tally.add_seconds("decode and scatter", perf_counter() - begin)


def _continue_or_raise(
    job: Job, ranged: RangedBlock, requests: range, error: CorruptShardError
) -> None:
    """After damage, read what is readable of some requests, or raise the error."""
    # A damaged inner chunk is named already. Otherwise an object ended too early.
    is_named = error.inner_chunk is not None
    if is_named or not job.damage.replaces:
        if not is_named:
            _name_cut_off(job, ranged, requests, error)
        try:
            raise error
        finally:
            del error  # as in `Damage.note`
    _retry_one_by_one(job, ranged, requests, error)


def _name_cut_off(
    job: Job, ranged: RangedBlock, requests: range, error: CorruptShardError
) -> None:
    """Name in `error` the first inner chunk that extends past the end of its object."""
    store = job.source.store
    for r, request in zip(requests, job.byte_requests(ranged, requests), strict=True):
        if request.key != error.shard_key:
            continue
        rows = ranged.rows_of(r)
        if job.source.layout.levels:  # otherwise the whole object is the inner chunk
            rows = rows[ranged.spans[1, rows] > end_of(store, request)]
        if len(rows):
            job.name_place(error, ranged.block, int(rows[0]))
            return


def _read_now(job: Job, ranged: RangedBlock, r: int) -> None:
    """Fetch one request and place its inner chunks at once."""
    nbytes = int(ranged.requests.nbytes[r])
    for task in _fetch(job, ranged, range(r, r + 1), share_nbytes=nbytes):
        task()


def _retry_one_by_one(
    job: Job, ranged: RangedBlock, requests: range, error: CorruptShardError
) -> None:
    """Read requests one by one, and the inner chunks of a failed request one by one."""
    if len(requests) > 1:
        for r in requests:
            _read_now(job, ranged, r)
        return
    rows = ranged.rows_of(requests[0])
    if len(rows) == 1:
        job.give_up(error, ranged.block, rows)
        job.sink.fill(job, ranged.block, rows)
        return
    source = np.full(len(rows), ranged.requests.source[requests[0]])
    start, stop = ranged.spans[:, rows]
    alone = Requests(source, start, stop, np.arange(len(rows) + 1), rows)
    singly = replace(ranged, requests=alone)
    for r in range(len(rows)):
        _read_now(job, singly, r)


def _count(job: Job, ranged: RangedBlock, requests: range) -> None:
    if not (job.tally.is_wanted or job.tally.is_summed):
        return
    fetched = int(ranged.requests.nbytes[requests.start : requests.stop].sum())
    bounds = ranged.requests.bounds
    rows = ranged.requests.order[bounds[requests.start] : bounds[requests.stop]]
    wanted = int((ranged.spans[1, rows] - ranged.spans[0, rows]).sum())
    job.tally.add(
        n_payload_requests=len(requests),
        payload_nbytes=fetched,
        # Several rows may want the same bytes, which are fetched once.
        gap_nbytes=max(fetched - wanted, 0),
    )
