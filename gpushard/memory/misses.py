"""What reads have lately spent on inner chunks that are not kept."""

from __future__ import annotations

import numpy as np

from gpushard.selecting.selection import Ints

SPENT_WHOLE, SPENT_PART = 4, 1
"""Weight of a read for an inner chunk: it decodes all of it, or at most a quarter."""
SPENT_ENOUGH = SPENT_WHOLE + 1
"""Weight from which on an inner chunk is kept: its second read, or fifth of a part."""

_MOST_PLACES = 1 << 16
# Less than nothing: the next read does not reach `SPENT_ENOUGH`, even if it keeps all
# at once.
_ABSENT = -2 * SPENT_ENOUGH


class Misses:
    """Keys that were missed lately, each with what was spent on it since.

    This is a direct-mapped table: a key replaces an earlier one that has the same
    place, so old keys need not be looked for. If threads add at the same time, a few
    more keys are forgotten.

    Parameters
    ----------
    n_places
        At most so many keys are remembered, and at most 65,537.
    """

    def __init__(self, n_places: int) -> None:
        # Odd: the keys of a column lie a power of two apart, and must not share places.
        self._n_places = min(n_places, _MOST_PLACES) | 1
        # No key is in a new table: what was spent on any is 0.
        self._keys = np.zeros(self._n_places, np.int64)
        self._spent = np.zeros(self._n_places, np.int64)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._spent))

    def add(self, key: int, weight: int, n_chunks: int = 1) -> int:
        """What was lately spent on an inner chunk, with `weight`, which is added.

        If the key stands for `n_chunks`, it has the room of so many: of reads of
        several inner chunks, fewer are remembered.
        """
        at = key % (self._n_places // n_chunks | 1)
        if self._keys.item(at) == key:
            weight += self._spent.item(at)
        self._keys[at], self._spent[at] = key, weight
        return weight

    def note_absent(self, keys: Ints) -> None:
        """Note that there is nothing under `keys`, which reads only looked for."""
        at = keys % self._n_places
        self._keys[at], self._spent[at] = keys, _ABSENT

    def add_all(self, keys: Ints, weight: int) -> Ints:
        """As `add` for each of `keys`; of equal keys, `weight` is added once.

        Negative keys are of what cannot be kept: nothing was spent on it.
        """
        at = keys % self._n_places
        spent = np.where(self._keys[at] == keys, self._spent[at], 0) + weight
        if keys.min(initial=0) < 0:
            real = keys >= 0
            spent[~real] = 0
            self._keys[at[real]], self._spent[at[real]] = keys[real], spent[real]
        else:
            self._keys[at], self._spent[at] = keys, spent
        return spent
