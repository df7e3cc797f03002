"""How far the compiled loops read on, as Python runs that step."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused import loops
from gpushard.fused.columns import FILE, FILLED, FIRST_LENGTH, GAP_NBYTES, HIGH, LOW

NEAR, FAR = 200 + GAP_NBYTES, 201 + GAP_NBYTES
FIRST = (3, 100, 200)


def reach(*boxes, most=1 << 20, end=None):
    """Stop of what is read for the first of boxes, given as (file, low, high)."""
    columns = np.zeros((len(boxes), FIRST_LENGTH), np.int64)
    columns[:, [FILE, LOW, HIGH]] = boxes
    return loops._reach.py_func(columns, (0, end or len(boxes)), most)


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
