"""Long lists of points, which are picked from the box around them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import stored_arrays
from asked_store import BY_PRICE, IN_REQUESTS, AskedStore
from gpushard import CorruptShardError, ObjectChangedError, SelectionError
from gpushard.reading import results, surrounded
from gpushard.selecting.expressions import points
from tiny_bounds import tiny_bounds
from zarr_oracle import assert_same_bits

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

LIMIT = 1 << 28
VALUES = np.arange(12 * 10 * 14, dtype="i2").reshape(12, 10, 14)


def put(place, values=VALUES, **more):
    shards, chunks = ((6, 4, 6), (3, 2, 2)) if values.ndim == 3 else ((60,), (12,))
    made = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, shards=shards, chunks=chunks,
        **more,
    )  # fmt: skip
    made[...] = values
    return place


def opened(place, **options):
    how = gpushard.Options(memory_limit=LIMIT, **{"compile_nbytes": 0} | options)
    return gpushard.open_array(place, device="cpu", options=how)


def some_points(low=(0, 0, 0), high=VALUES.shape):
    rng = np.random.default_rng(3)
    return tuple(rng.integers(*ends, 1000) for ends in zip(low, high, strict=False))


@contextmanager
def boxes_pay(**bounds):
    """Let a box be read for any list; yields the answers."""
    answers = []

    def noted(*given):
        answers.append(surrounded.read_surrounded(*given))
        return answers[-1]

    bounds = {"_MANY_PER_ELEMENT": 10**6, "_FEW_PER_ELEMENT": 10**6} | bounds
    with ExitStack() as stack:
        stack.enter_context(tiny_bounds(block=64))
        stack.enter_context(mock.patch.object(results, "read_surrounded", noted))
        never = mock.Mock(return_value=False)
        stack.enter_context(mock.patch.object(results, "read_masked", never))
        stack.enter_context(mock.patch.multiple(surrounded, **bounds))
        yield answers


@given(stored_arrays(), st.data())
def test_points_of_any_array_are_those_that_numpy_takes(tmp_path_factory, stored, data):
    place = stored.placed("memory", tmp_path_factory.getbasetemp())
    a, full = gpushard.open_array(place, device="cpu"), stored.full
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if not full.size or not full.ndim:
        return
    shape = data.draw(st.sampled_from([(200,), (10, 20), (0,)]))
    listed = tuple(rng.integers(-end, end, shape) for end in full.shape)
    with boxes_pay():
        assert_same_bits(a.vindex[listed], full[listed])


@pytest.mark.parametrize("loops", [False, True])
def test_points_are_picked_in_their_order_and_as_often_as_listed(tmp_path, loops):
    a = opened(put(tmp_path), compile_nbytes=0 if loops else 2**62)
    listed = some_points()
    backwards = tuple(x - end for x, end in zip(listed, VALUES.shape, strict=True))
    crossing = (np.arange(12)[:, None, None], np.arange(10)[:, None], np.arange(14))
    mask = VALUES % 3 == 0
    with boxes_pay() as answers:
        for key in (listed, backwards, crossing, mask):
            assert_same_bits(a.vindex[key], VALUES[key])
    assert answers == [True] * 4


@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 spec")
@pytest.mark.parametrize("shape", [(12, 10, 14), (600,)])
def test_points_of_long_elements_are_picked_too(tmp_path, shape):
    values = np.resize(VALUES, shape).astype("S20")
    a = opened(put(tmp_path, values))
    listed = some_points(high=shape)[: len(shape)]
    index = a.vindex if len(shape) > 1 else a.oindex
    with boxes_pay() as answers:
        np.testing.assert_array_equal(index[listed], values[listed])
    assert answers == [True]


@pytest.mark.parametrize("by", ["key", "oindex", "vindex"])
def test_lists_along_the_only_axis_are_points(tmp_path, by):
    values = VALUES.reshape(-1)[:600]
    a = opened(put(tmp_path, values))
    (listed,) = some_points(high=(600,))
    indexed = {"key": a, "oindex": a.oindex, "vindex": a.vindex}[by]
    with boxes_pay() as answers:
        assert_same_bits(indexed[listed], values[listed])
    assert answers == [True]


@pytest.mark.parametrize("dtype", ["i2", "f8", ">i4"])
def test_results_are_cast_and_written_where_the_caller_says(tmp_path, dtype):
    a = opened(put(tmp_path))
    listed = some_points()
    memory = np.zeros(3 * len(listed[0]), dtype)
    with boxes_pay() as answers:
        a.read(points(listed, VALUES.shape), out=memory[::3])
    assert answers == [True]
    assert memory[::3].tobytes() == VALUES[listed].astype(dtype).tobytes()
    assert not memory[1::3].any()


def test_results_with_gaps_in_every_row_are_written_where_the_caller_says(tmp_path):
    a = opened(put(tmp_path))
    listed = tuple(along.reshape(20, 50) for along in some_points())
    memory = np.zeros((20, 100), "i2")
    with boxes_pay() as answers:
        a.read(points(listed, VALUES.shape), out=memory[:, ::2])
    assert answers == [False]
    np.testing.assert_array_equal(memory[:, ::2], VALUES[listed])
    assert not memory[:, 1::2].any()


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_text_that_nobody_wants_is_not_read(tmp_path):
    words = VALUES.astype(np.dtypes.StringDType())
    a = opened(put(tmp_path, words))
    listed = some_points()
    with boxes_pay() as answers:
        np.testing.assert_array_equal(a.vindex[listed], words[listed])
        assert not surrounded.is_surrounded(a.source, 10**6)
    assert answers == [False]


def test_inner_chunks_outside_of_the_box_are_not_read_and_others_once(tmp_path):
    a = opened(put(tmp_path), chunk_cache_nbytes=0)
    with boxes_pay() as answers:
        report = a.explain(some_points(low=(3, 2, 4), high=(9, 6, 14)))
    assert answers == [True]
    assert report.n_inner_chunks == 2 * 2 * 5


@pytest.mark.parametrize(
    ("bounds", "limit", "is_read"),
    [
        ({"_MANY_PER_ELEMENT": 2}, LIMIT, True),
        ({"_MANY_PER_ELEMENT": 1}, LIMIT, False),
        ({"_BOX_SHARE": LIMIT // 3360}, LIMIT, True),
        ({"_BOX_SHARE": LIMIT // 3358}, LIMIT, False),
    ],
)
def test_a_box_is_read_if_that_takes_less_time_and_little_memory(
    tmp_path, bounds, limit, is_read
):
    a = opened(put(tmp_path))
    with boxes_pay(**bounds) as answers:
        listed = some_points()
        assert_same_bits(a.vindex[listed], VALUES[listed])
    assert answers == [is_read]


@pytest.mark.parametrize(("costs", "is_read"), [(IN_REQUESTS, True), (BY_PRICE, False)])
def test_over_a_network_fewer_unwanted_elements_are_fetched(tmp_path, costs, is_read):
    a = opened(AskedStore(put(tmp_path), costs))
    with boxes_pay(_MANY_PER_ELEMENT=2, _FEW_PER_ELEMENT=1) as answers:
        a.vindex[some_points()]
    assert answers == [is_read]


def test_damage_of_an_inner_chunk_that_nobody_wants_is_no_error(tmp_path):
    crc = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    shard = put(tmp_path, compressors=crc) / "c/0/0/0"
    stored = bytearray(shard.read_bytes())
    stored[5] ^= 0xFF
    shard.write_bytes(stored)
    a = opened(tmp_path)
    listed = [x[np.array(some_points()).max(axis=0) > 3] for x in some_points()]
    with boxes_pay() as answers:
        assert_same_bits(a.vindex[tuple(listed)], VALUES[tuple(listed)])
        found = []
        a.read(tuple(listed), errors=found.append)
        for along in listed:
            along[0] = 0
        with pytest.raises(CorruptShardError) as caught:
            a.vindex[tuple(listed)]
    # Where damage is replaced, no box is tried, since it would be reported.
    assert answers == [False, False]
    assert found == []
    assert caught.value.inner_chunk == (0, 0, 0)


def test_a_shard_that_changes_under_the_read_is_no_reason_to_read_it_otherwise(
    tmp_path, monkeypatch
):
    def changed(*_, **__):
        raise ObjectChangedError("it was replaced again and again")

    a = opened(put(tmp_path))
    monkeypatch.setattr(results, "read_at_once", changed)
    with boxes_pay() as answers, pytest.raises(ObjectChangedError):
        a.vindex[some_points()]
    assert answers == []


@pytest.mark.parametrize("to", [0, 11])
def test_a_list_that_changes_meanwhile_is_an_error(tmp_path, to):
    a = opened(put(tmp_path))
    listed = some_points(low=(3, 2, 4), high=(9, 6, 14))
    real = results.read_at_once

    def changing(*given, **named):
        real(*given, **named)
        listed[0][500:] = to

    changed = mock.patch.object(results, "read_at_once", changing)
    told = pytest.raises(SelectionError, match="was changed")
    with boxes_pay(), changed, told:
        a.vindex[listed]
