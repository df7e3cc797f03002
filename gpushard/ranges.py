"""Byte ranges of a block -> requests -> tasks that fetch, decode and place them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.coalesce import Requests, coalesce, cut_batches
from gpushard.errors import CorruptShardError
from gpushard.fetch import fetch_payload
from gpushard.job import Job
from gpushard.locate import locate
from gpushard.ranged import Located, RangedBlock
from gpushard.selection import Ints
from gpushard.source import Source
from gpushard.spans import byte_spans
from gpushard.stores.base import ByteRequest
from gpushard.workers import Task


def range_tasks(job: Job, block: ShardBlock, n_workers: int) -> Iterator[Task]:
    """Tasks that read a block: one for all that is missing, one a batch of ranges.

    The shards' indexes are read before the first task is given.
    """
    located = locate(job, block)
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
    for first, last in cut_batches(requests.nbytes, budget):
        yield partial(_read_requests, job, ranged, range(first, last))


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
    nbytes = stop - start
    _refuse_oversized(job, block, rows, nbytes)
    strides = source.raw_strides
    if strides is None:
        return start, stop
    # An entry of another size is fetched as it is and refused by the decoder.
    fits = nbytes == source.chunk_nbytes
    for p, part in enumerate(job.plan.parts):
        mine = np.flatnonzero(fits & (block.part[rows] == p))
        low, high = byte_spans(part, block.position[:, rows[mine]], strides)
        stop[mine] = start[mine] + high
        start[mine] += low
    return start, stop


def _refuse_oversized(job: Job, block: ShardBlock, rows: Ints, nbytes: Ints) -> None:
    shape = job.source.chunk_shape
    if shape is None:
        return
    worst = int(np.argmax(nbytes))
    try:
        job.source.refuse_oversized(int(nbytes[worst]), shape)
    except CorruptShardError as error:
        job.name_place(error, block, int(rows[worst]))
        raise


def _read_requests(job: Job, ranged: RangedBlock, requests: range) -> None:
    """Fetch some requests and put the inner chunks that they hold in place."""
    byte_requests = [_byte_request(job.source, ranged, r) for r in requests]
    with job.tally.stage("fetch"):
        answers = _payload(job.source, byte_requests)
    begin = perf_counter()
    found = [(r, a) for r, a in zip(requests, answers, strict=True) if a is not None]
    absent = [r for r, a in zip(requests, answers, strict=True) if a is None]
    if found:
        job.sink.place(job, ranged, found)
    for r in absent:
        rows = ranged.rows_of(r)
        job.tally.add(n_missing_shards=1, n_missing_inner_chunks=len(rows))
        job.sink.fill(job, ranged.block, rows)
    job.tally.add_seconds("decode and scatter", perf_counter() - begin)
    _count(job, ranged, requests)


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


def _byte_request(source: Source, ranged: RangedBlock, r: int) -> ByteRequest:
    requests = ranged.requests
    shard = int(requests.source[r])
    known = ranged.located.known[shard]
    return ByteRequest(
        source.key(tuple(ranged.block.shard_coords[shard].tolist())),
        int(requests.start[r]),
        int(requests.stop[r]),
        None if known is None else known.version,
    )


def _payload(
    source: Source, requests: Sequence[ByteRequest]
) -> list[NDArray[np.uint8] | None]:
    """Bytes of each request; None where an unsharded array has no such chunk."""
    if source.layout.levels or source.is_held:
        return list(fetch_payload(source, requests))
    answers: list[NDArray[np.uint8] | None] = []
    for request, answer in zip(requests, source.store.read(requests), strict=True):
        if answer is not None and answer.object_nbytes not in (
            None,
            source.chunk_nbytes,
        ):
            raise CorruptShardError(
                "an uncompressed chunk has another size than its elements",
                array_path=source.layout.path,
                shard_key=request.key,
                expected=f"{source.chunk_nbytes} bytes",
                got=f"{answer.object_nbytes} bytes",
                hint="the object is damaged: restore it from a copy or write it again",
            )
        answers.append(None if answer is None else answer.data)
    return answers
