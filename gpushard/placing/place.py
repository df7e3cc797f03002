"""Fetched bytes -> decoded inner chunks in the outputs: the inner loop on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError
from gpushard.fetching.fetch import fetch_wanted
from gpushard.fetching.job import Answer, Job
from gpushard.fetching.ranged import CacheSlots, RangedBlock
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.placing.keeping import kept_elements, store_elements
from gpushard.placing.scatter import Target, make_target
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.plan import Part
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest

# Rows whose Python objects exist at a time.
_MOST_ROWS = 4096
_NOTHING = np.empty(0)
# NumPy need not warn of a cast that overflows: the caller asked for the cast.
_NO_WARNINGS: dict[str, Any] = {"all": "ignore"}


class HostSink:
    """Decodes inner chunks on the host and writes them into an array for each part."""

    batch_nbytes = batch_cut = None

    def __init__(self, parts: Sequence[Part], outs: Sequence[NDArray[Any]]) -> None:
        self._parts = parts
        self._outs = outs

    @cached_property
    def _targets(self) -> list[Target]:
        """Made on first use: with another sink, this one may have nothing to do."""
        return [
            make_target(part, out)
            for part, out in zip(self._parts, self._outs, strict=True)
        ]

    @contextmanager
    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> Iterator[Sequence[NDArray[np.uint8] | None]]:
        """Bytes of each request, as the store returns them.

        Raises what the store and `fetch_wanted` raise.
        """
        del n_rows
        room = job.source.room
        if room.is_crowded:
            sizes = [(r.stop or 0) - r.start for r in requests]
            # Other inner chunks are noted when they are decoded.
            if room.is_raw and not room.keeps_fetched:
                room.note_taken(sum(sizes))
            requests = [
                request._replace(into=room.offered(nbytes))
                for request, nbytes in zip(requests, sizes, strict=True)
            ]
        with job.tally.stage("fetch"):
            answers = fetch_wanted(job.source, requests)
        yield answers

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Write the fill value where the missing inner chunks `rows` land."""
        value = job.source.layout.fill_value
        for these in _few_at_a_time(rows):
            indexes = self._indexes(block, these)
            with np.errstate(**_NO_WARNINGS):
                for p in block.part[these].tolist():
                    self._targets[p].fill(next(indexes[p]), value)

    def place_kept(
        self, job: Job, block: ShardBlock, rows: Ints, kept: CacheSlots
    ) -> None:
        """Write the wanted elements of inner chunks that are kept decoded."""
        indexes = self._indexes(block, rows)
        with np.errstate(**_NO_WARNINGS):
            for row, p in zip(rows.tolist(), block.part[rows].tolist(), strict=True):
                chunk = kept_elements(
                    job.source, kept.hold.bytes_of(kept.index_in_hold.item(row))
                )
                self._targets[p].place(next(indexes[p]), chunk)

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks in some requests and write their wanted elements.

        Raises `CorruptShardError` if an inner chunk is damaged.
        """
        per_answer = [ranged.rows_of(r) for r, _ in fetched]
        nth = np.repeat(np.arange(len(fetched)), list(map(len, per_answer)))
        self._place_all(job, ranged, np.concatenate(per_answer), fetched, nth)

    def place_some(
        self, job: Job, ranged: RangedBlock, answer: Answer, rows: Ints
    ) -> None:
        """Decode and write some of the inner chunks in a request; raises as `place`."""
        self._place_all(job, ranged, rows, [answer], np.zeros(len(rows), np.int64))

    def job_reader(self, job: Job) -> None:
        """Return None: this sink always takes the general path."""

    def request_reader(self, job: Job, ranged: RangedBlock) -> None:
        """Return None: this sink does not fetch by itself."""

    def finish(self) -> None:
        """Return at once: `fill` and `place` finish their work before they return."""

    def _place_all(
        self,
        job: Job,
        ranged: RangedBlock,
        rows: Ints,
        fetched: Sequence[Answer],
        nth: Ints,
    ) -> None:
        """Place inner chunks, of which each lies in the answer ``fetched[nth]``."""
        with np.errstate(**_NO_WARNINGS):
            for first in range(0, len(rows), _MOST_ROWS):
                these = slice(first, first + _MOST_ROWS)
                self._place_rows(job, ranged, rows[these], fetched, nth[these])

    def _place_rows(
        self,
        job: Job,
        ranged: RangedBlock,
        rows: Ints,
        fetched: Sequence[Answer],
        nth: Ints,
    ) -> None:
        """Place a few inner chunks, as `_place_all` does.

        Adjacent rows with the same byte range are decoded once.
        """
        parts = ranged.block.part[rows].tolist()
        indexes = self._indexes(ranged.block, rows)
        answers = [fetched[n] for n in nth.tolist()]
        cuts = ranged.cuts(rows, ranged.requests.start[[r for r, _ in answers]])
        decoded: tuple[int, ...] = ()
        chunk: NDArray[Any] = _NOTHING
        for i, ((r, data), cut) in enumerate(zip(answers, cuts, strict=True)):
            here = (r, *cut)
            if decoded != here:
                chunk = _NOTHING  # frees the previous one before the next
                first, last, low, nbytes = cut
                encoded = completed(job.source.room, data[first:last], low, nbytes)
                chunk = decode_row(
                    job, ranged.block, int(rows[i]), encoded, ranged.claimed
                )
                # Every row of a damaged inner chunk is reported, so each is decoded.
                decoded = () if job.damage.replaces else here
            self._targets[parts[i]].place(next(indexes[parts[i]]), chunk)

    def _indexes(
        self, block: ShardBlock, rows: Ints
    ) -> Mapping[int, Iterator[tuple[Any, Any]]]:
        """For each target that has some of the rows, where these land, in order."""
        if len(self._targets) == 1:
            return {0: self._targets[0].indexes(block.position[:, rows])}
        part = block.part[rows]
        return {
            p: self._targets[p].indexes(block.position[:, rows[part == p]])
            for p in dict.fromkeys(part.tolist())
        }


def _few_at_a_time(rows: Ints) -> Iterator[Ints]:
    """Rows, a few thousand at a time, to bound the number of Python objects."""
    for first in range(0, len(rows), _MOST_ROWS):
        yield rows[first : first + _MOST_ROWS]


def completed(
    room: ChunkRoom, span: NDArray[np.uint8], low: int, nbytes: int
) -> NDArray[np.uint8]:
    """A whole inner chunk in which only `span`, which starts at `low`, was fetched.

    The other bytes have arbitrary values, because nothing there is wanted.
    """
    if len(span) == nbytes:
        return span
    whole = room.empty(nbytes)
    whole[low : low + len(span)] = span
    return whole


def decode_row(
    job: Job,
    block: ShardBlock,
    row: int,
    encoded: NDArray[np.uint8],
    claimed: CacheSlots | None = None,
) -> NDArray[Any]:
    """The decoded inner chunk in column `row` of a block, in the array's axes.

    If it is damaged and the read continues over damage, this is the fill value;
    otherwise a `CorruptShardError` names the place. An intact one is kept if there is a
    slot for it in `claimed`.
    """
    source = job.source
    shape = source.chunk_shape
    if shape is None:
        shape = source.shape_of(job.chunk_coordinate(block, row))
    try:
        chunk = source.decode(encoded, shape)
    except CorruptShardError as error:
        job.name_place(error, block, row)
        job.damage.note(error)
        return np.broadcast_to(source.layout.fill_value, shape)
    memory = None if claimed is None else claimed.memory(row)
    if claimed is not None and memory is not None:
        store_elements(source, memory, chunk)
        claimed.keep(np.array([row]))
    return chunk
