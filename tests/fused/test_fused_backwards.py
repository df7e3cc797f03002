"""Inner chunks that are stored backwards are read in the order of their bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpushard
from fused_cases import FUSED, LITTLE, need_fast_packages
from gpushard.fused import choice, columns
from gpushard.fused.code import loading
from guarded_planning import guarded_planning
from spec_shards import document, index_of, sharding
from zarr_oracle import assert_same_bits

need_fast_packages()

SHORT = FUSED.but(small_read_chunks=1)


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


@pytest.fixture(scope="module")
def backwards(tmp_path_factory):
    """Where an array of 32 shards lies, each of 64 elements and stored backwards."""
    place = tmp_path_factory.mktemp("backwards")
    inner = sharding((1,), codecs=[LITTLE])
    here = document((2048,), (64,), inner, dtype="int32", fill_value=0)
    (place / "zarr.json").write_text(json.dumps(here))
    (place / "c").mkdir()
    index = index_of([(4 * (63 - k), 4) for k in range(64)])
    for k in range(32):
        elements = np.arange(64 * k, 64 * k + 64, dtype="<i4")[::-1]
        (place / f"c/{k}").write_bytes(elements.tobytes() + index)
    return place


@pytest.mark.parametrize("key", [np.s_[:64], np.s_[:65], np.s_[::64]], ids=str)
def test_many_boxes_that_are_stored_backwards_are_planned(key, backwards, seen):
    want = np.arange(2048, dtype="i4")
    a, b = (gpushard.open_array(backwards, options=SHORT) for _ in range(2))
    assert_same_bits(a[key], want[key])
    with guarded_planning():
        assert_same_bits(b[key], want[key])
        assert_same_bits(b.vindex[want[key]], want[key])
    assert seen.n_short == 3


def test_each_point_is_a_box_of_one_element_in_the_order_of_the_bytes(
    backwards, monkeypatch
):
    made = []

    def plan_points(self, planned, axes, points, shards, boxes):
        plain(self, planned, axes, points, shards, boxes)
        made.append(boxes.copy())

    plain = loading.CompiledLoops.plan_points
    monkeypatch.setattr(loading.CompiledLoops, "plan_points", plan_points)
    points = [70, 3, 60, 7]
    a = gpushard.open_array(backwards, options=SHORT)
    assert_same_bits(a.vindex[points], np.array(points, "i4"))
    [boxes] = made
    assert boxes[:, columns.LOW].tolist() == [4 * (63 - k) for k in (60, 7, 3, 6)]
    assert (boxes[:, columns.FIRST_LENGTH :] == 1).all()
    assert (boxes[:, [columns.PART, columns.KEEP, columns.LISTED]] == 0).all()


def test_boxes_are_placed_in_the_order_of_the_bytes(backwards, monkeypatch):
    low = []

    def place_boxes(self, decoder, boxes, *rest):
        low.extend(boxes[:, columns.LOW].tolist())
        return plain(self, decoder, boxes, *rest)

    plain = loading.CompiledLoops.place_boxes
    monkeypatch.setattr(loading.CompiledLoops, "place_boxes", place_boxes)
    with guarded_planning():
        a = gpushard.open_array(backwards, options=SHORT)
        assert_same_bits(a[60:66], np.arange(60, 66, dtype="i4"))
    assert low == [4 * (63 - k) for k in (63, 62, 61, 60, 1, 0)]
