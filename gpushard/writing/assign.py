"""``a[selection] = value``: the conductor of a write, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from numpy.typing import NDArray

from gpushard.devices.base import Device
from gpushard.devices.output import tells_memory
from gpushard.errors import GpushardError, OptionError
from gpushard.options import MIB
from gpushard.reading.whole import beyond_limit, largest_object
from gpushard.selecting.selection import (
    Listed,
    Orthogonal,
    ParsedSelection,
    Selection,
    with_columns,
)
from gpushard.source import Source
from gpushard.stores.local.file_bytes import Bytes, FileBytes, Pieces
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.spool import Spool
from gpushard.stores.local.visits import Visit
from gpushard.stores.writers import Writer, writer_of
from gpushard.threads.workers import run_tasks
from gpushard.writing.changes import Change
from gpushard.writing.encode import SPOOLED_SHARE, Encoder
from gpushard.writing.in_place import (
    Patch,
    apply_patch,
    give_up,
    recover,
    verifies,
)
from gpushard.writing.listed import can_be_cut, listed_cells, n_columns_at_once
from gpushard.writing.masked import masked_cells
from gpushard.writing.on_device import DeviceValues, values_on_device
from gpushard.writing.regions import Box, Cell, Part, part_of
from gpushard.writing.shard import Region, StoredShard
from gpushard.writing.strategies import ShardUpdate, patch_of, refuse_unsuitable
from gpushard.writing.together import groups, n_together, whole_objects
from gpushard.writing.values import fitting_values
from gpushard.writing.whole_cells import WholeCells

# During a write a shard is held in its old, its new and its encoded form.
_COPIES = 3
# With codecs around it, it is joined and encoded once more, and zarr copies the result.
_WRAPPED_COPIES = 6
# Decoded bytes of shards that more threads than there are CPUs write at once, where a
# write waits: for a server, or for a disk, which makes several durable in the time of
# one.
_WAITING_NBYTES = 16 * MIB


def assign(
    source: Source,
    selection: ParsedSelection,
    value: Any,
    writer: Writer | None = None,
    device: Device | None = None,
) -> None:
    """Write `value` to the elements that `selection` selects.

    `value` is anything that NumPy can broadcast to the selection's shape, or an array
    on a device with a method `get`, such as CuPy's. A `device` encodes values in its
    memory, as far as it can. A `writer` is used instead of the usual one of the store.

    Raises
    ------
    SelectionError
        The value does not fit the selection, or the array's data type.
    UnsupportedError
        The store cannot be written to (safely), or a codec cannot encode.
    OptionError
        The write strategy does not suit the array or the store.
    CorruptShardError
        A shard that is partly written is damaged.
    StoreError
        The store failed. Shards before this one may be written.
    """
    session = WriteSession(source, writer)
    # The host encodes listed elements, wherever their values lie.
    if isinstance(selection, Listed) and can_be_cut(source):
        values = fitting_values(value, selection.shape, source.layout.dtype)
        around = selection.around
        laid = values.reshape(-1) if around is None else around.on_grid(values)
        # Threads hold columns over listed elements, counted for these threads.
        n_threads = n_shards_at_once(source)
        cells = masked_cells(source, selection, n_threads)
        if cells is None:
            n_threads = min(n_threads, n_columns_at_once(source, selection))
            cells = listed_cells(source, selection, n_threads)
        tasks = (
            partial(session.write, cell, Change(part, laid)) for cell, part in cells
        )
    else:
        change = change_of(source, with_columns(selection), value, device)
        is_listed = isinstance(selection, Listed)
        n_threads = n_shards_at_once(source) if is_listed else session.n_at_once
        tasks = session.tasks(change, n_threads)
    run_tasks(tasks, n_threads)


def n_shards_at_once(source: Source) -> int:
    """Shards that threads and the memory limit allow to be written at the same time."""
    n = _held_nbytes(source) // max(1, source.largest_shard_nbytes)
    return max(1, min(source.options.threads, n))


def n_waiting_at_once(source: Source) -> int:
    """The same, or more shards if they are so little that a write is mostly a wait.

    It then waits for the disk or a server, and hardly for a CPU.
    """
    most = min(_WAITING_NBYTES, _held_nbytes(source))
    n = most // max(1, source.largest_shard_nbytes)
    return max(n_shards_at_once(source), min(n, source.store.costs.concurrency))


def _held_nbytes(source: Source) -> int:
    """Decoded bytes of the shards that fit the memory limit, with their copies."""
    n_copies = _WRAPPED_COPIES if source.layout.object_codecs else _COPIES
    return source.options.memory_limit // n_copies


def change_of(
    source: Source, selection: Selection, value: Any, device: Device | None
) -> Change:
    """The change to make; values stay on `device` if it encodes them."""

    def on_host() -> tuple[Part, NDArray[Any]]:
        dtype = source.layout.dtype
        return part_of(selection, fitting_values(value, selection.shape, dtype))

    lies_there = tells_memory(value)
    if device is not None and lies_there and isinstance(selection, Orthogonal):
        values = values_on_device(
            source, selection, value, device, lambda: on_host()[1]
        )
        if values is not None:
            return Change(Box(selection.axes), values)
    return Change(*on_host())


class WriteSession:
    """Write access to one array."""

    def __init__(self, source: Source, writer: Writer | None = None) -> None:
        self.source = source
        self.encoder = Encoder(source)
        strategy = source.options.write.strategy
        # Without the order that syncing keeps, a note could not undo a write in place.
        is_durable = source.options.write.durable or strategy != "rewrite"
        self.writer: Writer = writer or writer_of(source.store, is_durable=is_durable)
        refuse_unsuitable(self.encoder)
        if strategy != "rewrite" and not isinstance(self.writer, FileWriter):
            raise OptionError(
                f"the write strategy {strategy!r} changes files in place",
                expected="an array in a local directory",
                got=source.store.url,
                hint="write with 'rewrite'",
            )

    @property
    def n_at_once(self) -> int:
        """Objects that are written at the same time."""
        if isinstance(self.writer, FileWriter) and not self.writer.is_durable:
            # Nothing is waited for. More threads would only take turns.
            return n_shards_at_once(self.source)
        return n_waiting_at_once(self.source)

    def tasks(self, change: Change, n_threads: int) -> Iterator[Callable[[], None]]:
        """Tasks for so many threads that together make a change to the array."""
        writer, values = self.writer, change.values
        if not isinstance(writer, FileWriter):
            for cell, part in change.part.cells(self.source.layout.axes):
                yield partial(self.write, cell, Change(part, values))
            return
        whole, rest = whole_objects(self.source, change)
        if whole is not None and not isinstance(values, DeviceValues):
            n = n_together(self.source, whole.n_cells, n_threads)
            for start in range(0, whole.n_cells, n):
                stop = min(start + n, whole.n_cells)
                yield partial(self._write_whole, writer, whole, values, start, stop)
        for cells in groups(self.source, rest, n_threads):
            yield partial(self._write_all, writer, cells, values)

    def write(
        self, coordinate: Cell, change: Change, visit: Visit | None = None
    ) -> None:
        """Write to one stored object, with others of a `visit` to files."""
        key = self.source.key(coordinate)
        region = Region.of_object(self.source, coordinate)
        is_whole = change.part.covers(region.extents)
        try:
            if isinstance(self.writer, FileWriter):
                locked = (visit or self.writer).locked
                with locked(key) as file:
                    self._write_file(file, region, change, is_whole=is_whole)
            elif is_whole:
                self.writer.put(key, self.encoder.object_pieces(region, None, change))
            else:
                update = partial(self._update, region, change)
                self.writer.update(key, update, self.source.options.max_chunk_nbytes)
        except GpushardError as error:
            error.add_context(shard_key=key)
            raise
        finally:
            self.source.indexes.drop_shard(coordinate)

    def _write_all(
        self,
        writer: FileWriter,
        cells: Sequence[tuple[Cell, Part]],
        values: NDArray[Any] | DeviceValues,
    ) -> None:
        """Write to some files, one after the other."""
        with writer.visit(names_later=not self.source.layout.levels) as visit:
            for cell, part in cells:
                self.write(cell, Change(part, values), visit)

    def _write_whole(
        self,
        writer: FileWriter,
        whole: WholeCells,
        values: NDArray[Any],
        start: int,
        stop: int,
    ) -> None:
        """Replace files of one inner chunk each, which are encoded together."""
        cells = whole.coordinates(start, stop)
        coordinates = [*map(tuple, cells.T.tolist())]
        try:
            encoded = self.encoder.whole_objects(whole, cells, values)
        except GpushardError as error:
            if len(coordinates) == 1:
                error.add_context(shard_key=self.source.key(coordinates[0]))
                raise
        else:
            with writer.visit(names_later=True) as visit:
                for coordinate, data in zip(coordinates, encoded, strict=True):
                    self._replace(coordinate, data, visit)
            return
        # The error does not say which of them it is about.
        for i in range(start, stop):
            self._write_whole(writer, whole, values, i, i + 1)

    def _replace(self, coordinate: Cell, data: Bytes | None, visit: Visit) -> None:
        """Replace a file; None deletes it."""
        key = self.source.key(coordinate)
        try:
            with visit.locked(key) as file:
                file.replace(None if data is None else [data])
        except GpushardError as error:
            error.add_context(shard_key=key)
            raise
        finally:
            self.source.indexes.drop_shard(coordinate)

    def recover(self, file: LockedFile, region: Region) -> bool:
        """Undo an interrupted write in place; returns whether there was one."""
        parse = partial(StoredShard.parse, region)
        return recover(file, partial(verifies, parse), region.n_entries)

    def _write_file(
        self, file: LockedFile, region: Region, change: Change, *, is_whole: bool
    ) -> None:
        # What replaces the whole file needs nothing of it, nor a note that is intact.
        replaces = is_whole and self.source.options.write.strategy == "rewrite"
        if self.source.layout.levels and not replaces and file.has_note():
            self.recover(file, region)
        # Only the index and the changed inner chunks are read.
        with (
            nullcontext() if is_whole else file.opened() as data,
            self._spooled(file) as spool,
        ):
            if data is not None:
                self._refuse_large(region, len(data))
            patch = self._patch(file, region, data, change)
            if patch is None:
                pieces = self.encoder.object_pieces(region, data, change, spool)
                file.replace(pieces, spool)
        if patch is not None:
            self._patch_file(file, patch)

    def _spooled(self, file: LockedFile) -> AbstractContextManager[Spool | None]:
        """Takes encoded inner chunks if those of a shard need not fit memory."""
        limit = self.source.options.memory_limit
        if _COPIES * self.source.largest_shard_nbytes <= limit:
            return nullcontext()
        return file.spooled(limit // SPOOLED_SHARE)

    def _patch(
        self, file: LockedFile, region: Region, data: FileBytes | None, change: Change
    ) -> Patch | None:
        """How a file is changed in place; None if it is to be replaced."""
        if self.source.options.write.strategy == "rewrite":
            return None
        shard = None if data is None else StoredShard.parse(region, data)
        update = ShardUpdate(self.encoder, region, file.nbytes(), shard, change)
        return patch_of(update)

    def _refuse_large(self, region: Region, nbytes: int) -> None:
        """Refuse an object of `nbytes` that has to be decoded as a whole."""
        source = self.source
        if source.layout.levels and not source.layout.object_codecs:
            return
        source.room.refuse_large(in_part=False)
        limit = largest_object(source, region.coordinate)
        if nbytes > limit:
            hint = "the object is damaged: write all of it again"
            raise beyond_limit(source, limit, nbytes, hint)

    def _patch_file(self, file: LockedFile, patch: Patch) -> None:
        """Change a file in place, or leave it as it was."""
        try:
            apply_patch(file, patch)
        except (Exception, KeyboardInterrupt, SystemExit):
            # Undoing needs no disk space. If it fails too, `repair` can use the note
            # later. A signal handler may raise any exception at any point.
            with suppress(OSError):
                give_up(file, patch)
            raise

    def _update(
        self, region: Region, change: Change, stored: Bytes | None
    ) -> Pieces | None:
        """New bytes of an object in memory, of which several may be held."""
        if stored is not None:
            self._refuse_large(region, len(stored))
            if len(stored) > self.source.options.max_chunk_nbytes:
                what = "an object that has to be held to be written to in part"
                raise self.source.room.too_large(what, len(stored))
        pieces = self.encoder.object_pieces(region, stored, change)
        is_deleted = pieces is None and stored is not None
        if is_deleted and not self.writer.deletes_in_updates:
            return self.encoder.empty_object(region)
        return pieces
