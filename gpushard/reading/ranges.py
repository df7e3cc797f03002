"""Byte ranges of a block -> requests -> work that fetches, decodes and places them.

A request suits the store, a share of the work suits a thread. Neighbouring byte ranges
are therefore fetched in requests as large as the store prefers, and decoded in shares,
by as many threads as there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter

import numpy as np

from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.job import Answer, Job
from gpushard.fetching.locate import (
    find_indexes,
    locate,
    refuse_oversized,
    refuse_stale,
)
from gpushard.fetching.pieces import cut_rows
from gpushard.fetching.ranged import Located, RangedBlock
from gpushard.placing.kept_rows import claim, find_kept, placing_tasks
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.planning.coalesce import Requests, coalesce, cut_batches
from gpushard.planning.spans import byte_spans
from gpushard.selecting.selection import Ints
from gpushard.stores.base import end_of
from gpushard.work_queue import Spawner, Task, Work

# Overhead of a request, in bytes: a batch of tiny requests is many objects.
_REQUEST_NBYTES = 64
# In a batch for a device, ranges keep their offset in a line of so many bytes.
_LINE_NBYTES = 64
# Batches for a device that are planned together. The two first ones are waited for: one
# piece of work is not begun before the next one shows whether there are several.
_AHEAD_BATCHES = 2


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
            divided = _requests_of(job, piece, located, rows, n_workers)
            for spans, requests, share_nbytes in divided:
                requested = ranged(spans, requests)
                yield from _reading_tasks(job, requested, n_workers, share_nbytes)


def _requests_of(
    job: Job, block: ShardBlock, located: Located, rows: Ints, n_workers: int
) -> Iterator[tuple[Ints, Requests, int]]:
    """Spans of a block, some requests for its inner chunks `rows`, bytes of a task."""
    shard, is_all = _column_at(block.shard, rows), len(rows) == block.n_chunks
    start, stop = _wanted_ranges(job, block, located, rows)
    if is_all:
        spans = np.stack([start, stop])
    else:
        spans = np.zeros((2, block.n_chunks), np.int64)
        spans[:, rows] = start, stop
    wanted_nbytes = int((stop - start).sum())
    share_nbytes = job.batch_nbytes(wanted_nbytes, n_workers, len(rows))
    is_little = wanted_nbytes <= _AHEAD_BATCHES * share_nbytes
    if job.sink.batch_nbytes is None or is_little:
        joined = iter([_joined(job, shard, start, stop, share_nbytes)])
    else:
        joined = _joined_in_turn(job, shard, start, stop, share_nbytes)
    for requests in joined:
        order = requests.order if is_all else rows[requests.order]
        yield spans, requests._replace(order=order), share_nbytes


def _column_at(column: Ints, rows: Ints) -> Ints:
    """A column at ascending, different `rows`; the column itself if these are all."""
    return column if len(rows) == len(column) else column[rows]


def _joined(
    job: Job, shard: Ints, start: Ints, stop: Ints, share_nbytes: int
) -> Requests:
    """Requests for byte ranges of shards, for tasks of `share_nbytes` bytes."""
    costs = job.source.store.costs
    return coalesce(
        shard,
        start,
        stop,
        gap_nbytes=costs.gap_nbytes,
        max_request_nbytes=_max_request_nbytes(job, share_nbytes),
        is_bound=costs.bounds_requests,
    )


def _joined_in_turn(
    job: Job, shard: Ints, start: Ints, stop: Ints, batch_nbytes: int
) -> Iterator[Requests]:
    """As `_joined`, the requests of a few batches at a time.

    So the first batches are fetched while others are joined. All batches but the last
    are full, as if all requests had been joined together.
    """
    n_rows = len(shard)
    ends = np.append(np.flatnonzero(shard[1:] != shard[:-1]) + 1, n_rows)
    total = np.cumsum(stop - start)[ends - 1]
    first, spent, left = 0, 0, np.empty(0, np.int64)
    while first < n_rows:
        ahead = spent + _AHEAD_BATCHES * batch_nbytes
        n = min(int(np.searchsorted(total, ahead, side="right")), len(ends) - 1)
        last, spent = int(ends[n]), int(total[n])
        these = np.concatenate([left, np.arange(first, last)])
        requests = _joined(job, shard[these], start[these], stop[these], batch_nbytes)
        requests = requests._replace(order=these[requests.order])
        if last < n_rows:
            n_full, _ = cut_batches(_batch_nbytes_of(job, requests), batch_nbytes)[-1]
            left = requests.order[requests.bounds[n_full] :]
            requests = requests.first(n_full)
        yield requests
        first = last


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
    for first, last in cut_batches(_batch_nbytes_of(job, requests), share_nbytes):
        nbytes = int(requests.nbytes[first:last].sum())
        if job.sink.batch_nbytes is not None:
            nbytes = 0  # it waits for a slot, and only the slots take memory
        elif copied is not None:
            widest = int(copied[first:last].max())
            nbytes += min(nbytes, n_workers * widest)
        fetch = partial(_fetch, job, ranged, range(first, last), share_nbytes)
        yield Spawner(fetch, nbytes)


def _batch_nbytes_of(job: Job, requests: Requests) -> Ints:
    """Part of a batch that each request takes."""
    if job.sink.batch_nbytes is None:
        return requests.nbytes + _REQUEST_NBYTES
    first = requests.start & -_LINE_NBYTES
    return ((requests.stop + _LINE_NBYTES - 1) & -_LINE_NBYTES) - first


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


def _max_request_nbytes(job: Job, share_nbytes: int) -> int:
    """Size above which a request is cut, if a task takes `share_nbytes` bytes."""
    in_shares = job.source.store.costs.reads_in_shares
    if in_shares and job.sink.batch_nbytes is not None:
        # A thread that is given a range waits for the interpreter's lock, so few
        # threads read long ranges of a batch.
        costs, room = job.source.store.costs, job.source.room
        alone = max(share_nbytes // costs.concurrency, costs.max_request_nbytes)
        return max(1, min(alone, share_nbytes, room.most_request_nbytes))
    if in_shares or job.sink.batch_nbytes is not None:
        return min(job.max_request_nbytes, share_nbytes)
    return job.max_request_nbytes


def _wanted_ranges(
    job: Job, block: ShardBlock, located: Located, rows: Ints
) -> tuple[Ints, Ints]:
    """Byte ranges to fetch: of plain elements, only first to last wanted one."""
    source = job.source
    start, stop = _column_at(located.start, rows), _column_at(located.stop, rows)
    strides = source.raw_strides
    if strides is None:
        return start, stop
    # An entry of another size is fetched whole, so that the decoder refuses it.
    fits = stop - start == source.chunk_nbytes
    part, position = _column_at(block.part, rows), block.position
    if len(rows) < block.n_chunks:
        position = position[:, rows]
    if len(job.plan.parts) == 1 and fits.all():
        low, high = byte_spans(job.plan.parts[0], position, strides)
        start, stop = start + low, start + high
    else:
        start, stop = start.copy(), stop.copy()
        for p, wanting in enumerate(job.plan.parts):
            mine = np.flatnonzero(fits & (part == p))
            low, high = byte_spans(wanting, position[:, mine], strides)
            stop[mine] = start[mine] + high
            start[mine] += low
    _refuse_large(job, block, rows, stop - start)
    return start, stop


def _refuse_large(job: Job, block: ShardBlock, rows: Ints, nbytes: Ints) -> None:
    """Refuse parts of plain elements that are too large for the memory limit."""
    for i in np.flatnonzero(nbytes > job.source.room.most_span_nbytes).tolist():
        try:
            job.source.room.refuse_span(int(nbytes[i]))
        except LimitError as error:
            job.name_place(error, block, int(rows[i]))
            raise


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
        if job.sink.batch_nbytes is None and len(found) == 1 == len(requests):
            return _tasks_for_shares(job, ranged, found[0], share_nbytes)
        if found:
            _place(job, ranged, found)
    for r in (r for r, answer in numbered if answer is None):
        rows = ranged.rows_of(r)
        job.tally.add(n_missing_shards=1, n_missing_inner_chunks=len(rows))
        job.sink.fill(job, ranged.block, rows)
    return ()


def _tasks_for_shares(
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
