"""Room for decoded inner chunks: its bound, what is dropped first, who holds what."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.memory import chunk_cache, chunk_slots
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold

NBYTES = 64


def kept(cache: ChunkCache, *keys: int, may_drop: bool = True) -> list[int]:
    """Keep inner chunks whose bytes are their keys; those that there was room for."""
    hold = cache.claim(keys, may_drop=may_drop)
    fill(hold, keys)
    cache.keep(hold)
    return [key for key, slot in zip(keys, hold.slots, strict=True) if slot >= 0]


def found(cache: ChunkCache, *keys: int) -> list[int]:
    """Which keys are found; the bytes that they stand for are looked at."""
    hold = cache.find(keys)
    assert are_whole(hold, keys)
    return [key for key, slot in zip(keys, hold.slots, strict=True) if slot >= 0]


def fill(hold: Hold, keys: Sequence[int]) -> None:
    """Write into slots what their keys say."""
    for i, key in enumerate(keys):
        if hold.slots[i] >= 0:
            hold.bytes_of(i)[...] = key


def are_whole(hold: Hold, keys: Sequence[int]) -> bool:
    """Whether slots have what their keys say."""
    at = [i for i, slot in enumerate(hold.slots) if slot >= 0]
    return all((hold.bytes_of(i) == keys[i]).all() for i in at)


def test_what_is_kept_is_found_and_nothing_else():
    cache = ChunkCache(10 * NBYTES, NBYTES)
    kept(cache, 3, 5)
    assert found(cache, 5, 4, 3, 5) == [5, 3, 5]


def test_what_was_claimed_is_not_found_before_it_is_written():
    cache = ChunkCache(10 * NBYTES, NBYTES)
    hold = cache.claim([3])
    assert found(cache, 3) == []
    hold.bytes_of(0)[...] = 3
    cache.keep(hold)
    assert found(cache, 3) == [3]


def test_addresses_are_those_of_the_slots_on_cache_lines_and_0_for_none():
    cache = ChunkCache(3 * 128, 100)
    kept(cache, 1, 2)
    hold = cache.find([2, 9, 1])
    at = [hold.bytes_of(i).__array_interface__["data"][0] for i in (0, 2)]
    assert hold.addresses.tolist() == [at[0], 0, at[1]]
    assert [address % 64 for address in at] == [0, 0]


@pytest.mark.parametrize(("nbytes", "limit", "n_most"), [(64, 255, 3), (65, 384, 3)])
def test_slots_never_take_more_than_the_limit(nbytes, limit, n_most):
    cache = ChunkCache(limit, nbytes)
    for key in range(20):
        kept(cache, key, key + 100)
        assert cache.held_nbytes <= limit
    assert len(cache) == n_most


def test_a_cache_smaller_than_an_inner_chunk_keeps_nothing():
    cache = ChunkCache(NBYTES - 1, NBYTES)
    assert kept(cache, 1) == []
    assert found(cache, 1) == []


def test_what_was_not_used_since_the_hand_came_by_is_dropped_first():
    cache = ChunkCache(4 * NBYTES, NBYTES)
    kept(cache, 0, 1, 2, 3)
    found(cache, 0, 2)
    kept(cache, 4, 5)
    assert found(cache, *range(6)) == [0, 2, 4, 5]
    kept(cache, 6, 7, 8)  # all were used: the first round spares them, not the second
    assert found(cache, 6, 7, 8) == [6, 7, 8]
    assert len(cache) == 4


def test_of_those_that_nobody_used_the_latest_is_dropped_last():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 0, 1, 2)
    for key in (3, 4):
        kept(cache, key)
    assert found(cache, *range(5)) == [2, 3, 4]


def test_nothing_is_dropped_for_who_may_not():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 0, 1)
    assert kept(cache, 5, 6, 7, may_drop=False) == [5]
    assert found(cache, 0, 1, 5) == [0, 1, 5]


def test_what_is_held_is_not_dropped():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 0, 1, 2)
    hold = cache.find([1])
    for key in range(3, 30):
        assert kept(cache, key) == [key]
        assert (hold.bytes_of(0) == 1).all()
    assert kept(cache, 40, 41, 42) == [40, 41]
    del hold
    assert kept(cache, 50, 51, 52) == [50, 51, 52]


def test_room_that_was_claimed_in_vain_is_free_again():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    hold = cache.claim([1, 2])
    assert kept(cache, 3) == []
    del hold
    assert kept(cache, 4, 5) == [4, 5]


def test_room_that_was_made_in_vain_is_free_again():
    cache = ChunkCache(NBYTES, NBYTES)
    kept(cache, 1)
    assert cache.claim([2]).taken  # and let go at once
    assert cache.has_room
    assert kept(cache, 3, may_drop=False) == [3]


def test_a_key_that_is_claimed_twice_at_once_has_one_slot():
    cache = ChunkCache(4 * NBYTES, NBYTES)
    assert kept(cache, 7, 7, 8) == [7, 8]


def test_what_is_kept_already_or_cannot_be_gets_no_slot():
    cache = ChunkCache(10 * NBYTES, NBYTES)
    kept(cache, 3)
    slots = cache.claim([5, 3, -1]).slots
    assert [slot >= 0 for slot in slots] == [True, False, False]


def test_who_comes_in_the_middle_of_a_call_does_without_the_cache():
    cache = ChunkCache(10 * NBYTES, NBYTES)
    kept(cache, 1)

    def handler() -> tuple[list[int], list[int], bool]:
        return found(cache, 1), kept(cache, 2), cache.has_room

    assert cache._alone.call(handler) == ([], [], False)
    assert found(cache, 1, 2) == [1]


def test_of_two_who_decode_the_same_the_first_keeps_its_own():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    first, second = cache.claim([7]), cache.claim([7])
    first.bytes_of(0)[...] = second.bytes_of(0)[...] = 7
    cache.keep(first)
    cache.keep(second)
    del first, second
    assert found(cache, 7) == [7]
    assert kept(cache, 8, may_drop=False) == [8]


def test_a_slot_that_an_interrupt_left_with_a_key_is_used_again():
    class Interrupted(dict[int, int]):
        def __setitem__(self, key: int, slot: int) -> None:
            raise KeyboardInterrupt

    cache = ChunkCache(NBYTES, NBYTES)
    cache._slot_of = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        kept(cache, 1)
    cache._slot_of = {}
    assert kept(cache, 2) == [2]
    assert found(cache, 1, 2) == [2]


def test_what_is_held_outlives_the_cache_being_cleared():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    kept(cache, 1)
    hold, claimed = cache.find([1]), cache.claim([2])
    cache.clear()
    kept(cache, 3, 4)
    assert (hold.bytes_of(0) == 1).all()
    cache.keep(claimed)
    assert found(cache, 1, 2, 3, 4) == [3, 4]


def test_where_memory_ends_what_there_is_is_used(monkeypatch):
    monkeypatch.setattr(chunk_slots, "_SEGMENT_NBYTES", 2 * NBYTES)
    cache = ChunkCache(100 * NBYTES, NBYTES)
    kept(cache, 1, 2)

    def empty(*args):
        raise MemoryError

    monkeypatch.setattr(np, "empty", empty)
    assert kept(cache, 3, 4, 5) == [3, 4]
    assert cache.held_nbytes == 2 * NBYTES
    assert not cache.has_room


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "find", "hold", "claim", "let go"]),
        st.lists(st.integers(0, 12), min_size=1, max_size=6),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 6))
def test_whatever_is_done_slots_have_what_their_keys_say(steps, n_most):
    cache = ChunkCache(n_most * NBYTES, NBYTES)
    held = []
    for what, keys, may_drop in steps:
        if what == "keep":
            kept(cache, *keys, may_drop=may_drop)
        elif what == "find":
            found(cache, *keys)
        elif what == "hold":
            held.append((cache.find(keys), keys))
        elif what == "claim":
            held.append((cache.claim(keys, may_drop=may_drop), keys))
            fill(*held[-1])
        elif held:
            held.pop(0)
        assert all(are_whole(*one) for one in held)
        assert cache.held_nbytes <= n_most * NBYTES
    held.clear()
    assert len(kept(cache, *range(20, 20 + n_most))) == n_most


@given(
    st.lists(st.integers(-2, 30), max_size=12),
    st.lists(st.integers(-2, 30), min_size=1, max_size=40),
)
def test_many_keys_are_found_as_single_ones_are(keys, wanted):
    cache = ChunkCache(8 * NBYTES, NBYTES)
    for some in (keys[:7], keys[7:]):
        kept(cache, *some)
        alone = [cache.find([key]).addresses.item() for key in wanted]
        together = cache.find(np.array(wanted, np.int64))
        assert together.addresses.tolist() == alone
        assert sorted(together.taken) == sorted(s for s in together.slots if s >= 0)


def test_what_makes_room_is_found_no_more():
    cache = ChunkCache(3 * NBYTES, NBYTES)
    kept(cache, 1, 2, 3)
    assert found(cache, 1, 2, 3, 4) == [1, 2, 3]
    claimed = cache.claim([4])
    left = found(cache, 1, 2, 3, 4)
    assert len(left) == 2
    assert left == [key for key in (1, 2, 3) if cache.find([key]).slots[0] >= 0]
    fill(claimed, [4])
    cache.keep(claimed)
    assert found(cache, 1, 2, 3, 4) == [*left, 4]


def test_there_is_room_while_slots_are_free_or_can_be_made():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    kept(cache, 1)
    assert cache.has_room
    hold = cache.claim([2])
    assert not cache.has_room
    assert kept(cache, 3, may_drop=False) == []
    del hold
    assert cache.has_room


def test_threads_that_keep_and_find_see_only_what_keys_say():
    cache = ChunkCache(16 * NBYTES, NBYTES)
    start = threading.Barrier(4)

    def work(seed: int) -> int:
        rng = np.random.default_rng(seed)
        start.wait()
        n_found = 0
        for _ in range(400):
            keys = rng.integers(0, 40, 5).tolist()
            hold = cache.find(keys)
            again = [i for i, slot in enumerate(hold.slots) if slot >= 0]
            n_found += len(again)
            kept(cache, *keys)
            for i in again:
                assert (hold.bytes_of(i) == keys[i]).all()
        return n_found

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert cache.held_nbytes == 16 * NBYTES


def test_while_there_is_room_every_inner_chunk_is_wanted():
    cache = ChunkCache(2 * NBYTES, NBYTES)
    assert cache.should_keep(3)
    kept(cache, 3)
    assert cache.should_keep(4)
    kept(cache, 4)
    assert not cache.should_keep(5)


def full_cache() -> ChunkCache:
    cache = ChunkCache(10 * NBYTES, NBYTES)
    kept(cache, *range(200, 210))
    return cache


def test_without_room_only_what_was_missed_before_is_wanted():
    cache = full_cache()
    asked = [cache.should_keep(key) for key in (3, 4, 3, 4, 5, 3)]
    assert asked == [False, False, True, True, False, True]


def test_a_cache_that_was_asked_for_keeps_all_that_reads_of_several_have_missed():
    cache = full_cache()
    wanted = cache.keys_to_keep(np.array([3, 4]))
    assert wanted is not None
    assert wanted.tolist() == [3, 4]


def test_what_is_dropped_while_it_is_looked_for_is_not_found():
    class Late(dict[int, int]):
        """As another thread left it after the first look."""

        def __contains__(self, _: object) -> bool:
            return True

    cache = ChunkCache(1 << 10, 64)
    cache._slot_of = Late()
    assert cache.find_one(5) is None


def test_missed_keys_are_as_few_as_there_is_room_for_inner_chunks():
    cache = full_cache()
    for key in range(300, 1300):
        assert not cache.should_keep(key)
        assert len(cache._missed) <= 11
    assert [cache.should_keep(key) for key in (1299, 1295, 1280)] == [True, True, False]


def test_what_was_missed_is_forgotten_with_all_else():
    cache = full_cache()
    cache.should_keep(3)
    cache.clear()
    kept(cache, *range(10))
    assert not cache.should_keep(3)


def test_what_was_let_go_is_counted_off_though_nothing_new_is_kept():
    cache = ChunkCache(10 * NBYTES, NBYTES)
    kept(cache, 3)
    for _ in range(1000):
        assert found(cache, 3) == [3]
    assert len(cache._slots.let_go) <= chunk_cache._MOST_LEFT + 1
