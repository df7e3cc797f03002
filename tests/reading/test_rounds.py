"""Reads of listed elements in rounds: what one read of all of them gives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpushard
from damaged_arrays import on_host, opened
from gpushard import ObjectChangedError, SelectionError
from gpushard.errors import LimitError, ObjectDeletedError
from gpushard.reading import read, results, rounds
from gpushard.selecting import expressions
from gpushard.selecting.portions import CellGroup
from strategies import slices
from tiny_bounds import tiny_bounds

SHAPE = (23, 31)
VALUES = np.arange(1, 23 * 31 + 1, dtype="i4").reshape(SHAPE)
VALUES[16:, 20:] = -1  # whole shards that are missing
KINDS = {
    "zstd": {"shards": (8, 10), "chunks": (2, 5)},
    "plain elements": {"shards": (8, 10), "chunks": (2, 5), "compressors": None},
    "unsharded": {"chunks": (4, 5)},
}


def put(place, values, **kept):
    """Array of `values`, whose fill value is -1."""
    made = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, fill_value=-1, **kept
    )
    made[...] = values
    return place


@pytest.fixture(scope="module", params=KINDS)
def place(request, tmp_path_factory):
    return put(tmp_path_factory.mktemp("rounds"), VALUES, **KINDS[request.param])


@st.composite
def keys(draw):
    """How to index, the key, and what NumPy gives."""
    n = draw(st.integers(2, 60))

    def index(axis):
        some = st.integers(-SHAPE[axis], SHAPE[axis] - 1)
        found = np.array(draw(st.lists(some, min_size=n, max_size=n)))
        return np.sort(found % SHAPE[axis]) if draw(st.booleans()) else found

    kind = draw(
        st.sampled_from(["points", "mesh", "mask", "rows", "columns", "crossed"])
    )
    if kind == "points":
        key = index(0), index(1)
        return "vindex", key, VALUES[key]
    if kind == "mesh":
        key = index(0)[:, np.newaxis], index(1)[np.newaxis, :7]
        return "vindex", key, VALUES[key]
    if kind == "mask":
        mask = np.random.default_rng(n).random(SHAPE) < draw(
            st.sampled_from([0.05, 0.2])
        )
        return "vindex", mask, VALUES[mask]
    if kind == "crossed":
        key = index(0), index(1)
        return "oindex", key, VALUES[np.ix_(*key)]
    if kind == "rows":
        rows, along = index(0), draw(slices(SHAPE[1]))
        return "oindex", (rows, along), VALUES[rows][:, along]
    mask, along = np.arange(SHAPE[1]) % n != 1, draw(slices(SHAPE[0]))
    return "oindex", (along, mask), VALUES[along][:, mask]


@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
@settings(max_examples=8)
@given(drawn=keys(), block=st.integers(1, 9), least=st.integers(2, 40))
def test_what_is_read_in_rounds_is_what_numpy_gives(place, way, drawn, block, least):
    index, key, expected = drawn
    a = opened(place, way)
    with tiny_bounds(block, least):
        found = getattr(a, index)[key]
    np.testing.assert_array_equal(on_host(found), expected)


def counts(a, key, *, least, few_more=100):
    """What reading elements of the first axis takes, `least` of them a round."""
    with tiny_bounds(least=least, counts_log2=16, few_more=few_more):
        report = a.explain(key)
    return report.n_shards, report.n_inner_chunks, report.n_payload_requests


@pytest.mark.parametrize("store", ["files", "memory"])
def test_rounds_read_each_inner_chunk_once_and_ask_for_no_more(store, tmp_path):
    values = np.arange(4000, dtype="i4")
    kept = {"shards": (400,), "chunks": (20,), "compressors": None}
    target = tmp_path if store == "files" else zarr.storage.MemoryStore()
    put(target, values, **kept)
    a = gpushard.open_array(target)
    order = np.random.default_rng(3).permutation(4000)
    for key in (np.arange(4000), order, np.ones(4000, bool)):
        at_once = counts(a, key, least=4000)
        assert at_once[:2] == (10, 200)
        assert counts(a, key, least=900) == at_once  # two shards a round
    # A shard has too many: each round reads some of its inner chunks, once.
    n_shards, n_chunks, n_requests = counts(a, order, least=100)
    assert (n_shards, n_chunks) == (40, 200)
    assert n_requests <= at_once[2] + 40
    # A quarter of the 134 is for the marks of what is sorted out.
    sorted_out = counts(a, order, least=134, few_more=-1)
    assert sorted_out == (n_shards, n_chunks, n_requests)


def test_elements_of_one_inner_chunk_that_are_too_many_cost_it_once_a_round(tmp_path):
    put(tmp_path, np.arange(40, dtype="i4"), shards=(40,), chunks=(20,))
    a = gpushard.open_array(tmp_path)
    index = np.tile(np.arange(20), 50)
    assert counts(a, index, least=250) == (4, 4, 4)
    with tiny_bounds(least=250):
        np.testing.assert_array_equal(a.oindex[index], index)


@pytest.fixture
def swapped_after_a_round(monkeypatch):
    """An index array of which 3 and 133 change places after the first round."""
    index = np.random.default_rng(4).permutation(400)
    both = np.flatnonzero(np.isin(index, [3, 133]))
    n_rounds = []
    blocks = CellGroup.blocks

    def swapping(self):
        for block in blocks(self):
            yield block
            n_rounds.append(1)
            if len(n_rounds) == 1:
                index[both] = index[both[::-1]]

    monkeypatch.setattr(CellGroup, "blocks", swapping)
    return index, both


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("kind", ["oindex", "vindex"])
def test_elements_that_change_places_between_two_rounds_are_an_error(
    kind, joined, tmp_path, swapped_after_a_round
):
    """Each round then has as many elements as were counted, but one is never read."""
    index, both = swapped_after_a_round
    places = [tmp_path / "0", tmp_path / "1"] if joined else [tmp_path]
    for k, place in enumerate(places):
        values = np.arange(400, dtype="i4")[k * 200 :][: 400 // len(places)]
        put(place, values, shards=(40,), chunks=(20,))
    arrays = [gpushard.open_array(place, device="cpu") for place in places]
    a = gpushard.concat(arrays) if joined else arrays[0]
    before = index[both].tolist()
    with (
        tiny_bounds(block=400, least=54, counts_log2=16, few_more=100),
        pytest.raises(SelectionError, match="was changed"),
    ):
        getattr(a, kind)[index]
    assert index[both].tolist() == before[::-1]


def test_each_place_of_elements_that_were_sorted_out_is_read(
    tmp_path, swapped_after_a_round
):
    put(tmp_path, np.arange(400, dtype="i4"), shards=(40,), chunks=(20,))
    a = gpushard.open_array(tmp_path, device="cpu")
    index, both = swapped_after_a_round
    with tiny_bounds(block=400, least=54, counts_log2=16, few_more=-1):
        found = a.oindex[index]
    assert found[both].tolist() == [3, 3]  # each as the index was when it was read
    others = np.setdiff1d(np.arange(400), both)
    np.testing.assert_array_equal(found[others], index[others])


def n_batches(monkeypatch, a, selections, expected):
    """How many batches selections are read in, which give what is expected."""
    sizes = []

    def execute(jobs):
        sizes.append([len(job.plan.parts) for job in jobs])
        read.execute(jobs)

    monkeypatch.setattr(results, "execute", execute)
    for mine, theirs in zip(a.read_many(selections), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    return [n for (n,) in sizes]


def test_selections_are_one_batch_as_long_as_their_columns_fit(tmp_path, monkeypatch):
    put(tmp_path, np.arange(4000, dtype="i4"), shards=(400,), chunks=(20,))
    kept = gpushard.Options(memory_limit=2 * 96 * 250, threads=1, small_read_chunks=0)
    a = gpushard.open_array(tmp_path, options=kept)
    keys = [np.arange(k, k + 100) for k in range(5)] + [slice(9)]
    expected = [np.arange(4000)[key] for key in keys]
    assert n_batches(monkeypatch, a, keys, expected) == [2, 2, 2]
    listed = [np.arange(100_000) % 4000, *keys]
    expected = [np.arange(4000)[key] for key in listed]
    a = gpushard.open_array(tmp_path)
    assert n_batches(monkeypatch, a, listed, expected) == [7]


@pytest.mark.parametrize("index", ["oindex", "vindex"])
def test_tables_that_a_reader_makes_count_as_columns(index, tmp_path):
    put(tmp_path, np.arange(40, dtype="i4"), shards=(40,), chunks=(20,))
    options = gpushard.Options(memory_limit=2 * 200 * 10)
    source = gpushard.open_array(tmp_path, options=options).source
    parse = expressions.orthogonal if index == "oindex" else expressions.points
    wanted = [parse((np.arange(10),), (40,))] * 2
    sizes: list[int] = []
    for tables_nbytes in (0, 1000):
        rounds.read_in_rounds(
            source,
            wanted,
            [None, None],
            lambda _, selections, outs: sizes.append(len(selections)),
            tables_nbytes,
        )
    assert sizes == [2, 1, 1]


def test_index_arrays_beside_the_longest_may_take_a_quarter_of_the_limit(
    place, monkeypatch
):
    a = opened(place, "plain")
    most_nbytes = a.source.options.bound_nbytes // 4
    monkeypatch.setattr(rounds, "_LAID_OUT_NBYTES", most_nbytes // 10)
    rows, columns = np.arange(11) * 7 % 23, np.arange(31) * 7 % 31
    with tiny_bounds():
        found = a.oindex[rows[:10], columns]
        np.testing.assert_array_equal(found, VALUES[np.ix_(rows[:10], columns)])
        with pytest.raises(LimitError, match="along several axes"):
            a.oindex[rows, columns]


def test_selections_that_are_cut_are_read_beside_those_that_are_not(tmp_path):
    put(tmp_path, np.arange(4000, dtype="i4"), shards=(400,), chunks=(20,))
    a = gpushard.open_array(tmp_path)
    keys = [np.arange(0, 4000, 40), slice(None), [3, -3], np.arange(4000)[::-1]]
    expected = [np.arange(4000)[key] for key in keys]
    for given_keys in (keys, keys[::-1]):
        with tiny_bounds(least=500):
            found = a.read_many(given_keys)
        turn = expected if given_keys is keys else expected[::-1]
        for mine, theirs in zip(found, turn, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_results_may_be_written_over_the_arrays_that_list_them(tmp_path):
    values = np.random.default_rng(2).integers(0, 50, 50)
    put(tmp_path, values, shards=(10,), chunks=(5,))
    a = gpushard.open_array(tmp_path)
    first, second = np.arange(50)[::-1].copy(), np.arange(50) % 7
    expected = values[first], values[second]
    with tiny_bounds():
        a.read_many([second, first], out=[first, second])
    np.testing.assert_array_equal(first, expected[1])
    np.testing.assert_array_equal(second, expected[0])
    index = np.arange(50)[::-1].copy()
    with tiny_bounds():
        a.read(index, out=index)
    np.testing.assert_array_equal(index, expected[0])


def test_values_are_written_to_listed_elements(tmp_path):
    put(tmp_path, VALUES, shards=(8, 10), chunks=(2, 5))
    a = gpushard.open_array(tmp_path)
    expected = VALUES.copy()
    rows, mask = np.array([3, -1, 9]), VALUES % 3 == 0
    expected[rows] = 7
    expected[mask] = -expected[mask]
    with tiny_bounds():
        a.oindex[rows, :] = 7
        a.vindex[mask] = -a.vindex[mask]
    np.testing.assert_array_equal(a[...], expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_arrays_in_a_row_are_read_in_rounds(axis, tmp_path):
    parts = np.array_split(VALUES, [5, 14], axis)
    arrays = [
        gpushard.open_array(put(tmp_path / str(k), part, **KINDS["zstd"]))
        for k, part in enumerate(parts)
    ]
    both = gpushard.concat(arrays, axis)
    rng = np.random.default_rng(8)
    rows, columns = rng.integers(-23, 23, 50), rng.integers(0, 31, 50)
    few = np.array([0, 1])  # of one array only
    with tiny_bounds():
        for key in (rows, np.sort(rows), few, VALUES[:, 4] % 2 == 0):
            np.testing.assert_array_equal(both.oindex[key], VALUES[key])
            assert both.explain(key).n_inner_chunks > 0
        np.testing.assert_array_equal(
            both.oindex[3:9, columns], VALUES[3:9][:, columns]
        )
        np.testing.assert_array_equal(both.vindex[rows, columns], VALUES[rows, columns])
        mask = VALUES % 5 == 0
        found = both.read_many([mask, np.s_[::2], rows])
    for mine, key in zip(found, [mask, np.s_[::2], rows], strict=True):
        np.testing.assert_array_equal(mine, VALUES[key])


def test_damage_is_told_once_however_many_rounds_meet_it(tmp_path):
    put(tmp_path, np.arange(64, dtype="i4"), shards=(64,), chunks=(32,))
    shard = tmp_path / "c/0"
    stored = bytearray(shard.read_bytes())
    stored[4] ^= 0xFF  # in the first inner chunk
    shard.write_bytes(stored)
    found = []
    with tiny_bounds():
        index = np.arange(64)[::-1]
        values = gpushard.open_array(tmp_path).read(index, errors=found.append)
    assert [error.inner_chunk for error in found] == [(0,)]
    np.testing.assert_array_equal(values, np.where(index < 32, -1, index))


# A shard that is not what it was when the rounds before read it.


@pytest.fixture(params=["plain", "compiled", "device"])
def changing(request, tmp_path, monkeypatch):
    """An array of one shard, and how to say what happens to it after each round."""
    for k in range(2):
        values = np.arange(64, dtype="i4") + 100 * k
        put(tmp_path / str(k), values, shards=(64,), chunks=(8,), compressors=None)
    todo = []
    finish = read.finish

    def finish_and_change(jobs):
        finish(jobs)
        if todo:
            todo.pop(0)()

    monkeypatch.setattr(read, "finish", finish_and_change)
    others = [(tmp_path / str(k) / "c/0").read_bytes() for k in range(2)]
    shard = tmp_path / "0/c/0"

    def replace(k):
        other = Path(f"{shard}.new")
        other.write_bytes(others[k])
        os.replace(other, shard)

    return opened(tmp_path / "0", request.param), todo, replace, shard


INDEX = np.arange(64)[::-1]


def test_a_shard_replaced_between_rounds_is_read_again_from_the_first_of_them(changing):
    a, todo, replace, _ = changing
    todo += [lambda: None, lambda: replace(1)]
    with tiny_bounds():
        found = on_host(a.oindex[INDEX])
    assert not todo
    np.testing.assert_array_equal(found, INDEX + 100)


def test_a_shard_replaced_between_rounds_again_is_an_error(changing):
    a, todo, replace, _ = changing
    todo += [lambda k=k: replace(k % 2) for k in range(1, 41)]
    with tiny_bounds(), pytest.raises(ObjectChangedError, match="again") as caught:
        a.oindex[INDEX]
    assert caught.value.shard_key == "c/0"


def test_a_shard_deleted_between_rounds_is_an_error_and_not_fill(changing):
    a, todo, _, shard = changing
    todo += [lambda: None, shard.unlink]
    with tiny_bounds(), pytest.raises(ObjectDeletedError):
        a.oindex[INDEX]


def test_rounds_of_different_shards_may_be_of_different_times(tmp_path, monkeypatch):
    put(tmp_path, np.arange(64, dtype="i4"), shards=(8,), chunks=(4,))
    asked = []
    monkeypatch.setattr(
        "gpushard.reading.rounds._versions", lambda *some: asked.append(some)
    )
    with tiny_bounds(least=16):
        found = gpushard.open_array(tmp_path).oindex[INDEX]
    np.testing.assert_array_equal(found, INDEX)
    assert not asked
