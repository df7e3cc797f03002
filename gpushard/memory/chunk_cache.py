"""Decoded inner chunks that are kept between reads, under keys that are never reused.

The memory for them is divided into slots of one size, which are made on first use and
then reused. A slot that somebody reads from, or decodes into, is *held*: no other inner
chunk gets it until all holders have let go.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.selection import Ints

# Slots begin on a cache line.
_LINE_NBYTES = 64
# Slots are made in segments of this size: little memory stays unused, and if the system
# has no more, the segments that exist remain.
_SEGMENT_NBYTES = 4 << 20
# The deque of holders that let go is counted off when it is longer than this.
_MOST_LEFT = 64
# From this many keys on, a lookup uses sorted columns. If far more inner chunks are
# kept, sorting them costs too much.
_MANY_KEYS = 512
_MOST_SORTED = 8


# A list of integers, or int64 of shape (n,).
Keys = Sequence[int] | Ints


class _Room:
    """Slots, and the number of holders of each.

    Attributes
    ----------
    addresses
        Address of each slot; the last is 0, for slot -1, which means none.
    keys
        Key of the inner chunk in each slot; None: it has none that can be found.
    n_holders
        Number of holders of each slot.
    is_used
        Whether each slot was found since the hand of `victims` last passed it.
    free
        Slots that have no inner chunk and no holders.
    let_go
        Slots of each holder that has let go, before `count_off` has counted them.
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
        """Add a segment of slots, up to `n_most` in all; False if there is no room.

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
        """Subtract holders that have let go; slots without a key become free."""
        while self.let_go:
            for slot in self.let_go.popleft():
                self.n_holders[slot] -= 1
                if not self.n_holders[slot] and self.keys[slot] is None:
                    self.free.append(slot)

    def victims(self, n: int) -> list[int]:
        """Up to `n` slots whose inner chunks are to be dropped; held slots are not.

        A hand goes round over the slots, and spares those that were used since it last
        passed. The caller becomes the holder, and has taken all free slots before.
        """
        found: list[int] = []
        n_holders, is_used = self.n_holders, self.is_used
        n_slots, hand = len(n_holders), self._hand
        once = range(hand, n_slots), range(hand)
        for slot in chain(*once, *once) if n else ():  # the second round spares none
            if n_holders[slot]:
                continue
            if is_used[slot]:
                is_used[slot] = False
                continue
            n_holders[slot] = 1
            found.append(slot)
            if len(found) == n:
                self._hand = (slot + 1) % n_slots
                break
        return found


class Hold:
    """Slots that keep their inner chunks until this object is dropped.

    Attributes
    ----------
    keys
        Keys under which the inner chunks are, or will be, found.
    slots
        Slot of each key; -1: none.
    taken
        The slots without the -1.
    room
        The room that has the slots.
    """

    # A hold that an interrupt kept from being made lets nothing go.
    taken: Sequence[int] = ()

    def __init__(
        self, room: _Room, keys: Keys, slots: Keys, taken: Sequence[int]
    ) -> None:
        self.room = room
        self.keys = keys
        self.slots = slots
        self.taken = taken

    def __del__(self) -> None:
        # No lock: garbage collection may run this in a thread that has the lock.
        if self.taken:
            self.room.let_go.append(self.taken)

    @property
    def addresses(self) -> Ints:
        """Address of each slot: int64, shape (n,); 0: none."""
        addresses = self.room.addresses
        if isinstance(self.slots, np.ndarray):
            return np.array(addresses, np.int64)[self.slots]
        return np.array([addresses[slot] for slot in self.slots], np.int64)

    def bytes_of(self, i: int) -> NDArray[np.uint8]:
        """Memory of the i-th slot: uint8, valid as long as this object exists."""
        return self.room.bytes_of(int(self.slots[i]))


class ChunkCache:
    """Decoded inner chunks of one array; those not used for long are dropped first.

    Safe for several threads. A forked process starts with an empty cache.

    Parameters
    ----------
    limit_nbytes
        Memory for all inner chunks. Their keys take some 300 bytes each in addition.
    chunk_nbytes
        Size of an inner chunk.

    Attributes
    ----------
    n_most
        Number of inner chunks that there is room for.
    chunk_nbytes
        Size of an inner chunk.
    """

    def __init__(self, limit_nbytes: int, chunk_nbytes: int) -> None:
        self.chunk_nbytes = chunk_nbytes
        self._slot_nbytes = -(-max(chunk_nbytes, 1) // _LINE_NBYTES) * _LINE_NBYTES
        self.n_most = limit_nbytes // self._slot_nbytes
        self.clear()
        _caches.add(self)

    def clear(self) -> None:
        """Drop all inner chunks; slots that are held stay valid for their holders."""
        self._lock = threading.Lock()
        self._room = _Room(self._slot_nbytes)
        self._slot_of: dict[int, int] = {}
        self._sorted: tuple[Ints, Ints] | None = None
        # The latest keys that were missed, and those before them.
        self._missed: tuple[set[int], set[int]] = set(), set()

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def held_nbytes(self) -> int:
        """Memory of all slots, in use or free."""
        return len(self._room.keys) * self._slot_nbytes

    @property
    def has_room(self) -> bool:
        """Whether a slot is free or can still be made."""
        with self._lock:
            self._room.count_off()
            return self._n_free > 0

    @property
    def _n_free(self) -> int:
        """Number of slots to be had without dropping any, after `count_off`."""
        return len(self._room.free) + self.n_most - len(self._room.keys)

    def find(self, keys: Keys) -> Hold:
        """Slots of the inner chunks among `keys` that are kept."""
        with self._lock:
            room = self._room
            if len(room.let_go) > _MOST_LEFT:
                room.count_off()
            slots = self._slots(keys)
            if isinstance(slots, np.ndarray):
                taken: list[int] = slots[slots >= 0].tolist()
            else:
                taken = [slot for slot in slots if slot >= 0]
            n_holders, is_used = room.n_holders, room.is_used
            # Counted before there is a hold that lets them go: after an interrupt here
            # some stay held for good. The other way round, slots that others hold
            # would be claimed and overwritten.
            for slot in taken:
                n_holders[slot] += 1
                is_used[slot] = True
            return Hold(room, keys, slots, taken)

    def find_one(self, key: int) -> Hold | None:
        """Slot of the inner chunk that is kept under `key`; None if there is none."""
        if key not in self._slot_of:  # of single inner chunks, most are not kept
            return None
        hold = self.find((key,))
        return hold if hold.taken else None

    def wants(self, key: int) -> bool:
        """Whether to keep an inner chunk that a read of a single one has missed.

        While there is room all are kept. Later ones drop others only if they were
        missed before, and lately: of those that nobody returns to, none costs more than
        without a cache.
        """
        return self.has_room or self._was_missed(key)

    def _was_missed(self, key: int) -> bool:
        """Whether this was asked for the same key lately."""
        missed, before = self._missed
        if key in missed or key in before:
            return True
        missed.add(key)
        # Threads that do so at the same time forget a few.
        if 2 * len(missed) > self.n_most:
            self._missed = set(), missed
        return False

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
        """Slots to decode inner chunks into; `find` returns them after `keep`.

        A key gets no slot if it is negative, is kept already, stands earlier in `keys`,
        or if there is no room.

        Parameters
        ----------
        may_drop
            Whether to drop other inner chunks to make room; else only free room is
            used.
        """
        slots = [-1] * len(keys)
        with self._lock:
            self._room.count_off()
            slot_of = self._slot_of
            wanted: Sequence[int] = ()
            if may_drop or self._n_free:
                wanted = keys = _listed(keys)
            # Written from the back, so that the first of equal keys remains.
            first = {wanted[i]: i for i in reversed(range(len(wanted)))}
            at = [i for key, i in first.items() if key >= 0 and key not in slot_of]
            at.reverse()
            taken = self._take(len(at), may_drop=may_drop)
            for slot, i in zip(taken, at, strict=False):
                slots[i] = slot
            return Hold(self._room, keys, slots, taken)

    def keep(self, hold: Hold, which: Iterable[int] | None = None) -> None:
        """Make claimed slots available to `find`, after they were written.

        Parameters
        ----------
        which
            Indexes into ``hold.keys`` of the slots that were written; None: all.
        """
        with self._lock:
            if hold.room is not self._room:
                return
            self._sorted = None
            keys, slots = hold.keys, hold.slots
            key_of, slot_of = self._room.keys, self._slot_of
            for i in range(len(keys)) if which is None else which:
                key, slot = keys[i], slots[i]
                # If two threads decode the same inner chunk, the first one's is kept.
                if slot >= 0 and key not in slot_of:
                    # In this order: an interrupt between the two must not leave a slot
                    # that is found, but free to be claimed for another inner chunk.
                    key_of[slot] = key
                    slot_of[key] = slot

    def _take(self, n: int, *, may_drop: bool) -> list[int]:
        """Up to `n` slots without an inner chunk, held only by the caller.

        The caller has called `count_off` before.
        """
        room = self._room
        while len(room.free) < n and self._grow():
            pass
        first = max(len(room.free) - n, 0)
        taken = room.free[first:]
        taken.reverse()  # as they lie in memory
        del room.free[first:]
        for slot in taken:
            room.n_holders[slot] = 1
        if may_drop and len(taken) < n:
            self._sorted = None
            key_of, slot_of = room.keys, self._slot_of
            for slot in room.victims(n - len(taken)):
                key = key_of[slot]
                if key is not None and slot_of.get(key) == slot:
                    del slot_of[key]
                key_of[slot] = None
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
    """Start with nothing in a forked process, as lost threads may have had locks."""
    for cache in _caches:
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_all)
