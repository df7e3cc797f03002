"""Masks with many true elements, which are picked from boxes of the array."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpushard
from array_strategies import stored_arrays
from asked_store import BY_PRICE, IN_REQUESTS, AskedStore
from gpushard import CorruptShardError, ObjectChangedError, SelectionError
from gpushard.reading import masked, read, results
from gpushard.selecting.expressions import points
from tiny_bounds import tiny_bounds
from zarr_oracle import HAS_RECTILINEAR, assert_same_bits

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

LIMIT = 1 << 28
VALUES = np.arange(12 * 10 * 14, dtype="i2").reshape(12, 10, 14)
ALL = np.ones(VALUES.shape, bool)
MORE = settings(max_examples=settings.default.max_examples * 2)


def put(place, shards=(6, 4, 6), chunks=(3, 2, 2), **more):
    made = zarr.create_array(
        place,
        shape=VALUES.shape,
        dtype=VALUES.dtype,
        shards=shards,
        chunks=chunks,
        fill_value=-1,
        **more,
    )
    made[...] = VALUES
    return place


def opened(place, **options):
    how = gpushard.Options(memory_limit=LIMIT, **{"compile_nbytes": 0} | options)
    return gpushard.open_array(place, device="cpu", options=how)


@contextmanager
def boxes_pay(per_box=1 << 20, **more):
    """Let boxes of up to `per_box` bytes be read for any mask; yields the answers."""
    answers = []

    def noted(*given):
        answers.append(masked.read_masked(*given))
        return answers[-1]

    bounds = {"_MANY_PER_TRUE": 10**6, "_FEW_PER_TRUE": 10**6, "_PICKED": 8}
    bounds |= {"_MOST_NBYTES": per_box, **more}
    with ExitStack() as stack:
        stack.enter_context(tiny_bounds(block=64))
        stack.enter_context(mock.patch.object(results, "read_masked", noted))
        stack.enter_context(mock.patch.multiple(masked, **bounds))
        yield answers


@MORE
@given(stored_arrays(), st.data())
def test_boxes_of_any_array_give_what_numpy_gives(tmp_path_factory, stored, data):
    place = stored.placed("memory", tmp_path_factory.getbasetemp())
    a, full = gpushard.open_array(place, device="cpu"), stored.full
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    mask = rng.random(full.shape) < data.draw(st.sampled_from([0.1, 0.6, 1]))
    elements = data.draw(st.sampled_from([4, 40, 10**6]))
    with boxes_pay(elements * full.dtype.itemsize, _PICKED=3):
        assert_same_bits(a.vindex[mask], full[mask])


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(
    "elements",
    [
        12,  # an inner chunk
        3 * 2 * 14,  # cut along two axes
        3 * 10 * 14,  # some rows of inner chunks
        6 * 4 * 6,  # a shard
        6 * 8 * 14,  # shards that lie beside one another
        6 * 10 * 14,  # all of an axis
        10**4,
    ],
)
@pytest.mark.parametrize("part", [0.02, 0.5, 1])
def test_boxes_of_every_size_give_what_numpy_gives(tmp_path, loops, elements, part):
    a = opened(put(tmp_path), compile_nbytes=0 if loops else 2**62)
    rng = np.random.default_rng(elements)
    mask = rng.random(VALUES.shape) < part
    mask[:, 4:8, :6] = False
    with boxes_pay(2 * elements) as answers:
        assert_same_bits(a.vindex[mask], VALUES[mask])
        flipped = np.asfortranarray(mask)
        assert_same_bits(a.vindex[flipped], VALUES[mask])
    assert answers == [True, True]


@pytest.mark.parametrize("dtype", ["i2", "f8", ">i4"])
def test_results_are_cast_and_written_where_the_caller_says(tmp_path, dtype):
    a = opened(put(tmp_path))
    mask = VALUES % 3 > 0
    memory = np.zeros(3 * mask.sum(), dtype)
    with boxes_pay(2 * 100) as answers:
        a.read(points((mask,), VALUES.shape), out=memory[::3])
    assert answers == [True]
    assert memory[::3].tobytes() == VALUES[mask].astype(dtype).tobytes()
    assert not memory[1::3].any()


def test_each_inner_chunk_is_decoded_once(tmp_path):
    a = opened(put(tmp_path), chunk_cache_nbytes=0)
    for elements in (12, 100, 6 * 4 * 6, 10**4):
        with boxes_pay(2 * elements):
            report = a.explain(ALL)
        assert report.n_inner_chunks == 4 * 5 * 7


def test_boxes_without_true_elements_are_not_read(tmp_path):
    a = opened(put(tmp_path))
    mask = ALL.copy()
    mask[:6] = False
    with boxes_pay(2 * 6 * 10 * 14):
        assert a.explain(mask).n_inner_chunks == 2 * 5 * 7


@pytest.mark.parametrize(
    ("bounds", "is_read"),
    [
        ({"_MANY_PER_TRUE": 16}, True),
        ({"_MANY_PER_TRUE": 15}, False),
        ({"_PLACES_SHARE": 1 << 40}, False),
        ({"_MOST_NBYTES": 23}, False),
        ({"_MOST_NBYTES": 24}, True),
    ],
)
def test_boxes_are_read_if_that_takes_less_time_and_little_memory(
    tmp_path, bounds, is_read
):
    a = opened(put(tmp_path))
    mask = np.arange(VALUES.size).reshape(VALUES.shape) % 16 == 0
    with boxes_pay() as answers, mock.patch.multiple(masked, **bounds):
        assert_same_bits(a.vindex[mask], VALUES[mask])
    assert answers == [is_read]


def test_boxes_without_true_elements_count_for_nothing(tmp_path):
    a = opened(put(tmp_path))
    mask = ~ALL
    mask[6:, :4, 6:12] = True
    with boxes_pay(2 * 6 * 4 * 6, _MANY_PER_TRUE=1) as answers:
        a.vindex[mask]
    assert answers == [True]


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="zarr 3.1 has no rectilinear grids")
def test_boxes_of_cells_of_several_lengths_cut_none(tmp_path):
    grid = [[1, 5, 2, 4], [10], [3, 4, 7]]
    with zarr.config.set({"array.rectilinear_chunks": True}):
        put(tmp_path, shards=None, chunks=grid)
    a = opened(tmp_path)
    for elements in (5 * 10 * 7, 5 * 10 * 14, 7 * 10 * 14):
        with boxes_pay(2 * elements) as answers:
            assert a.explain(ALL).n_inner_chunks == 4 * 3
            assert_same_bits(a.vindex[ALL], VALUES[ALL])
        assert answers == [True, True]


@pytest.mark.parametrize(("costs", "is_read"), [(IN_REQUESTS, True), (BY_PRICE, False)])
def test_over_a_network_fewer_unwanted_elements_are_fetched(tmp_path, costs, is_read):
    a = opened(AskedStore(put(tmp_path), costs))
    with boxes_pay(_MANY_PER_TRUE=3, _FEW_PER_TRUE=2) as answers:
        a.vindex[VALUES % 3 == 0]
    assert answers == [is_read]


def flip(place, entry):
    """Damage an inner chunk of the first shard, which has a checksum."""
    shard = place / "c/0/0/0"
    stored = bytearray(shard.read_bytes())
    entries = np.frombuffer(bytes(stored[-12 * 16 - 4 : -4]), "<u8").reshape(-1, 2)
    stored[int(entries[entry, 0]) + 5] ^= 0xFF
    shard.write_bytes(stored)


def test_damage_of_an_inner_chunk_that_nobody_wants_is_no_error(tmp_path):
    crc = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    flip(put(tmp_path, compressors=crc), 0)
    a = opened(tmp_path)
    mask = ALL.copy()
    mask[:3, :2, :2] = False
    with boxes_pay() as answers:
        assert_same_bits(a.vindex[mask], VALUES[mask])
        found = []
        a.read(mask, errors=found.append)
        mask[0, 0, 0] = True
        with pytest.raises(CorruptShardError) as caught:
            a.vindex[mask]
    # Where damage is replaced, no box is tried, since it would be reported.
    assert answers == [False, False]
    assert found == []
    assert caught.value.inner_chunk == (0, 0, 0)


def test_a_shard_that_nobody_wants_may_be_unreadable(tmp_path):
    place = put(tmp_path)
    (place / "c/1/2/2").unlink()
    (place / "c/1/2/2").mkdir()
    mask = ALL.copy()
    mask[6:, 8:, 12:] = False
    with boxes_pay() as answers:
        assert_same_bits(opened(place).vindex[mask], VALUES[mask])
    assert answers == [False]


@pytest.mark.parametrize("elements", [100, 10**4])
@pytest.mark.parametrize("more", [False, True])
def test_a_mask_that_changes_meanwhile_is_an_error(tmp_path, elements, more):
    a = opened(put(tmp_path))
    mask = VALUES % 2 == 0
    real = results.read_at_once

    def changing(*given, **named):
        real(*given, **named)
        mask[...] = more

    changed = mock.patch.object(results, "read_at_once", changing)
    told = pytest.raises(SelectionError, match="was changed")
    with boxes_pay(2 * elements), changed, told:
        a.vindex[mask]


def test_results_are_written_over_the_mask_that_lists_them(tmp_path):
    values = np.arange(90) % 3 == 0
    zarr.create_array(tmp_path, shape=(90,), dtype=bool, chunks=(7,))[...] = values
    mask = np.ones(90, bool)
    with boxes_pay() as answers:
        opened(tmp_path).read(points((mask,), (90,)), out=mask)
    np.testing.assert_array_equal(mask, values)
    assert answers == []


# A shard that is not what it was when another box of it was read.


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """An array, and what happens to its second shard after each box."""
    shards = []
    for k in (1, 0):
        made = zarr.open_array(put(tmp_path / str(k), shards=(12, 10, 8)))
        made[...] = VALUES + k
        shards.insert(0, (tmp_path / str(k) / "c/0/0/1").read_bytes())
    target, todo, finish = tmp_path / "0/c/0/0/1", [], read.finish

    def finish_and_change(jobs):
        finish(jobs)
        if todo:
            new = Path(f"{target}.new")
            new.write_bytes(shards[todo.pop(0)])
            os.replace(new, target)

    monkeypatch.setattr(read, "finish", finish_and_change)
    return opened(tmp_path / "0", small_read_chunks=0), todo


def test_a_shard_replaced_between_boxes_is_read_again_from_the_first_of_them(changing):
    a, todo = changing
    todo += [*[0] * 7, 1]  # behind the first row of inner chunks
    with boxes_pay(2 * 100) as answers:
        found = a.vindex[ALL]
    assert not todo
    assert answers == [True]
    expected = VALUES.copy()
    expected[:, :, 8:] += 1
    np.testing.assert_array_equal(found, expected.reshape(-1))


def test_a_shard_replaced_between_boxes_again_and_again_is_an_error(changing):
    a, todo = changing
    todo += [k % 2 for k in range(1, 5000)]
    with boxes_pay(2 * 100), pytest.raises(ObjectChangedError, match="again"):
        a.vindex[ALL]


@pytest.mark.parametrize("order", ["C", "F"])
def test_counting_true_elements_copies_no_mask(order):
    mask = np.ones((8, 64, 4096), bool, order=order)
    cuts = [(0, 40), (40, 64)]
    tracemalloc.start()
    try:
        counts = masked._counts(mask, cuts, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts.tolist() == [[40 * 4096, 24 * 4096]] * 8
    assert peak < mask.nbytes // 4
