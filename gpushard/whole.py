"""Objects fetched whole, then read like a store of their own.

Where each request has a price, a shard that is mostly wanted costs one request instead
of two. Objects that no range can be cut from always come whole: chunks of an unsharded
array with compression, and shards with codecs around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.errors import CorruptShardError
from gpushard.fetch import known_index
from gpushard.job import Job, rows_of
from gpushard.pipeline import decode_object_bytes
from gpushard.ranges import range_tasks
from gpushard.report import Tally
from gpushard.source import IndexCache, Source
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.held import HeldObjects
from gpushard.workers import Task


def fetched_whole(job: Job, block: ShardBlock) -> NDArray[np.bool_]:
    """Which shards of a block are fetched whole: bool, shape (n_shards,)."""
    source = job.source
    n_shards = len(block.shard_coords)
    layout, options, costs = source.layout, source.options, source.store.costs
    if layout.object_codecs or (not layout.levels and source.raw_strides is None):
        return np.ones(n_shards, bool)
    whole = np.zeros(n_shards, bool)
    if not (layout.levels and costs.prefers_whole_objects):
        return whole
    wanted = np.bincount(block.shard, minlength=n_shards)
    for s, coordinate in enumerate(block.shard_coords.tolist()):
        n_chunks = _chunks_in_shard(source, coordinate)
        if (
            wanted[s] >= options.whole_object_fraction * n_chunks
            and n_chunks * source.chunk_nbytes <= options.whole_object_max_nbytes
        ):
            key = source.key(tuple(coordinate))
            whole[s] = known_index(source, tuple(coordinate), key) is None
    return whole


def _chunks_in_shard(source: Source, coordinate: list[int]) -> int:
    """Inner chunks of a shard that meet the array."""
    n_chunks = 1
    layout = source.layout
    for axis, inner, at in zip(layout.axes, layout.inner_axes, coordinate, strict=True):
        start = int(axis.start_of(at))
        stop = min(start + int(axis.length_of(at)), axis.extent)
        n_chunks *= -(-(stop - start) // inner.cell)
    return n_chunks


def whole_tasks(job: Job, block: ShardBlock, n_workers: int) -> Iterator[Task]:
    """Tasks that read the shards of a block: each takes as many as make a batch."""
    n_shards = len(block.shard_coords)
    shard_nbytes = _shard_nbytes(job.source)
    budget = job.batch_nbytes(shard_nbytes * n_shards, n_workers)
    per_task = max(1, budget // max(shard_nbytes, 1))
    for first in range(0, n_shards, per_task):
        marked = np.zeros(n_shards, bool)
        marked[first : first + per_task] = True
        yield partial(_read_whole, job, rows_of(block, marked))


def _shard_nbytes(source: Source) -> int:
    """Decoded size of a shard (of the first, where they differ)."""
    lengths = (int(axis.length_of(0)) for axis in source.layout.axes if axis.n_cells)
    return prod(lengths) * source.layout.dtype.itemsize


def _read_whole(job: Job, block: ShardBlock) -> None:
    source = job.source
    keys = [source.key(tuple(c)) for c in block.shard_coords.tolist()]
    with job.tally.stage("fetch"):
        answers = source.store.read([ByteRequest(key) for key in keys])
    objects = {
        key: _unwrapped(source, key, answer)
        for key, answer in zip(keys, answers, strict=True)
    }
    # What the objects are asked from here on are no requests of the store.
    inner = replace(job, source=_held(source, objects), tally=Tally())
    for task in range_tasks(inner, block, n_workers=1):
        task()
    fetched_nbytes = sum(len(a.data) for a in answers if a is not None)
    counts = inner.tally.counts
    wanted_nbytes = counts.get("payload_nbytes", 0) - counts.get("gap_nbytes", 0)
    job.tally.add(
        n_payload_requests=len(keys),
        payload_nbytes=fetched_nbytes,
        gap_nbytes=max(fetched_nbytes - wanted_nbytes, 0),
        n_missing_shards=counts.get("n_missing_shards", 0),
        n_missing_inner_chunks=counts.get("n_missing_inner_chunks", 0),
    )
    for stage, seconds in inner.tally.seconds.items():
        job.tally.add_seconds(stage, seconds)


def _held(source: Source, objects: dict[str, Fetched | None]) -> Source:
    """The same array, read from objects in memory."""
    wrapped = bool(source.layout.object_codecs)
    return replace(
        source,
        store=HeldObjects(objects, source.store.url),
        layout=replace(source.layout, object_codecs=()),
        # Ranges of an unwrapped object mean nothing in the stored one.
        indexes=IndexCache(0) if wrapped else source.indexes,
    )


def _unwrapped(source: Source, key: str, answer: Fetched | None) -> Fetched | None:
    """The shard in an object with codecs around it."""
    codecs = source.layout.object_codecs
    if answer is None or not codecs:
        return answer
    # Gaps make a shard larger than its inner chunks, but not without end.
    limit = 2 * _shard_nbytes(source) + source.options.batch_nbytes
    try:
        data = decode_object_bytes(codecs, answer.data, limit)
    except CorruptShardError as error:
        error.add_context(array_path=source.layout.path, shard_key=key)
        raise
    return Fetched(np.frombuffer(data, np.uint8), None, None)
