"""Many small boxes are planned together, as patches of one output."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from array_strategies import stored_arrays
from gpushard import CorruptShardError, DamageWarning, LimitError, Options
from gpushard.reading import pooled, results
from gpushard.selecting import expressions
from gpushard.selecting.patches import Patches
from zarr_oracle import assert_same_bits

VALUES = np.arange(40 * 60 * 3, dtype="i4").reshape(40, 60, 3)
ROWS = [np.s_[k : k + 1 + k % 3] for k in range(12)]
WINDOWS = [np.s_[39 - k, 2 * k : 2 * k + 5] for k in range(12)]
SCALARS = [(k, k, 1) for k in range(12)]
NEW_AXES = [(None, k % 4, slice(3), 2) for k in range(12)]


@pytest.fixture(scope="module")
def store():
    made = MemoryStore()
    a = zarr.create_array(
        made, shape=VALUES.shape, dtype="i4", chunks=(4, 20, 3), shards=(20, 60, 3)
    )
    a[...] = VALUES
    return made


@pytest.fixture
def planned(monkeypatch):
    """For each plan the selections in it."""
    seen, host_job = [], results.host_job

    def noted(source, selections, *given, **named):
        seen.append(list(selections))
        return host_job(source, selections, *given, **named)

    monkeypatch.setattr(results, "host_job", noted)
    return seen


def assert_all_read(a, keys, **how):
    for got, key in zip(a.read_many(keys, **how), keys, strict=True):
        assert_same_bits(got, np.asarray(VALUES[key]))


def are_pooled(planned) -> bool:
    return [len(plan) for plan in planned] == [1] and isinstance(planned[0][0], Patches)


@pytest.mark.parametrize("keys", [ROWS, WINDOWS, SCALARS, NEW_AXES, [ROWS[1]] * 9])
def test_many_small_boxes_take_one_plan(keys, planned, store):
    assert_all_read(gpushard.open_array(store), keys)
    assert are_pooled(planned)


@pytest.mark.parametrize(
    "keys",
    [
        ROWS[: pooled.FEW_BOXES - 1],
        [np.s_[k, : k + 1] for k in range(12)],  # other extents along another axis
        [*ROWS, np.s_[::2]],
        [*ROWS, np.s_[3:1:-1]],
        [*ROWS, np.s_[5:5]],
    ],
)
def test_other_selections_have_plans_of_their_own(keys, planned, store):
    assert_all_read(gpushard.open_array(store), keys)
    assert [len(plan) for plan in planned] == [len(keys)]


def test_lists_of_elements_have_plans_of_their_own(planned, store):
    a = gpushard.open_array(store)
    rows = [expressions.orthogonal([7, 0, 7], VALUES.shape) for _ in range(12)]
    for got in a.read_many(rows):
        assert_same_bits(got, VALUES[[7, 0, 7]])
    assert len(planned[0]) == 12


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_text_has_plans_of_its_own(planned):
    # What its elements take is not known before they are decoded.
    words = np.array([f"word {k}" for k in range(40)], object)
    made = MemoryStore()
    zarr.create_array(made, shape=(40,), dtype=str, chunks=(4,), shards=(8,))[...] = (
        words
    )
    got = gpushard.open_array(made).read_many(list(range(12)))
    assert [str(word) for word in got] == list(words[:12])
    assert len(planned[0]) == 12


def test_outputs_of_several_data_types_have_plans_of_their_own(
    planned, monkeypatch, store
):
    monkeypatch.setattr(results, "read_converted", lambda *_: False)  # NumPy's casts
    outs = [
        np.zeros(VALUES[key].shape, "f4" if k else "f8") for k, key in enumerate(ROWS)
    ]
    gpushard.open_array(store).read_many(ROWS, out=outs)
    for out, key in zip(outs, ROWS, strict=True):
        assert_same_bits(out, VALUES[key].astype(out.dtype))
    assert len(planned[0]) == 12


def test_large_boxes_are_written_without_a_copy(planned, monkeypatch, store):
    monkeypatch.setattr(pooled, "_MOST_MEAN_NBYTES", 60 * 3 * 4)
    a = gpushard.open_array(store)
    assert_all_read(a, [np.s_[k : k + 2] for k in range(12)])
    assert len(planned[0]) == 12


def test_results_that_are_much_of_the_memory_limit_are_not_pooled(
    planned, monkeypatch, store
):
    a = gpushard.open_array(store)
    nbytes = sum(VALUES[key].nbytes for key in ROWS)
    monkeypatch.setattr(pooled, "_PIECE_NBYTES", 0)
    monkeypatch.setattr(pooled, "_SHARE", a.source.options.bound_nbytes // nbytes)
    assert_all_read(a, ROWS)
    assert are_pooled(planned)
    monkeypatch.setattr(pooled, "_SHARE", pooled._SHARE + 1)
    assert_all_read(a, ROWS)
    assert len(planned[1]) == len(ROWS)


def test_more_results_than_memory_is_for_take_several_plans(
    planned, monkeypatch, store
):
    a, keys = gpushard.open_array(store), [*WINDOWS, *WINDOWS]
    nbytes = sum(VALUES[key].nbytes for key in WINDOWS)
    monkeypatch.setattr(pooled, "_PIECE_NBYTES", 0)
    monkeypatch.setattr(pooled, "_SHARE", a.source.options.bound_nbytes // nbytes)
    assert_all_read(a, keys)
    assert [[p.n_patches for p in plan] for plan in planned] == [[12], [12]]


def test_a_box_that_is_much_of_the_memory_limit_is_not_pooled(
    planned, monkeypatch, store
):
    a, keys = (
        gpushard.open_array(store),
        [np.s_[:20], *(np.s_[k : k + 1] for k in range(39))],
    )
    monkeypatch.setattr(pooled, "_PIECE_NBYTES", 0)
    most = VALUES[:20].nbytes
    monkeypatch.setattr(pooled, "_SHARE", a.source.options.bound_nbytes // most)
    assert_all_read(a, keys)
    assert isinstance(planned[0][0], Patches)
    monkeypatch.setattr(pooled, "_SHARE", pooled._SHARE + 1)
    assert_all_read(a, keys)
    assert len(planned[-1]) == len(keys)


def test_the_results_count_toward_what_a_plan_may_hold(store):
    a, seen = gpushard.open_array(store), []
    outs = [np.empty(VALUES[key].shape, "i4") for key in ROWS]

    def read(source, patches, out):
        seen.append(source.options.bound_nbytes)
        out[...] = 0

    assert pooled.read_pooled(a.source, [a._selection(key) for key in ROWS], outs, read)
    nbytes = sum(out.nbytes for out in outs)
    assert seen == [a.source.beside(nbytes).options.bound_nbytes]
    assert seen[0] < a.source.options.bound_nbytes


def test_pieces_of_boxes_count_toward_the_memory_limit(planned, monkeypatch, store):
    monkeypatch.setattr(pooled, "_PIECE_NBYTES", 1 << 20)
    a = gpushard.open_array(store, options=Options(memory_limit=160 << 20))
    # Nineteen pieces fit an eighth of 160 MiB: each column of inner chunks is one.
    assert_all_read(a, [np.s_[k, 0:19] for k in range(19)])
    assert are_pooled(planned)
    assert_all_read(a, [np.s_[k, 1:21] for k in range(19)])
    assert len(planned[1]) == 19


def test_pooled_boxes_are_read_into_arrays_of_the_caller(planned, store):
    a = gpushard.open_array(store)
    outs = [np.zeros((3, 5), "f8").T[::-1] for _ in WINDOWS]
    a.read_many(WINDOWS, out=outs, dtype="f8")
    assert are_pooled(planned)
    for out, key in zip(outs, WINDOWS, strict=True):
        assert_same_bits(out, VALUES[key].astype("f8"))


def test_boxes_that_do_not_fit_beside_their_results_are_not_pooled(store):
    def refuse(*_):
        raise LimitError("too large", hint="raise the limit")

    a = gpushard.open_array(store)
    selections = [a._selection(key) for key in ROWS]
    outs = [np.full(VALUES[key].shape, -1, "i4") for key in ROWS]
    assert not pooled.read_pooled(a.source, selections, outs, refuse)
    assert all((out == -1).all() for out in outs)


def test_damage_in_pooled_boxes_is_named_and_filled(store):
    hurt = MemoryStore(dict(store._store_dict))
    shard = hurt._store_dict["c/0/0/0"].to_bytes()
    index = np.frombuffer(shard[-4 - 15 * 16 : -4], "<u8").reshape(5, 3, 1, 2)
    at = int(index[1, 2, 0, 0])
    broken = shard[:at] + b"\0" * 8 + shard[at + 8 :]
    kind = type(hurt._store_dict["c/0/0/0"])
    hurt._store_dict["c/0/0/0"] = kind.from_bytes(broken)
    a = gpushard.open_array(hurt)
    with pytest.raises(CorruptShardError) as caught:
        a.read_many(ROWS)
    assert caught.value.inner_chunk == (1, 2, 0)
    want = VALUES.copy()
    want[4:8, 40:] = 0
    with pytest.warns(DamageWarning):
        got = a.read_many(ROWS, errors="fill")
    for one, key in zip(got, ROWS, strict=True):
        assert_same_bits(one, want[key])


@st.composite
def boxes_alike(draw, shape):
    """Boxes that differ in extent along axis 0 only, one axis perhaps dropped."""
    if 0 in shape:
        return [np.s_[...]]
    lengths = [draw(st.integers(1, n)) for n in shape]
    dropped = draw(st.none() | st.integers(0, len(shape)))
    keys = []
    for _ in range(pooled.FEW_BOXES):
        key = []
        for axis, (n, length) in enumerate(zip(shape, lengths, strict=True)):
            long = draw(st.integers(1, n)) if axis == 0 else length
            start = draw(st.integers(0, n - long))
            is_dropped = axis == dropped and long == 1
            key.append(start if is_dropped else slice(start, start + long))
        keys.append(tuple(key))
    return keys


@given(stored_arrays(), st.data())
@settings(max_examples=max(1, settings.default.max_examples // 2))
def test_pooled_boxes_of_any_array_equal_zarrs(stored, data):
    full = stored.full
    boxes = st.lists(boxes_alike(full.shape), min_size=1, max_size=2)
    keys = [key for some in data.draw(boxes) for key in some]
    a = gpushard.open_array(stored.placed("memory", None))
    for key, got in zip(keys, a.read_many(keys), strict=True):
        assert_same_bits(got, np.asarray(full[key], full.dtype))
