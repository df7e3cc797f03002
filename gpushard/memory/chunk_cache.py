"""Decoded inner chunks that are kept between reads.

A key is never reused for other bytes, or else whoever finds an inner chunk compares its
version with that of the stored object (`gpushard.placing.keeping`).

A cache that nobody asked for is *sparing*: it shares its memory with the caches of
other arrays, and keeps only inner chunks that reads come back to, or take in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpushard.memory.chunk_share import ChunkShare
from gpushard.memory.chunk_slots import Hold, Keys, Slots
from gpushard.memory.misses import SPENT_ENOUGH, SPENT_WHOLE, Misses
from gpushard.pages import LINE_NBYTES
from gpushard.selecting.selection import Ints
from gpushard.threads.alone import Alone
from gpushard.threads.forks import after_fork

# Misses that a sparing cache remembers, for each inner chunk that there is room for. Of
# more, most would be dropped again before the next read of them.
_REMEMBERED = 2
# The deque of holders that let go is counted off when it is longer than this.
_MOST_LEFT = 64


class ChunkCache:
    """Decoded inner chunks of one array; those not used for long are dropped first.

    Safe for several threads. A forked process starts with an empty cache. The handler
    of a signal that reads while its own thread is in here does without the cache.

    Parameters
    ----------
    limit_nbytes
        Memory for all inner chunks. Their keys take some 300 bytes each in addition.
    chunk_nbytes
        Size of an inner chunk.
    share
        Bounds the memory together with that of other caches; the cache is then
        sparing. None: the cache has its memory for itself.

    Attributes
    ----------
    n_most
        Number of inner chunks that there is room for.
    chunk_nbytes
        Size of an inner chunk.
    is_sparing
        Whether only inner chunks that reads come back to, or take in part, are kept.
    """

    def __init__(
        self, limit_nbytes: int, chunk_nbytes: int, share: ChunkShare | None = None
    ) -> None:
        self.chunk_nbytes = chunk_nbytes
        self._slot_nbytes = -(-max(chunk_nbytes, 1) // LINE_NBYTES) * LINE_NBYTES
        self.n_most = limit_nbytes // self._slot_nbytes
        self._share = share
        self.is_sparing = share is not None
        self.clear()
        after_fork(self.clear)

    def clear(self) -> None:
        """Drop all inner chunks; slots that are held stay valid for their holders."""
        self._alone = Alone()
        self._slots = Slots(self._slot_nbytes, is_shared=self.is_sparing)
        self._slot_of: dict[int, int] = {}
        n_remembered = self.n_most * (_REMEMBERED if self.is_sparing else 1)
        self._missed = Misses(n_remembered)
        self._has_absent = False

    def give_up_half(self) -> None:
        """Drop half of the inner chunks and their memory, if nobody is using either.

        It does not wait for who uses the cache: that may be the caller, which the
        handler of a signal has stopped.
        """
        if not self._alone.is_entered:
            self._alone.call(self._halve)

    def _halve(self) -> None:
        n_left = self._slots.n_without_later_half()
        left = {k: slot for k, slot in self._slot_of.items() if slot < n_left}
        # First: an interrupt must not leave keys of slots that are gone.
        self._slot_of = left
        self._slots.shrink(n_left)

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def held_nbytes(self) -> int:
        """Memory of all slots, in use or free."""
        return self._slots.nbytes

    @property
    def has_room(self) -> bool:
        """Whether a slot is free or can still be made."""
        return bool(self._alone.call(self._counted_n_free))

    def _counted_n_free(self) -> int:
        self._slots.count_off()
        return self._n_free

    @property
    def _n_free(self) -> int:
        """Number of slots to be had without dropping any, after `count_off`."""
        return len(self._slots.free) + self.n_most - len(self._slots.keys)

    def find(self, keys: Keys) -> Hold:
        """Slots of the inner chunks among `keys` that are kept."""
        return self._alone.call(self._found, keys) or self._hold_of_none(keys)

    def _found(self, keys: Keys) -> Hold:
        memory = self._slots
        if len(memory.let_go) > _MOST_LEFT:
            memory.count_off()
        get = self._slot_of.get
        slots = [get(key, -1) for key in _listed(keys)]
        taken = [slot for slot in slots if slot >= 0]
        n_holders, is_used = memory.n_holders, memory.is_used
        # Counted before there is a hold that lets them go: after an interrupt here
        # some stay held for good. The other way round, slots that others hold
        # would be claimed and overwritten.
        for slot in taken:
            n_holders[slot] += 1
            is_used[slot] = True
        return Hold(memory, keys, slots, taken)

    def find_one(self, key: int) -> Hold | None:
        """Slot of the inner chunk that is kept under `key`; None if there is none."""
        if key not in self._slot_of:  # of single inner chunks, most are not kept
            return None
        hold = self.find((key,))
        return hold if hold.taken else None

    def should_keep(self, key: int, weight: int = SPENT_WHOLE) -> bool:
        """Whether to keep an inner chunk that a read of a single one has missed.

        While there is room, all are kept, unless the cache is sparing. Otherwise one is
        kept only if it was missed before, and lately. So an inner chunk that is read
        once costs no more than without a cache.

        Parameters
        ----------
        weight
            What the read spends on the inner chunk, from `misses`.
        """
        if not self.is_sparing and self.has_room:
            return True
        spent = self._missed.add(key, weight if self.is_sparing else SPENT_WHOLE)
        return spent >= SPENT_ENOUGH

    def keys_to_keep(self, keys: Ints, weight: int = SPENT_WHOLE) -> Ints | None:
        """Keys of missed inner chunks, with -1 for those that are not to be kept.

        None if none is to be kept.
        """
        if not (self.is_sparing or self._has_absent):
            return keys
        least = SPENT_ENOUGH if self.is_sparing else 1
        is_wanted = self._missed.add_all(keys, weight) >= least
        return np.where(is_wanted, keys, -1) if is_wanted.any() else None

    def note_absent(self, keys: Ints) -> None:
        """Note that there is nothing under `keys`, so that they get no room."""
        self._missed.note_absent(keys)
        self._has_absent = True

    def is_repeated(self, key: int, n_chunks: int, weight: int = SPENT_WHOLE) -> bool:
        """Whether a read of several inner chunks repeats a recent one.

        The first inner chunk stands for all, because a look-up of each would cost more
        than LZ4 takes to decode it. If the read repeats none, it is noted as a miss.

        Parameters
        ----------
        key
            Key of the first inner chunk.
        n_chunks
            Number of inner chunks of the read.
        weight
            What the read spends on each of them.
        """
        if key in self._slot_of:
            return True
        return self._missed.add(key, weight, n_chunks) >= SPENT_ENOUGH

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
        claimed = self._alone.call(self._claimed, keys, may_drop)
        return claimed or self._hold_of_none(keys)

    def _claimed(self, keys: Keys, may_drop: bool) -> Hold:
        slots = [-1] * len(keys)
        self._slots.count_off()
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
        return Hold(self._slots, keys, slots, taken)

    def _hold_of_none(self, keys: Keys) -> Hold:
        return Hold(self._slots, keys, [-1] * len(keys), [])

    def keep(
        self,
        hold: Hold,
        which: Iterable[int] | None = None,
        versions: Mapping[int, bytes] | None = None,
    ) -> None:
        """Make claimed slots available to `find`, after they were written.

        Parameters
        ----------
        which
            Indexes into ``hold.keys`` of the slots that were written; None: all.
        versions
            For each of these indexes, what it was decoded from, if its key does not
            tell.
        """
        self._alone.call(self._keep, hold, which, versions)

    def _keep(
        self,
        hold: Hold,
        which: Iterable[int] | None,
        versions: Mapping[int, bytes] | None,
    ) -> None:
        if hold.owner is not self._slots:
            return
        keys, slots = hold.keys, hold.slots
        key_of, slot_of = self._slots.keys, self._slot_of
        version_of = self._slots.versions
        for i in range(len(keys)) if which is None else which:
            key, slot = keys[i], slots[i]
            # If two threads decode the same inner chunk, the first one's is kept.
            if slot >= 0 and key not in slot_of:
                # In this order: an interrupt between the two must not leave a slot
                # that is found, but free to be claimed for another inner chunk.
                key_of[slot] = key
                version_of[slot] = versions[i] if versions else b""
                slot_of[key] = slot

    def drop(self, hold: Hold, which: Iterable[int]) -> None:
        """Let `find` no longer return some slots, whose stored objects have changed.

        Parameters
        ----------
        hold
            The result of `find`.
        which
            Indexes into ``hold.keys``.
        """
        self._alone.call(self._drop, hold, which)

    def _drop(self, hold: Hold, which: Iterable[int]) -> None:
        if hold.owner is not self._slots:
            return
        for i in which:
            key, slot = int(hold.keys[i]), hold.slots[i]
            # By now the key may have a newer inner chunk. The slot becomes free when
            # its holders let go, of whom the caller is one.
            if self._slot_of.get(key) == slot:
                del self._slot_of[key]
                self._slots.keys[slot] = None

    def _take(self, n: int, *, may_drop: bool) -> list[int]:
        """Up to `n` slots without an inner chunk, held only by the caller.

        The caller has called `count_off` before.
        """
        memory = self._slots
        while len(memory.free) < n and self._grow():
            pass
        first = max(len(memory.free) - n, 0)
        taken = memory.free[first:]
        taken.reverse()  # as they lie in memory
        del memory.free[first:]
        for slot in taken:
            memory.n_holders[slot] = 1
        if may_drop and len(taken) < n:
            key_of, slot_of = memory.keys, self._slot_of
            for slot in memory.victims(n - len(taken)):
                key = key_of[slot]
                if key is not None and slot_of.get(key) == slot:
                    del slot_of[key]
                key_of[slot] = None
                taken.append(slot)
        return taken

    def _grow(self) -> bool:
        try:
            if self._share is not None:
                return self._share.grow(self, self._slots, self.n_most)
            return self._slots.grow(self.n_most)
        except MemoryError:
            self.n_most = len(self._slots.keys)
            return False


def _listed(keys: Keys) -> Sequence[int]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys
