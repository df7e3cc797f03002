"""Fetched bytes -> decoded inner chunks in the outputs: the inner loop on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.coalesce import Requests
from gpushard.errors import CorruptShardError
from gpushard.job import Job
from gpushard.locate import Located
from gpushard.selection import Ints


@dataclass(frozen=True, slots=True)
class RangedBlock:
    """A block whose byte ranges are known and cut into requests.

    Attributes
    ----------
    block
        The inner chunks.
    located
        Byte range that each of them fills.
    spans
        int64, shape (2, n_chunks). Byte range that is fetched of each: all of it, or
        of plain elements what holds the wanted ones.
    requests
        What is fetched; its rows are columns of `block`.
    """

    block: ShardBlock
    located: Located
    spans: Ints
    requests: Requests

    def rows_of(self, r: int) -> Ints:
        """Inner chunks that request `r` holds, ascending by byte range."""
        return self.requests.order[
            self.requests.bounds[r] : self.requests.bounds[r + 1]
        ]


def fill_rows(job: Job, block: ShardBlock, rows: Ints) -> None:
    """Write the fill value where the missing inner chunks `rows` of a block land."""
    value = job.source.layout.fill_value
    indexes = _indexes(job, block, rows)
    for p in block.part[rows].tolist():
        job.targets[p].fill(next(indexes[p]), value)


def place_rows(
    job: Job, ranged: RangedBlock, r: int, fetched: NDArray[np.uint8]
) -> None:
    """Decode the inner chunks of request `r` and write what is wanted of them.

    Neighbours that share a byte range are decoded once.

    Parameters
    ----------
    fetched
        uint8, shape (n_bytes,), host. What the request was answered.
    """
    rows, located = ranged.rows_of(r), ranged.located
    spans = ranged.spans[:, rows]
    starts, stops = (spans - ranged.requests.start[r]).tolist()
    lows = (spans[0] - located.start[rows]).tolist()
    sizes = (located.stop[rows] - located.start[rows]).tolist()
    parts = ranged.block.part[rows].tolist()
    indexes = _indexes(job, ranged.block, rows)
    decoded: tuple[int, ...] = ()
    chunk = np.empty(0)
    # A cast that overflows is the caller's choice, not a surprise to warn about.
    with np.errstate(all="ignore"):
        for i, here in enumerate(zip(starts, stops, lows, sizes, strict=True)):
            if decoded != here:
                encoded = completed(fetched[here[0] : here[1]], here[2], here[3])
                chunk = _decode(job, ranged.block, int(rows[i]), encoded)
                decoded = here
            job.targets[parts[i]].place(next(indexes[parts[i]]), chunk)


def completed(span: NDArray[np.uint8], low: int, nbytes: int) -> NDArray[np.uint8]:
    """Bytes of a whole inner chunk of which only `span`, from `low` on, is fetched.

    The bytes between are of no meaning: nothing wanted lies there.
    """
    if len(span) == nbytes:
        return span
    whole = np.empty(nbytes, np.uint8)
    whole[low : low + len(span)] = span
    return whole


def _decode(
    job: Job, block: ShardBlock, row: int, encoded: NDArray[np.uint8]
) -> NDArray[Any]:
    source = job.source
    shape = source.chunk_shape
    try:
        if shape is None:
            shape = source.shape_of(job.chunk_coordinate(block, row))
        return source.decode(encoded, shape)
    except CorruptShardError as error:
        job.name_place(error, block, row)
        raise


def _indexes(
    job: Job, block: ShardBlock, rows: Ints
) -> list[Iterator[tuple[Any, Any]]]:
    """Per target, where its share of the rows lands, in the order of the rows."""
    targets = job.targets
    if len(targets) == 1:
        return [targets[0].indexes(block.position[:, rows])]
    part = block.part[rows]
    return [
        target.indexes(block.position[:, rows[part == p]])
        for p, target in enumerate(targets)
    ]
