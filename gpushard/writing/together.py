"""Small stored objects that one task writes one after the other.

To begin a task, to enter a directory and to call an encoder take as long for many small
objects as for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from gpushard.layout import cell_shape
from gpushard.options import MIB
from gpushard.source import Source
from gpushard.writing.changes import Change
from gpushard.writing.on_device import DeviceValues
from gpushard.writing.regions import Cell, Part
from gpushard.writing.whole_cells import WholeCells

# An inner chunk that is written is held as its values, and encoded.
_COPIES = 3
# Decoded bytes of the objects of a task, and their number: an interrupt waits for them.
_TOGETHER_NBYTES, _MOST_TOGETHER = MIB, 64
# Cells that are numbered; of more than this, no array could be written.
_MOST_CELLS = 1 << 48


def whole_objects(
    source: Source, change: Change
) -> tuple[WholeCells | None, Sequence[Part]]:
    """Objects of one inner chunk that a change replaces, and what else it changes."""
    layout = source.layout
    is_plain = not layout.levels and not layout.object_codecs
    if (
        not is_plain
        or source.options.write.strategy != "rewrite"
        or isinstance(change.values, DeviceValues)
        or cell_shape(layout.axes) is None
    ):
        return None, [change.part]
    extents = [axis.extent for axis in layout.axes]
    whole = WholeCells.of(change.part, layout.axes, extents)
    if whole is None or whole.n_cells > _MOST_CELLS:
        return None, [change.part]
    return whole, whole.rest


def n_together(source: Source, n_objects: int, n_threads: int) -> int:
    """Objects for a task, so that there are tasks for all threads."""
    nbytes = max(1, source.largest_shard_nbytes)
    room = source.options.memory_limit // (_COPIES * nbytes * n_threads)
    most = min(_TOGETHER_NBYTES // nbytes, room, _MOST_TOGETHER)
    return max(1, min(most, -(-n_objects // n_threads)))


def groups(
    source: Source, parts: Sequence[Part], n_threads: int
) -> Iterator[list[tuple[Cell, Part]]]:
    """Changed objects, each with its part, in groups for one task each."""
    axes = source.layout.axes
    cells = chain.from_iterable(part.cells(axes) for part in parts)
    most = n_together(source, _MOST_CELLS, n_threads)
    while ahead := list(islice(cells, most * n_threads)):
        n = n_together(source, len(ahead), n_threads)
        yield from (ahead[i : i + n] for i in range(0, len(ahead), n))
