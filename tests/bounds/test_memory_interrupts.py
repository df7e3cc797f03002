"""An interrupt at any line leaves no memory that two have, or that fails later."""

from __future__ import annotations

import gc
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpushard.loader.memory import Memory
from gpushard.memory import chunk_slots
from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_share import ChunkShare
from gpushard.memory.chunk_slots import Hold, Slots
from gpushard.memory.lent import Lender
from gpushard.options import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NBYTES = 64
N = 4


def interrupted(work: Callable[[], Any], *owners: type) -> Iterator[None]:
    """Do `work` over and over, cut off at each line of the modules of `owners`."""
    paths = {sys.modules[owner.__module__].__file__ for owner in owners}
    for n_lines in count(1):
        left = n_lines

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            code = frame.f_code
            if code.co_filename not in paths or code.co_name == "__del__":
                return None
            left -= event == "line"
            if not left:
                left -= 1
                raise KeyboardInterrupt
            return trace

        traced = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(traced)
        gc.collect()
        yield
        if left > 0:  # it was done before
            assert n_lines > N
            return


def test_memory_is_lent_after_any_interrupt():
    lender = Lender()
    if lender.take(MIB) is None:
        pytest.skip("the system takes no pages back at its leisure")
    assert_lent_once(lambda: lender.take(2 * MIB), Lender)


def test_a_loader_takes_memory_after_any_interrupt():
    memory = Memory(2)
    dtype = np.dtype("u1")
    assert_lent_once(lambda: memory.take((64 * KIB,), dtype), Memory)


def assert_lent_once(take: Callable[[], Any], owner: type) -> None:
    for _ in interrupted(take, owner):
        held = [take() for _ in range(N)]
        assert len({a.__array_interface__["data"][0] for a in held}) == N


def keep(cache: ChunkCache, keys: list[int]) -> None:
    """Keep inner chunks whose bytes are their keys."""
    hold = cache.claim(keys)
    for i, slot in enumerate(hold.slots):
        if slot >= 0:
            hold.bytes_of(i)[...] = keys[i]
    cache.keep(hold)


def assert_whole(hold: Hold, keys: list[int]) -> None:
    """What was found is what its key says."""
    for i, slot in enumerate(hold.slots):
        assert slot < 0 or (hold.bytes_of(i) == keys[i]).all()


def test_inner_chunks_that_others_read_stay_after_any_interrupt_of_a_search():
    keys = [1, 2, 3]
    cache = ChunkCache(4 * NBYTES, NBYTES)

    def read() -> Hold:
        cache.clear()
        keep(cache, keys)
        return cache.find(keys)

    hold = read()
    for _ in interrupted(lambda: cache.find(keys), ChunkCache, Slots):
        keep(cache, [10, 11, 12, 13])
        assert_whole(hold, keys)
        hold = read()


def assert_apart(hold: Hold, keys: list[int]) -> None:
    """Each inner chunk has memory of its own, where the loops look for it too."""
    assert_whole(hold, keys)
    at = [i for i, slot in enumerate(hold.slots) if slot >= 0]
    places = [hold.bytes_of(i).__array_interface__["data"][0] for i in at]
    assert [hold.addresses[i] for i in at] == places
    assert len(set(places)) == len(at)


def test_memory_grows_and_shrinks_as_before_after_any_interrupt(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(chunk_slots, "_SHARED_SEGMENT_NBYTES", 2 * NBYTES)
    keys = list(range(8))
    caches: list[ChunkCache] = []

    def use() -> None:
        share = ChunkShare(8 * NBYTES)
        caches[:] = [ChunkCache(8 * NBYTES, NBYTES, share) for _ in range(2)]
        keep(caches[0], keys)
        keep(caches[1], [1])

    for _ in interrupted(use, ChunkCache, Slots, ChunkShare):
        for cache in caches:
            for _ in range(2):
                assert_whole(cache.find(keys), keys)
                keep(cache, keys)
                assert_apart(cache.find(keys), keys)
                cache.give_up_half()


def test_what_is_found_is_what_its_key_says_after_any_interrupt_of_keeping():
    cache = ChunkCache(4 * NBYTES, NBYTES)
    for _ in interrupted(lambda: keep(cache, [1, 2, 3]), ChunkCache, Slots):
        keep(cache, [5, 6])  # takes room that the interrupted one let go
        assert_whole(cache.find([1, 2, 3, 5, 6]), [1, 2, 3, 5, 6])
        cache.clear()
