"""Samples that are patches of arrays, and windows of time with what lies ahead."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from gpushard import Loader, OptionError
from gpushard.loader import sizes
from gpushard.loader.arguments import laid_fields
from gpushard.loader.fields import Field
from gpushard.loader.windows import Cut, lay_origins, rows_of_all
from gpushard.selecting.selection import IndexAxis
from loader_data import stored

T, Y, X = 23, 11, 14
FIELD = np.arange(T * Y * X, dtype="f4").reshape(T, Y, X)
FILL = 7
A = stored(FIELD, (4, 5, 6), (8, 10, 6))


def loaded(arrays=A, **options):
    """Every sample of an epoch by its number."""
    options = {"batch_size": 5, **options}
    batches = list(Loader(arrays, return_index=True, **options))
    index = np.concatenate([index for _, index in batches])
    assert len(index) == len(np.unique(index))
    return dict(
        zip(index.tolist(), np.concatenate([b for b, _ in batches]), strict=True)
    )


def starts(extent, length, stride, padding):
    """First elements of the windows along an axis, by trying them all."""
    if padding == "fill":
        return list(range(0, extent, stride))
    fits = [s for s in range(0, extent, stride) if s + length <= extent]
    if padding == "shift" and fits[-1] + length < extent:
        fits.append(extent - length)
    return fits


def expected(window, stride, padding):
    padded = np.pad(FIELD, [(0, n) for n in (*window, 0, 0)[:3]], constant_values=FILL)
    axes = [
        starts(n, w, s, padding)
        for n, w, s in zip(FIELD.shape, window, stride, strict=False)
    ]
    return [
        padded[
            tuple(slice(o, o + w) for o, w in zip(origin, window, strict=True))
            + (slice(0, Y), slice(0, X))[len(window) - 1 :]
        ]
        for origin in product(*axes)
    ]


lengths = st.integers(1, 9)


@given(
    window=st.lists(lengths, min_size=1, max_size=3).map(tuple),
    stride=st.integers(1, 12),
    padding=st.sampled_from(["drop", "shift", "fill"]),
    batch_size=st.sampled_from([7, 61]),
    order=st.sampled_from([{}, {"shuffle": True}, {"shuffle": True, "block": "chunk"}]),
)
def test_windows_are_patches_of_the_array(window, stride, padding, batch_size, order):
    given = window if len(window) > 1 else window[0]
    patches = expected(window, (stride,) * len(window), padding)
    assume(len(patches) < 250)  # each takes its time
    options = {"stride": stride, "padding": padding, "batch_size": batch_size}
    got = loaded(window=given, **options, **order)
    assert sorted(got) == list(range(len(patches)))
    for i, patch in enumerate(patches):
        assert np.array_equal(got[i], patch)


def test_a_patch_that_begins_before_the_array_is_filled_there():
    options = {"stride": (5, 5, 7), "padding": "fill", "batch_size": 1}
    loader = Loader(A, window=(5, 5, 7), lead=-2, **options)
    first = next(iter(loader))[0]
    assert (first[:2] == FILL).all()
    assert np.array_equal(first[2:], FIELD[:3, :5, :7])
    loader.close()


def test_windows_touch_by_default():
    loader = Loader(A, batch_size=100, window=(5, 4, 7))
    (batch,) = loader
    assert batch.shape == (4 * 2 * 2, 5, 4, 7)
    assert np.array_equal(batch[1], FIELD[:5, :4, 7:14])


def test_windows_of_the_first_array_touch_where_others_differ():
    arrays, window = {"row": A, "pair": A}, {"pair": 2}
    rows_first = next(iter(Loader(arrays, window=window, batch_size=3)))
    assert np.array_equal(rows_first["pair"][:, 0], FIELD[:3])
    arrays = {"pair": A, "row": A}
    pairs_first = next(iter(Loader(arrays, window=window, batch_size=3)))
    assert np.array_equal(pairs_first["pair"][:, 0], FIELD[:6:2])


@pytest.mark.parametrize("lead", [6, -3, 0])
@pytest.mark.parametrize("padding", ["drop", "fill"])
def test_targets_lie_ahead_of_their_inputs(lead, padding):
    loader = Loader(
        {"past": A, "next": A},
        window={"past": 4, "next": 2},
        lead={"next": lead},
        stride=1,
        padding=padding,
        batch_size=6,
        shuffle=True,
        return_index=True,
    )
    padded = np.pad(FIELD, [(10, 10), (0, 0), (0, 0)], constant_values=FILL)
    first = 0 if padding == "fill" else max(0, -lead)
    n_seen = 0
    for batch in loader:
        for i, past, ahead in zip(
            batch["index"], batch["past"], batch["next"], strict=True
        ):
            at = 10 + first + i
            assert np.array_equal(past, padded[at : at + 4])
            assert np.array_equal(ahead, padded[at + lead : at + lead + 2])
            n_seen += 1
    last = min(T - 4, T - lead - 2)
    assert n_seen == (T if padding == "fill" else last - first + 1)


def test_lengths_may_be_lists():
    loader = Loader(A, window=[5, 4], stride=[5, 4])
    assert len(loader) == len(Loader(A, window=(5, 4)))
    assert next(iter(loader)).shape == (1, 5, 4, X)


def test_a_row_beside_each_window_keeps_its_place():
    hours = stored(np.arange(T, dtype="i8"), (6,))
    loader = Loader({"x": A, "hour": hours}, window={"x": (3, 4, 4)}, batch_size=7)
    for batch in loader:
        assert np.array_equal(FIELD[batch["hour"], 0, 0] // (Y * X), batch["hour"])
        assert np.array_equal(batch["x"][:, 0, 0, 0] // (Y * X), batch["hour"])


def test_windows_are_converted_and_filled_with_the_converted_fill_value():
    loader = Loader(
        A, window=5, stride=20, padding="fill", scale=2, offset=1, batch_size=2
    )
    (batch,) = loader
    assert np.array_equal(batch[1, :3], FIELD[20:] * 2 + 1)
    assert (batch[1, 3:] == FILL * 2 + 1).all()


def test_a_row_behind_the_end_is_filled_though_its_inner_chunk_has_it():
    store = MemoryStore({})
    how = {"chunks": (5, 3), "dtype": "u2", "fill_value": FILL}
    longer = zarr.create_array(store, shape=(10, 3), **how)
    longer[...] = 1
    longer.resize((8, 3))
    a = gpushard.open_array(store)
    (batch,) = Loader(a, window=1, lead=1, padding="fill", batch_size=8)
    assert (batch[:7] == 1).all()
    assert (batch[7:] == FILL).all()


@pytest.mark.parametrize("stride", [2, 3])  # 3 does not divide the rows of a shard
def test_blocks_of_windows_are_those_that_begin_in_a_shard(stride):
    options = {"window": (2, 5, 5), "stride": (stride, 5, 5), "batch_size": 4}
    loader = Loader(
        A, shuffle=True, block="shard", buffer_blocks=1, return_index=True, **options
    )
    # Windows begin in rows 0, 2, ..., 20 or 0, 3, ..., 21, four in each such row.
    index = np.concatenate([index for _, index in loader])
    row = index // 4 * stride
    assert sorted(set(row)) == list(range(0, T - 1, stride))
    assert np.count_nonzero(np.diff(row // 8)) == 2  # shards have 8 rows


def test_a_patch_of_several_arrays_is_one_of_them():
    parts = gpushard.concat(
        [stored(FIELD[:9], (4, 5, 6)), stored(FIELD[9:], (3, 11, 14))]
    )
    got = loaded(parts, window=(4, 6, 6), stride=(1, 5, 4))
    reference = loaded(window=(4, 6, 6), stride=(1, 5, 4))
    assert got.keys() == reference.keys()
    assert all(np.array_equal(got[i], reference[i]) for i in got)


WRONG = [
    ({"window": 30}, "does not fit"),
    ({"window": (2, 2, 2, 2)}, "axes"),
    ({"window": 0}, "window"),
    ({"window": (2, 2), "stride": (1, 1, 1)}, "stride"),
    ({"window": 2, "stride": 0}, "stride"),
    ({"window": np.array([])}, "does not fit"),
    ({"window": np.array([2.0, 2.0])}, "window"),
    ({"window": np.array([True, True])}, "window"),
    ({"window": np.array([[2, 2]])}, "window"),
    ({"window": (2, 2), "stride": np.array([1, 1, 1])}, "stride"),
    ({"window": (2, 2), "stride": np.array([1, 0])}, "stride"),
    ({"window": "2"}, "window"),
    ({"window": 2, "lead": 22}, "does not fit"),
    ({"window": 2, "lead": 0.5}, "lead"),
    ({"window": 2, "padding": "wrap"}, "padding"),
    ({"padding": "fill"}, "no effect on single rows.*'fill'; pass window="),
    ({"padding": "shift"}, "no effect on single rows"),
]


@pytest.mark.parametrize("make", [tuple, list, np.array, lambda x: np.array(x, "u1")])
def test_windows_and_strides_are_given_by_lists_tuples_and_arrays(make):
    got = loaded(window=make([5, 4]), stride=make([3, 4]))
    reference = loaded(window=(5, 4), stride=(3, 4))
    assert got.keys() == reference.keys()
    assert all(np.array_equal(got[i], reference[i]) for i in got)


def test_one_array_of_lengths_is_the_window_of_all_arrays():
    loader = Loader((A, A), window=np.array([5, 4]), batch_size=1)
    assert [rows.shape for rows in next(iter(loader))] == [(1, 5, 4, *A.shape[2:])] * 2


@pytest.mark.parametrize(("options", "named"), WRONG)
def test_windows_that_make_no_sense_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        Loader(A, **options)


@pytest.mark.parametrize("place", [{"stride": 4}, {"lead": 1}])
def test_rows_are_padded_where_they_may_lie_beyond_the_array(place):
    found = {n: len(Loader(A, padding=n, **place)) for n in ("drop", "shift", "fill")}
    assert len(set(found.values())) == 2


def test_arrays_that_differ_along_an_axis_of_the_window_are_refused():
    other = stored(FIELD[:, :10], (4, 5, 6))
    with pytest.raises(OptionError, match="axis 1"):
        Loader((A, other), window=(2, 2))
    Loader((A, other), window=2)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=50), st.booleans())
def test_rows_are_read_in_ascending_order_however_large_they_are(rows, is_large):
    rows = np.array(rows)[::-1] + is_large * (1 << 62)
    assume((np.diff(rows) < 0).any())
    (first,) = rows_of_all(rows, (1 << 63,)).axes
    assert isinstance(first, IndexAxis)
    assert np.array_equal(first.element, np.sort(rows))
    assert np.array_equal(first.element, rows[first.out_index])
    assert np.array_equal(np.sort(first.out_index), np.arange(len(rows)))


SERIES = np.random.default_rng(4).integers(0, 200, 5000).astype("u1")


@pytest.mark.parametrize("window", [30, 600])
@pytest.mark.parametrize("padding", ["drop", "shift", "fill"])
@pytest.mark.parametrize("options", [{}, {"dtype": "f4", "scale": 0.5}])
def test_windows_of_a_series_are_its_slices(window, padding, options):
    a = stored(SERIES, (100,), (700,))
    joined = gpushard.concat([stored(part, (90,)) for part in np.split(SERIES, [2100])])
    padded = np.pad(SERIES, (0, window), constant_values=a.fill_value)
    first = starts(len(SERIES), window, 270, padding)
    how = {"window": window, "stride": 270, "padding": padding, "shuffle": True}
    for array in (a, joined):
        got = loaded(array, **how, **options)
        assert sorted(got) == list(range(len(first)))
        for i, start in enumerate(first):
            want = padded[start : start + window] * options.get("scale", 1)
            assert np.array_equal(got[i], want)


def test_windows_of_short_rows_are_never_listed_row_by_row(monkeypatch):
    """Columns would take a hundred times the bytes that are read."""
    monkeypatch.setattr(Cut, "rows", lambda *_: pytest.fail("rows were listed"))
    a = stored(SERIES, (100,), (700,))
    for window in (16, 1024):
        batch = next(iter(Loader(a, window=window, batch_size=4)))
        assert np.array_equal(batch, SERIES[: 4 * window].reshape(4, window))


@pytest.mark.parametrize(("window", "n"), [(1, 5000), (10, 500)])
def test_samples_of_a_few_bytes_make_loads_small(monkeypatch, window, n):
    """Each has an entry in columns, many times as large as the sample."""
    monkeypatch.setattr(sizes, "_MOST_LISTED", 60)
    read, n_read = Field.read, []

    def noted(field, origins, memory):
        n_read.append(len(origins))
        return read(field, origins, memory)

    monkeypatch.setattr(Field, "read", noted)
    a = stored(SERIES, (100,), (700,))
    for _ in Loader(a, window=window, batch_size=20, shuffle=True):
        pass
    assert sum(n_read) == n
    assert max(n_read) <= 120  # they end where an inner chunk does


def test_samples_that_touch_rows_are_told_without_listing_theirs():
    (field,) = laid_fields(
        stored(SERIES, (100,)),
        num_threads=None,
        window=600,
        lead=-50,
        conversions=dict.fromkeys(("dtype", "scale", "offset")),
    )[1]
    origins = np.arange(0, 4400, 270)[:, None]
    for first, stop in [(0, 1), (220, 221), (1000, 1300), (4000, 5000)]:
        listed = field.cut.rows(origins)
        want = ((listed >= first) & (listed < stop)).any(axis=1)
        assert field.touches(origins, [(first, stop)]).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (5, 3, 0)),
        ({"window": 2}, (2, 2, 3, 0)),
        ({"window": (2, 3)}, (2, 2, 3, 0)),
    ],
    ids=["rows", "windows", "patches"],
)
def test_samples_without_elements_have_their_shape(options, shape):
    array = stored(np.zeros((5, 3, 0), "u2"), (2, 3, 1))
    (batch,) = Loader(array, batch_size=9, **options)
    assert batch.shape == shape


@pytest.mark.parametrize("padding", ["drop", "fill"])
def test_windows_keep_an_axis_of_one_element(padding):
    rows = FIELD[:8, 0, :1]
    found = loaded(stored(rows, (2, 1)), window=4, padding=padding)
    assert np.array_equal(np.concatenate(list(found.values())), rows)


def test_windows_that_all_end_beyond_the_array_are_read_up_to_its_end():
    laid, is_whole = Cut((5, 3, 2), (8, 4)).patches(np.zeros((2, 2), np.int64))
    assert not is_whole
    assert [along.tolist() for along in laid.length] == [[5, 5], [3, 3], [2]]


def test_rows_that_look_back_begin_where_there_is_something_to_look_at():
    cuts = [Cut((6,)), Cut((6,), lead=-1)]
    origins = lay_origins(cuts, (1,), "drop")
    assert origins.of(np.arange(origins.n)).tolist() == [[1], [2], [3], [4], [5]]


@pytest.mark.parametrize("window", [3, (2, 2)], ids=["rows", "patches"])
def test_joined_arrays_that_differ_in_fill_value_are_refused_where_one_is_needed(
    window,
):
    both = gpushard.concat([stored(FIELD, (4, 5, 6)), stored(FIELD, (4, 5, 6), fill=8)])
    named = r"fill values.*expected one fill value.*got .*7\.0.*8\.0.*'drop' or 'shift'"
    with pytest.raises(OptionError, match=named):
        Loader(both, window=window, padding="fill")
    assert len(Loader(both, window=window, padding="drop"))
    # No window lies beyond these.
    assert len(Loader(both, window=(2, 11), padding="fill")) == T
