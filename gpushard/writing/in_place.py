"""Shards changed where they lie: written so that a torn write is told, and undone.

A change is noted before it starts: how long the file was, and the bytes that are going
to be overwritten. The index is written last, and where bytes that it points to are
overwritten its checksum is spoiled first; so a shard whose index verifies is a shard
that was published, and any other can be brought back from the note.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

import numpy as np

from gpushard.errors import CorruptShardError
from gpushard.stores.files import LockedFile, sync_directory
from gpushard.writing.shard import Bytes

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Patch:
    """What is written into a file, and where.

    Attributes
    ----------
    old_nbytes
        Size of the file; None where there is none.
    index_offset, index
        The new index, written last.
    payloads
        Inner chunks, each with its offset.
    spoils
        Bytes that are written before the payloads so that the index does not verify
        while they are, with their offset.
    """

    old_nbytes: int | None
    index_offset: int
    index: Bytes
    payloads: list[tuple[int, Bytes]] = field(default_factory=list[tuple[int, Bytes]])
    spoils: tuple[int, Bytes] | None = None

    def overwritten(self) -> list[tuple[int, int]]:
        """Half-open ranges of the old file that get other bytes."""
        pieces = [*self.payloads, (self.index_offset, self.index)]
        if self.spoils is not None:
            pieces.append(self.spoils)
        old_nbytes = self.old_nbytes or 0
        ends = [(at, min(at + len(piece), old_nbytes)) for at, piece in pieces]
        return [(start, stop) for start, stop in ends if start < stop]


def apply_patch(file: LockedFile, patch: Patch) -> None:
    """Change a file so that at each moment it is old, new, or known to be torn."""
    _note(file, patch)
    fd = os.open(file.path, _FLAGS, 0o666)
    try:
        if patch.old_nbytes is None:
            sync_directory(file.path.parent)
        if patch.spoils is not None:
            _write_at(fd, *patch.spoils)
            os.fsync(fd)
        for offset, payload in patch.payloads:
            _write_at(fd, offset, payload)
        os.fsync(fd)
        _write_at(fd, patch.index_offset, patch.index)
        os.fsync(fd)
    finally:
        os.close(fd)
    file.forget_note()


def spoiled(index: Bytes) -> Bytes:
    """The index with another checksum, which must be its last four bytes."""
    other = index.copy()
    other[-4:] ^= 0xFF
    return other


def recover(file: LockedFile, is_published: Callable[[Bytes], bool]) -> bool:
    """Bring a file back to what it was, if a write in place was cut off.

    Parameters
    ----------
    file
        A shard that no other writer touches meanwhile.
    is_published
        Whether the index of a shard of these bytes verifies.

    Returns
    -------
    bool
        Whether there was something to bring back.

    Raises
    ------
    CorruptShardError
        The note of the write is none that a writer of ours left.
    """
    if not file.undo_path.exists():
        return False
    stored = file.read()
    # A file that verifies was published after the note, or is another writer's.
    if stored is None or is_published(stored):
        file.forget_note()
        return False
    _undo(file, _parsed_note(file, stored))
    file.forget_note()
    return True


def give_up(file: LockedFile, patch: Patch) -> None:
    """Bring a file back after a write to it failed, unless its new index is there."""
    if not file.undo_path.exists():
        return
    stored = file.read()
    if stored is not None:
        index = stored[patch.index_offset : patch.index_offset + len(patch.index)]
        if not np.array_equal(index, patch.index):
            _undo(file, _parsed_note(file, stored))
    file.forget_note()


def verifies(parse: Callable[[Bytes], object], data: Bytes) -> bool:
    """Whether `parse` takes the bytes of a shard."""
    try:
        parse(data)
    except CorruptShardError:
        return False
    return True


def _note(file: LockedFile, patch: Patch) -> None:
    ranges = patch.overwritten()
    pieces: list[tuple[int, str]] = []
    if ranges:
        with file.path.open("rb") as old:
            for start, stop in ranges:
                old.seek(start)
                data = base64.b64encode(old.read(stop - start)).decode()
                pieces.append((start, data))
    note = {"nbytes": patch.old_nbytes, "bytes": pieces}
    file.note([np.frombuffer(json.dumps(note).encode(), np.uint8)])


class _Note(NamedTuple):
    """What a file was: its size, None if it was not there, and bytes by offset."""

    nbytes: int | None
    pieces: list[tuple[int, bytes]]


def _parsed_note(file: LockedFile, stored: Bytes) -> _Note:
    """Note of a write to a file that now holds `stored`."""
    try:
        found = json.loads(file.undo_path.read_bytes())
        nbytes = None if found["nbytes"] is None else index(found["nbytes"])
        pieces = [
            (index(offset), base64.b64decode(data, validate=True))
            for offset, data in found["bytes"]
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _wrong_note(file, str(error) or type(error).__name__) from error
    # All that a file is brought back to lies in it, or in its note.
    reach = len(stored)
    for offset, data in sorted(pieces):
        if 0 <= offset <= reach:
            reach = max(reach, offset + len(data))
        elif nbytes is not None:
            raise _wrong_note(file, f"bytes at {offset}, of {reach} in reach")
    if nbytes is not None and not 0 <= nbytes <= reach:
        raise _wrong_note(file, f"{nbytes} bytes of at most {reach}")
    return _Note(nbytes, pieces)


def _wrong_note(file: LockedFile, got: str) -> CorruptShardError:
    return CorruptShardError(
        "the note of a cut-off write in place is damaged",
        shard_key=file.path.name,
        got=got,
        hint=f"if the shard verifies, delete {file.undo_path.name!r} beside it",
    )


def _undo(file: LockedFile, note: _Note) -> None:
    if note.nbytes is None:
        file.replace(None)
        return
    fd = os.open(file.path, _FLAGS, 0o666)
    try:
        # The index comes last, as when it was written.
        for offset, data in reversed(note.pieces):
            _write_at(fd, offset, np.frombuffer(data, np.uint8))
        os.ftruncate(fd, note.nbytes)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_at(fd: int, offset: int, data: Bytes) -> None:
    view = memoryview(data)
    while len(view):
        n_written = os.pwrite(fd, view, offset)
        view, offset = view[n_written:], offset + n_written
