"""The short path of unsharded arrays: up to a thousand files of one inner chunk each.

As in `gpushard.fused.short.sharded`, the loops lay the selection over the grid; then
they open, read and close the files, decode and place. All that is unusual is declined:
damage, links, files that change or that a slow disk or server has. The general path
then reads it or says what is wrong.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.chain import FusedChain, plan_parameters
from gpushard.fused.columns import (
    ENTRY,
    FILE,
    FILLED,
    HIGH,
    LOW,
    NBYTES,
    OBJECTS,
    SOURCE,
)
from gpushard.fused.files import window_nbytes
from gpushard.fused.filling import fill_for
from gpushard.fused.kept_chunks import short_weight
from gpushard.fused.kept_files import kept_files, new_files
from gpushard.fused.meshes import Mesh, grid_of, lay_over
from gpushard.fused.opening import (
    MOST_AT_ONCE,
    N_TRIED,
    Beginning,
    ObjectFiles,
    Opening,
    are_slow,
    fits_memory,
)
from gpushard.fused.placer import Bools, BoxPlacer, LinkedLoops
from gpushard.fused.shares import Shares, n_sharing
from gpushard.fused.words import Opener
from gpushard.options import KIB
from gpushard.selecting.selection import Ints, Selection, fills
from gpushard.source import Source
from gpushard.stores.local.handles import FileHandle
from gpushard.threads.workers import run_tasks

# Time that opening, looking at and closing a file takes, beside reading and decoding;
# and that looking at it by its path takes, and copying so much from where it is kept.
_OPEN_US = 7
_LOOK_US, _COPIED_IN_US = 2, 8 * KIB
# For so long, other files are taken to be as slow or as fast as those that were tried.
_TRUSTED_FOR_S = 1.0
# Longer reads of one thread, too, are several calls: an interrupt waits for one.
_ONE_CALL_US = 10_000
_ONE_SHARD = [[0, 0, 0, OBJECTS, 0]]


class _Trial(NamedTuple):
    """Whether files were slow, and the monotonic time until which that is trusted."""

    until_s: float
    were_slow: bool


class ShortUnshardedReader:
    """Reads small selections of one unsharded array.

    Parameters
    ----------
    source, files
        The array, and its files.
    chain, loops
        Its encoding, and the loops that decode it.

    Attributes
    ----------
    n_few
        Python reads up to so many little inner chunks as fast.
    """

    n_few = 2

    def __init__(
        self, source: Source, files: ObjectFiles, chain: FusedChain, loops: LinkedLoops
    ) -> None:
        self._files = files
        self._chain = chain
        self._loops = loops
        self._grid = grid_of(source.layout, chain.strides)
        self._planned = plan_parameters(source, chain)
        self._trial = _Trial(0.0, were_slow=False)

    def read(
        self,
        source: Source,
        selection: Selection,
        out: NDArray[Any],
        limit: int | None = None,
    ) -> bool:
        """Read a selection into `out`; False if it is declined or something is wrong.

        Parameters
        ----------
        source
            The array, with the options of this read.
        selection
            What to read.
        out
            Host array of the selection's shape, or of that of a selection of which it
            is a part: of several arrays, each writes its elements to one output.
        limit
            Largest number of inner chunks that is not declined, if that is fewer.
        """
        chain = self._chain.into(out.dtype)
        on_grid = None if chain is None else lay_over(selection, self._grid, out, limit)
        if chain is None or on_grid is None:
            return False
        planned = self._planned._replace(target=address_of(out))
        boxes, strides, _ = on_grid.plan(
            self._loops.compiled, planned, np.array(_ONE_SHARD)
        )
        root = self._files.store.open_root()
        if root is None:
            return False
        placer = BoxPlacer(chain, self._loops, strides, source.room, out.nbytes)
        new, n_wanted = None, len(boxes)
        if source.chunks is not None:
            key = on_grid.entry if isinstance(on_grid, Mesh) else None
            each_us = _OPEN_US + chain.chunk_us
            weight = short_weight(source, on_grid, key, each_us, out.size)
            boxes = self._not_kept(source, placer, boxes, weight, root)
            if not len(boxes):
                return True
            new = new_files(source, boxes, n_wanted, weight)
        opening = self._files.opening(root, len(boxes))
        if new is not None:
            opening = opening._replace(opener=new.told(opening.opener))
        is_placed = self._read(source, placer, boxes, opening)
        if new is not None:
            new.keep(is_placed, opening.missing)
        if is_placed.all():
            return True
        is_all = len(boxes) == n_wanted and fills(selection, out)
        whole = out if is_all else None
        return self._fill(source, placer, boxes, is_placed, opening.missing, whole)

    def _not_kept(
        self,
        source: Source,
        placer: BoxPlacer,
        boxes: Ints,
        weight: int | None,
        root: FileHandle,
    ) -> Ints:
        """The boxes that are left once those of kept inner chunks are placed."""
        kept = kept_files(source, boxes, weight)
        if kept is None:
            return boxes
        opening = self._files.opening(root, len(kept.boxes))
        is_placed = self._run(source, placer, kept.boxes, kept.told(opening.opener))
        kept.drop_changed(is_placed)
        is_left = ~kept.is_kept
        is_left[kept.is_kept] = ~is_placed
        return boxes[is_left]

    def _fill(
        self,
        source: Source,
        placer: BoxPlacer,
        boxes: Ints,
        is_placed: Bools,
        missing: Bools,
        whole: NDArray[Any] | None,
    ) -> bool:
        """Whether all boxes that are not placed are missing, and could be filled.

        `whole` is the output if nothing but the boxes goes there, otherwise None.
        """
        is_left = ~is_placed
        if not missing[is_left].all() or self._files.store.open_root() is None:
            return False
        if whole is not None and is_left.all():
            whole[...] = source.layout.fill_value
            return True
        left = boxes[is_left]
        left[:, [SOURCE, LOW, HIGH]] = 0
        left[:, NBYTES], left[:, FILE] = self._chain.chunk_nbytes, FILLED
        # This object holds the memory: the loops have only its address.
        fill = fill_for(left, source, None, placer.spanned_nbytes)
        return fill is not None and bool(placer.run(left).all())

    def _read(
        self, source: Source, placer: BoxPlacer, boxes: Ints, opening: Opening
    ) -> Bools:
        """Read boxes: bool, shape (n_boxes,), whether each was placed.

        If files are slow, those after the first few are not read.
        """
        n_boxes = len(boxes)
        until_s, were_slow = self._trial
        if n_boxes <= 2 * N_TRIED or (monotonic() < until_s and not were_slow):
            return self._run(source, placer, boxes, opening.opener)
        is_placed = np.zeros(n_boxes, np.bool_)
        if monotonic() < until_s:
            return is_placed
        entry = boxes[:, ENTRY]
        cut = int(entry.searchsorted(entry[N_TRIED - 1], "right"))  # between files
        beginning = Beginning.now()
        is_placed[:cut] = self._run(source, placer, boxes[:cut], opening.opener)
        waited_s = beginning.waited_s(N_TRIED)
        were_slow = are_slow(waited_s, N_TRIED, self._chain.chunk_us)
        self._trial = _Trial(monotonic() + _TRUSTED_FOR_S, were_slow)
        if not were_slow:
            rest = opening.behind(cut)
            is_placed[cut:] = self._run(source, placer, boxes[cut:], rest)
        return is_placed

    def _run(
        self, source: Source, placer: BoxPlacer, boxes: Ints, opener: Opener
    ) -> Bools:
        """Read boxes, all of them kept or none, in as many threads as are worth it."""
        n_boxes, nbytes = len(boxes), self._chain.chunk_nbytes
        each_us = _OPEN_US + self._chain.chunk_us
        if n_boxes and boxes.item(0, FILE) == FILLED:
            each_us = _LOOK_US + nbytes / _COPIED_IN_US
        work_us = n_boxes * each_us
        n_tasks = n_sharing(source, work_us, n_boxes)
        window = window_nbytes(source.options, self._files.most_nbytes)
        if n_tasks == 1 and work_us <= _ONE_CALL_US:
            shares = Shares(np.array([0, n_boxes]), n_boxes)
            return placer.run(boxes, window, shares, opener)
        shares = Shares.of(boxes, nbytes, n_tasks, most=MOST_AT_ONCE)
        run = partial(placer.run, boxes, window, shares, opener)
        run_tasks(shares.tasks(run), n_tasks)
        return shares.is_placed


def short_unsharded_reader(
    source: Source, chain: FusedChain, loops: LinkedLoops
) -> ShortUnshardedReader | None:
    """What reads small selections of an unsharded array; None if none are for it."""
    files = chain.object_files
    is_regular = all(axis.boundaries is None for axis in source.layout.axes)
    if files is None or not is_regular or not fits_memory(source, files):
        return None
    return ShortUnshardedReader(source, files, chain, loops)
