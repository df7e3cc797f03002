"""Reads of very many listed elements, in rounds whose columns fit the memory limit.

Each round is a separate read. When several rounds read the same shards, the versions of
these are compared before and after, so that all elements of a shard come from one
version of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from gpushard.errors import LimitError
from gpushard.fetching.gone import deleted, replaced
from gpushard.planning.axes import LONG_CELLS
from gpushard.selecting.listing import elements_changed
from gpushard.selecting.portions import CellGroup, groups_of, objects_of
from gpushard.selecting.selection import (
    IndexAxis,
    Listed,
    Orthogonal,
    ParsedSelection,
    Selection,
    SliceAxis,
    with_columns,
)
from gpushard.selecting.sorting_out import Room
from gpushard.source import Source
from gpushard.stores.base import ByteRequest

Reader = Callable[[Source, Sequence[Selection], Sequence[Any]], object]
"""Reads selections of an array into one output each."""

# Memory of an element of an index array while it is planned and read; and of a point,
# plus its coordinates: docs/decisions/2026-11-22-index-arrays-in-pieces.md,
# and 2026-11-23-lists-of-points-in-loops.md.
_ELEMENT_NBYTES = 96
_POINT_NBYTES, _COORDINATE_NBYTES = 72, 16
# A round has at least this many elements, whatever the limit: 2 MiB.
_LEAST_ELEMENTS = 1 << 14
# The versions of this many objects are asked for together.
_ASKED_OBJECTS = 256
_GONE = (False, None)
# Memory of an element of an index array that is laid out whole. Such arrays may take
# one part in `_OTHERS_SHARE` of all that a read may hold.
_LAID_OUT_NBYTES = 96
_OTHERS_SHARE = 4
# Memory of a cell of an axis that a slice is laid over. Such cells of selections that
# are read together may take one part in `_AXES_SHARE`.
_CELL_NBYTES = 48
_AXES_SHARE = 4


def read_in_rounds(
    source: Source,
    selections: Sequence[ParsedSelection],
    outs: Sequence[Any],
    read: Reader,
    tables_nbytes: int = 0,
) -> None:
    """Call `read` for everything, with no more listed elements at a time than fit.

    Half of the memory limit is for the columns of listed elements, and for tables of
    `tables_nbytes` bytes an element that `read` makes. The other half is for bytes that
    are fetched and decoded.

    Raises
    ------
    ObjectChangedError
        A shard was replaced twice while several rounds read it.
    LimitError
        One selection has several index arrays, and those other than the longest take
        too much memory.
    """
    if len(selections) == 1 and not isinstance(selections[0], Listed):
        read(source, [selections[0]], outs)
        return
    # Writing the first result must not change the indices of the next selection.
    selections = [with_columns(s) if _is_written(s, outs) else s for s in selections]
    for selection in selections:
        _refuse_many_others(source, selection)
    most_nbytes = source.options.memory_limit // 2
    most_axes_nbytes = source.options.bound_nbytes // _AXES_SHARE
    together: list[tuple[ParsedSelection, Any]] = []
    held_nbytes = held_axes_nbytes = 0
    for selection, out in zip(selections, outs, strict=True):
        nbytes = _columns_nbytes(selection, tables_nbytes)
        if isinstance(selection, Listed) and nbytes > most_nbytes:
            _read_cut(source, selection, out, read, tables_nbytes)
            continue
        axes_nbytes = _axes_nbytes(source, selection)
        is_much = held_nbytes + nbytes > most_nbytes
        is_much = is_much or held_axes_nbytes + axes_nbytes > most_axes_nbytes
        if together and is_much:
            _read_together(source, together, held_nbytes, read)
            together, held_nbytes, held_axes_nbytes = [], 0, 0
        together.append((selection, out))
        held_nbytes += nbytes
        held_axes_nbytes += axes_nbytes
    if together:
        _read_together(source, together, held_nbytes, read)


def columns_share(source: Source, selections: Sequence[Selection]) -> float:
    """Part of the room for columns that selections of an array take before a read.

    The columns of selections with parts of up to 1 in total may be made together.
    """
    room = source.options.bound_nbytes // _AXES_SHARE
    listed = sum(_columns_nbytes(s, 0) for s in selections)
    return (listed + sum(_axes_nbytes(source, s) for s in selections)) / room


def _refuse_many_others(source: Source, selection: ParsedSelection) -> None:
    """Refuse index arrays that are laid out whole and do not fit.

    Of several index arrays in one selection, all but the longest are laid out whole.
    The product of two that are refused here has 10**10 elements.
    """
    if not isinstance(selection, Listed) or selection.around is None:
        return
    listed = (a.length for a in selection.around.axes if isinstance(a, IndexAxis))
    needed = _LAID_OUT_NBYTES * sum(listed)
    most = source.options.bound_nbytes // _OTHERS_SHARE
    if needed > most:
        raise LimitError(
            "index arrays along several axes take too much memory",
            array_path=source.layout.path,
            expected=f"at most {most} bytes of all but the longest",
            got=f"{needed} bytes",
            hint="read fewer elements at a time, or raise options.memory_limit",
        )


def _is_written(selection: ParsedSelection, outs: Sequence[Any]) -> bool:
    """Whether an output shares memory with the index arrays or the mask."""
    if not isinstance(selection, Listed):
        return False
    return any(
        isinstance(o, np.ndarray) and selection.listing.overlaps(o) for o in outs
    )


def _read_together(
    source: Source,
    pairs: Sequence[tuple[ParsedSelection, Any]],
    nbytes: int,
    read: Reader,
) -> None:
    selections = [with_columns(selection) for selection, _ in pairs]
    read(_beside(source, nbytes), selections, [out for _, out in pairs])


def _read_cut(
    source: Source, listed: Listed, out: Any, read: Reader, tables_nbytes: int
) -> None:
    """Read a selection in portions, one after the other."""
    limit = source.options.memory_limit
    # Every round has the columns along the other axes.
    others_nbytes = 0 if listed.around is None else _columns_nbytes(listed.around, 0)
    room = max(limit // 2 - others_nbytes, limit // 4)
    each_nbytes = _element_nbytes(listed) + tables_nbytes
    most = max(room // each_nbytes, _LEAST_ELEMENTS)
    beside = _beside(source, limit // 2)

    def read_all(group: CellGroup) -> int:
        places = 0
        for block in group.blocks():
            read(beside, [listed.taking(block)], [out])
            places += int(block.out_index.sum())
        return places

    # If another thread moves an element of the user's arrays from one group to another
    # between their rounds, both may have as many elements as were counted.
    expected, places = listed.listing.sum_of_places, 0
    for group in groups_of(listed, source.layout, most, room=Room(each_nbytes)):
        if group.is_split:
            objects = list(objects_of(group, source.layout))
            places += read_unchanged(source, objects, partial(read_all, group))
        else:
            places += read_all(group)
        del group  # it may hold the marks of many groups while the next are made
    if expected is not None and places != expected:
        raise elements_changed()


def read_unchanged(
    source: Source, objects: Sequence[tuple[int, ...]], read_all: Callable[[], int]
) -> int:
    """Read objects in several rounds; read again if one was replaced meanwhile.

    Returns what `read_all` returned last.

    Raises
    ------
    ObjectChangedError
        A shard was replaced during both attempts, or was deleted.
    """
    places = 0
    for is_last in (False, True):
        before = list(_versions(source, objects))
        places = read_all()
        is_same = True
        after = _versions(source, objects)
        for coordinate, was, now in zip(objects, before, after, strict=True):
            if now == was:
                continue
            key = source.key(coordinate)
            if now == _GONE:
                # The store of a rolling array raises if the window has left the shard.
                source.read([ByteRequest(key, 0, 1)])
                raise deleted(source, key)
            if is_last:
                raise replaced(source, key)
            is_same = False
        if is_same:
            break
    return places


def _versions(
    source: Source, objects: Sequence[tuple[int, ...]]
) -> Iterator[Hashable | None]:
    """Whether each object exists, with its version if the store tells one."""
    store = source.store
    keys_left = iter([source.key(coordinate) for coordinate in objects])
    while keys := list(islice(keys_left, _ASKED_OBJECTS)):
        current = [store.current_version(key) for key in keys]
        # The store cannot tell the others without a request.
        unknown = [
            k for k, (is_known, _) in zip(keys, current, strict=True) if not is_known
        ]
        answers = iter(source.read([ByteRequest(key, 0, 1) for key in unknown]))
        for is_known, version in current:
            if is_known:
                yield _GONE if version is None else (True, version)
            else:
                answer = next(answers)
                yield _GONE if answer is None else (True, answer.version)


def _beside(source: Source, nbytes: int) -> Source:
    """The array, with a memory limit that is reduced by `nbytes` of columns."""
    if not nbytes:
        return source
    options = source.options
    limit = options.memory_limit - min(nbytes, options.memory_limit // 2)
    held_nbytes = min(nbytes, options.bound_nbytes // 2)
    return source.with_memory_limit(max(1, limit), held_nbytes)


def _columns_nbytes(selection: ParsedSelection, tables_nbytes: int) -> int:
    """Memory of the columns over listed elements, and of the reader's tables."""
    if isinstance(selection, Listed):
        each = _element_nbytes(selection) + tables_nbytes
        return each * selection.listing.n_elements
    if isinstance(selection, Orthogonal):
        listed = (a.length for a in selection.axes if isinstance(a, IndexAxis))
        return (_ELEMENT_NBYTES + tables_nbytes) * sum(listed)
    per_point = _POINT_NBYTES + _COORDINATE_NBYTES * len(selection.coordinates)
    return (per_point + tables_nbytes) * selection.n_points


def _axes_nbytes(source: Source, selection: ParsedSelection) -> int:
    """Memory of the slices of a selection, laid over the cells of their axes."""
    if not isinstance(selection, Orthogonal):
        return 0
    n_cells = 0
    for taken, axis in zip(selection.axes, source.layout.inner_axes, strict=True):
        if isinstance(taken, SliceAxis):
            n_touched = taken.length * taken.step // max(1, axis.cell) + 2
            n_touched = min(taken.length, n_touched)
            n_cells += n_touched if n_touched <= LONG_CELLS else 0
    return _CELL_NBYTES * n_cells


def _element_nbytes(listed: Listed) -> int:
    if listed.around is not None:
        return _ELEMENT_NBYTES
    return _POINT_NBYTES + _COORDINATE_NBYTES * listed.listing.n_axes
