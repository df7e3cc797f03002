"""Long ascending lists along one axis, which are picked from runs around them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard import CorruptShardError, SelectionError
from gpushard.reading import ascending, results
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
def runs_pay(per_group=None, **more):
    """Let runs be read around any ascending list; the answers of `read_runs`.

    Those of a group take up to `per_group` bytes.
    """
    answers = []

    def noted(*given):
        answers.append(ascending.read_runs(*given))
        return answers[-1]

    bounds = {"_MANY_PER_RUN": 0, "_MANY_PER_ELEMENT": 1000, "_MOST_ROW_NBYTES": 99}
    if per_group is not None:
        bounds["_RUNS_SHARE"] = LIMIT // per_group
    with ExitStack() as stack:
        stack.enter_context(tiny_bounds(**{"block": 5, **more}))
        stack.enter_context(mock.patch.object(results, "read_runs", noted))
        no_boxes = mock.Mock(return_value=False)
        stack.enter_context(mock.patch.object(results, "read_masked", no_boxes))
        stack.enter_context(mock.patch.multiple(ascending, **bounds))
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
    per_group=st.sampled_from([60, 120, 10**6]),
    dtype=st.sampled_from(["i4", "f8"]),
)
def test_runs_of_a_row_give_what_numpy_gives(
    places, loops, index, is_point, per_group, dtype
):
    a = opened(places[0], loops)
    parse = points if is_point else orthogonal
    with runs_pay(per_group):
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
def test_runs_of_an_axis_give_what_numpy_gives(
    places, loops, index, first, last, is_backwards
):
    a = opened(places[1], loops)
    expected = CUBE[:, index][first][..., last]
    with runs_pay():
        out = np.zeros(expected.shape[::-1], "i2").T
        out = out[..., ::-1] if is_backwards else out
        a.read(orthogonal((first, index, last), CUBE.shape), out=out)
    assert_same_bits(np.ascontiguousarray(out), np.ascontiguousarray(expected))


MASK = np.ones(90, bool)
MASK[::3] = False


@pytest.mark.parametrize("index", [MASK, np.flatnonzero(MASK)], ids=["mask", "list"])
@pytest.mark.parametrize("per_group", [60, 10**6])
def test_each_shard_is_read_once(places, index, per_group):
    a = opened(places[0], loops=True)
    at_once = a.explain(np.flatnonzero(MASK))
    with runs_pay(per_group) as answers:
        report = a.explain(index)
    is_one_shard = at_once.n_shards == 1
    # What does not fit is listed: a round reads some of the elements of a shard.
    assert answers == [not is_one_shard or per_group > 60]
    if answers == [True]:
        assert report.n_shards == at_once.n_shards
        assert report.n_inner_chunks == at_once.n_inner_chunks


def test_inner_chunks_without_listed_elements_are_not_read(tmp_path):
    put(tmp_path, ROW, shards=98, chunks=7)
    shard = tmp_path / "c/0"
    stored = bytearray(shard.read_bytes())
    entries = np.frombuffer(bytes(stored[-13 * 16 - 4 - 16 : -4]), "<u8")
    offset = int(entries.reshape(-1, 2)[5, 0])  # of elements 35 to 41
    stored[offset] ^= 0xFF
    shard.write_bytes(stored)
    a = opened(tmp_path, loops=False)
    mask = MASK.copy()
    mask[35:42] = False
    with runs_pay() as answers:
        assert_same_bits(a.oindex[mask], ROW[mask])
        mask[36] = True
        with pytest.raises(CorruptShardError):
            a.oindex[mask]
    assert answers == [True]


UNLIKE = {
    "a list that descends": (ROW, np.arange(89, -1, -1)),
    "one that does so between two blocks": (ROW, np.append(np.arange(5), np.arange(9))),
    "points of several axes": (CUBE, None),
    "text": (ROW.astype(object), np.arange(90)),
}


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
@pytest.mark.parametrize("name", UNLIKE)
def test_other_lists_have_no_runs(name, tmp_path):
    values, index = UNLIKE[name]
    kept = {"chunks": 7}
    if name == "text":
        values = values.astype(str)
        zarr.create_array(tmp_path, shape=(90,), dtype=str, chunks=(7,))[...] = values
    else:
        put(tmp_path, values, **kept)
    a = gpushard.open_array(tmp_path, device="cpu")
    with runs_pay() as answers:
        if index is None:
            mask = values % 2 == 0
            found, expected = a.vindex[mask], values[mask]
        else:
            found, expected = a.oindex[index], values[index]
    np.testing.assert_array_equal(found, expected)
    assert answers == [False]


@pytest.mark.parametrize(
    ("bounds", "is_read"),
    [
        ({"_MANY_PER_RUN": 1}, True),
        ({"_MANY_PER_RUN": 10**5}, False),
        ({"_MANY_PER_ELEMENT": 1}, False),
        ({"_MOST_ROW_NBYTES": 3}, False),
        ({"_MOST_RUNS": 1}, False),
        ({"most_added_nbytes": lambda _: 4}, False),
    ],
)
def test_runs_are_read_if_that_takes_less_time(bounds, is_read, tmp_path, monkeypatch):
    put(tmp_path, ROW, shards=14, chunks=7, compressors=None)
    a = gpushard.open_array(tmp_path, device="cpu")
    monkeypatch.setattr(type(a.source.store.costs), "gap_nbytes", 0, raising=False)
    mask = MASK.copy()
    mask[14:28] = False
    with runs_pay() as answers, mock.patch.multiple(ascending, **bounds):
        assert_same_bits(a.oindex[mask], ROW[mask])
    assert answers == [is_read]


def test_lists_of_little_memory_gain_nothing_and_are_read_as_before(tmp_path):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = gpushard.open_array(tmp_path, device="cpu")
    with tiny_bounds(), mock.patch.object(ascending, "_pick") as pick:
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
        np.arange(80, 90),  # behind all runs
        np.append(np.arange(9), 0),  # before the run
    ],
)
def test_a_list_that_changes_meanwhile_is_an_error(to, tmp_path, monkeypatch):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = gpushard.open_array(tmp_path, device="cpu")
    index = np.arange(3, 13)
    with runs_pay(block=10):
        change(index, [], monkeypatch, to)
        with pytest.raises(SelectionError, match="was changed"):
            a.oindex[index]


def test_results_are_written_over_the_mask_that_lists_them(tmp_path):
    values = np.arange(90) % 3 == 0
    zarr.create_array(tmp_path, shape=(90,), dtype=bool, chunks=(7,))[...] = values
    a = gpushard.open_array(tmp_path, device="cpu")
    mask = np.ones(90, bool)
    with runs_pay() as answers:
        a.read(orthogonal((mask,), (90,)), out=mask)
    np.testing.assert_array_equal(mask, values)
    assert answers == []


def test_runs_that_leave_no_room_are_given_up(tmp_path, monkeypatch):
    put(tmp_path, ROW, shards=14, chunks=7)
    a = gpushard.open_array(tmp_path, device="cpu")
    real = results.read_at_once

    def refusing(source, selections, outs, *given, **named):
        if len(outs[0]) > 50 and outs[0].base is not None:
            raise gpushard.errors.LimitError("does not fit")
        real(source, selections, outs, *given, **named)

    monkeypatch.setattr(results, "read_at_once", refusing)
    with runs_pay() as answers:
        assert_same_bits(a.oindex[MASK], ROW[MASK])
    assert answers == [False]
