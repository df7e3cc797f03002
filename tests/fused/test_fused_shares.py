"""Threads claim shares of boxes in the compiled loops: each box is placed once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from fused_cases import FUSED, VALUES, ZSTD, stored, take_way
from gpushard import Options
from gpushard.fused import choice, shares
from gpushard.fused.chain import FusedChain, Pace
from gpushard.fused.columns import (
    ENTRY,
    FILE,
    FIRST_LENGTH,
    KEEP,
    LISTED,
    NBYTES,
    NO_FILE,
    OFFSET,
    PART,
    RAW,
    SOURCE,
    TARGET,
)
from gpushard.fused.files import FileBoxes
from gpushard.fused.libraries import Library
from gpushard.fused.placer import BoxPlacer, LinkedLoops
from gpushard.fused.sharded import ShardedRead
from gpushard.fused.shares import Shares, first_boxes, shrinking_cuts
from gpushard.memory.chunk_room import ChunkRoom
from gpushard.placing.place import HostSink
from gpushard.reading import read
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

N_THREADS = 4


def in_turns(n: int) -> tuple[BoxPlacer, np.ndarray, np.ndarray]:
    """Boxes that reverse the bytes of a word where it is: twice, and nothing changed.

    Each has the second of the two words of an inner chunk of its own.
    """
    words = np.arange(2 * n).reshape(n, 2) + (1 << 40)
    boxes = np.zeros((n, FIRST_LENGTH + 1), np.int64)
    boxes[:, SOURCE] = words.ctypes.data + 16 * np.arange(n)
    boxes[:, NBYTES], boxes[:, FILE], boxes[:, ENTRY] = 16, NO_FILE, np.arange(n)
    boxes[:, OFFSET], boxes[:, TARGET] = 8, boxes[:, SOURCE] + 8
    boxes[:, FIRST_LENGTH] = 1
    assert not boxes[:, [KEEP, LISTED, PART]].any()
    big, own = np.dtype(">i8"), np.dtype(np.int64)
    chain = FusedChain(RAW, False, 16, (8,), big, own, 8, Pace(1, 1))
    loops = LinkedLoops(choice._load(), Library("a copy", RAW), 0)
    room = ChunkRoom("", Options().resolved(), 16, 16, 0, True, False, 0, False)
    return BoxPlacer(chain, loops, np.full((2, 1, 1), 8), room), boxes, words


def side_by_side(task: Any, n: int = N_THREADS) -> None:
    ready = threading.Barrier(n)

    def run() -> None:
        ready.wait()
        task()

    threads = [threading.Thread(target=run) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("share", [1, 3])
@pytest.mark.parametrize("most", [7, 1 << 40])
def test_every_box_is_placed_once_whoever_claims_it(share, most):
    n = 60_000
    placer, boxes, words = in_turns(n)
    before = words.copy()
    cuts = np.append(np.arange(0, n, share), n)
    claimed = Shares(cuts, most if most > 7 else n // 50)

    def work() -> None:
        while claimed.are_left:
            placer.run(boxes, 0, claimed)

    side_by_side(work)
    assert claimed.is_placed.all()
    assert np.array_equal(words[:, 0], before[:, 0])
    assert np.array_equal(words[:, 1], before[:, 1].byteswap())
    assert claimed.first_left == len(cuts) - 1


def test_a_call_ends_after_about_as_many_boxes_as_it_may_place():
    placer, boxes, _ = in_turns(100)
    claimed = Shares(np.arange(0, 101, 10), 25)
    placer.run(boxes, 0, claimed)
    assert claimed.first_left == 3
    assert claimed.is_placed.sum() == claimed.is_placed[:30].sum() == 30
    claimed.stop_claims()
    assert not claimed.are_left
    placer.run(boxes, 0, claimed)
    assert claimed.is_placed.sum() == 30
    assert list(claimed.tasks(lambda: None)) == []


def test_nothing_is_claimed_by_a_thread_without_a_context(monkeypatch):
    placer, boxes, words = in_turns(10)
    before = words.copy()
    monkeypatch.setattr(placer, "_ready", lambda *_: None)
    claimed = Shares(np.arange(11), 100)
    assert not placer.run(boxes, 0, claimed).any()
    assert not claimed.are_left
    assert np.array_equal(words, before)


@given(
    n=st.integers(0, 5000),
    least=st.integers(1, 100),
    largest=st.integers(1, 2000),
    n_workers=st.integers(1, 9),
)
def test_shares_have_every_box_once_and_become_smaller(n, least, largest, n_workers):
    cuts = shrinking_cuts(n, least, largest, n_workers)
    assert cuts[0] == 0
    assert cuts[-1] == n
    sizes = np.diff(cuts)
    assert (sizes > 0).all()
    assert sizes[:-1].min(initial=least) >= least
    assert sizes[:-1].max(initial=0) <= max(largest, least)
    assert (np.diff(sizes[:-1]) <= 0).all()
    assert sizes[-1:].max(initial=0) < 2 * least


@given(st.lists(st.integers(1, 4), max_size=300), st.integers(1, 5))
def test_boxes_of_an_inner_chunk_are_in_one_share(counts, n_workers):
    boxes = np.zeros((sum(counts), FIRST_LENGTH), np.int64)
    boxes[:, SOURCE] = np.repeat(np.arange(len(counts)), counts)
    firsts = first_boxes(boxes)
    assert np.array_equal(firsts, np.append(0, np.cumsum(counts)))
    cuts = Shares.of(boxes, 32 << 10, n_workers).cuts
    assert np.isin(cuts, firsts).all()
    assert (cuts[0], cuts[-1]) == (0, len(boxes))


def test_a_call_places_no_more_boxes_than_decoding_or_the_caller_allows():
    boxes = np.zeros((5000, FIRST_LENGTH), np.int64)
    boxes[:, SOURCE] = np.arange(5000)
    for most, expected in [(None, 1024), (512, 512), (9000, 1024)]:
        assert Shares.of(boxes, 32 << 10, 2, most=most).words[-1] == expected


def test_a_disk_is_told_of_what_two_calls_claim():
    claimed = Shares(np.arange(0, 101, 10), 20)
    assert claimed.end_of_next() == 4
    claimed._next[0] = 8
    assert claimed.end_of_next() == 10
    claimed.stop_claims()
    assert claimed.end_of_next() == 10


@pytest.fixture
def in_small_calls(monkeypatch):
    """Every share is one inner chunk, and every call ends after one."""
    for name in ("_SMALLEST_NBYTES", "_LARGEST_NBYTES", "_CALL_NBYTES"):
        monkeypatch.setattr(shares, name, 1)
    take_way(monkeypatch, "whole")


def test_a_read_goes_on_until_nothing_is_left(in_small_calls, monkeypatch, tmp_path):
    calls, plain = [], BoxPlacer.run
    monkeypatch.setattr(
        BoxPlacer, "run", lambda self, *how: calls.append(1) or plain(self, *how)
    )
    place = stored([ZSTD]).placed("local", tmp_path)
    for threads in (1, 3):
        a = gpushard.open_array(place, options=FUSED.but(threads=threads))
        assert_same_bits(a[...], VALUES)
        assert len(calls) >= a.source.layout.inner_grid[0]


def test_an_error_of_one_thread_ends_the_claims_of_all(
    in_small_calls, monkeypatch, tmp_path
):
    """None of the boxes that were left is placed once one thread has failed."""
    seen: list[Shares] = []
    plain = BoxPlacer.run

    def run(
        self: Any, columns: Any, window_nbytes: int, claimed: Shares, _: Any
    ) -> Any:
        seen.append(claimed)
        if len(seen) == 2:
            raise InterruptedError("as if")
        return plain(self, columns, window_nbytes, claimed)

    monkeypatch.setattr(BoxPlacer, "run", run)
    place = stored([ZSTD]).placed("local", tmp_path)
    for threads in (1, 2):
        seen.clear()
        a = gpushard.open_array(place, options=FUSED.but(threads=threads))
        with pytest.raises(InterruptedError, match="as if"):
            a[...]
        assert not seen[0].are_left
        assert 0 < seen[0].is_placed.sum() < len(seen[0].is_placed) / 2


def test_files_are_confirmed_once_all_of_their_boxes_are_placed(
    in_small_calls, monkeypatch, tmp_path
):
    left: list[int] = []
    plain = ShardedRead._finish

    def finish(self, *how):
        left.append(int((~how[-1].shares.is_placed).sum()))
        plain(self, *how)

    monkeypatch.setattr(ShardedRead, "_finish", finish)
    place = stored([ZSTD]).placed("local", tmp_path)
    for threads in (1, 3):
        a = gpushard.open_array(place, options=FUSED.but(threads=threads))
        assert_same_bits(a[...], VALUES)
    assert left == [0, 0]


@pytest.mark.parametrize(
    ("key", "is_told"),
    [
        (np.s_[...], True),
        (np.s_[::-3, 5:80:7], True),
        (np.s_[40:, 3], True),
        ((np.array([1, 2, 40, 70, 9, 99]), slice(None)), False),
    ],
)
def test_slices_have_one_box_of_an_inner_chunk(key, is_told, monkeypatch, tmp_path):
    told = []
    plain = Shares.of.__func__

    def of(cls, boxes, chunk_nbytes, n_workers, firsts=None):
        told.append(firsts is not None)
        if firsts is not None:
            assert firsts.tolist() == first_boxes(boxes).tolist()
        return plain(cls, boxes, chunk_nbytes, n_workers, firsts)

    take_way(monkeypatch, "whole")
    monkeypatch.setattr(Shares, "of", classmethod(of))
    a = gpushard.open_array(stored([ZSTD]).placed("local", tmp_path), options=FUSED)
    assert_same_bits(a.oindex[key], VALUES[key])
    assert told == [is_told]


def test_what_an_error_leaves_over_is_not_read_by_other_threads(
    in_small_calls, monkeypatch, tmp_path
):
    take_way(monkeypatch, "requests")
    monkeypatch.setattr(read, "_n_workers", lambda _: 2)
    is_helped, is_over, read_plainly = threading.Event(), threading.Event(), []
    plain = FileBoxes.place

    def run(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            assert is_helped.wait(10)
            raise KeyboardInterrupt
        is_helped.set()
        assert is_over.wait(10)

    def place(self: FileBoxes) -> None:
        try:
            plain(self)
        finally:
            is_over.set()

    monkeypatch.setattr(BoxPlacer, "run", run)
    monkeypatch.setattr(FileBoxes, "place", place)
    monkeypatch.setattr(HostSink, "place_some", lambda *_: read_plainly.append(1))
    stored_at = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(stored_at, options=FUSED.but(threads=2))
    with pytest.raises(KeyboardInterrupt):
        a[...]
    assert not read_plainly
