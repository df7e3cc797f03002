"""Memory for decoded inner chunks, in slots of one size.

Slots are made on first use and then reused. A slot that somebody reads from, or decodes
into, is *held*: no other inner chunk gets it until all holders have let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpushard.options import MIB
from gpushard.pages import HUGE_NBYTES, in_huge_pages, on_a_line
from gpushard.selecting.selection import Ints

# Slots are made in segments of this size: little memory stays unused, and if the system
# has no more, the segments that exist remain.
_SEGMENT_NBYTES = 4 * MIB
# Those of sparing caches, whose memory grows by what is kept: a huge page.
_SHARED_SEGMENT_NBYTES = HUGE_NBYTES


# A list of integers, or int64 of shape (n,).
Keys = Sequence[int] | Ints


class Slots:
    """Memory of inner chunks, in slots of one size, and the number of holders of each.

    Attributes
    ----------
    addresses
        Address of each slot; the last is 0, for slot -1, which means none.
    keys
        Key of the inner chunk in each slot; None: it has none that can be found.
    versions
        What the inner chunk in each slot was decoded from, where its key does not tell.
    n_holders
        Number of holders of each slot.
    is_used
        Whether each slot was found since the hand of `victims` last passed it.
    free
        Slots that have no inner chunk and no holders.
    let_go
        Slots of each holder that has let go, before `count_off` has counted them.
    """

    def __init__(self, slot_nbytes: int, *, is_shared: bool = False) -> None:
        self._slot_nbytes = slot_nbytes
        # Shared memory has to return to the system when it is dropped.
        self._allocate = in_huge_pages if is_shared else on_a_line
        segment_nbytes = _SHARED_SEGMENT_NBYTES if is_shared else _SEGMENT_NBYTES
        self._per_segment = max(1, segment_nbytes // slot_nbytes)
        self._segments: list[NDArray[np.uint8]] = []
        self._hand = 0
        self.addresses = [0]
        self.keys: list[int | None] = []
        self.versions: list[bytes] = []
        self.n_holders: list[int] = []
        self.is_used: list[bool] = []
        self.free: list[int] = []
        self.let_go: deque[Sequence[int]] = deque()

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return len(self.keys) * self._slot_nbytes

    def next_nbytes(self, n_most: int) -> int:
        """Memory that `grow` would add."""
        n = min(self._per_segment, n_most - len(self.keys))
        return n * self._slot_nbytes

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
        segment = self._allocate(n * self._slot_nbytes)
        first = int(segment.__array_interface__["data"][0])
        # An interrupt may have left more, which no slot refers to.
        del self._segments[-(-n_slots // self._per_segment) :]
        self._segments.append(segment)
        made = [first + k * self._slot_nbytes for k in range(n)]
        self.addresses[n_slots:] = [*made, 0]
        self.n_holders[n_slots:] = [0] * n
        self.is_used[n_slots:] = [False] * n
        self.versions[n_slots:] = [b""] * n
        self.keys += [None] * n
        self.free += range(n_slots + n - 1, n_slots - 1, -1)
        return True

    def n_without_later_half(self) -> int:
        """Number of slots without the later half of the segments.

        The number of all slots if some of those are held.
        """
        self.count_off()
        n_slots = len(self.keys)
        n_segments = -(-n_slots // self._per_segment)
        n_left = n_segments // 2 * self._per_segment
        return n_slots if any(self.n_holders[n_left:n_slots]) else n_left

    def shrink(self, n_left: int) -> None:
        """Keep the first `n_left` slots, in whole segments; nobody holds others."""
        self._hand = 0
        self.free = [slot for slot in self.free if slot < n_left]
        del self.keys[n_left:]
        self.addresses[n_left:] = [0]
        del self._segments[-(-n_left // self._per_segment) :]

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
        """Up to `n` slots whose inner chunks are to be dropped; never held ones.

        This is the CLOCK algorithm: a hand goes round over the slots, and spares those
        that were used since it last passed. The caller becomes the holder of the slots;
        it has taken all free ones before.
        """
        found: list[int] = []
        n_holders, is_used = self.n_holders, self.is_used
        n_slots, hand = len(self.keys), self._hand
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
    owner
        The memory that has the slots.
    """

    # A hold that an interrupt kept from being made lets nothing go.
    taken: Sequence[int] = ()

    def __init__(
        self, owner: Slots, keys: Keys, slots: Sequence[int], taken: Sequence[int]
    ) -> None:
        self.owner = owner
        self.keys = keys
        self.slots = slots
        self.taken = taken

    def __del__(self) -> None:
        # No lock: garbage collection may run this in a thread that has the lock.
        if self.taken:
            self.owner.let_go.append(self.taken)

    @property
    def addresses(self) -> Ints:
        """Address of each slot: int64, shape (n,); 0: none."""
        addresses = self.owner.addresses
        return np.array([addresses[slot] for slot in self.slots], np.int64)

    @property
    def versions(self) -> list[bytes]:
        """Version of each of the slots in `taken`."""
        return [self.owner.versions[slot] for slot in self.taken]

    def bytes_of(self, i: int) -> NDArray[np.uint8]:
        """Memory of the i-th slot: uint8, valid as long as this object exists."""
        return self.owner.bytes_of(self.slots[i])
