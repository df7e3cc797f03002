"""Stored objects -> their contents, as their indexes describe them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.fetch import Extent, fetch_indexes
from gpushard.fetching.nested import NestedShard, fetch_nested_indexes, index_range
from gpushard.inspection.columns import StoredChunks, cells_of
from gpushard.inspection.findings import Finding, Kind
from gpushard.inspection.room import INDEX_ENTRIES, is_read_whole, refuse_more_than
from gpushard.layout import Coordinate
from gpushard.memory.known import KnownIndex
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, ShardIndex
from gpushard.reading.whole import (
    beyond_limit,
    beyond_room,
    held,
    most_fetched,
    unwrapped,
)
from gpushard.report import Tally
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, Fetched

# Damaged entries of a shard that are reported one by one; the last report counts the
# rest.
_MOST_ENTRIES = 1_000
_TALLY = Tally(is_wanted=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a stored object, as its indexes describe them.

    Attributes
    ----------
    chunks
        What lies where; None if there is no object, or its index is damaged.
    source
        Source of its payload; for an object that had to be fetched whole, one that
        holds it.
    version
        Version of the object to which the indexes belong.
    findings
        Errors of the indexes.
    """

    coordinate: Coordinate
    key: str
    exists: bool
    chunks: StoredChunks | None
    source: Source
    version: Hashable | None
    findings: tuple[Finding, ...]


def contents_of(
    source: Source,
    coordinates: Sequence[Coordinate],
    most_entries: int | None = None,
) -> list[Contents]:
    """Contents of the objects at `coordinates`, fetched in parallel.

    Of one object's indexes at most `most_entries` may be held per level; None means any
    number.

    Raises
    ------
    LimitError
        An object has more.
    StoreError
        The store failed.
    ObjectChangedError
        An object was replaced meanwhile.
    """
    if is_read_whole(source):
        return [whole_contents(source, coordinate) for coordinate in coordinates]
    if not source.layout.levels:
        return _unsharded(source, coordinates)
    found = fetch_indexes(source, np.array(coordinates, np.int64), _TALLY)
    return [
        _sharded(source, coordinate, known, most_entries)
        for coordinate, known in zip(coordinates, found, strict=True)
    ]


def whole_contents(source: Source, coordinate: Coordinate) -> Contents:
    """Contents of an object that is fetched whole and held with its contents.

    Raises `StoreError` if the store failed.
    """
    key = source.key(coordinate)
    limit = most_fetched(source, coordinate)
    (answer,) = source.read([ByteRequest(key, max_nbytes=limit + 1)])
    if answer is not None and len(answer.data) > limit:
        unfit = beyond_room(source, coordinate)
        if unfit is not None:
            return _broken(source, coordinate, Finding.of(unfit, key))
        nbytes = answer.object_nbytes or len(answer.data)
        error = beyond_limit(source, limit, nbytes)
        return _broken(source, coordinate, Finding.of(error, key, kind="size"))
    try:
        inner = held(source, {key: unwrapped(source, coordinate, answer)})
    except (CorruptShardError, LimitError) as error:
        return _broken(source, coordinate, Finding.of(error, key))
    return contents_of(inner, [coordinate])[0]


def _unsharded(source: Source, coordinates: Sequence[Coordinate]) -> list[Contents]:
    """Contents of objects that are one inner chunk each."""
    keys = [source.key(coordinate) for coordinate in coordinates]
    answers = source.read([ByteRequest(key, 0, 1) for key in keys])
    found: list[Contents] = []
    for coordinate, key, answer in zip(coordinates, keys, answers, strict=True):
        if answer is None:
            found.append(_absent(source, coordinate))
        elif answer.object_nbytes is None:
            found.append(_untold(source, coordinate))
        else:
            chunks = _one_chunk(coordinate, answer.object_nbytes)
            found.append(
                Contents(coordinate, key, True, chunks, source, answer.version, ())
            )
    return found


def _untold(source: Source, coordinate: Coordinate) -> Contents:
    """Contents of a chunk in a store that reports no sizes without all bytes.

    Raises `LimitError` if the bytes are more than may be held.
    """
    source.room.refuse_large(in_part=False)
    key = source.key(coordinate)
    limit = most_fetched(source, coordinate)
    (answer,) = source.read([ByteRequest(key, max_nbytes=limit + 1)])
    if answer is None:
        return _absent(source, coordinate)
    error = beyond_room(source, coordinate) if len(answer.data) > limit else None
    if error is not None:
        return _broken(source, coordinate, Finding.of(error, key))
    inner = held(source, {key: Fetched(answer.data, None, None)})
    chunks = _one_chunk(coordinate, len(answer.data))
    return Contents(coordinate, key, True, chunks, inner, None, ())


def _one_chunk(coordinate: Coordinate, nbytes: int) -> StoredChunks:
    none = np.empty(0, np.int64)
    return StoredChunks(
        coordinate=np.array([coordinate], np.int64).reshape(1, len(coordinate)),
        state=np.array([PRESENT], np.uint8),
        start=np.zeros(1, np.int64),
        stop=np.array([nbytes], np.int64),
        index_start=none,
        index_stop=none,
        object_nbytes=nbytes,
        n_nested_missing=0,
    )


def _absent(source: Source, coordinate: Coordinate) -> Contents:
    return Contents(coordinate, source.key(coordinate), False, None, source, None, ())


def _broken(source: Source, coordinate: Coordinate, finding: Finding) -> Contents:
    """Contents of an object that cannot be read."""
    found = replace(finding, n_inner_chunks=source.n_chunks_in(coordinate))
    return Contents(coordinate, found.shard_key, True, None, source, None, (found,))


def _sharded(
    source: Source,
    coordinate: Coordinate,
    known: KnownIndex | CorruptShardError | None,
    most_entries: int | None,
) -> Contents:
    key = source.key(coordinate)
    if known is None:
        return _absent(source, coordinate)
    if isinstance(known, CorruptShardError):
        return _broken(source, coordinate, Finding.of(known, key, kind="index"))
    walk = _Walk(source, coordinate, known)
    for level in range(1, len(source.layout.levels)):
        walk.descend(level, most_entries)
    return Contents(
        coordinate,
        key,
        True,
        walk.chunks(),
        source,
        known.version,
        tuple(walk.findings),
    )


class _Rows(NamedTuple):
    """Inner chunks at one level; see `StoredChunks`."""

    coordinate: Ints
    state: NDArray[np.uint8]
    start: Ints
    stop: Ints


class _Walk:
    """The indexes of one object, from the outside in."""

    def __init__(
        self, source: Source, coordinate: Coordinate, known: KnownIndex
    ) -> None:
        self._source = source
        self._parent = coordinate, known
        self._key = source.key(coordinate)
        self._index_ranges: list[tuple[int, int]] = []
        self.findings: list[Finding] = []
        layout = source.layout
        shape = layout.levels[0].chunk_shape
        first = [
            int(axis.start_of(at)) // n
            for axis, at, n in zip(layout.axes, coordinate, shape, strict=True)
        ]
        nbytes = known.index.shard_nbytes
        origin = np.array([first], np.int64).reshape(1, layout.ndim)
        self._rows = self._rows_of(0, [known.index], origin)
        self._n_nested_missing = 0
        level = layout.levels[0]
        if nbytes is not None or level.index_location == "start":
            extent = Extent(self._key, 0, nbytes)
            n_entries = len(known.index.state)
            self._index_ranges.append(index_range(source, 0, extent, n_entries))

    def descend(self, level: int, most_entries: int | None) -> None:
        """Treat the inner chunks found so far as shards, and read their indexes."""
        source, outer = self._source, self._rows
        shapes = [lv.chunk_shape for lv in source.layout.levels[level - 1 : level + 1]]
        ratio = np.array(shapes[0], np.int64) // np.array(shapes[1], np.int64)
        missing = outer.coordinate[outer.state == MISSING]
        self._n_nested_missing += int(self._n_inside(level - 1, missing).sum())
        present = np.flatnonzero(outer.state == PRESENT)
        n_entries = prod(source.chunks_per_shard(self._parent[0], level))
        n_held = len(present) * (n_entries + INDEX_ENTRIES)
        if most_entries is not None:
            refuse_more_than(most_entries, n_held, source)
        ranges = np.stack([outer.start[present], outer.stop[present]], axis=1)
        unique, which = np.unique(ranges, axis=0, return_inverse=True)
        nested = [NestedShard(0, *row) for row in unique.tolist()]
        found: list[ShardIndex | CorruptShardError] = []
        if nested:
            found = fetch_nested_indexes(source, level, nested, [self._parent], _TALLY)
        rows, indexes, lost = [], [], []
        for row, at in zip(present.tolist(), which.reshape(-1).tolist(), strict=True):
            index = found[at]
            if isinstance(index, CorruptShardError):
                lost.append(row)
                if len(lost) <= _MOST_ENTRIES:
                    self._lose(index, level - 1, outer.coordinate[row], "index")
            else:
                rows.append(row)
                indexes.append(index)
        self._lose_more(level - 1, outer.coordinate[lost[_MOST_ENTRIES:]])
        for shard, index in zip(nested, found, strict=True):
            if not isinstance(index, CorruptShardError):
                extent = Extent(self._key, shard.start, shard.stop - shard.start)
                self._index_ranges.append(index_range(source, level, extent, n_entries))
        self._rows = self._rows_of(level, indexes, outer.coordinate[rows] * ratio)

    def chunks(self) -> StoredChunks:
        """Columns of everything found."""
        at = np.array(self._index_ranges, np.int64).reshape(-1, 2)
        nbytes = self._parent[1].index.shard_nbytes
        return StoredChunks(
            *self._rows, at[:, 0], at[:, 1], nbytes, self._n_nested_missing
        )

    def _rows_of(
        self, level: int, indexes: Sequence[ShardIndex], origins: Ints
    ) -> _Rows:
        """Rows of all entries of some indexes of one level; an origin per index."""
        source = self._source
        shape = source.chunks_per_shard(self._parent[0], level)
        cells = cells_of(source.layout.levels[level], shape)
        if len(origins) == 1:  # as large as the index: not twice
            cells += origins[0]
            coordinate = cells
        else:
            coordinate = origins[:, None, :] + cells[None]
        # Without axes, the number of rows does not follow from the number of values.
        coordinate = coordinate.reshape(len(origins) * len(cells), cells.shape[1])
        offset = _column([index.offset for index in indexes], np.int64)
        nbytes = _column([index.nbytes for index in indexes], np.int64)
        state = _column([index.state for index in indexes], np.uint8)
        rows = (state == CORRUPT).nonzero()[0]
        if len(rows):
            self._tell_corrupt(level, indexes, coordinate, rows)
        is_present = state == PRESENT
        start = np.where(is_present, offset, 0)
        return _Rows(coordinate, state, start, np.where(is_present, start + nbytes, 0))

    def _tell_corrupt(
        self, level: int, indexes: Sequence[ShardIndex], coordinate: Ints, rows: Ints
    ) -> None:
        for row in rows[:_MOST_ENTRIES].tolist():
            n_entries = len(indexes[0].state)
            try:
                indexes[row // n_entries].refuse_corrupt(row % n_entries)
            except CorruptShardError as error:
                self._lose(error, level, coordinate[row], "bounds")
        if len(rows) > _MOST_ENTRIES:
            more = rows[_MOST_ENTRIES:]
            error = CorruptShardError(
                f"{len(more)} more entries are no valid byte ranges"
            )
            n_lost = int(self._n_inside(level, coordinate[more]).sum())
            self.findings.append(
                Finding.of(error, self._key, kind="bounds", n_inner_chunks=n_lost)
            )

    def _lose_more(self, level: int, coordinate: Ints) -> None:
        """Note nested shards whose indexes are damaged, without naming each one."""
        if not len(coordinate):
            return
        error = CorruptShardError(
            f"the indexes of {len(coordinate)} more nested shards cannot be read"
        )
        n_lost = int(self._n_inside(level, coordinate).sum())
        self.findings.append(
            Finding.of(error, self._key, kind="index", n_inner_chunks=n_lost)
        )

    def _lose(self, error: CorruptShardError, level: int, at: Ints, kind: Kind) -> None:
        """Note damage of what a level has at a place in its grid."""
        first = at * self._innermost_in(level)
        self.findings.append(
            Finding.of(
                error,
                self._key,
                inner_chunk=tuple(first.tolist()),
                kind=kind,
                n_inner_chunks=int(self._n_inside(level, at[None])[0]),
            )
        )

    def _innermost_in(self, level: int) -> Ints:
        """Innermost inner chunks in one inner chunk of a level, along each axis."""
        levels = self._source.layout.levels
        shapes = levels[level].chunk_shape, levels[-1].chunk_shape
        return np.array(shapes[0], np.int64) // np.array(shapes[1], np.int64)

    def _n_inside(self, level: int, coordinate: Ints) -> Ints:
        """Innermost inner chunks that hold elements, in inner chunks of a level."""
        n_chunks = np.ones(len(coordinate), np.int64)
        grid = self._source.layout.inner_grid
        for d, (n, n_all) in enumerate(
            zip(self._innermost_in(level), grid, strict=True)
        ):
            n_chunks *= np.clip(n_all - coordinate[:, d] * n, 0, n)
        return n_chunks


def _column(columns: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """Several columns as one; a single column is not copied."""
    if len(columns) == 1:
        return columns[0]
    return np.concatenate([np.empty(0, dtype), *columns])
