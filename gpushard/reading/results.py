"""Results of a read on the host: arrays that are made here, or the caller's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.damage import ENDS_READ, Damage
from gpushard.errors import CorruptShardError, LimitError, SelectionError
from gpushard.fetching.job import Job
from gpushard.fused.chain import fused_chain
from gpushard.fused.choice import host_sink, note_small_read
from gpushard.fused.columns import RAW
from gpushard.fused.short.ways import short_ways
from gpushard.options import KIB
from gpushard.placing.outputs import new_output, usable_output
from gpushard.placing.scatter import check_cast
from gpushard.planning.plan import plan_read
from gpushard.reading.converted import read_converted
from gpushard.reading.crossed import Around, is_crossed, listed_as_points, with_grids
from gpushard.reading.masked import read_masked
from gpushard.reading.pooled import FEW_BOXES, read_pooled
from gpushard.reading.read import execute
from gpushard.reading.rounds import Reader, read_in_rounds
from gpushard.reading.small import read_small
from gpushard.reading.surrounded import read_surrounded
from gpushard.report import Tally
from gpushard.selecting.patches import Patches, PlannableSelection
from gpushard.selecting.selection import Listed, Orthogonal, ParsedSelection, Selection
from gpushard.source import Source

# From this size on the compiled loops read a single inner chunk faster than Python,
# which decodes it to memory of its own.
_LEAST_NBYTES = 256 * KIB
# Time that planning takes for each of several selections that are read together.
_PLANNING_US = 150
# Small boxes that are read alone in the time that it takes to plan them together, or
# in less if their inner chunks are kept.
_MANY_BOXES = 128


class ReadRequest(NamedTuple):
    """What a caller wants to read of one array.

    Attributes
    ----------
    selections
        What to read, in one batch.
    outs
        For each selection an array to write into, or None.
    dtype
        Data type of the arrays that are made.
    stream
        The caller's stream, on a device.
    tally
        Counts what the read does; None if nobody asks.
    damage
        What happens at damaged inner chunks.
    """

    selections: Sequence[ParsedSelection]
    outs: Sequence[Any]
    dtype: np.dtype[Any]
    stream: Any = None
    tally: Tally | None = None
    damage: Damage = ENDS_READ

    def over(self, damage: Damage) -> ReadRequest:
        """The same request with another rule for damaged inner chunks."""
        return self if damage is self.damage else self._replace(damage=damage)


def read_on_host(source: Source, request: ReadRequest) -> list[Any]:
    """One host array per selection: the one in `outs` if given, else a new one.

    Raises
    ------
    SelectionError
        An array in `outs` does not fit, or the cast is refused.
    CorruptShardError, StoreError
        The stages of a read raise them.
    """
    if request.stream is not None:
        raise stream_refused()
    arrays = [
        usable_output(out, selection.shape, request.dtype)
        for out, selection in zip(request.outs, request.selections, strict=True)
    ]
    dtype = source.layout.dtype
    for array in arrays:
        if array.dtype is not dtype:
            check_cast(dtype, array.dtype)
    if not read_converted(source, arrays, partial(_read_into, request)):
        _read_into(request, source, arrays)
    return [a if o is None else o for a, o in zip(arrays, request.outs, strict=True)]


def _read_into(
    request: ReadRequest, source: Source, arrays: Sequence[NDArray[Any]]
) -> None:
    """Read what is requested into arrays of any data type."""
    if len(arrays) == 1:  # points are not read together with others by the loops
        selections = [listed_as_points(source, request.selections[0])]
        request = request._replace(selections=selections)
    are_many = len(arrays) >= _MANY_BOXES
    if are_many and _is_pooled(source, request, arrays):
        return
    left = _left_over(source, request, arrays)
    if not left:
        return
    request = request._replace(selections=[request.selections[k] for k in left])
    arrays = [arrays[k] for k in left]
    if are_many or not _is_pooled(source, request, arrays):
        _read_large(source, request, arrays)


def _is_pooled(
    source: Source, request: ReadRequest, arrays: Sequence[NDArray[Any]]
) -> bool:
    """Whether all selections could be read as patches of one array."""
    # Damage is told of each selection for itself.
    if len(arrays) < FEW_BOXES or request.damage.replaces:
        return False
    tally = request.tally or Tally(is_wanted=False)
    read = partial(_read_patches, tally)
    return read_pooled(source, request.selections, arrays, read)


def _left_over(
    source: Source, request: ReadRequest, arrays: Sequence[NDArray[Any]]
) -> Sequence[int]:
    """Numbers of the selections that are left once those of little are read alone.

    Several are read together if their inner chunks may be worth sharing.
    """
    everything = range(len(arrays))
    if request.tally is not None:
        return everything
    limit = None if len(arrays) == 1 else _few_alone(source)
    # Writing one result must not change the indices of the next selection.
    has_lists = any(isinstance(one, Listed) for one in request.selections)
    if limit == 0 or has_lists:
        return everything
    return [
        k
        for k, (one, out) in enumerate(zip(request.selections, arrays, strict=True))
        if not read_little(source, one, out, request.damage, limit)
    ]


def _few_alone(source: Source) -> int:
    """Inner chunks of one of several selections that are decoded sooner than planned.

    0 if no selection is read alone: without the loops, and over a network.
    """
    chain = fused_chain(source)
    if chain is None or short_ways(source).short is None:
        return 0
    # Of plain elements, only those that are wanted are read.
    each_us = chain.pace.chunk_us if chain.kind == RAW else chain.chunk_us
    return int(_PLANNING_US / each_us)


def read_new(source: Source, selection: ParsedSelection) -> NDArray[Any]:
    """New host array with the elements that `selection` selects.

    For a read that asks for nothing else. `read_on_host` returns the same, but first
    looks at everything that a read may ask for, which a short read would notice.

    Raises
    ------
    SelectionError, CorruptShardError, StoreError
        As `read_on_host` does.
    """
    out = new_output(selection.shape, source.layout.dtype)
    selection = listed_as_points(source, selection)
    if not read_little(source, selection, out):
        _read_large(source, ReadRequest([selection], [out], out.dtype), [out])
    return out


def stream_refused() -> SelectionError:
    """Error for a stream that was passed for a result on the host."""
    return SelectionError(
        "stream= is for arrays on a device",
        hint="leave it out, or open the array with device='cuda'",
    )


def read_single(source: Source, key: Any, out: Any = None) -> NDArray[Any] | None:
    """Host array with what `key` selects, if that is part of one inner chunk.

    It is `out` if that was given. None for all other keys and outputs, also for those
    that do not fit the array, and for arrays that do not lie in local files:
    `read_on_host` then reads them or says what is wrong.

    Raises
    ------
    StoreError
        The store failed.
    """
    reader = short_ways(source).single
    return None if reader is None else reader.read(source, key, out)


def read_little(
    source: Source,
    selection: ParsedSelection,
    out: NDArray[Any],
    damage: Damage = ENDS_READ,
    limit: int | None = None,
) -> bool:
    """Whether a selection could be read into `out` in one of the ways for little.

    `limit` is the largest number of inner chunks that counts as little; None leaves it
    to each way.
    """
    if not out.size:
        return True
    if not source.options.small_read_chunks or isinstance(selection, Listed):
        return False
    single, reader = short_ways(source)
    try:
        if single is not None and single.read_into(source, selection, out):
            return True
        if reader is not None:
            # For very few little inner chunks, Python has less to prepare.
            is_little = source.chunk_nbytes < _LEAST_NBYTES
            n_few = min(reader.n_few, limit or reader.n_few)
            return (
                (is_little and read_small(source, selection, out, n_few))
                or reader.read(source, selection, out, limit)
                or read_small(source, selection, out, limit)
            )
        is_read = read_small(source, selection, out, limit)
        if is_read:
            note_small_read(source)
        return is_read
    except CorruptShardError:
        if not damage.replaces:
            raise
        return False


def _read_large(
    source: Source, request: ReadRequest, arrays: Sequence[NDArray[Any]]
) -> None:
    tally = request.tally or Tally(is_wanted=False)
    read = partial(read_at_once, tally=tally, damage=request.damage)
    if len(arrays) == 1 and _is_picked(source, request, arrays[0], read):
        return
    read_in_rounds(source, request.selections, arrays, read)


def _is_picked(
    source: Source, request: ReadRequest, out: NDArray[Any], read: Reader
) -> bool:
    (selection,) = request.selections
    if not isinstance(selection, Listed) or selection.listing.overlaps(out):
        return False
    if request.damage.replaces:
        return False  # damage of inner chunks that nobody wants must not be reported
    ways = read_masked, read_surrounded
    return any(way(source, selection, out, read) for way in ways)


def _read_patches(
    tally: Tally, source: Source, patches: Patches, out: NDArray[Any]
) -> None:
    execute([host_job(source, [patches], [out], tally)])


def read_at_once(
    source: Source,
    selections: Sequence[Selection],
    outs: Sequence[NDArray[Any]],
    tally: Tally,
    damage: Damage,
) -> None:
    """Read `selections` into the host arrays `outs`, as one batch."""
    read = partial(_read_planned, tally=tally, damage=damage)
    if len(selections) == 1 and is_crossed(selections[0]):
        _read_crossed(source, selections[0], outs[0], read)
    else:
        read(source, selections, outs)


def _read_crossed(
    source: Source, selection: Orthogonal, out: NDArray[Any], read: Reader
) -> None:
    """Read a cross product of index arrays, from grids around them if they fit."""
    for part, around in with_grids(source, selection, out.dtype):
        if around is None or not _read_around(source, part, around, out, read):
            read(source, [part], [out])


def _read_around(
    source: Source,
    selection: Orthogonal,
    around: Around,
    out: NDArray[Any],
    read: Reader,
) -> bool:
    """Read a cross product from a grid; False if inner chunks do not fit beside it."""
    grid = np.empty(around.grid.shape, out.dtype)
    try:
        read(source.beside(grid.nbytes), [around.grid], [grid])
    except LimitError:
        return False
    around.put(grid, selection, out)
    return True


def _read_planned(
    source: Source,
    selections: Sequence[Selection],
    outs: Sequence[NDArray[Any]],
    tally: Tally,
    damage: Damage,
) -> None:
    with tally.stage("plan"):
        job = host_job(source, selections, outs, tally, damage)
    execute([job])


def host_job(
    source: Source,
    selections: Sequence[PlannableSelection],
    outs: Sequence[NDArray[Any]],
    tally: Tally,
    damage: Damage = ENDS_READ,
) -> Job:
    """Job that reads `selections` into the host arrays `outs`."""
    # For plain elements, only the boxes that are wanted are read.
    is_plain = source.raw_strides is not None
    plan = plan_read(source.layout, selections, apart=is_plain)
    return Job(source, plan, host_sink(source, plan, outs), tally, damage)
