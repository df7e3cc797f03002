"""The short path in compiled loops: up to a thousand inner chunks in local files.

This is for larger reads than `gpushard.reading.small`. The loops lay the selection over
the grid, look it up in the indexes, read, decode and place. Python handles one shard at
a time, and smaller parts only as elements of an index array. All other reads are
declined. So is damage, which the general path then describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, ObjectChangedError
from gpushard.fetching.fetch import fetch_indexes, known_index
from gpushard.fetching.gone import deleted
from gpushard.fetching.index_room import are_indexes_many
from gpushard.fused.addresses import address_of
from gpushard.fused.chain import FusedChain, plan_parameters
from gpushard.fused.columns import END, FILE, FILLED, RAW
from gpushard.fused.files import (
    announce,
    spanned_nbytes,
    starts_on_disk,
    widest_nbytes,
    window_nbytes,
)
from gpushard.fused.filling import fill_for, little_fill
from gpushard.fused.kept_chunks import hold_chunks, key_in, short_weight
from gpushard.fused.meshes import (
    Mesh,
    ScatteredPoints,
    grid_of,
    lay_over,
)
from gpushard.fused.placer import BoxPlacer, LinkedLoops
from gpushard.fused.sharded import shard_row
from gpushard.fused.shares import Shares, n_sharing
from gpushard.fused.short.one_call import OneCall
from gpushard.layout import Coordinate
from gpushard.memory.known import KnownIndex
from gpushard.placing.outputs import LARGE_NBYTES
from gpushard.planning.index import PRESENT
from gpushard.report import Tally
from gpushard.selecting.selection import Ints, Selection, fills
from gpushard.source import Source
from gpushard.stores.local.handles import FileHandle, is_in_memory
from gpushard.stores.local.store import LocalStore
from gpushard.threads.workers import run_tasks


class _OpenShards(NamedTuple):
    """Shards of a selection: their indexes, their files, and their rows for the loops.

    The index and the file of a missing shard are None. The rows are int64, of shape
    (n_shards, SHARD_COLUMNS); see `columns.OFFSETS`.
    """

    known: Sequence[KnownIndex | None]
    handles: Sequence[FileHandle | None]
    rows: Ints


class ShortShardedReader:
    """Reads small selections of one array.

    Parameters
    ----------
    source, store
        The array, and its store.
    chain, loops
        Its encoding, and the loops that decode it.
    call
        What reads boxes in one call; None if memory is too short for that.

    Attributes
    ----------
    n_few
        Python reads up to so many little inner chunks as fast.
    """

    n_few = 1

    def __init__(
        self,
        source: Source,
        store: LocalStore,
        chain: FusedChain,
        loops: LinkedLoops,
        call: OneCall | None,
    ) -> None:
        self._store = store
        self._chain = chain
        self._loops = loops
        self._grid = grid_of(source.layout, chain.strides)
        # This object holds the memory: the loops have only its address.
        self._fill = little_fill(source, chain.chunk_nbytes)
        self._planned = plan_parameters(source, chain, address_of(self._fill))
        self._call = call

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

        Raises
        ------
        ObjectChangedError
            A shard was replaced twice, or was deleted, after its index was read.
        StoreError
            The store failed.
        """
        chain = self._chain.into(out.dtype)
        on_grid = None if chain is None else lay_over(selection, self._grid, out, limit)
        if chain is None or on_grid is None:
            return False
        is_all = fills(selection, out)
        try:
            return self._read(source, chain, on_grid, out, is_all=is_all)
        except ObjectChangedError as error:
            for coordinate in on_grid.shards:
                source.indexes.drop_shard(coordinate)
            seen = error.shard_key
            return self._read(source, chain, on_grid, out, seen, is_all=is_all)

    def _read(
        self,
        source: Source,
        chain: FusedChain,
        on_grid: Mesh | ScatteredPoints,
        out: NDArray[Any],
        seen: str | None = None,
        *,
        is_all: bool,
    ) -> bool:
        """Read once; `seen` is the key of a shard that existed a moment ago.

        `is_all` is whether the selection writes to all elements of the output.
        """
        shards = self._open(source, on_grid, seen)
        if shards is None:
            return False
        if is_all and all(known is None for known in shards.known):
            # A large inner chunk of fill values would be made for this read alone.
            out[...] = source.layout.fill_value
            return True
        first = shards.known[0]
        planned = self._planned._replace(target=address_of(out))
        call = self._call_for(source, chain, on_grid, out.nbytes)
        key = key_in(source, first, on_grid)
        weight = short_weight(source, on_grid, key, chain.chunk_us, out.size)
        is_on_disk = False
        if call is not None and weight is None and isinstance(on_grid, Mesh):
            is_on_disk = _is_on_disk(first, shards.handles[0], on_grid.entry)
            if not is_on_disk and call.read_axes(planned, on_grid, shards.rows):
                self._confirm(shards.handles)
                return True
        boxes, strides, n_wanted = on_grid.plan(
            self._loops.compiled, planned, shards.rows
        )
        if len(boxes) != n_wanted:
            return False
        placer = BoxPlacer(chain, self._loops, strides, source.room, out.nbytes)
        return self._read_boxes(
            source, placer, boxes, shards, weight, is_on_disk=is_on_disk
        )

    def _open(
        self, source: Source, on_grid: Mesh | ScatteredPoints, seen: str | None
    ) -> _OpenShards | None:
        """The shards of a selection; None if an index is damaged, or there are many."""
        keys = [source.key(c) for c in on_grid.shards]
        known = self._indexes(source, on_grid.shards, keys)
        if known is None:
            return None
        for index, key in zip(known, keys, strict=True):
            if index is None and key == seen:
                raise deleted(source, key)
        handles = [
            None if index is None else self._store.open_file(key, index.version)
            for index, key in zip(known, keys, strict=True)
        ]
        rows = [shard_row(k, h) for k, h in zip(known, handles, strict=True)]
        return _OpenShards(known, handles, np.array(rows, np.int64))

    def _read_boxes(
        self,
        source: Source,
        placer: BoxPlacer,
        boxes: Ints,
        shards: _OpenShards,
        weight: int | None,
        *,
        is_on_disk: bool,
    ) -> bool:
        """Whether the loops could place planned boxes, kept inner chunks among them."""
        # Boxes of missing inner chunks have its address, so it is held until the end.
        fill = fill_for(boxes, source, self._fill, placer.spanned_nbytes)
        if fill is None and (boxes[:, FILE] == FILLED).any():
            return False
        ends, n_wanted = shards.rows[:, END], len(boxes)
        holds = hold_chunks(source, boxes, shards.known, ends, n_wanted, weight)
        if holds is not None and holds.are_all_kept:
            return bool(placer.run(boxes).all())
        is_read = self._place(source, placer, boxes, is_on_disk=is_on_disk)
        self._confirm(shards.handles)
        if holds is not None and is_read:
            holds.keep(boxes, np.ones(len(boxes), np.bool_))
        return is_read

    def _confirm(self, handles: Sequence[FileHandle | None]) -> None:
        for handle in handles:
            if handle is not None:
                self._store.confirm(handle)

    def _call_for(
        self,
        source: Source,
        chain: FusedChain,
        wanted: Mesh | ScatteredPoints,
        out_nbytes: int,
    ) -> OneCall | None:
        """What reads all boxes in one call of this thread; None if more is needed."""
        if self._call is None or out_nbytes >= LARGE_NBYTES:
            return None
        # Its words are packed for outputs of the array's data type.
        if isinstance(wanted, ScatteredPoints) or chain is not self._chain:
            return None
        nbytes = chain.chunk_nbytes
        if chain.kind == RAW:
            nbytes = wanted.n_inside * chain.dtype.itemsize
        return None if self._n_tasks(source, wanted.n_most, nbytes) > 1 else self._call

    def _n_tasks(self, source: Source, n_decoded: int, nbytes: int) -> int:
        """Number of threads that share inner chunks of which `nbytes` are read."""
        work_us = n_decoded * self._chain.pace.work_us(nbytes)
        return n_sharing(source, work_us, n_decoded)

    def _indexes(
        self, source: Source, coordinates: Sequence[Coordinate], keys: Sequence[str]
    ) -> Sequence[KnownIndex | None] | None:
        """Index of each shard; None for a shard that is missing.

        None instead of a list if an index is damaged, or if there are so many that the
        read should be divided.
        """
        known = [
            known_index(source, c, key)
            for c, key in zip(coordinates, keys, strict=True)
        ]
        if None not in known:
            return known
        if are_indexes_many(source, len(keys)):
            return None
        found = fetch_indexes(source, np.array(coordinates, np.int64), Tally())
        sound = [k for k in found if not isinstance(k, CorruptShardError)]
        return sound if len(sound) == len(found) else None

    def _place(
        self,
        source: Source,
        placer: BoxPlacer,
        boxes: Ints,
        *,
        is_on_disk: bool,
    ) -> bool:
        """Whether the loops could read, decode and place all boxes.

        `is_on_disk` is whether that was found already. It is not asked again then.
        """
        if is_on_disk or starts_on_disk(boxes):
            announce(boxes)
        chain = placer.chain
        widest = widest_nbytes(boxes)
        is_raw = chain.kind == RAW
        spanned = spanned_nbytes(boxes) if is_raw else widest
        if spanned > source.room.most_window_nbytes:
            return False
        window = window_nbytes(source.options, spanned)
        nbytes = widest if is_raw else chain.chunk_nbytes
        n_decoded = int(np.count_nonzero(boxes[:, FILE] != FILLED))
        n_tasks = self._n_tasks(source, n_decoded, nbytes)
        if n_tasks <= 1:
            return bool(placer.run(boxes, window).all())
        shares = Shares.of(boxes, chain.chunk_nbytes, n_tasks)
        run_tasks(shares.tasks(partial(placer.run, boxes, window, shares)), n_tasks)
        return bool(shares.is_placed.all())


def _is_on_disk(
    known: KnownIndex | None, handle: FileHandle | None, entry: int
) -> bool:
    """Whether an inner chunk has to be read from the disk, as far as one can tell."""
    if known is None or handle is None or known.index.state.item(entry) != PRESENT:
        return False
    return not is_in_memory(handle.fd, known.index.offset.item(entry))
