"""Caches that nobody asked for: what they keep, and their bound on all memory."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpushard.memory import chunk_slots
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_share import ChunkShare
from gpushard.memory.misses import SPENT_PART, SPENT_WHOLE, Misses
from held_alone import held_by_another_thread

NBYTES = 64


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(chunk_slots, "_SHARED_SEGMENT_NBYTES", NBYTES)


def sparing(share: ChunkShare, n_most: int = 8) -> ChunkCache:
    return ChunkCache(n_most * NBYTES, NBYTES, share)


def kept(cache: ChunkCache, *keys: int) -> list[int]:
    """Keep inner chunks whose bytes are their keys; those that there was room for."""
    hold = cache.claim(keys)
    for i, key in enumerate(keys):
        if hold.slots[i] >= 0:
            hold.bytes_of(i)[...] = key
    cache.keep(hold)
    return [key for key, slot in zip(keys, hold.slots, strict=True) if slot >= 0]


@pytest.mark.parametrize("n_most", [0, 2, 3, 7])
def test_memory_that_a_cache_would_add_is_what_it_adds(n_most):
    slots = chunk_slots.Slots(NBYTES // 3, is_shared=True)  # three in a segment
    is_grown = True
    while is_grown:
        told = slots.nbytes + slots.next_nbytes(n_most)
        is_grown = slots.grow(n_most)
        assert slots.nbytes == told
    assert slots.nbytes == n_most * (NBYTES // 3)


# What is kept


def test_what_was_missed_once_is_wanted_when_it_is_missed_again():
    cache = sparing(ChunkShare(8 * NBYTES))
    assert [cache.should_keep(key) for key in (3, 4, 3, 4, 5)] == [False] * 2 + [
        True
    ] * 2 + [False]
    assert cache.held_nbytes == 0


def test_what_is_read_in_part_is_wanted_when_parts_have_cost_as_much_as_all_of_it():
    cache = sparing(ChunkShare(8 * NBYTES))
    n_parts = SPENT_WHOLE // SPENT_PART
    asked = [cache.should_keep(3, SPENT_PART) for _ in range(n_parts + 1)]
    assert asked == [False] * n_parts + [True]


def test_a_read_that_takes_an_inner_chunk_twice_has_missed_it_once():
    cache = sparing(ChunkShare(8 * NBYTES))
    assert cache.keys_to_keep(np.array([7, 7, -5])) is None
    wanted = cache.keys_to_keep(np.array([7, 8, 7]))
    assert wanted is not None
    assert wanted.tolist() == [7, -1, 7]


def test_a_read_is_back_where_it_has_begun_before():
    cache = sparing(ChunkShare(8 * NBYTES))
    assert [cache.is_repeated(key, 2) for key in (1, 3, 1, 2)] == [
        False,
        False,
        True,
        False,
    ]
    assert [
        cache.is_repeated(5, 2, SPENT_PART)
        for _ in range(SPENT_WHOLE // SPENT_PART + 1)
    ] == [
        *[False] * (SPENT_WHOLE // SPENT_PART),
        True,
    ]
    kept(cache, 9)
    assert cache.is_repeated(9, 2)


def test_a_read_of_several_is_remembered_for_as_long_as_all_of_them_would_be():
    misses = Misses(16)
    for key in range(100):
        misses.add(key, SPENT_WHOLE, 4)
        assert len(misses) <= 10
    assert all(misses.add(key, 0, 4) for key in range(96, 100))
    assert not misses.add(89, 0, 4)


def test_what_was_missed_too_long_ago_is_forgotten():
    misses = Misses(4)
    for key in range(100):
        misses.add(key, SPENT_WHOLE)
        assert len(misses) <= 9
    assert all(misses.add(key, 0) for key in range(96, 100))
    assert not misses.add(80, 0)


# The bound


def test_many_caches_stay_under_the_bound_and_each_has_a_part():
    share = ChunkShare(16 * NBYTES)
    caches = [sparing(share) for _ in range(12)]
    for first in range(0, 200, 3):
        for cache in caches:
            kept(cache, first, first + 1, first + 2)
            assert share.held_nbytes <= 16 * NBYTES
    assert share.held_nbytes == sum(cache.held_nbytes for cache in caches)
    assert all(len(cache) for cache in caches)


def test_a_cache_that_is_dropped_gives_back_what_it_had():
    share = ChunkShare(8 * NBYTES)
    cache = sparing(share)
    kept(cache, *range(8))
    assert share.held_nbytes == 8 * NBYTES
    del cache
    gc.collect()
    assert share.held_nbytes == 0
    assert kept(sparing(share), *range(8)) == list(range(8))


def test_what_readers_hold_is_not_given_up():
    share = ChunkShare(8 * NBYTES)
    first, second = sparing(share), sparing(share)
    kept(first, *range(8))
    slots = first.find(range(8)).slots
    late = next(key for key in range(8) if slots[key] == 7)
    hold = first.find([late])
    assert kept(second, 20) == []
    assert (hold.bytes_of(0) == late).all()
    del hold
    assert kept(second, 20) == [20]
    assert share.held_nbytes == 5 * NBYTES
    assert sorted(first.find(range(8)).taken) == [0, 1, 2, 3]
    kept(first, *range(8))
    again = first.find(range(8))
    at = [key for key in range(8) if again.slots[key] >= 0]
    assert len(at) == 7
    assert all((again.bytes_of(key) == key).all() for key in at)
    assert share.held_nbytes == 8 * NBYTES


def test_half_is_given_up_although_some_slots_were_never_used(monkeypatch):
    monkeypatch.setattr(chunk_slots, "_SHARED_SEGMENT_NBYTES", 2 * NBYTES)
    share = ChunkShare(8 * NBYTES)
    first, second = sparing(share), sparing(share)
    for key in range(7):
        kept(first, key)
    assert share.held_nbytes == 8 * NBYTES
    assert kept(second, 20) == [20]
    assert share.held_nbytes == 6 * NBYTES


def test_slots_that_were_given_up_free_are_made_once_more_and_once_only(monkeypatch):
    monkeypatch.setattr(chunk_slots, "_SHARED_SEGMENT_NBYTES", 2 * NBYTES)
    cache = sparing(ChunkShare(8 * NBYTES), 4)
    kept(cache, 0, 1)
    cache.claim((2, 3))  # in vain, so the second half is free
    cache.give_up_half()
    assert kept(cache, 4, 5) == [4, 5]
    assert kept(cache, 6) == [6]  # in place of another, as there are no more slots
    found = cache.find(range(7))
    there = [key for key in range(7) if found.slots[key] >= 0]
    assert len(there) == 4
    assert [found.bytes_of(key)[0] for key in there] == there


def test_a_segment_of_fewer_slots_stays_while_readers_hold_them(monkeypatch):
    monkeypatch.setattr(chunk_slots, "_SHARED_SEGMENT_NBYTES", 2 * NBYTES)
    cache = sparing(ChunkShare(8 * NBYTES), 3)
    kept(cache, 0, 1, 2)
    slots = cache.find(range(3)).slots
    late = next(key for key in range(3) if slots[key] == 2)
    hold = cache.find([late])
    cache.give_up_half()
    assert (hold.bytes_of(0) == late).all()


def test_what_readers_hold_of_a_cache_that_is_gone_still_counts():
    share = ChunkShare(8 * NBYTES)
    cache = sparing(share)
    kept(cache, *range(8))
    hold = cache.find([5])
    del cache
    assert share.held_nbytes == 8 * NBYTES
    del hold
    assert share.held_nbytes == 0


def test_nobody_gives_up_for_one_that_has_more_than_half_as_much():
    share = ChunkShare(8 * NBYTES)
    first, second = sparing(share, 5), sparing(share, 8)
    kept(first, *range(5))
    kept(second, *range(8))
    assert (first.held_nbytes, second.held_nbytes) == (5 * NBYTES, 3 * NBYTES)
    assert len(first) == 5


def test_nobody_waits_for_a_cache_that_is_in_use():
    share = ChunkShare(8 * NBYTES)
    first, second = sparing(share), sparing(share)
    kept(first, *range(8))
    with held_by_another_thread(first._alone):
        assert kept(second, 20) == []
    assert len(first) == 8
    with share._lock:  # as in the handler of a signal, in the same thread
        assert kept(second, 20) == []
    assert kept(second, 20) == [20]


def test_threads_stay_under_the_bound_and_see_what_keys_say():
    share = ChunkShare(20 * NBYTES)
    caches = [sparing(share) for _ in range(6)]
    start, seen = threading.Barrier(4), []
    grow = chunk_slots.Slots.grow

    def watched(self, n_most):  # the lock of the share is held here
        done = grow(self, n_most)
        seen.append(sum(slots.nbytes for slots in share._all_slots))
        return done

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(400):
            cache = caches[rng.integers(len(caches))]
            keys = rng.integers(0, 12, 4).tolist()
            hold = cache.find(keys)
            kept(cache, *keys)
            for i, slot in enumerate(hold.slots):
                assert slot < 0 or (hold.bytes_of(i) == keys[i]).all()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(chunk_slots.Slots, "grow", watched)
        list(pool.map(work, range(4)))
    assert max(seen) <= 20 * NBYTES
    assert len(seen) > 20
