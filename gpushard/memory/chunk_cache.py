"""Decoded inner chunks kept between reads, under keys that are never used twice.

Room for them is cut into slots of one size, which are made when they are first needed
and used over and over. A slot that somebody reads from, or decodes into, is *held*: no
other inner chunk gets it before all who hold it let go.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.selection import Ints

# Slots begin on a cache line.
_LINE_NBYTES = 64
# Room is made so much at a time: little of it is there in vain, and where there is no
# more memory, what was made is kept.
_SEGMENT_NBYTES = 4 << 20
# Holders that have let go and were not counted off yet.
_MOST_LEFT = 64
# So many keys are looked up together in columns, unless far more are kept, which are
# sorted for it first.
_MANY_KEYS = 512
_MOST_SORTED = 8


# Integers, or int64, shape (n,).
Keys = Sequence[int] | Ints


class _Room:
    """Slots, and by how many each is held.

    Attributes
    ----------
    addresses
        Where each slot begins; 0 at the end, for slot -1, which is none.
    keys
        Key of what each slot has; None: nothing that can be found.
    n_holders
        How many hold each slot.
    is_used
        Whether each was found since the hand came by.
    free
        Slots that have nothing and are not held.
    let_go
        Slots that one holder each has let go, not counted off yet.
    """

    def __init__(self, slot_nbytes: int) -> None:
        self._slot_nbytes = slot_nbytes
        self._per_segment = max(1, _SEGMENT_NBYTES // slot_nbytes)
        self._segments: list[NDArray[np.uint8]] = []
        self._hand = 0
        self.addresses = [0]
        self.keys: list[int | None] = []
        self.n_holders: list[int] = []
        self.is_used: list[bool] = []
        self.free: list[int] = []
        self.let_go: deque[Sequence[int]] = deque()

    def grow(self, n_most: int) -> bool:
        """Make room for some more, `n_most` slots in all; False where there is none.

        Raises
        ------
        MemoryError
            The host has no more memory.
        """
        n_slots = len(self.keys)
        n = min(self._per_segment, n_most - n_slots)
        if n <= 0:
            return False
        segment = np.empty(n * self._slot_nbytes + _LINE_NBYTES, np.uint8)
        address = int(segment.__array_interface__["data"][0])
        to_line = -address % _LINE_NBYTES
        self._segments.append(segment[to_line:])
        first = address + to_line
        made = [first + k * self._slot_nbytes for k in range(n)]
        self.addresses[-1:] = [*made, 0]
        self.n_holders += [0] * n
        self.is_used += [False] * n
        self.keys += [None] * n
        self.free += range(n_slots + n - 1, n_slots - 1, -1)
        return True

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """Memory of a slot: uint8, shape (slot_nbytes,)."""
        nth, k = divmod(slot, self._per_segment)
        first = k * self._slot_nbytes
        return self._segments[nth][first : first + self._slot_nbytes]

    def count_off(self) -> None:
        """Count off holders that let go; slots without a key are free again."""
        while self.let_go:
            for slot in self.let_go.popleft():
                self.n_holders[slot] -= 1
                if not self.n_holders[slot] and self.keys[slot] is None:
                    self.free.append(slot)

    def victims(self, n: int) -> list[int]:
        """`n` slots whose inner chunks are to go; fewer where the rest are held.

        A hand goes round: what was used since it last came by is spared this time. The
        caller holds the slots, and has taken what is free before.
        """
        found: list[int] = []
        n_slots = len(self.keys)
        for _ in range(2 * n_slots):  # after two rounds nothing is spared any more
            if len(found) == n:
                break
            slot = self._hand
            self._hand = (slot + 1) % n_slots
            if self.n_holders[slot]:
                continue
            if self.is_used[slot]:
                self.is_used[slot] = False
            else:
                self.n_holders[slot] = 1
                found.append(slot)
        return found


class Hold:
    """Slots that stay what they are until this object is dropped.

    Attributes
    ----------
    keys
        What they are, or will be, found under.
    slots
        Slot of each key; -1: none.
    taken
        The slots that there are.
    room
        What they are slots of.
    """

    __slots__ = ("keys", "room", "slots", "taken")

    def __init__(self, room: _Room, keys: Keys, slots: Keys) -> None:
        self.room = room
        self.keys = keys
        self.slots = slots
        if isinstance(slots, np.ndarray):
            self.taken: list[int] = slots[slots >= 0].tolist()
        else:
            self.taken = [slot for slot in slots if slot >= 0]

    def __del__(self) -> None:
        # No lock: this may run wherever Python collects garbage, under a lock, too.
        self.room.let_go.append(self.taken)

    @property
    def addresses(self) -> Ints:
        """Where each slot begins in memory: int64, shape (n,); 0: none."""
        addresses = self.room.addresses
        if isinstance(self.slots, np.ndarray):
            return np.array(addresses, np.int64)[self.slots]
        return np.array([addresses[slot] for slot in self.slots], np.int64)

    def bytes_of(self, i: int) -> NDArray[np.uint8]:
        """Memory of the i-th slot: uint8, as long as this object is there."""
        return self.room.bytes_of(int(self.slots[i]))


class ChunkCache:
    """Decoded inner chunks of one array; those not used for long are dropped first.

    Safe for several threads. A forked process begins with an empty one.

    Parameters
    ----------
    limit_nbytes
        Memory for all of them. To find them takes some 200 bytes each beside it.
    chunk_nbytes
        Size of each.

    Attributes
    ----------
    n_most
        How many there is room for.
    chunk_nbytes
        Size of each.
    """

    def __init__(self, limit_nbytes: int, chunk_nbytes: int) -> None:
        self.chunk_nbytes = chunk_nbytes
        self._slot_nbytes = -(-max(chunk_nbytes, 1) // _LINE_NBYTES) * _LINE_NBYTES
        self.n_most = limit_nbytes // self._slot_nbytes
        self.clear()
        _caches.add(self)

    def clear(self) -> None:
        """Drop all inner chunks; what is held stays with its holders."""
        self._lock = threading.Lock()
        self._room = _Room(self._slot_nbytes)
        self._slot_of: dict[int, int] = {}
        self._sorted: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def held_nbytes(self) -> int:
        """Memory that its slots take, in use or free."""
        return len(self._room.keys) * self._slot_nbytes

    @property
    def has_room(self) -> bool:
        """Whether any room is free, or can still be made."""
        with self._lock:
            self._room.count_off()
            return self._n_free > 0

    @property
    def _n_free(self) -> int:
        """How many slots could be had without dropping any; counted off before."""
        return len(self._room.free) + self.n_most - len(self._room.keys)

    def find(self, keys: Keys) -> Hold:
        """Slots of those inner chunks that are kept."""
        with self._lock:
            room = self._room
            if len(room.let_go) > _MOST_LEFT:
                room.count_off()
            hold = Hold(room, keys, self._slots(keys))
            n_holders, is_used = room.n_holders, room.is_used
            for slot in hold.taken:
                n_holders[slot] += 1
                is_used[slot] = True
            return hold

    def _slots(self, keys: Keys) -> Keys:
        """Slot of each key; -1: none."""
        n_kept = len(self._slot_of)
        if len(keys) < _MANY_KEYS or n_kept > _MOST_SORTED * len(keys):
            get = self._slot_of.get
            return [get(key, -1) for key in _listed(keys)]
        if not n_kept:
            return np.full(len(keys), -1)
        if self._sorted is None:
            kept = np.fromiter(self._slot_of, np.int64, n_kept)
            slots = np.fromiter(self._slot_of.values(), np.int64, n_kept)
            order = kept.argsort()
            self._sorted = kept[order], slots[order]
        kept, slots = self._sorted
        at = np.minimum(kept.searchsorted(keys), n_kept - 1)
        return np.where(kept[at] == keys, slots[at], -1)

    def claim(self, keys: Keys, *, may_drop: bool = True) -> Hold:
        """Slots for inner chunks to be decoded into, to be found once `keep` is called.

        No slot has a key that is negative, kept already, or stood before in `keys`, or
        for which there is no room.

        Parameters
        ----------
        may_drop
            Whether others are dropped for them; else only room that is free is taken.
        """
        slots = [-1] * len(keys)
        with self._lock:
            self._room.count_off()
            most = len(keys) if may_drop else self._n_free
            first: dict[int, int] = {}
            for i, key in enumerate(_listed(keys) if most else ()):
                if key >= 0 and key not in self._slot_of:
                    first.setdefault(key, i)
                    if len(first) == most:
                        break
            taken = self._take(len(first), may_drop=may_drop)
            for slot, i in zip(taken, first.values(), strict=False):
                slots[i] = slot
            return Hold(self._room, keys, slots)

    def keep(self, hold: Hold, which: Iterable[int] | None = None) -> None:
        """Let claimed slots be found, now that they are written.

        Parameters
        ----------
        which
            Indexes into ``hold.keys`` of those that are; None: all.
        """
        with self._lock:
            if hold.room is not self._room:
                return
            self._sorted = None
            for i in range(len(hold.keys)) if which is None else which:
                key, slot = int(hold.keys[i]), int(hold.slots[i])
                # Of two threads that decode the same, the first keeps its own.
                if slot >= 0 and self._slot_of.setdefault(key, slot) == slot:
                    self._room.keys[slot] = key

    def _take(self, n: int, *, may_drop: bool) -> list[int]:
        """Up to `n` slots that have nothing and that nobody but the caller holds.

        Who let go was counted off before.
        """
        room = self._room
        while len(room.free) < n and self._grow():
            pass
        taken = [room.free.pop() for _ in range(min(n, len(room.free)))]
        for slot in taken:
            room.n_holders[slot] = 1
        if may_drop and len(taken) < n:
            self._sorted = None
            for slot in room.victims(n - len(taken)):
                key = room.keys[slot]
                if key is not None:
                    del self._slot_of[key]
                room.keys[slot] = None
                taken.append(slot)
        return taken

    def _grow(self) -> bool:
        try:
            return self._room.grow(self.n_most)
        except MemoryError:
            self.n_most = len(self._room.keys)
            return False


def _listed(keys: Keys) -> Sequence[int]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


_caches: WeakSet[ChunkCache] = WeakSet()


def _clear_all() -> None:
    """Let a forked process begin with nothing: threads that it lacks had locks."""
    for cache in _caches:
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_all)
