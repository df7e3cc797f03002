"""Inner chunks whose keys do not tell what they were decoded from."""

from __future__ import annotations

import numpy as np
import pytest

from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_share import ChunkShare
from gpushard.memory.misses import SPENT_ENOUGH
from gpushard.options import MIB
from gpushard.selecting.selection import Ints
from test_chunk_cache import NBYTES, are_whole, found, kept


def test_what_has_changed_is_found_no_more_and_leaves_its_room_to_others():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    kept(cache, 3, 5)
    hold = cache.find([3, 4, 5])
    cache.drop(hold, [2])
    assert found(cache, 3, 5) == [3]
    assert kept(cache, 6, may_drop=False) == []
    assert are_whole(hold, [3, 4, 5])
    del hold
    assert kept(cache, 6, may_drop=False) == [6]
    assert found(cache, 3, 6) == [3, 6]


def test_what_is_kept_anew_meanwhile_is_not_dropped_for_what_it_was():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 3)
    one, other = cache.find([3]), cache.find([3])
    cache.drop(one, [0])
    kept(cache, 3)
    cache.drop(other, [0])
    assert found(cache, 3) == [3]


def test_what_is_dropped_after_the_cache_was_cleared_drops_nothing_new():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 3)
    hold = cache.find([3])
    cache.clear()
    kept(cache, 3)
    cache.drop(hold, [0])
    assert found(cache, 3) == [3]


def test_versions_are_those_with_which_inner_chunks_were_kept():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    hold = cache.claim([3, 4, 5])
    cache.keep(hold, [0, 2], {0: b"a", 2: b"c"})
    del hold
    kept(cache, 6)
    found_now = cache.find([6, 5, 4, 3])
    assert found_now.versions == [b"", b"c", b"a"]


@pytest.mark.parametrize("share", [None, ChunkShare(MIB)])
def test_what_is_absent_is_not_wanted_the_next_time_and_later_again(share):
    cache = ChunkCache(9 * NBYTES, NBYTES, share)
    keys, both = np.array([3, 4]), [3, 4]
    assert wanted_of(cache, keys, SPENT_ENOUGH) == both
    cache.note_absent(np.array([4]))
    seen = [wanted_of(cache, keys, SPENT_ENOUGH) for _ in range(3)]
    assert seen == [[3, -1], [3, -1], both]


def wanted_of(cache: ChunkCache, keys: Ints, weight: int) -> list[int] | None:
    wanted = cache.keys_to_keep(keys, weight)
    return None if wanted is None else wanted.tolist()
