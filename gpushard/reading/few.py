"""Which reads are small, and the inner chunks that a small read touches.

Columns, tasks and threads cost as much as some inner chunks, so a read of a few goes
without them. Over a network its requests run side by side all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from gpushard.options import MIB
from gpushard.planning.touched import TouchedChunk, TouchedGrid
from gpushard.reading.whole import most_whole_nbytes, suits_whole
from gpushard.selecting.selection import IndexAxis, Points, Selection
from gpushard.source import Source

# A small read fetches all inner chunks at once and decodes them one after the other.
# Above this many decoded bytes, threads save more than the general path costs to set
# up.
_MOST_NBYTES = MIB
# Plain elements are far apart if they take, with all between them, more than that and
# so many times their own size.
_APART_TIMES = 8
_FINDING = "grid of small reads"


def few_chunks(
    source: Source, selection: Selection, out: NDArray[Any], limit: int | None
) -> Sequence[TouchedChunk] | None:
    """Inner chunks that a selection touches; None if reading it is no small read.

    Parameters
    ----------
    out
        Host array of the selection's shape.
    limit
        Largest number of inner chunks that counts as few; None: `few` of the source.
    """
    if _FINDING not in source.findings:
        source.findings[_FINDING] = _grid_of(source)
    grid, is_far = source.findings[_FINDING]
    if grid is None:
        return None
    chunks = grid.touched(selection, limit or source.few)
    if chunks is None or (len(chunks) > 1 and _are_large(source, len(chunks))):
        return None
    if out.nbytes > _MOST_NBYTES and _needs_copy(selection):
        return None
    if source.chunk_nbytes > _MOST_NBYTES and _lie_apart(source, chunks, out.nbytes):
        return None
    return None if is_far and _is_any_whole(source, chunks) else chunks


def _lie_apart(source: Source, chunks: Sequence[TouchedChunk], nbytes: int) -> bool:
    """Whether plain elements, of `nbytes`, are better not read with all between them.

    Other readers read each run of them.
    """
    strides = source.raw_strides
    if strides is None:
        return False
    extents = [chunk.extent(strides) for chunk in chunks]
    most = max(_MOST_NBYTES, _APART_TIMES * nbytes)
    return any(high - low > most for low, high in extents)


def _needs_copy(selection: Selection) -> bool:
    """Whether NumPy makes a copy of the wanted elements before it writes them."""
    return isinstance(selection, Points) or any(
        isinstance(axis, IndexAxis) for axis in selection.axes
    )


def _grid_of(source: Source) -> tuple[TouchedGrid | None, bool]:
    """The array's grid, None if no read of it is small; whether a network is between.

    Both are kept between reads.
    """
    grid = TouchedGrid(source.layout) if _reads_small(source) else None
    return grid, source.store.costs.prefers_whole_objects


def _reads_small(source: Source) -> bool:
    if source.layout.object_codecs or source.chunk_shape is None:
        return False
    return bool(source.few) and not source.has_large_indexes


def _are_large(source: Source, n_chunks: int) -> bool:
    """Whether inner chunks are better fetched in batches and decoded in parallel."""
    limit = min(_MOST_NBYTES, source.options.memory_limit)
    return n_chunks * source.chunk_nbytes > limit


def _is_any_whole(source: Source, chunks: Sequence[TouchedChunk]) -> bool:
    """Whether a shard is better fetched whole than its index and then inner chunks."""
    if not source.layout.levels:
        return False
    most = most_whole_nbytes(source)
    n_wanted = Counter([chunk.shard for chunk in chunks])
    return any(suits_whole(source, shard, n, most) for shard, n in n_wanted.items())
