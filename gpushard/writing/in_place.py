"""Shards changed in place, so that a torn write is detected and undone.

Before a change, a note records the length of the file and the bytes that will be
overwritten. The index is written last. If bytes that the index points to are
overwritten, its checksum is spoiled first. So a shard whose index verifies was
published, and any other shard can be restored from the note. Restoring uses the same
order, the index last.

A note consists of a head (`_HEAD`), the byte ranges (offset and size, each an int64)
and their bytes. The bytes are copied from file to file, so a note takes 16 bytes of
memory per range, whatever the size of the ranges.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpushard.errors import CorruptShardError
from gpushard.selecting.selection import Ints
from gpushard.stores.local.file_bytes import Bytes, FileBytes
from gpushard.stores.local.handles import MOST_AT_ONCE_NBYTES
from gpushard.stores.local.locked_file import LockedFile

_HEAD = struct.Struct("<8sqq")
"""Magic number, size of the file (-1 if there was none), number of byte ranges."""
_MAGIC = b"gsundo\x01\n"
_RANGE_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes to write into a file, and their offsets.

    Attributes
    ----------
    old_nbytes
        Size of the file; None if there is no file.
    index_offset, index
        The new index, written last.
    payloads
        Inner chunks, each with its offset.
    spoils
        Bytes, with their offset, that are written before the payloads so that the index
        does not verify meanwhile.
    """

    old_nbytes: int | None
    index_offset: int
    index: Bytes
    payloads: list[tuple[int, Bytes]] = field(default_factory=list[tuple[int, Bytes]])
    spoils: tuple[int, Bytes] | None = None

    def overwritten(self) -> list[tuple[int, int]]:
        """Half-open ranges of the old file that are overwritten, the index last.

        The bytes that spoil an index are within its range.
        """
        pieces = [*self.payloads, (self.index_offset, self.index)]
        old_nbytes = self.old_nbytes or 0
        ends = [(at, min(at + len(piece), old_nbytes)) for at, piece in pieces]
        return [(start, stop) for start, stop in ends if start < stop]


def apply_patch(file: LockedFile, patch: Patch) -> None:
    """Change a file so that at each moment it is old, new, or detectably torn."""
    _note(file, patch)
    with _opened_to_change(file) as fd:
        if patch.old_nbytes is None:
            file.directory.sync()
        if patch.spoils is not None:
            _write_at(fd, *patch.spoils)
            os.fsync(fd)
        for offset, payload in patch.payloads:
            _write_at(fd, offset, payload)
        os.fsync(fd)
        _write_at(fd, patch.index_offset, patch.index)
        os.fsync(fd)
    file.forget_note()


@contextmanager
def _opened_to_change(file: LockedFile) -> Generator[int]:
    """The file, which was noted; without a descriptor for it, no note is left.

    `give_up` would need two. Once others have changed the shard, damage to it would
    pass for a write that was cut off, and the note would bring back what was there now.
    """
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(file.opened_to_change())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                file.forget_note()
            raise
        yield fd


def spoiled(index: Bytes) -> Bytes:
    """The index with a wrong checksum; the checksum must be its last four bytes."""
    other = index.copy()
    other[-4:] ^= 0xFF
    return other


def recover(
    file: LockedFile, is_published: Callable[[FileBytes], bool], n_entries: int
) -> bool:
    """Restore a file to its last published state, if a write in place was cut off.

    No other writer may change the shard meanwhile. `is_published` says whether the
    index of a shard of these bytes verifies. No write overwrites more ranges than the
    index has entries, and the index. Returns whether there was something to restore.
    """
    with file.opened_note() as noted, file.opened() as stored:
        if noted is None:
            return False
        # A file that verifies was published after the note, or comes from another
        # library.
        is_torn = stored is not None and not is_published(stored)
        if stored is not None and is_torn:
            _undo(file, _parsed_note(file, noted, len(stored), n_entries + 1))
    file.forget_note()
    return is_torn


def give_up(file: LockedFile, patch: Patch) -> None:
    """Restore a file after a failed write, unless its new index is already written."""
    with file.opened_note() as noted, file.opened() as stored:
        if noted is None:
            return
        if stored is not None:
            stop = patch.index_offset + len(patch.index)
            if not np.array_equal(stored[patch.index_offset : stop], patch.index):
                most_ranges = len(patch.payloads) + 1
                _undo(file, _parsed_note(file, noted, len(stored), most_ranges))
    file.forget_note()


def verifies(parse: Callable[[FileBytes], object], data: FileBytes) -> bool:
    """Whether `parse` accepts the bytes of a shard."""
    try:
        parse(data)
    except CorruptShardError:
        return False
    return True


def _note(file: LockedFile, patch: Patch) -> None:
    spans = patch.overwritten()
    table = np.array([(start, stop - start) for start, stop in spans], "<i8")
    old_nbytes = -1 if patch.old_nbytes is None else patch.old_nbytes
    head = _HEAD.pack(_MAGIC, old_nbytes, len(spans)) + table.tobytes()
    with file.opened() as old:
        unread = (
            [] if old is None else [old.unread_slice(slice(*span)) for span in spans]
        )
        file.note([np.frombuffer(head, np.uint8), *unread])


class _Note(NamedTuple):
    """The old state of a file: its size, -1 if it did not exist, and bytes by offset.

    The bytes of the ranges are in `data`, one after the other from `first` on.
    """

    nbytes: int
    offset: Ints
    n_bytes: Ints
    data: FileBytes
    first: int

    def put_back(self, fd: int, ranges: slice) -> None:
        """Write the old bytes of some ranges back."""
        start = self.first + np.cumsum(self.n_bytes) - self.n_bytes
        columns = (start, start + self.n_bytes, self.offset)
        for first, last, at in zip(*(c[ranges].tolist() for c in columns), strict=True):
            self.data.unread_slice(slice(first, last)).copy_to(fd, at)


def _parsed_note(
    file: LockedFile, data: FileBytes, stored_nbytes: int, most_ranges: int
) -> _Note:
    """Parsed note of a write to a file that now has `stored_nbytes` bytes."""
    if len(data) < _HEAD.size:
        raise _wrong_note(file, f"{len(data)} bytes")
    magic, nbytes, n_ranges = _HEAD.unpack(data[: _HEAD.size])
    if magic != _MAGIC or not 0 <= n_ranges <= most_ranges:
        raise _wrong_note(file, f"{magic!r} and {n_ranges} of {most_ranges} ranges")
    first = _HEAD.size + n_ranges * _RANGE_NBYTES
    if len(data) < first:
        raise _wrong_note(file, f"{len(data)} bytes for {n_ranges} ranges")
    table = data[_HEAD.size : first].view("<i8").reshape(-1, 2)
    offset, n_bytes = table.T.astype(np.int64)
    note = _Note(nbytes, offset, n_bytes, data, first)
    _refuse_impossible(file, note, stored_nbytes)
    return note


def _refuse_impossible(file: LockedFile, note: _Note, stored_nbytes: int) -> None:
    """Refuse a note unless it and the present file hold all bytes of the old file."""
    n_held = len(note.data) - note.first
    # Each number is bounded before the sum, so that no sum wraps around.
    is_wrong = (note.n_bytes < 0) | (note.n_bytes > n_held) | (note.offset < 0)
    is_wrong |= note.offset > note.nbytes - np.minimum(note.n_bytes, n_held)
    if np.any(is_wrong) or note.nbytes < -1:
        raise _wrong_note(file, f"bytes that no file of {note.nbytes} has")
    if int(note.n_bytes.sum()) != n_held:
        raise _wrong_note(file, f"{n_held} bytes for ranges of {note.n_bytes.sum()}")
    order = np.argsort(note.offset, kind="stable")
    reach = np.maximum.accumulate(
        np.concatenate([[stored_nbytes], (note.offset + note.n_bytes)[order]])
    )
    beyond = np.flatnonzero(note.offset[order] > reach[:-1])
    if len(beyond) or note.nbytes > reach[-1]:
        at = int(note.offset[order][beyond[0]]) if len(beyond) else note.nbytes
        raise _wrong_note(file, f"byte {at}, of {int(reach[-1])} in reach")


def _wrong_note(file: LockedFile, got: str) -> CorruptShardError:
    return CorruptShardError(
        "the note of a cut-off write in place is damaged",
        got=got,
        hint=f"bring {file.undo_name!r} beside the shard back, or write the whole shard"
        " with the strategy 'rewrite'",
    )


def _undo(file: LockedFile, note: _Note) -> None:
    if note.nbytes < 0:
        file.replace(None)
        return
    with file.opened_to_change() as fd:
        # The index comes last, as in the write: if this is interrupted too, a shard
        # whose index verifies is taken to be intact.
        note.put_back(fd, slice(0, -1))
        os.ftruncate(fd, note.nbytes)
        os.fsync(fd)
        note.put_back(fd, slice(-1, None))
        os.fsync(fd)


def _write_at(fd: int, offset: int, data: Bytes) -> None:
    view = memoryview(data)
    while len(view):
        n_written = os.pwrite(fd, view[:MOST_AT_ONCE_NBYTES], offset)
        view, offset = view[n_written:], offset + n_written
