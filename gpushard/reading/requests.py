"""Byte ranges of a block -> requests, and batches that are fetched as one task each.

Neighbouring byte ranges are fetched in requests as large as the store prefers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from gpushard.errors import LimitError
from gpushard.fetching.job import Job
from gpushard.fetching.ranged import Located
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.coalesce import Requests, coalesce_for, cut_batches
from gpushard.planning.spans import byte_spans
from gpushard.selecting.selection import Ints

# Overhead of a request, in bytes: a batch of tiny requests is many objects.
_REQUEST_NBYTES = 64
# In a batch for a device, ranges keep their offset in a line of so many bytes.
_LINE_NBYTES = 64
# Batches for a device that are planned together. The two first ones are waited for: one
# piece of work is not begun before the next one shows whether there are several.
_AHEAD_BATCHES = 2


def requests_of(
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


def _joined(
    job: Job, shard: Ints, start: Ints, stop: Ints, share_nbytes: int
) -> Requests:
    """Requests for byte ranges of shards, for tasks of `share_nbytes` bytes."""
    most_nbytes = _max_request_nbytes(job, share_nbytes)
    return coalesce_for(job.source.store.costs, shard, start, stop, most_nbytes)


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


def batches_of(
    job: Job, requests: Requests, n_workers: int, share_nbytes: int
) -> list[tuple[int, int]]:
    """Half-open runs of requests that are fetched as one task each."""
    nbytes = _batch_nbytes_of(job, requests)
    batches = cut_batches(nbytes, share_nbytes)
    total = int(nbytes.sum())
    waits = is_waited_for(job) and len(batches) > n_workers
    if not waits or total > job.most_fetched_nbytes:
        return batches
    # All may be under way at once, so no batch waits for the answers to another.
    return cut_batches(nbytes, total // n_workers + int(nbytes.max()))


def objects_of_task(
    job: Job, n_objects: int, object_nbytes: int, n_workers: int
) -> int:
    """How many of `n_objects` one task suitably fetches whole."""
    budget = job.batch_nbytes(object_nbytes * n_objects, n_workers)
    suitable = budget // max(object_nbytes, 1)
    if not is_waited_for(job):
        return suitable
    # With fewer, some would wait for others, although connections are idle. Twice as
    # many as may be under way, because workers that decode ask for nothing.
    n_asked = min(n_objects, 2 * job.source.store.costs.concurrency)
    return max(suitable, ceil(n_asked / n_workers))


def _batch_nbytes_of(job: Job, requests: Requests) -> Ints:
    """Part of a batch that each request takes."""
    if job.sink.batch_nbytes is None:
        return requests.nbytes + _REQUEST_NBYTES
    first = requests.start & -_LINE_NBYTES
    return ((requests.stop + _LINE_NBYTES - 1) & -_LINE_NBYTES) - first


def is_waited_for(job: Job) -> bool:
    """Whether threads wait for what they fetch, and then decode it on the host."""
    is_far = job.source.store.costs.prefers_whole_objects
    return is_far and job.sink.batch_nbytes is None


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


def _column_at(column: Ints, rows: Ints) -> Ints:
    """A column at ascending, different `rows`; the column itself if these are all."""
    return column if len(rows) == len(column) else column[rows]
