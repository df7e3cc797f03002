"""Long lists along one axis, which are picked from boxes around their elements."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard import SelectionError
from gpushard.reading import results, surrounded
from gpushard.selecting.expressions import orthogonal, points
from gpushard.selecting.listing import IndexArrays
from strategies import slices
from tiny_bounds import tiny_bounds
from zarr_oracle import assert_same_bits

ROW = np.arange(1, 91, dtype="i4")
ROW[56:70] = -1  # a missing shard
LIMIT = 1 << 28
CUBE = np.arange(1, 23 * 4 * 3 + 1, dtype="i2").reshape(4, 23, 3)
KINDS = {
    "zstd": {"shards": 14, "chunks": 7},
    "plain elements": {"shards": 14, "chunks": 7, "compressors": None},
    "unsharded": {"chunks": 7},
    "one shard": {"shards": 98, "chunks": 7},
}


def put(place, values, **kept):
    """Array of `values`, cut into cells of some elements along its longest axis."""
    for name in ("shards", "chunks"):
        if name in kept:
            grid = [max(1, n // 2) for n in values.shape]
            grid[int(np.argmax(values.shape))] = kept[name]
            if name == "shards":
                grid = [n if n == kept[name] else 2 * n for n in grid]
            kept[name] = tuple(grid)
    made = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, fill_value=-1, **kept
    )
    made[...] = values
    return place


@pytest.fixture(scope="module", params=KINDS)
def places(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("ascending")
    row = put(root / "row", ROW, **KINDS[request.param])
    return row, put(root / "cube", CUBE, **KINDS[request.param])


@contextmanager
def boxes_pay(per_box=None, block=5, **bounds):
    """Let boxes be read for any list; the answers of `read_surrounded`.

    Each takes up to `per_box` bytes.
    """
    answers = []

    def noted(*given):
        answers.append(surrounded.read_surrounded(*given))
        return answers[-1]

    bounds = {
        "_MANY_PER_ELEMENT": 1000, "_MOST_ROW_NBYTES": 99, "_LONG_GAP": 20
    } | bounds  # fmt: skip
    if per_box is not None:
        bounds["_BOX_SHARE"] = LIMIT // per_box
    with ExitStack() as stack:
        stack.enter_context(tiny_bounds(block=block))
        stack.enter_context(mock.patch.object(results, "read_surrounded", noted))
        never = mock.Mock(return_value=False)
        stack.enter_context(mock.patch.object(results, "read_masked", never))
        stack.enter_context(mock.patch.multiple(surrounded, **bounds))
        yield answers


def opened(place, loops):
    options = gpushard.Options(compile_nbytes=0 if loops else 2**62, memory_limit=LIMIT)
    return gpushard.open_array(place, device="cpu", options=options)


@st.composite
def ascending_lists(draw, extent):
    """A mask of an axis with two true elements at least, or a list that ascends."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    begin = draw(st.integers(0, extent - 2))
    mask = np.zeros(extent, bool)
    end = draw(st.integers(begin + 2, extent))
    mask[begin:end] = rng.random(end - begin) < draw(st.sampled_from([0.1, 0.6, 1]))
    mask[[begin, end - 1]] = True
    found = np.flatnonzero(mask)
    kind = draw(st.sampled_from(["mask", "list", "repeated", "from the end", "bytes"]))
    if kind == "mask":
        return mask
    if kind == "from the end":
        return found - extent
    kept = found.astype("u1" if kind == "bytes" else "i8")
    return np.repeat(kept, 2) if kind == "repeated" else kept


@pytest.mark.parametrize("loops", [False, True])
@given(
    index=ascending_lists(90),
    is_point=st.booleans(),
    per_box=st.sampled_from([60, 120, 10**6]),
    dtype=st.sampled_from(["i4", "f8"]),
)
def test_lists_of_a_row_give_what_numpy_gives(
    places, loops, index, is_point, per_box, dtype
):
    a = opened(places[0], loops)
    parse = points if is_point else orthogonal
    with boxes_pay(per_box):
        selection = parse((index,), (90,))
        out = np.zeros(selection.shape, dtype)
        a.read(selection, out=out)
    assert_same_bits(out, ROW[index].astype(dtype))


@pytest.mark.parametrize("loops", [False, True])
@given(
    index=ascending_lists(23),
    first=slices(4) | st.integers(0, 3) | st.just([3, 0, 3]),
    last=slices(3) | st.just(np.array([True, False, True])),
    is_backwards=st.booleans(),
)
def test_lists_of_an_axis_give_what_numpy_gives(
    places, loops, index, first, last, is_backwards
):
    a = opened(places[1], loops)
    expected = CUBE[:, index][first][..., last]
    with boxes_pay():
        out = np.zeros(expected.shape[::-1], "i2").T
        out = out[..., ::-1] if is_backwards else out
        a.read(orthogonal((first, index, last), CUBE.shape), out=out)
    assert_same_bits(np.ascontiguousarray(out), np.ascontiguousarray(expected))


MASK = np.ones(90, bool)
MASK[::3] = False


@pytest.mark.parametrize("index", [MASK, np.flatnonzero(MASK)], ids=["mask", "list"])
@pytest.mark.parametrize("per_box", [60, 10**6])
def test_each_shard_is_read_once(places, index, per_box):
    a = opened(places[0], loops=True)
    at_once = a.explain(np.flatnonzero(MASK))
    with boxes_pay(per_box) as answers:
        report = a.explain(index)
    is_one_shard = at_once.n_shards == 1
    # What does not fit is listed: a round reads some of the elements of a shard.
    assert answers == [not is_one_shard or per_box > 60]
    if answers == [True]:
        assert report.n_shards == at_once.n_shards
        assert report.n_inner_chunks == at_once.n_inner_chunks


def test_shards_between_two_that_lie_apart_are_not_read(places):
    a = opened(places[0], loops=False)
    at_once = a.explain([0, 83, 89])
    index = np.r_[1:5, 83:90]
    with boxes_pay(_MANY_PER_ELEMENT=2) as answers:
        report = a.explain(index)
        assert_same_bits(a.oindex[index], ROW[index])
    is_one_shard = at_once.n_shards == 1
    assert answers == [not is_one_shard] * 2
    assert is_one_shard or report.n_shards == at_once.n_shards


@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize(
    "index",
    [np.arange(89, -1, -1), np.append(np.arange(5), np.arange(90))],
    ids=["within a block", "between two blocks"],
)
def test_lists_that_descend_have_one_box_or_none(places, index, is_one):
    a = opened(places[0], loops=True)
    with boxes_pay(10**6 if is_one else 120) as answers:
        assert_same_bits(a.oindex[index], ROW[index])
    assert answers == [is_one]


@pytest.mark.parametrize(
    ("bounds", "is_read"),
    [
        ({"_MANY_PER_ELEMENT": 2}, True),
        ({"_MANY_PER_ELEMENT": 1}, False),
        ({"_MOST_ROW_NBYTES": 11}, False),
        ({"_MOST_ROW_NBYTES": 12}, True),
        ({"_BOX_SHARE": LIMIT // (11 * 12)}, True),
        ({"_BOX_SHARE": LIMIT // 12}, False),
    ],
)
def test_boxes_are_read_if_that_takes_less_time_and_little_memory(
    bounds, is_read, tmp_path
):
    values = np.arange(90 * 3, dtype="i4").reshape(90, 3)
    zarr.create_array(tmp_path, shape=(90, 3), dtype="i4", chunks=(7, 3))[...] = values
    a = opened(tmp_path, loops=True)
    with boxes_pay(**bounds) as answers:
        assert_same_bits(a.oindex[MASK], values[MASK])
    assert answers == [is_read]


def test_lists_of_little_memory_gain_nothing_and_are_read_as_before(tmp_path):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = gpushard.open_array(tmp_path, device="cpu")
    with tiny_bounds(), mock.patch.object(surrounded, "_pick") as pick:
        assert_same_bits(a.oindex[MASK], ROW[MASK])
    assert not pick.called


def change(index, looks, monkeypatch, to):
    """Have a block change `to` others when it is looked at for the second time."""
    block = IndexArrays.block

    def changing(self, number):
        looks.append(number)
        if looks.count(number) == 2:
            index[...] = to
        return block(self, number)

    monkeypatch.setattr(IndexArrays, "block", changing)


@pytest.mark.parametrize(
    "to",
    [
        np.arange(10, 0, -1),  # as many, none of which ascend
        np.arange(80, 90),  # behind all boxes
        np.append(np.arange(9), 0),  # before the box
    ],
)
@pytest.mark.parametrize("per_box", [14 * 4, 10**6])
def test_a_list_that_changes_meanwhile_is_an_error(to, per_box, tmp_path, monkeypatch):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = opened(tmp_path, loops=False)
    index = np.arange(3, 33, 3)
    with boxes_pay(per_box, block=10):
        change(index, [], monkeypatch, to)
        with pytest.raises(SelectionError, match="was changed"):
            a.oindex[index]


def test_results_are_written_over_the_mask_that_lists_them(tmp_path):
    values = np.arange(90) % 3 == 0
    zarr.create_array(tmp_path, shape=(90,), dtype=bool, chunks=(7,))[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    mask = np.ones(90, bool)
    with boxes_pay() as answers:
        a.read(orthogonal((mask,), (90,)), out=mask)
    np.testing.assert_array_equal(mask, values)
    assert answers == []


def test_boxes_that_leave_no_room_are_given_up(tmp_path, monkeypatch):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = gpushard.open_array(tmp_path, device="cpu")
    real = results.read_at_once

    def refusing(source, selections, outs, *given, **named):
        if len(outs[0]) > 80:
            raise gpushard.errors.LimitError("does not fit")
        real(source, selections, outs, *given, **named)

    monkeypatch.setattr(results, "read_at_once", refusing)
    with boxes_pay() as answers:
        assert_same_bits(a.oindex[MASK], ROW[MASK])
    assert answers == [False]
