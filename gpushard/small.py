"""Small reads: a few inner chunks, without columns, tasks or threads.

The same stages as `read`, in plain integers: a read of one inner chunk is over before
the columns of the general path would be built. Takes only what is common; everything
else is declined and goes the general way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, ObjectChangedError
from gpushard.fetch import fetch_payload, index_request, keep_index, known_index
from gpushard.index import CORRUPT, MISSING
from gpushard.place import completed
from gpushard.selection import Orthogonal, SliceAxis, project_cell
from gpushard.source import KnownIndex, Source
from gpushard.stores.base import ByteRequest

Coordinate = tuple[int, ...]


class _Along(NamedTuple):
    """One touched cell of one axis: what of it is wanted and where it lands."""

    cell: int
    shard: int
    coordinate: int
    per_shard: int
    inside: slice
    out: slice


class _Wanted(NamedTuple):
    """An inner chunk to read: bytes ``start:stop`` of what it fills from `base` on."""

    shard: Coordinate
    start: int
    stop: int
    base: int
    nbytes: int
    cells: tuple[_Along, ...]


def read_small(source: Source, selection: Orthogonal, out: NDArray[Any]) -> bool:
    """Read a selection of few inner chunks into `out`; False if it is declined.

    Parameters
    ----------
    out
        Host, of the selection's shape.

    Raises
    ------
    CorruptShardError, StoreError
        As for any read.
    """
    layout = source.layout
    if len(layout.levels) != 1 or layout.object_codecs:
        return False
    if source.store.costs.prefers_whole_objects:
        return False
    along = _lay(source, selection)
    if along is None:
        return False
    chunks = list(product(*along))
    grid = selection.on_grid(out)
    if out.dtype == layout.dtype:
        _read_twice_at_most(source, chunks, grid)
    else:
        # A cast that overflows is the caller's choice, not a surprise to warn about.
        with np.errstate(all="ignore"):
            _read_twice_at_most(source, chunks, grid)
    return True


def _read_twice_at_most(
    source: Source, chunks: Sequence[tuple[_Along, ...]], grid: NDArray[Any]
) -> None:
    """Read; once more if a shard is replaced between its index and its payload."""
    try:
        _read(source, chunks, grid)
    except ObjectChangedError:
        for cells in chunks:
            source.indexes.drop_shard(tuple(c.shard for c in cells))
        _read(source, chunks, grid)


def _lay(source: Source, selection: Orthogonal) -> list[list[_Along]] | None:
    """Touched cells along each axis; None if there are too many, or index arrays."""
    n_chunks = 1
    along: list[list[_Along]] = []
    shape = source.layout.levels[0].chunk_shape
    for d, axis in enumerate(selection.axes):
        if not isinstance(axis, SliceAxis):
            return None
        if not axis.length:
            along.append([])
            continue
        last_element = axis.start + (axis.length - 1) * axis.step
        first, last = axis.start // shape[d], last_element // shape[d]
        n_chunks *= last - first + 1
        if n_chunks > source.options.small_read_chunks:
            return None
        along.append(list(_cells(source, d, axis, range(first, last + 1))))
    return along


def _cells(
    source: Source, d: int, axis: SliceAxis, cells: Sequence[int]
) -> Iterator[_Along]:
    layout = source.layout
    outer, inner = layout.axes[d], layout.inner_axes[d]
    for cell in cells:
        in_start, length, out_start = project_cell(axis, inner, cell)
        if length <= 0:
            continue
        shard = int(outer.cell_at(cell * inner.cell))
        per_shard = int(outer.length_of(shard)) // inner.cell
        coordinate = cell - int(outer.start_of(shard)) // inner.cell
        inside = slice(in_start, in_start + (length - 1) * axis.step + 1, axis.step)
        if axis.out_step > 0:
            out = slice(out_start, out_start + length)
        else:
            stop = out_start - length
            out = slice(out_start, None if stop < 0 else stop, -1)
        yield _Along(cell, shard, coordinate, per_shard, inside, out)


def _read(
    source: Source, chunks: Sequence[tuple[_Along, ...]], grid: NDArray[Any]
) -> None:
    known: dict[Coordinate, KnownIndex | None] = {}
    wanted: list[_Wanted] = []
    for cells in chunks:
        shard = tuple([c.shard for c in cells])
        if shard not in known:
            known[shard] = _index(source, shard)
        found = _find(source, shard, known[shard], cells)
        if found is None:
            grid[(*[c.out for c in cells], ...)] = source.layout.fill_value
        else:
            wanted.append(found)
    wanted.sort(key=_by_place)
    groups = list(_joined(wanted, source.store.costs.gap_nbytes))
    requests: list[ByteRequest] = []
    for group in groups:
        shard = group[0].shard
        index = known[shard]
        stop = max(w.stop for w in group)
        version = index and index.version
        requests.append(ByteRequest(source.key(shard), group[0].start, stop, version))
    answers = fetch_payload(source, requests) if requests else []
    for group, request, answer in zip(groups, requests, answers, strict=True):
        for w in group:
            span = answer[w.start - request.start : w.stop - request.start]
            encoded = completed(span, w.start - w.base, w.nbytes)
            chunk = _decode(source, w, encoded)
            inside = tuple([c.inside for c in w.cells])
            grid[(*[c.out for c in w.cells], ...)] = chunk[inside]


def _by_place(wanted: _Wanted) -> tuple[Coordinate, int]:
    return wanted.shard, wanted.start


def _joined(wanted: Sequence[_Wanted], gap_nbytes: int) -> Iterator[list[_Wanted]]:
    """Runs of neighbours in one object that are cheaper fetched together."""
    group: list[_Wanted] = []
    reach = 0
    for w in wanted:
        if group and (w.shard != group[0].shard or w.start > reach + gap_nbytes):
            yield group
            group = []
        reach = max(reach, w.stop) if group else w.stop
        group.append(w)
    if group:
        yield group


def _index(source: Source, shard: Coordinate) -> KnownIndex | None:
    key = source.key(shard)
    known = known_index(source, shard, key)
    if known is not None:
        return known
    answer = source.store.read([index_request(source, shard, key)])[0]
    return None if answer is None else keep_index(source, shard, key, answer)


def _find(
    source: Source,
    shard: Coordinate,
    known: KnownIndex | None,
    cells: tuple[_Along, ...],
) -> _Wanted | None:
    """Byte range of an inner chunk; None if it is missing."""
    if known is None:
        return None
    entry = 0
    for axis in source.layout.levels[0].axis_order:
        entry = entry * cells[axis].per_shard + cells[axis].coordinate
    index = known.index
    state = index.state.item(entry)
    if state == MISSING:
        return None
    base, nbytes = index.offset.item(entry), index.nbytes.item(entry)
    try:
        if state == CORRUPT:
            index.refuse_corrupt(entry)
        source.refuse_oversized(nbytes, source.layout.levels[0].chunk_shape)
    except CorruptShardError as error:
        _name_place(error, source, shard, cells)
        raise
    low, high = 0, nbytes
    strides = source.raw_strides
    if strides is not None and nbytes == source.chunk_nbytes:
        high = strides[-1]
        for c, stride in zip(cells, strides, strict=False):
            low += c.inside.start * stride
            high += (c.inside.stop - 1) * stride
    return _Wanted(shard, base + low, base + high, base, nbytes, cells)


def _decode(source: Source, wanted: _Wanted, encoded: NDArray[Any]) -> NDArray[Any]:
    try:
        return source.decode(encoded, source.layout.levels[0].chunk_shape)
    except CorruptShardError as error:
        _name_place(error, source, wanted.shard, wanted.cells)
        raise


def _name_place(
    error: CorruptShardError,
    source: Source,
    shard: Coordinate,
    cells: Sequence[_Along],
) -> None:
    error.add_context(
        array_path=source.layout.path,
        shard_key=source.key(shard),
        inner_chunk=tuple(c.cell for c in cells),
    )
