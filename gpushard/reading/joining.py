"""Byte ranges of shards -> requests that suit the store -> batches for a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat

import numpy as np

from gpushard.fetching.job import Job
from gpushard.fetching.ranged import RangedBlock
from gpushard.planning.coalesce import Requests, coalesce, cut_batches
from gpushard.selecting.selection import Ints

# Overhead of a request, in bytes: a batch of tiny requests is many objects.
_REQUEST_NBYTES = 64
# In a batch for a device, ranges keep their offset in a line of so many bytes.
_LINE_NBYTES = 64
# Batches for a device that are planned together. The two first ones are waited for: one
# piece of work is not begun before the next one shows whether there are several.
AHEAD_BATCHES = 2


def joined(
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


def joined_in_turn(
    job: Job, shard: Ints, start: Ints, stop: Ints, batch_nbytes: int
) -> Iterator[Requests]:
    """As `joined`, the requests of a few batches at a time.

    So the first batches are fetched while others are joined. All batches but the last
    are full, as if all requests had been joined together.
    """
    n_rows = len(shard)
    ends = np.append(np.flatnonzero(shard[1:] != shard[:-1]) + 1, n_rows)
    total = np.cumsum(stop - start)[ends - 1]
    first, spent, left = 0, 0, np.empty(0, np.int64)
    while first < n_rows:
        sizes = islice(chain(_rise(job), repeat(batch_nbytes)), AHEAD_BATCHES)
        ahead = spent + sum(sizes)
        n = min(int(np.searchsorted(total, ahead, side="right")), len(ends) - 1)
        last, spent = int(ends[n]), int(total[n])
        some = np.concatenate([left, np.arange(first, last)])
        requests = joined(job, shard[some], start[some], stop[some], batch_nbytes)
        requests = requests._replace(order=some[requests.order])
        if last < n_rows:
            taken = _taken_nbytes(job, requests)
            n_full, _ = cut_batches(taken, batch_nbytes, _rise(job))[-1]
            left = requests.order[requests.bounds[n_full] :]
            requests = requests.first(n_full)
        yield requests
        first = last


def batches_of(
    job: Job, requests: Requests, share_nbytes: int
) -> list[tuple[int, int]]:
    """Half-open runs of requests for tasks of `share_nbytes` bytes.

    For a device the first ones of a read are smaller, see `Sink.rise`.
    """
    taken = _taken_nbytes(job, requests)
    batches = cut_batches(taken, share_nbytes, _rise(job))
    rise = job.sink.rise
    for _ in batches[: len(rise)]:
        rise.popleft()
    return batches


def _rise(job: Job) -> list[int]:
    return list(job.sink.rise)


def _taken_nbytes(job: Job, requests: Requests) -> Ints:
    """Part of a batch that each request takes."""
    if job.sink.batch_nbytes is None:
        return requests.nbytes + _REQUEST_NBYTES
    first = requests.start & -_LINE_NBYTES
    return ((requests.stop + _LINE_NBYTES - 1) & -_LINE_NBYTES) - first


def copied_nbytes(job: Job, ranged: RangedBlock) -> Ints | None:
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
