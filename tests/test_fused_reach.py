"""How far the compiled loops read on, and into what, as Python runs these steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused import loops
from gpushard.fused.columns import FILE, FILLED, FIRST_LENGTH, GAP_NBYTES, HIGH, LOW

NEAR, FAR = 200 + GAP_NBYTES, 201 + GAP_NBYTES
FIRST = (3, 100, 200)
WINDOW, NOTHING = 1 << 30, (-1, 0, 0)


def columns_of(*boxes):
    """Columns of boxes that are given as (file, low, high)."""
    columns = np.zeros((len(boxes), FIRST_LENGTH), np.int64)
    columns[:, [FILE, LOW, HIGH]] = boxes
    return columns


def reach(*boxes, most=1 << 20, end=None):
    """Stop of what is read for the first of boxes."""
    at = 0, end or len(boxes)
    return loops._reach.py_func(columns_of(*boxes), at, most)


def test_boxes_that_follow_closely_are_read_with_the_first():
    assert reach(FIRST, (3, NEAR, NEAR + 50), (3, NEAR + 60, NEAR + 90)) == NEAR + 90


def test_a_box_within_another_does_not_end_what_is_read():
    assert reach(FIRST, (3, 150, 600), (3, 160, 300)) == 600


@pytest.mark.parametrize(
    "box",
    [(3, FAR, FAR + 50), (4, 210, 300), (3, 90, 300)],
    ids=["far away", "another file", "before it"],
)
def test_reading_ends_before_a_box_that(box):
    assert reach(FIRST, box, (3, 220, 250)) == 200


def test_of_a_box_beyond_the_window_nothing_is_read():
    """It would be read again from its first byte on."""
    assert reach(FIRST, (3, 210, 301), (3, 301, 302), most=300) == 200
    assert reach(FIRST, (3, 210, 300), most=300) == 300


def test_what_other_threads_read_is_not_read_here():
    assert reach(FIRST, (3, 210, 300), (3, 310, 400), end=2) == 300


def test_kept_inner_chunks_are_passed_over():
    kept = (FILLED, 0, 0)
    assert reach(FIRST, kept, kept, (3, 210, 300)) == 300
    # The bytes of the kept ones lie between, and are too many to be read in vain.
    assert reach(FIRST, kept, (3, FAR, FAR + 50)) == 200


@pytest.fixture
def read(monkeypatch):
    """Whether the first of boxes is in the window, what was read, what the window has.

    A window of `room` bytes has `held`; files have 300 bytes.
    """

    def read(*boxes, room, held=NOTHING):
        asked = []

        def read_at(_, file, target, nbytes, offset):
            assert target == WINDOW
            asked.append((file, offset, nbytes))
            return min(nbytes, 300 - offset)

        monkeypatch.setattr(loops, "_read_at", read_at)
        d, held = SimpleNamespace(window=WINDOW, window_nbytes=room), list(held)
        at = 0, len(boxes)
        is_there = loops._read_ahead.py_func(d, columns_of(*boxes), at, held)
        return is_there, asked, tuple(held)

    monkeypatch.setattr(loops, "_reach", loops._reach.py_func)
    return read


@pytest.mark.parametrize(("room", "stop"), [(100, 200), (149, 200), (150, 250)])
def test_no_more_is_read_than_the_window_takes(read, room, stop):
    found = True, [(3, 100, stop - 100)], (3, 100, stop)
    assert read(FIRST, (3, 201, 250), room=room) == found


def test_for_a_box_that_the_window_does_not_take_nothing_is_read(read):
    assert read(FIRST, room=99) == (False, [], NOTHING)


@pytest.mark.parametrize(
    ("held", "is_read"),
    [((3, 100, 200), False), ((3, 90, 260), False)]
    + [(held, True) for held in ((4, 100, 200), (3, 101, 260), (3, 90, 199), NOTHING)],
)
def test_only_what_the_window_has_not_is_read(read, held, is_read):
    told = ([(3, 100, 100)], FIRST) if is_read else ([], held)
    assert read(FIRST, room=200, held=held) == (True, *told)


def test_where_a_file_ends_early_the_window_has_what_there_is(read):
    assert read((3, 250, 301), room=99) == (False, [(3, 250, 51)], (3, 250, 300))
    behind = (3, 250, 300), (3, 300, 340)
    assert read(*behind, room=99) == (True, [(3, 250, 90)], (3, 250, 300))
