"""Of several selections, those of little are read alone where that takes less time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from fused_cases import CHAINS, FUSED, VALUES, ZSTD, stored
from gpushard.fused import choice, opening
from gpushard.reading import results
from selection_strategies import basic_keys, point_keys
from zarr_oracle import assert_same_bits, held

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
pytestmark = pytest.mark.usefixtures("settled")

ALONE = FUSED.but(small_read_chunks=8)
# 2, 1, 1 and 8 inner chunks of `VALUES`.
LITTLE = [np.s_[30:34, 5:9], np.s_[99, 0], np.s_[0:1, 20:30], np.s_[::16, 3:19]]


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """The loops are there, as after the first large read of a process."""
    choice._load()
    monkeypatch.setattr(opening, "_SLOW_US", 1e9)


@pytest.fixture
def planned(monkeypatch):
    """For each plan the number of selections in it."""
    seen, host_job = [], results.host_job
    monkeypatch.setattr(
        results,
        "host_job",
        lambda *given: seen.append(len(given[1])) or host_job(*given),
    )
    return seen


def opened(tmp_path, chain, options=ALONE):
    place = stored(CHAINS[chain]).placed("local", tmp_path)
    return gpushard.open_array(place, options=options, device="cpu")


def assert_all_read(a, keys):
    for got, key in zip(a.read_many(keys), keys, strict=True):
        assert_same_bits(got, np.asarray(VALUES[key]))


@pytest.mark.parametrize("chain", ["raw", "zstd", "gzip", "blosc lz4 shuffle 0"])
def test_selections_of_little_take_no_plan(chain, planned, tmp_path):
    assert_all_read(opened(tmp_path, chain), LITTLE)
    assert planned == []


def test_selections_of_files_of_their_own_take_no_plan(planned, tmp_path):
    made = gpushard.create_array(tmp_path, shape=(100, 90), dtype="i4", chunks=(32, 16))
    made[...] = VALUES
    assert_all_read(gpushard.open_array(tmp_path, options=ALONE), LITTLE)
    assert planned == []


def test_selections_that_take_long_to_decode_share_a_plan(
    planned, monkeypatch, tmp_path
):
    a = opened(tmp_path, "zstd")
    each_us = choice.fused_chain(a.source).chunk_us
    monkeypatch.setattr(results, "_PLANNING_US", 2 * each_us + 1)
    assert_all_read(a, [*LITTLE, np.s_[...]])
    assert planned == [2]
    monkeypatch.setattr(results, "_PLANNING_US", each_us - 1)
    assert_all_read(a, LITTLE)
    assert planned == [2, 4]


@pytest.mark.parametrize(("n", "plans"), [(127, []), (128, [1])])
def test_many_small_boxes_share_a_plan(n, plans, planned, tmp_path):
    assert_all_read(
        opened(tmp_path, "zstd"), [np.s_[k % 99, k % 88 : k % 88 + 2] for k in range(n)]
    )
    assert planned == plans


@pytest.mark.parametrize("n", [20, 128])
def test_selections_that_are_not_pooled_are_looked_at_once(n, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(results, "read_pooled", lambda *_: asked.append(1))
    a = opened(tmp_path, "zstd", FUSED.but(small_read_chunks=0))
    assert_all_read(a, [np.s_[k % 99, 5:9] for k in range(n)])
    assert asked == [1]


def test_of_plain_elements_no_more_is_decoded_than_is_wanted(
    planned, monkeypatch, tmp_path
):
    a = opened(tmp_path, "raw")
    monkeypatch.setattr(results, "_PLANNING_US", 8)
    assert_all_read(a, LITTLE)
    assert planned == []


@pytest.mark.parametrize("chain", ["raw", "zstd"])
@given(data=st.data())
def test_any_selections_are_read_as_numpy_reads_them(chain, tmp_path_factory, data):
    a = opened(tmp_path_factory.mktemp("a"), chain)
    keys = [data.draw(basic_keys(VALUES.shape)) for _ in range(3)]
    keys.append(data.draw(point_keys(VALUES.shape)))
    keys = data.draw(st.permutations(keys))
    assert_all_read(a, keys)


def test_other_stores_are_asked_for_all_selections_at_once(planned):
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=ALONE, device="cpu")
    assert_all_read(a, LITTLE)
    assert planned == [4]
