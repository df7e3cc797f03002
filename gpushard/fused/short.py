"""The short way in compiled loops: a box of some inner chunks in local files.

What `gpushard.small` is for a few inner chunks, for up to a thousand: the axes of the
selection go to the loops as they are, which lay them over the grid, take them through
the indexes, read, decode and place. Python goes from shard to shard, and to nothing
smaller. Declined is whatever else there is; damage too, of which the general way says
what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, ObjectChangedError
from gpushard.fetch import fetch_indexes, known_index
from gpushard.fused.cells import index_stride
from gpushard.fused.chain import FusedChain, fused_chain
from gpushard.fused.choice import are_loaded, loaded_loops
from gpushard.fused.columns import END, FIRST_LENGTH, HIGH, LOW, RAW
from gpushard.fused.direct import announce, shard_row, stored_fill
from gpushard.fused.files import window_nbytes
from gpushard.fused.room import address_of
from gpushard.fused.runner import BoxPlacer, Loops
from gpushard.gone import deleted
from gpushard.job import SMALLEST_SHARE_NBYTES
from gpushard.known import KnownIndex
from gpushard.report import Tally
from gpushard.selection import Ints, Orthogonal, Selection, SliceAxis
from gpushard.source import Source
from gpushard.stores.local import LocalStore, holds_plain_files
from gpushard.workers import run_tasks

# Beyond this, setting up the general way is a hundredth of a read.
_MOST_CHUNKS, _MOST_SHARDS = 1024, 32
_FINDING = "short way"

Coordinate = tuple[int, ...]


class _Box(NamedTuple):
    """A selection of slices, laid over the grid of shards.

    Attributes
    ----------
    axes
        For each axis its columns (`columns.INNER_STEP` and on).
    shards
        Cells of the shard grid that are touched, along each axis.
    n_chunks
        Inner chunks touched.
    """

    axes: list[tuple[int, ...]]
    shards: list[range]
    n_chunks: int


class ShortReader:
    """Reads boxes of one array.

    Parameters
    ----------
    source, store
        The array, and its store.
    chain, loops
        How it is encoded, and what decodes it.
    """

    def __init__(
        self, source: Source, store: LocalStore, chain: FusedChain, loops: Loops
    ) -> None:
        self._store = store
        self._chain = chain
        self._loops = loops
        layout = source.layout
        self._dtype = layout.dtype
        self._grid = [
            (inner.cell, outer.cell // inner.cell, index_stride(layout, axis), stride)
            for axis, (inner, outer, stride) in enumerate(
                zip(layout.inner_axes, layout.axes, chain.strides, strict=True)
            )
        ]
        # Held here: the loops know but the address.
        self._fill = stored_fill(source, chain.chunk_nbytes)
        self._planned = loops.planned(source, chain, address_of(self._fill), 0)

    def read(self, source: Source, selection: Selection, out: NDArray[Any]) -> bool:
        """Read a selection into `out`; False if it is declined or something is wrong.

        Parameters
        ----------
        source
            The array, its options those of this read.
        selection
            What is wanted.
        out
            Host, of the selection's shape.

        Raises
        ------
        ObjectChangedError
            A shard was replaced twice, or is gone, since its index was read.
        StoreError
            The store failed.
        """
        is_cast = out.dtype != self._dtype or not out.dtype.isnative
        if is_cast or not isinstance(selection, Orthogonal):
            return False
        box = self._lay(selection, out)
        if box is None:
            return False
        coordinates = list(product(*box.shards))
        try:
            return self._read(source, box, coordinates, out)
        except ObjectChangedError as error:
            for coordinate in coordinates:
                source.indexes.drop_shard(coordinate)
            return self._read(source, box, coordinates, out, seen=error.shard_key)

    def _lay(self, selection: Orthogonal, out: NDArray[Any]) -> _Box | None:
        """A selection over the grid; None if it is empty, too large, or no box."""
        strides = [s for i, s in enumerate(out.strides) if i not in selection.new_axes]
        strides.reverse()
        axes: list[tuple[int, ...]] = []
        shards: list[range] = []
        n_chunks = 1
        for axis, known in zip(selection.axes, self._grid, strict=True):
            if not isinstance(axis, SliceAxis) or not axis.length:
                return None
            start, step, length, out_start, out_step, drop = axis
            cell, per_shard, _, chunk_stride = known
            stride = 0 if drop else strides.pop()
            first, last = start // cell, (start + (length - 1) * step) // cell
            n_cells = min(last - first + 1, length)
            n_chunks *= n_cells
            touched = range(first // per_shard, last // per_shard + 1)
            if n_chunks > _MOST_CHUNKS or step > per_shard * cell:
                return None  # a step beyond a shard may leave some out
            steps = chunk_stride * step, stride * out_step
            wanted = start, step, length, out_start * stride
            axes.append((*steps, *wanted, *known, n_cells, len(touched)))
            shards.append(touched)
        if prod(map(len, shards)) > _MOST_SHARDS:
            return None
        return _Box(axes, shards, n_chunks)

    def _read(
        self,
        source: Source,
        box: _Box,
        coordinates: Sequence[Coordinate],
        out: NDArray[Any],
        seen: str | None = None,
    ) -> bool:
        keys = [source.key(c) for c in coordinates]
        known = self._indexes(source, coordinates, keys)
        if known is None:
            return False
        for index, key in zip(known, keys, strict=True):
            if index is None and key == seen:
                raise deleted(source, key)
        handles = [
            None if index is None else self._store.open_file(key, index.version)
            for index, key in zip(known, keys, strict=True)
        ]
        axes = np.array(tuple(zip(*box.axes, strict=True)), np.int64)
        strides = axes[:2].reshape(2, 1, -1)
        shards = np.array(
            [shard_row(k, h) for k, h in zip(known, handles, strict=True)], np.int64
        )
        boxes = np.empty((box.n_chunks, FIRST_LENGTH + len(box.axes)), np.int64)
        planned = self._planned._replace(target=address_of(out))
        self._loops.compiled.plan_slices(planned, strides, axes, shards, boxes)
        boxes = boxes[: shards.item(-1, END)]  # fewer, where an index is no help
        is_read = len(boxes) == box.n_chunks and self._place(source, boxes, strides)
        for handle in handles:
            if handle is not None:
                self._store.confirm(handle)
        return is_read

    def _indexes(
        self, source: Source, coordinates: Sequence[Coordinate], keys: Sequence[str]
    ) -> Sequence[KnownIndex | None] | None:
        """Index of each shard, None where it is missing; None if one is damaged."""
        known = [
            known_index(source, c, key)
            for c, key in zip(coordinates, keys, strict=True)
        ]
        if None not in known:
            return known
        found = fetch_indexes(source, np.array(coordinates, np.int64), Tally())
        sound = [k for k in found if not isinstance(k, CorruptShardError)]
        return sound if len(sound) == len(found) else None

    def _place(self, source: Source, boxes: Ints, strides: Ints) -> bool:
        """Whether the loops could read, decode and place all boxes."""
        announce(boxes)
        placer = BoxPlacer(self._chain, self._loops, strides)
        widest = int((boxes[:, HIGH] - boxes[:, LOW]).max())
        window = window_nbytes(source.options, widest)
        nbytes = widest if self._chain.kind == RAW else self._chain.chunk_nbytes
        n_threads = min(source.options.threads, source.most_workers)
        n_tasks = min(len(boxes) * nbytes // SMALLEST_SHARE_NBYTES, n_threads)
        if n_tasks <= 1:
            return bool(placer.run(boxes, window).all())
        placed: list[bool] = []

        def place(first: int, last: int) -> None:
            placed.append(bool(placer.run(boxes[first:last], window).all()))

        cuts = [len(boxes) * k // n_tasks for k in range(n_tasks + 1)]
        run_tasks([partial(place, *cut) for cut in pairwise(cuts)], n_tasks)
        return all(placed)


def short_reader(source: Source) -> ShortReader | None:
    """What reads boxes of an array; None where the loops are not loaded, or cannot."""
    if not are_loaded():
        return None
    reader = source.findings.get(_FINDING)
    if reader is None:
        reader = _reader(source)
        if reader is not None:
            source.findings[_FINDING] = reader
    return None if source.has_large_indexes else reader


def _reader(source: Source) -> ShortReader | None:
    layout, store = source.layout, source.store
    if (
        not holds_plain_files(store)
        or len(layout.levels) != 1
        or layout.object_codecs
        or not layout.ndim
        or any(axis.boundaries is not None for axis in layout.axes)
    ):
        return None
    chain = fused_chain(source)
    loops = None if chain is None else loaded_loops(chain.kind, source.options)
    if chain is None or loops is None or not loops.read:
        return None
    if chain.chunk_nbytes > source.options.max_chunk_nbytes:
        return None  # how much of plain elements is wanted, the other ways tell
    return ShortReader(source, store, chain, loops)
