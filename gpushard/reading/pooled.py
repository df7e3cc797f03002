"""Many small boxes of one array, planned together as patches of one output.

To plan a selection takes longer than to copy a small result. So boxes that are alike
but for axis 0 are read into one array, one after the other, and copied from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.options import KIB
from gpushard.planning.coalesce import cut_batches
from gpushard.selecting.patches import Patches
from gpushard.selecting.selection import Ints, Orthogonal, ParsedSelection, SliceAxis
from gpushard.source import Source

# Fewer are planned one by one in the time that the columns of patches take.
FEW_BOXES = 8
# A result of this size is copied in a tenth of the time that planning it takes.
_MOST_MEAN_NBYTES = 64 * KIB
# Memory of what a patch takes of an inner chunk, while it is planned and read.
_PIECE_NBYTES = 300
# Results and pieces may take one part in this many of all that a read may hold.
_SHARE = 8

ReadPatches = Callable[[Source, Patches, NDArray[Any]], object]


class _Boxes(NamedTuple):
    """Where boxes of one array lie.

    Attributes
    ----------
    first, length
        int64, shape (n_axes, n_boxes): first element and extent along each axis.
    """

    first: Ints
    length: Ints

    def patches(self, begin: int, end: int) -> Patches:
        """The boxes ``begin:end``, which land one after the other along axis 0."""
        first, length = self.first[:, begin:end], self.length[:, begin:end]
        ends = np.cumsum(length[0])
        rest = [int(extent) for extent in length[1:, 0]]
        return Patches(
            end - begin,
            tuple(first),
            (length[0], *(np.array([extent]) for extent in rest)),
            (ends - length[0], *(np.zeros(1, np.int64) for _ in rest)),
            (int(ends[-1]), *rest),
        )

    def n_pieces(self, source: Source) -> Ints:
        """Number of inner chunks that each box touches: int64, shape (n_boxes,)."""
        n_cells = np.ones(self.first.shape[1], np.int64)
        columns = zip(self.first, self.length, source.layout.inner_axes, strict=True)
        for first, length, axis in columns:
            n_cells *= axis.cell_at(first + length - 1) - axis.cell_at(first) + 1
        return n_cells


def read_pooled(
    source: Source,
    selections: Sequence[ParsedSelection],
    outs: Sequence[NDArray[Any]],
    read: ReadPatches,
) -> bool:
    """Whether all selections were read as patches, which `read` reads.

    They are if they are many small boxes of contiguous elements that differ in extent
    along axis 0 only, in as many plans as memory asks for.
    """
    boxes = _boxes_of(selections) if _are_small(outs) else None
    if boxes is None:
        return False
    nbytes = np.array([out.nbytes for out in outs])
    held_nbytes = nbytes + _PIECE_NBYTES * boxes.n_pieces(source)
    most_nbytes = source.options.bound_nbytes // _SHARE
    portions = cut_batches(held_nbytes, most_nbytes)
    if held_nbytes.max() > most_nbytes or len(portions) * FEW_BOXES > len(outs):
        return False
    try:
        for begin, end in portions:
            _read_portion(source, boxes.patches(begin, end), outs[begin:end], read)
    except LimitError:  # an inner chunk that does not fit beside the results
        return False
    return True


def _read_portion(
    source: Source, patches: Patches, outs: Sequence[NDArray[Any]], read: ReadPatches
) -> None:
    """Read patches into one array, and copy each from there to its place."""
    together = np.empty(patches.shape, outs[0].dtype)
    read(source.beside(together.nbytes), patches, together)
    starts, lengths = patches.out_first[0].tolist(), patches.length[0].tolist()
    for out, start, length in zip(outs, starts, lengths, strict=True):
        out[...] = together[start : start + length].reshape(out.shape)


def _boxes_of(selections: Sequence[ParsedSelection]) -> _Boxes | None:
    """Where the boxes lie; None if these are no boxes, or are not alike."""
    boxes = [_box(one) for one in selections]
    if not boxes[0] or None in boxes:
        return None
    first, length = np.array(boxes, np.int64).transpose(2, 1, 0)
    if not length.all() or (length[1:] != length[1:, :1]).any():
        return None
    return _Boxes(first, length)


def _are_small(outs: Sequence[NDArray[Any]]) -> bool:
    dtype = outs[0].dtype
    if dtype.kind in "OT" or any(out.dtype != dtype for out in outs):
        return False
    return sum(out.nbytes for out in outs) <= _MOST_MEAN_NBYTES * len(outs)


def _box(selection: ParsedSelection) -> list[tuple[int, int]] | None:
    """First element and extent along each axis; None if these do not describe it."""
    if not isinstance(selection, Orthogonal):
        return None
    axes = [axis for axis in selection.axes if isinstance(axis, SliceAxis)]
    if len(axes) < len(selection.axes) or any(a.step * a.out_step != 1 for a in axes):
        return None
    return [(axis.start, axis.length) for axis in axes]
