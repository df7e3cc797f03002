"""Steps of the compiled planning, as Python runs them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused.compiled import planning


def part_of(room):
    """What stands for an array at an address: so many of the words of `room`."""

    def ints(address, shape):
        start = address // 8
        return room[start : start + math.prod(shape)].reshape(shape)

    return ints


@given(low=st.lists(st.integers(0, 20), max_size=40))
def test_boxes_are_sorted_by_their_bytes_and_equal_ones_stay_in_order(low):
    boxes = np.zeros((len(low), planning.FIRST_LENGTH + 1), np.int64)
    boxes[:, planning.LOW], boxes[:, -1] = low, np.arange(len(low))
    want = boxes[np.argsort(low, kind="stable")]
    with pytest.MonkeyPatch.context() as patch:
        for step in ("_merge", "_order"):
            patch.setattr(planning, step, getattr(planning, step).py_func)
        room = np.zeros(planning.columns.sorting_words(*boxes.shape), np.int64)
        patch.setattr(planning.calls, "ints", part_of(room))
        planning._sort.py_func(boxes, 0)
    assert np.array_equal(boxes, want)
