"""How a stored shard is changed, strategy by strategy.

docs/writing.md says what each strategy promises. "rewrite" replaces every shard; each
of the others plans a `Patch`, or returns None if the shard is to be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import OptionError
from gpushard.planning.index import CORRUPT, PRESENT
from gpushard.write_options import WriteOptions
from gpushard.writing.changes import Change
from gpushard.writing.encode import Encoder
from gpushard.writing.in_place import Patch, spoiled
from gpushard.writing.shard import (
    EMPTY,
    Bytes,
    Region,
    StoredShard,
    blank_entries,
)

# Where an index must lie to be written last, behind or before everything else.
_INDEX_LOCATIONS = {"append_only": "end", "random_write": "start"}


@dataclass(frozen=True)
class ShardUpdate:
    """A shard in a file, and the change to it.

    Attributes
    ----------
    old_nbytes
        Size of the file; None if there is no file.
    stored
        The stored shard; None if there is none, or if all of it is overwritten.
    """

    encoder: Encoder
    region: Region
    old_nbytes: int | None
    stored: StoredShard | None
    change: Change

    def entries(self) -> NDArray[np.uint64]:
        """Entries of the stored index; all missing if the shard is overwritten."""
        if self.stored is None:
            return blank_entries(self.region.n_entries)
        return self.stored.entries()

    def changed(self) -> Iterator[tuple[int, Bytes | None]]:
        """Entry and new bytes of each changed inner chunk; None if now missing."""
        found = self.encoder.changed_payloads(self.region, self.stored, self.change)
        return chain.from_iterable(payloads.items() for payloads in found)


def refuse_unsuitable(encoder: Encoder) -> None:
    """Refuse a strategy that the array's format does not allow.

    Raises
    ------
    OptionError
        The array is not sharded, its index lies at the wrong end or has no checksum,
        or there are codecs around whole shards.
    """
    strategy = encoder.options.strategy
    layout = encoder.source.layout
    if strategy == "rewrite":
        return
    if not layout.levels:
        raise _unsuitable(strategy, "a sharded array", "one without shards")
    if layout.object_codecs:
        names = ", ".join(spec.name for spec in layout.object_codecs)
        raise _unsuitable(strategy, "no codecs around whole shards", names)
    level = layout.levels[0]
    wanted = _INDEX_LOCATIONS.get(strategy, level.index_location)
    if level.index_location != wanted:
        got = f"index_location {level.index_location!r}"
        raise _unsuitable(strategy, f"index_location {wanted!r}", got)
    last = [spec.name for spec in level.index_chain.bytes_bytes[-1:]]
    if last != ["crc32c"]:
        got = last[0] if last else "none"
        raise _unsuitable(strategy, "an index whose last codec is crc32c", got)


def patch_of(update: ShardUpdate) -> Patch | None:
    """How a strategy other than "rewrite" changes the file; None: it is replaced."""
    return _PLANS[update.encoder.options.strategy](update)


def _append_only(update: ShardUpdate) -> Patch | None:
    """New inner chunks behind everything stored, followed by a new index."""
    nbytes = update.old_nbytes
    if nbytes is None:
        return None
    entries = update.entries()
    payloads, end = _appended(update, entries, nbytes)
    index = update.encoder.index_bytes(update.region, entries)
    return Patch(nbytes, end, index, payloads)


def _random_write(update: ShardUpdate) -> Patch | None:
    """New inner chunks behind everything stored; the index at the start comes last."""
    region, old_nbytes = update.region, update.old_nbytes
    if update.stored is not None and _shares_the_index(region, update.stored):
        return None
    entries = update.entries()
    # A damaged shard may be shorter than its index.
    start = max(old_nbytes or 0, region.index_nbytes)
    payloads, end = _appended(update, entries, start)
    if old_nbytes is None and not payloads:
        return None
    if old_nbytes is not None and _is_wasteful(region, entries, end, update.encoder):
        return None
    index = update.encoder.index_bytes(region, entries)
    if old_nbytes is not None:
        return Patch(old_nbytes, 0, index, payloads)
    blank = update.encoder.index_bytes(region, blank_entries(region.n_entries))
    return Patch(None, 0, index, payloads, (0, spoiled(blank)))


def _appended(
    update: ShardUpdate, entries: NDArray[np.uint64], end: int
) -> tuple[list[tuple[int, Bytes]], int]:
    """Changed inner chunks, placed from `end` on, and where they end.

    Sets their ranges in `entries`. Refuses the entry of an unchanged inner chunk that
    leads out of the file: in a longer one it would point to another inner chunk.
    """
    payloads: list[tuple[int, Bytes]] = []
    damaged: set[int] = set()
    if update.stored is not None:
        damaged.update(np.flatnonzero(update.stored.index.state == CORRUPT).tolist())
    for entry, payload in update.changed():
        damaged.discard(entry)
        if payload is None:
            entries[entry] = EMPTY
            continue
        payloads.append((end, payload))
        entries[entry] = end, len(payload)
        end += len(payload)
    if damaged and update.stored is not None:
        update.stored.index.refuse_corrupt(min(damaged))
    return payloads, end


def _fixed_order(update: ShardUpdate) -> Patch | None:
    """New inner chunks in place of the old ones; None if not all of them fit."""
    stored, region = update.stored, update.region
    if stored is None:
        return None
    rooms = _rooms(region, stored)
    if rooms is None:
        return None
    entries = stored.entries()
    payloads: list[tuple[int, Bytes]] = []
    for entry, payload in update.changed():
        if payload is None:
            entries[entry] = EMPTY
            continue
        offset, room = rooms.get(entry, (0, -1))
        if len(payload) > room:
            return None
        payloads.append((offset, payload))
        entries[entry] = offset, len(payload)
    nbytes = len(stored.data)
    if _is_wasteful(region, entries, nbytes, update.encoder):
        return None
    start, stop = region.index_range(nbytes)
    index = update.encoder.index_bytes(region, entries)
    return Patch(
        nbytes, start, index, payloads, (start, spoiled(stored.data[start:stop]))
    )


def _rooms(region: Region, stored: StoredShard) -> dict[int, tuple[int, int]] | None:
    """Offset of each stored inner chunk, and the bytes up to the next one.

    None if inner chunks share bytes with one another or with the index, or if an entry
    is damaged.
    """
    if np.any(stored.index.state == CORRUPT):
        return None
    present = stored.present()
    index_start, index_stop = region.index_range(len(stored.data))
    first, last = 0, index_start
    if region.has_index_at_start:
        first, last = index_stop, len(stored.data)
    starts = [int(stored.index.offset[entry]) for entry in present]
    rooms: dict[int, tuple[int, int]] = {}
    # A shard may exist although all its inner chunks are missing.
    ends = [*starts[1:], last] if starts else []
    for entry, start, behind in zip(present, starts, ends, strict=True):
        room = behind - start
        if start < first or int(stored.index.nbytes[entry]) > room:
            return None
        rooms[entry] = start, room
    return rooms


def _shares_the_index(region: Region, stored: StoredShard) -> bool:
    """Whether an inner chunk overlaps the index at the start of its shard."""
    index = stored.index
    is_there = (index.state == PRESENT) & (index.nbytes > 0)
    return bool(np.any(is_there & (index.offset < region.index_nbytes)))


def _is_wasteful(
    region: Region, entries: NDArray[np.uint64], nbytes: int, encoder: Encoder
) -> bool:
    """Whether more of a file of `nbytes` would be unused than the options allow."""
    used = entries[entries[:, 1] != EMPTY, 1]
    unused = nbytes - int(used.sum()) - region.index_nbytes
    return unused > encoder.options.max_unused_fraction * nbytes


def unused_nbytes(region: Region, stored: StoredShard) -> int:
    """Bytes of a stored shard that neither the index nor an inner chunk uses."""
    present = stored.index.state == PRESENT
    used = int(stored.index.nbytes[present].sum()) + region.index_nbytes
    return max(0, len(stored.data) - used)


_PLANS: dict[str, Callable[[ShardUpdate], Patch | None]] = {
    "append_only": _append_only,
    "random_write": _random_write,
    "fixed_order": _fixed_order,
}


def _unsuitable(strategy: str, expected: str, got: str) -> OptionError:
    return OptionError(
        f"the write strategy {strategy!r} does not suit the array",
        expected=expected,
        got=got,
        hint=f"write with {WriteOptions().strategy!r}, or create the array so",
    )
