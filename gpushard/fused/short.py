"""The short path in compiled loops: up to a thousand inner chunks in local files.

This is for larger reads than `gpushard.reading.small`. The loops lay the selection over
the grid, look it up in the indexes, read, decode and place. Python handles one shard at
a time, and smaller parts only as elements of an index array. All other reads are
declined. So is damage, which the general path then describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, ObjectChangedError
from gpushard.fetching.fetch import fetch_indexes, known_index
from gpushard.fetching.gone import deleted
from gpushard.fetching.index_room import are_many
from gpushard.fused.chain import FusedChain, fused_chain
from gpushard.fused.choice import loaded_loops, note_small_read
from gpushard.fused.columns import END, FILE, FILLED, RAW
from gpushard.fused.direct import shard_row
from gpushard.fused.files import (
    announce,
    spanned_nbytes,
    store_of_files,
    widest_nbytes,
    window_nbytes,
)
from gpushard.fused.filling import fill_for, little_fill
from gpushard.fused.kept import CacheUse, cache_use, kept_boxes
from gpushard.fused.laid import Boxes, Coordinate, Mesh, Scattered, grid_of, laid
from gpushard.fused.one_call import OneCall, may_call, one_call
from gpushard.fused.room import address_of
from gpushard.fused.runner import BoxPlacer, Loops
from gpushard.fused.shares import Shares
from gpushard.memory.known import KnownIndex
from gpushard.placing.outputs import LARGE_NBYTES
from gpushard.planning.index import PRESENT
from gpushard.report import Tally
from gpushard.selecting.selection import Selection
from gpushard.source import Source
from gpushard.stores.handles import Handle, is_in_memory
from gpushard.stores.local import LocalStore
from gpushard.workers import run_tasks

_FINDING, _IN_FILES = "short way", "chain in files"
# Passing a share to another thread takes 0.1 ms, or 0.2 ms if other work has displaced
# the thread's caches. A share takes at least this long.
_SHARE_US = 400


class ShortReader:
    """Reads small selections of one array.

    Parameters
    ----------
    source, store
        The array, and its store.
    chain, loops
        Its encoding, and the loops that decode it.
    """

    def __init__(
        self, source: Source, store: LocalStore, chain: FusedChain, loops: Loops
    ) -> None:
        self._store = store
        self._chain = chain
        self._loops = loops
        self._dtype = source.layout.dtype
        self._grid = grid_of(source.layout, chain.strides)
        # This object holds the memory: the loops have only its address.
        self._fill = little_fill(source, chain.chunk_nbytes)
        self._planned = loops.planned(source, chain, address_of(self._fill), 0)
        self._call = one_call(source, chain, loops)

    def read(self, source: Source, selection: Selection, out: NDArray[Any]) -> bool:
        """Read a selection into `out`; False if it is declined or something is wrong.

        Parameters
        ----------
        source
            The array, with the options of this read.
        selection
            What to read.
        out
            Host array of the selection's shape.

        Raises
        ------
        ObjectChangedError
            A shard was replaced twice, or was deleted, after its index was read.
        StoreError
            The store failed.
        """
        is_cast = out.dtype != self._dtype or not out.dtype.isnative
        wanted = None if is_cast else laid(selection, self._grid, out)
        if wanted is None:
            return False
        try:
            return self._read(source, wanted, out)
        except ObjectChangedError as error:
            for coordinate in wanted.shards:
                source.indexes.drop_shard(coordinate)
            return self._read(source, wanted, out, seen=error.shard_key)

    def _read(
        self,
        source: Source,
        wanted: Mesh | Scattered,
        out: NDArray[Any],
        seen: str | None = None,
    ) -> bool:
        keys = [source.key(c) for c in wanted.shards]
        known = self._indexes(source, wanted.shards, keys)
        if known is None:
            return False
        for index, key in zip(known, keys, strict=True):
            if index is None and key == seen:
                raise deleted(source, key)
        handles = [
            None if index is None else self._store.open_file(key, index.version)
            for index, key in zip(known, keys, strict=True)
        ]
        rows = np.array(
            [shard_row(k, h) for k, h in zip(known, handles, strict=True)], np.int64
        )
        planned = self._planned._replace(target=address_of(out))
        use = cache_use(source, wanted, known[0])
        call = self._call_for(source, wanted, out.nbytes, use)
        if call is not None and isinstance(wanted, Mesh):
            is_near = not _waits(known[0], handles[0], wanted.entry)
            if is_near and call.read_axes(planned, wanted, rows):
                self._confirm(handles)
                return True
        boxes = wanted.plan(self._loops.compiled, planned, rows)
        if len(boxes.columns) != boxes.n_wanted:
            return False
        columns = boxes.columns
        fill = fill_for(columns, source, self._fill)
        if fill is None and (columns[:, FILE] == FILLED).any():
            return False
        ends, n_wanted = rows[:, END], len(columns)
        kept = kept_boxes(source, columns, known, ends, n_wanted, use)
        is_read = self._place(source, boxes, out.nbytes)
        if kept is None or not kept.is_all_found:
            self._confirm(handles)
        if kept is not None and is_read:
            kept.keep(columns, np.ones(len(columns), np.bool_))
        return is_read

    def _confirm(self, handles: Sequence[Handle | None]) -> None:
        for handle in handles:
            if handle is not None:
                self._store.confirm(handle)

    def _call_for(
        self,
        source: Source,
        wanted: Mesh | Scattered,
        out_nbytes: int,
        use: CacheUse,
    ) -> OneCall | None:
        """What reads all boxes in one call of this thread; None if more is needed."""
        if self._call is None or out_nbytes >= LARGE_NBYTES:
            return None
        if use is not CacheUse.NONE:
            return None
        if isinstance(wanted, Scattered) or not may_call(self._call, source):
            return None
        nbytes = self._chain.chunk_nbytes
        if self._chain.kind == RAW:
            nbytes = wanted.n_inside * self._dtype.itemsize
        return None if self._n_tasks(source, wanted.n_most, nbytes) > 1 else self._call

    def _n_tasks(self, source: Source, n_decoded: int, nbytes: int) -> int:
        """Number of threads that share inner chunks of which `nbytes` are read."""
        n_threads = min(source.options.threads, source.room.most_workers)
        work_us = n_decoded * self._chain.pace.work_us(nbytes)
        return min(int(work_us / _SHARE_US), n_threads, n_decoded)

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
        if are_many(source, len(keys)):
            return None
        found = fetch_indexes(source, np.array(coordinates, np.int64), Tally())
        sound = [k for k in found if not isinstance(k, CorruptShardError)]
        return sound if len(sound) == len(found) else None

    def _place(self, source: Source, planned: Boxes, out_nbytes: int) -> bool:
        """Whether the loops could read, decode and place all boxes."""
        boxes = planned.columns
        announce(boxes)
        placer = BoxPlacer(
            self._chain, self._loops, planned.strides, source.room, out_nbytes
        )
        widest = widest_nbytes(boxes)
        is_raw = self._chain.kind == RAW
        spanned = spanned_nbytes(boxes) if is_raw else widest
        if spanned > source.room.most_window_nbytes:
            return False
        window = window_nbytes(source.options, spanned)
        nbytes = widest if is_raw else self._chain.chunk_nbytes
        n_decoded = int(np.count_nonzero(boxes[:, FILE] != FILLED))
        n_tasks = self._n_tasks(source, n_decoded, nbytes)
        if n_tasks <= 1:
            return bool(placer.run(boxes, window).all())
        shares = Shares.of(boxes, self._chain.chunk_nbytes, n_tasks)
        run_tasks(shares.tasks(partial(placer.run, boxes, window, shares)), n_tasks)
        return bool(shares.is_placed.all())


def short_reader(source: Source) -> ShortReader | None:
    """Reader of small selections; None if the loops are not loaded or cannot read."""
    if source.room.is_tight:
        return None
    reader = source.findings.get(_FINDING)
    if reader is None:
        found = chain_of_files(source)
        if found is not None:
            reader = source.findings[_FINDING] = ShortReader(source, *found)
    return None if source.has_large_indexes else reader


def count_small_read(source: Source) -> None:
    """Count a read that the short ways had done, had the loops been loaded."""
    if _IN_FILES not in source.findings:
        source.findings[_IN_FILES] = _in_files(source)
    if source.findings[_IN_FILES] is not None and not source.room.is_tight:
        note_small_read(source.options)


def _waits(known: KnownIndex | None, handle: Handle | None, entry: int) -> bool:
    """Whether an inner chunk has to be read from the disk, as far as one can tell."""
    if known is None or handle is None or known.index.state.item(entry) != PRESENT:
        return False
    return not is_in_memory(handle.fd, known.index.offset.item(entry))


def chain_of_files(source: Source) -> tuple[LocalStore, FusedChain, Loops] | None:
    """Store, encoding and loops of an array that the loops can read from files.

    None if they cannot plan or read it, or are not loaded.
    """
    # Small reads ask each time, as long as there are no loops.
    if _IN_FILES not in source.findings:
        source.findings[_IN_FILES] = _in_files(source)
    found = source.findings[_IN_FILES]
    if found is None:
        return None
    store, chain = found
    loops = loaded_loops(chain, source.options)
    if loops is None or not loops.read:
        return None
    if chain.chunk_nbytes > source.options.max_chunk_nbytes:
        return None  # other paths check how much of the plain elements is wanted
    return store, chain, loops


def _in_files(source: Source) -> tuple[LocalStore, FusedChain] | None:
    store, chain = store_of_files(source), fused_chain(source)
    return None if store is None or chain is None else (store, chain)
