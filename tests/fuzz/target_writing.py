"""What a write finds in a directory: nothing that is there makes it lose more.

Input: a byte that chooses what is done and to which shard, then, by its kind,

* the note of a cut-off write in place (`.NAME.undo`) beside a torn shard: it is undone
  just as the note says, or refused and nothing is touched;
* a shard that is written to in part: the new elements are read afterwards and the other
  inner chunks are what they were, or the write is refused and no byte has changed;
* ranges for an index behind a file: just those inside the file are taken.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import google_crc32c
import numpy as np

import gpushard
from fuzz.mutations import damaged
from fuzz.refusals import assert_is_told
from gpushard import GpushardError, Options
from gpushard.errors import CorruptShardError, OptionError
from gpushard.stores.local.locked_file import LockedFile
from gpushard.write_options import WriteOptions
from gpushard.writing.container import append_index

if TYPE_CHECKING:
    import random

NAME = "writing"

_EMPTY = 2**64 - 1
_KEY = np.s_[3:9, 2:7]
_ELEMENTS = np.cumsum(np.arange(256) % 7).astype("<i4").reshape(16, 16)
# Strategy and place of the index; prototype II has one without a checksum at the end.
_PROTOTYPE = ("rewrite", "prototype")
_KINDS = (
    *(("rewrite", "end"), ("rewrite", "start"), _PROTOTYPE, ("append_only", "end")),
    *(("random_write", "start"), ("fixed_order", "end"), ("fixed_order", "start")),
)
_IN_PLACE = _KINDS[3:]
_CODECS = ("zstd", None)
_NOTE, _SHARD, _RANGES = range(3)
_FILE = bytes(range(100))


@dataclass(frozen=True)
class _Torn:
    """A shard in the middle of a write in place, and what undoes that."""

    place: Path
    old: bytes
    torn: bytes
    note: bytes


@cache
def _root() -> Path:
    in_memory = "/dev/shm"  # where waiting for the disk costs nothing
    place = in_memory if Path(in_memory).is_dir() else None
    made = tempfile.TemporaryDirectory(dir=place)
    _kept.append(made)
    return Path(made.name)


_kept: list[Any] = []


@cache
def _place(n: int) -> Path:
    """Directory of an array of one shard of 4 x 4 inner chunks."""
    (strategy, location), compressor = _KINDS[n // 2], _CODECS[n % 2]
    place = _root() / f"a{n}"
    is_older = _KINDS[n // 2] == _PROTOTYPE
    shards = {"shape": (16, 16), "index_location": "end" if is_older else location}
    a = gpushard.create_array(
        place,
        format="v2-prototype-ii" if is_older else "v3",
        shape=(16, 16),
        dtype="i4",
        chunks=(4, 4),
        shards=shards,
        chunk_key_encoding={"name": "v2", "separator": "/"} if is_older else None,
        fill_value=-3,
        compressors="auto" if compressor else None,
        options=_options(strategy),
    )
    a[:12] = _ELEMENTS[:12]
    return place


def _options(strategy: Any) -> Options:
    return Options(threads=1, write=WriteOptions(strategy=strategy))


_N_PLACES = len(_KINDS) * len(_CODECS)


@cache
def _stored(n: int) -> bytes:
    return _shard(n).read_bytes()


def _shard(n: int) -> Path:
    return _place(n) / ("0/0" if _KINDS[n // 2] == _PROTOTYPE else "c/0/0")


@cache
def _torn(n: int) -> _Torn:
    """Array `n` of those written in place, cut off before its index was whole."""
    n += 2 * (len(_KINDS) - len(_IN_PLACE))
    old = _stored(n)
    place = _place(n)
    with mock.patch.object(LockedFile, "forget_note"):
        _opened(n)[_KEY] = -_ELEMENTS[_KEY]
    undo = place / "c/0/.0.undo"
    note = undo.read_bytes()
    undo.unlink()
    new = bytearray((place / "c/0/0").read_bytes())
    new[-1 if _KINDS[n // 2][1] == "end" else 16 * 16 + 3] ^= 0xFF
    (place / "c/0/0").write_bytes(old)
    return _Torn(place, old, bytes(new), note)


def _opened(n: int) -> gpushard.Array:
    return gpushard.open_array(_place(n), options=_options(_KINDS[n // 2][0]))


def seeds() -> list[bytes]:
    n_torn = 2 * len(_IN_PLACE)
    notes = [bytes([3 * n + _NOTE]) + _torn(n).note for n in range(n_torn)]
    shards = [bytes([3 * n + _SHARD]) + _stored(n) for n in range(_N_PLACES)]
    entries = [(0, 10), (_EMPTY, _EMPTY), (100, 0), (90, 11), (2**63, 2**63)]
    ranges = [
        bytes([3 * n + _RANGES]) + b"".join(struct.pack("<2Q", *e) for e in some)
        for n, some in enumerate([entries[:2], entries[:3], entries, [], entries[4:]])
    ]
    return [*notes, *shards, *ranges]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A note with another number, or other bytes."""
    n_words = (len(data) - 1) // 8
    if n_words > 1 and data[0] % 3 == _NOTE and rng.random() < 0.7:
        at = 1 + 8 * min(rng.randrange(1, n_words), rng.randrange(1, n_words))
        (number,) = struct.unpack_from("<q", data, at)
        other = rng.choice((*_NUMBERS, number - 1, number + 1, number + len(data)))
        word = struct.pack("<q", max(-(2**63), min(other, 2**63 - 1)))
        return data[:at] + word + data[at + 8 :]
    return damaged(data, rng)


_NUMBERS = (-1, 0, 1, 3, 16, 260, 1 << 10, 2**40, 2**62, 2**63 - 1)


def check(data: bytes) -> bool:
    if not data:
        return False
    n, kind = divmod(data[0], 3)
    if kind == _NOTE:
        return _undoes(_torn(n % (2 * len(_IN_PLACE))), data[1:])
    if kind == _SHARD:
        return _writes(n % _N_PLACES, data[1:])
    return _appends(data[1:])


def _undoes(torn: _Torn, note: bytes) -> bool:
    shard, undo = torn.place / "c/0/0", torn.place / "c/0/.0.undo"
    shard.write_bytes(torn.torn)
    undo.write_bytes(note)
    try:
        repaired = gpushard.repair(gpushard.open_array(torn.place))
    except GpushardError as error:
        assert_is_told(error, shard_key=...)
        assert shard.read_bytes() == torn.torn
        assert undo.read_bytes() == note
        undo.unlink()
        return False
    assert repaired == ["c/0/0"]
    assert not undo.exists()
    want = _undone(torn.torn, note)
    got = shard.read_bytes() if want is not None else None
    assert got == want
    assert shard.exists() == (want is not None)
    if note == torn.note:
        assert got == torn.old
    return True


def _undone(torn: bytes, note: bytes) -> bytes | None:
    """What a note says that the file was."""
    nbytes, n_ranges = struct.unpack_from("<qq", note, 8)
    if nbytes == -1:
        return None
    out = bytearray(torn)
    first = 24 + 16 * n_ranges
    for offset, size in struct.iter_unpack("<qq", note[24:first]):
        out.extend(bytes(max(0, offset + size - len(out))))
        out[offset : offset + size] = note[first : first + size]
        first += size
    return bytes(out[:nbytes]).ljust(nbytes, b"\0")


def _writes(n: int, stored: bytes) -> bool:
    shard = _shard(n)
    shard.write_bytes(stored)
    a = _opened(n)
    others = [np.s_[12:, :], np.s_[:, 8:], np.s_[0, 0]]
    before = [_outcome(a, key) for key in others]
    value = -_ELEMENTS[_KEY]
    try:
        a[_KEY] = value
    except GpushardError as error:
        assert_is_told(error)
        assert shard.read_bytes() == stored
        assert not list(shard.parent.glob(".*undo"))
        return False
    again = _opened(n)
    assert np.array_equal(again[_KEY], value)
    for key, was in zip(others, before, strict=True):
        now = _outcome(again, key)
        # (0, 0) is in an inner chunk that is read, changed and written anew.
        assert (now is None) == (was is None), key
        assert was is None or np.array_equal(now, was), key
    return True


def _outcome(a: gpushard.Array, key: Any) -> Any:
    try:
        return a[key]
    except CorruptShardError as error:
        assert_is_told(error)
        return None


def _appends(data: bytes) -> bool:
    file = _root() / "file"
    file.write_bytes(_FILE)
    n_entries = len(data) // 16
    entries = np.frombuffer(data, "<u8", 2 * n_entries).reshape(n_entries, 2)
    fits = all(
        (offset, size) == (_EMPTY, _EMPTY) or offset + size <= len(_FILE)
        for offset, size in entries.tolist()
    )
    try:
        nbytes = append_index(file, entries[:, 0], entries[:, 1])
    except OptionError as error:
        assert_is_told(error)
        assert not fits
        assert file.read_bytes() == _FILE
        return False
    assert fits
    index = entries.tobytes()
    index += google_crc32c.value(index).to_bytes(4, "little")
    assert (file.read_bytes(), nbytes) == (_FILE + index, len(index))
    return True
