"""Which values an array takes, as which elements, and which it refuses."""

from __future__ import annotations

import datetime
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.codecs import GzipCodec, ShardingCodec, TransposeCodec, VLenUTF8Codec

import gpushard
from gpushard.writing.values import fitting_values
from zarr_oracle import assert_same_bits, quiet_zarr

MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5)

NS = 1577926800 * 10**9 + 1

RECORD = np.dtype("i2, S2, f4")

MAY_MISS = np.dtypes.StringDType(na_object=np.nan)

HELD = [
    (1, "f4", np.float32(1)),
    (0.1, "f4", np.float32(0.1)),
    (np.inf, "f2", np.float16(np.inf)),
    (1e-300, "f4", np.float32(0)),
    (np.float64(0.1), "f4", np.float32(0.1)),
    (np.int64(255), "u1", np.uint8(255)),
    (True, "u1", np.uint8(1)),
    (2, "c8", np.complex64(2)),
    ("2020-01-02", "M8[s]", np.datetime64("2020-01-02", "s")),
    (MOMENT, "M8[ms]", np.datetime64(MOMENT, "ms")),
    ("NaT", "M8[s]", np.datetime64("NaT", "s")),
    (np.datetime64("NaT", "D"), "M8[s]", np.datetime64("NaT", "s")),
    ("2020-01-02T01:00:00.000000001", "M8[ns]", np.datetime64(NS, "ns")),
    (np.datetime64(5000, "ms"), "M8[s]", np.datetime64(5, "s")),
    (datetime.timedelta(seconds=2), "m8[ms]", np.timedelta64(2000, "ms")),
    (3, "m8[s]", np.timedelta64(3, "s")),
    ("long", "U4", np.str_("long")),
    (b"ab\0\0\0", "S2", np.bytes_(b"ab")),
    (np.array("ab", "U9"), "U2", np.str_("ab")),
    ("any length", np.dtypes.StringDType(), "any length"),
    (np.array("fixed"), np.dtypes.StringDType(), "fixed"),
    (np.str_("one"), np.dtypes.StringDType(), "one"),
    (np.array("of pandas", object), np.dtypes.StringDType(), "of pandas"),
    (np.array("of pandas", object), "U9", np.str_("of pandas")),
    (np.array("ab", np.dtypes.StringDType()), "U2", np.str_("ab")),
    (np.array("may miss", MAY_MISS), np.dtypes.StringDType(), "may miss"),
    (np.array("may miss", MAY_MISS), "U9", np.str_("may miss")),
    (np.array((7, b"ab", 0.1), "i8, S9, f8"), RECORD, (7, b"ab", 0.1)),
    (np.array((1, (2, 3)), "i8, (2,)i8"), "i2, (2,)i2", (1, (2, 3))),
    (np.array(((5,),), [("in", "i8,")]), [("in", "i2,")], ((5,),)),
]  # fmt: skip

REFUSED = [
    (1e39, "f4"),
    ([0.5, -70000.0], "f2"),
    (np.array([1e300]), "f4"),
    (1e300j, "c8"),
    (70000, "f2"),
    (256, "u1"),
    (np.int64(-1), "u1"),
    (0.5, "i4"),
    (1, "?"),
    (1j, "f4"),
    ("2020-01-02T00:00:00.5", "M8[s]"),
    (np.datetime64("2020-01-02T00:00:00.5"), "M8[s]"),
    (np.datetime64("2300-01-01", "s"), "M8[ns]"),
    ("2300-01-01", "M8[ns]"),
    (datetime.timedelta(milliseconds=3), "m8[s]"),
    ("no date", "M8[s]"),
    (5, "M8[s]"),
    ("longer", "U4"),
    (["a", None], np.dtypes.StringDType()),
    (["a", None], "U4"),
    (np.array(["a", None], object), np.dtypes.StringDType()),
    (np.array(["a", np.nan], MAY_MISS), np.dtypes.StringDType()),
    (np.array(["a", np.nan], MAY_MISS), "U4"),
    ([1, 2], np.dtypes.StringDType()),
    (1, "U4"),
    (np.array([1, 2]), "U4"),
    (np.array([1, 2]), np.dtypes.StringDType()),
    (np.array(["1", "2"]), "i4"),
    (np.array(["1", "2"], np.dtypes.StringDType()), "f4"),
    (b"longer", "S4"),
    (np.array(["ab", "abc"]), "U2"),
    ("é", "S2"),
    ((1, 2.5), [("x", "i4"), ("y", "f4")]),
    (np.zeros(3), "f8"),
    (np.array((1 << 15, b"ab", 0), "i8, S2, f4"), RECORD),
    (np.array((1, b"abc", 0), "i2, S3, f4"), RECORD),
    (np.array((1, b"ab", 1e39), "i2, S2, f8"), RECORD),
    (np.array((1, 2, 0), "i2, i2, f4"), RECORD),
    (np.array((1, (2, 1 << 15)), "i2, (2,)i8"), "i2, (2,)i2"),
    (np.array((np.datetime64(1, "ms"),), "M8[ms],"), "M8[s],"),
    (np.array(((1 << 15,),), [("in", "i8,")]), [("in", "i2,")]),
    (np.zeros((), "i2, S2"), RECORD),
    (np.zeros((), "V8"), RECORD),
]


@pytest.mark.parametrize(("value", "dtype", "want"), HELD)
def test_a_value_becomes_an_element(value, dtype, want):
    found = fitting_values(value, (), np.dtype(dtype))
    assert found.dtype == np.dtype(dtype)
    assert_same_bits(found[()], np.asarray(want, dtype)[()])


@pytest.mark.parametrize(("value", "dtype"), REFUSED)
def test_a_value_that_the_data_type_does_not_hold_is_refused(value, dtype):
    with pytest.raises(gpushard.SelectionError) as caught:
        fitting_values(value, (2,), np.dtype(dtype))
    assert "without dtype=" not in str(caught.value)


IN_FIELDS = [
    (("a",), 256, "in the field 'a': .* expected 0 to 255, got 0 to 256"),
    (("in", "b"), 1 << 15, "'in': in the field 'b': .* got 0 to 32768"),
    (("in", "c"), b"abc", "'in': in the field 'c': .* up to 2, got one of 3"),
    (("d",), 1e39, "in the field 'd': .* values that float32 holds, got an over"),
]


@pytest.mark.parametrize(("path", "value", "told"), IN_FIELDS)
@pytest.mark.parametrize("n", [2, 1 << 17])
def test_a_value_that_does_not_fit_a_record_is_told_with_its_field(
    path, value, told, n
):
    narrow = np.dtype([("a", "u1"), ("in", [("b", "i2"), ("c", "S2")]), ("d", "f4")])
    wide = np.dtype([("a", "u8"), ("in", [("b", "i8"), ("c", "S8")]), ("d", "f8")])
    values = np.zeros(n, wide)
    assert fitting_values(values, (n,), narrow).shape == (n,)
    field = values
    for name in path:
        field = field[name]
    field[-1] = value
    with pytest.raises(gpushard.SelectionError, match=told):
        fitting_values(values, (n,), narrow)


@pytest.mark.parametrize("values", [1e39, [1e39], np.full(1 << 19, 1e39)])
def test_a_float_beyond_a_narrower_one_is_out_of_its_range(values):
    with pytest.raises(gpushard.SelectionError, match=r"range.* that float32 holds"):
        fitting_values(values, np.shape(values), np.dtype("f4"))


@pytest.mark.parametrize("value", [(1, b"ab", 0.5), [[(1, b"ab", 0.5)]]])
def test_tuples_are_refused_with_what_makes_records_of_them(value):
    advice = r"write np.array\(values, a.dtype\)"
    with pytest.raises(gpushard.SelectionError, match=advice):
        fitting_values(value, (1, 1), RECORD)
    found = fitting_values(np.array(value, RECORD), (1, 1), RECORD)
    assert found.tolist() == [[(1, b"ab", 0.5)]]


def test_young_data_types_are_rounded_to():
    found = fitting_values([1.01, 2.0], (2,), np.dtype(ml_dtypes.bfloat16))
    assert found.tolist() == [1.0078125, 2]


def test_what_is_refused_leaves_the_array_as_it_was(tmp_path):
    a = gpushard.create_array(tmp_path, shape=4, dtype="U3", chunks=2, shards=4)
    a[...] = "abc"
    with pytest.raises(gpushard.SelectionError, match=r"up to 3.*one of 4"):
        a[1] = "abcd"
    assert a[...].tolist() == ["abc"] * 4


LENGTHS = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(LENGTHS, LENGTHS)
@example((1, 1, 3), (3,))
@example((1,), ())
@example((1, 0), (3, 0))
def test_values_are_broadcast_as_numpy_assigns_them(given_shape, shape):
    value = np.arange(np.prod(given_shape, dtype=int)).reshape(given_shape)
    want = np.full(shape, -1)
    try:
        want[...] = value
    except ValueError:
        with pytest.raises(gpushard.SelectionError, match="another shape") as caught:
            fitting_values(value, shape, want.dtype)
        assert str(shape) in str(caught.value)
        assert str(given_shape) in str(caught.value)
    else:
        assert_same_bits(fitting_values(value, shape, want.dtype), want)


LARGE = [
    ("f8", "f4", 1.5),
    (">f8", "<f8", -2.25),
    ("i8", "u1", 255),
    ("?", "f2", True),
    ("M8[s]", "M8[ms]", np.datetime64("2020-01-02", "s")),
    ("U9", "U2", "ab"),
    ("f4", ml_dtypes.bfloat16, 1.5),
]  # fmt: skip


@pytest.mark.parametrize(("given_dtype", "dtype", "element"), LARGE)
def test_large_values_are_cast_as_they_are_written(given_dtype, dtype, element):
    value = np.full((3, 1 << 20), element, given_dtype)
    want = np.empty(value.shape, dtype)
    want[...] = value
    fitting_values(value[:, :9], (3, 9), want.dtype)  # what is loaded once
    tracemalloc.start()
    try:
        found = fitting_values(value, value.shape, want.dtype)
        nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert nbytes < want.nbytes * 3 // 4
    written = np.empty_like(want)
    written[...] = found
    assert_same_bits(written, want)


def test_much_text_of_another_kind_of_numpys_strings_is_written():
    value = np.full(1 << 17, "ab", np.dtypes.StringDType(coerce=False))
    want = np.dtypes.StringDType()
    written = np.empty(value.shape, want)
    written[...] = fitting_values(value, value.shape, want)
    assert (written == "ab").all()


@pytest.mark.parametrize(("given_dtype", "dtype", "bad"), [
    ("f8", "f2", 70000.0),
    ("i8", "u1", -1),
    ("M8[ms]", "M8[s]", np.datetime64("2020-01-02T00:00:00.5")),
    ("U3", "U2", "abc"),
    ("f8", "i4", 1.0),
    ("i8,", "i2,", (1 << 15,)),
])  # fmt: skip
def test_one_large_value_that_does_not_fit_is_found(given_dtype, dtype, bad):
    value = np.zeros(3 << 20, given_dtype)
    value[-1] = bad
    with pytest.raises(gpushard.SelectionError):
        fitting_values(value, value.shape, np.dtype(dtype))


def test_values_of_another_shape_are_refused_before_they_are_looked_at():
    with pytest.raises(gpushard.SelectionError, match="another shape"):
        fitting_values(np.full(5, 70000.0), (4,), np.dtype("f2"))


@pytest.mark.parametrize(("given_dtype", "dtype"), [("f8", "f4"), ("i8", "u1")])
def test_each_value_is_looked_at_once_however_often_it_is_repeated(given_dtype, dtype):
    """Repeated values may be terabytes, of which an array stores nothing."""
    one = np.arange(6, dtype=given_dtype).reshape(2, 1, 3)
    shape = (2, 1 << 50, 3)
    values = fitting_values(np.broadcast_to(one, shape), shape, np.dtype(dtype))
    assert values.shape == shape
    assert values[:, 7].tolist() == one[:, 0].tolist()


@pytest.mark.parametrize("n", [300, 20_000])
def test_of_many_values_for_one_element_the_last_wins(n, tmp_path):
    a = gpushard.create_array(tmp_path, shape=24, dtype="i4", chunks=4, shards=12)
    for by in ("oindex", "vindex"):
        where = np.random.default_rng(n).integers(0, 24, n)
        getattr(a, by)[where] = np.arange(n)
        want = np.zeros(24, "i4")
        want[where] = np.arange(n)
        assert a[...].tolist() == want.tolist()
        a[...] = 0


@pytest.mark.filterwarnings("ignore:The data type .* Zarr:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize(("dtype", "fill"), [("U3", "b"), ("S3", b""), ("U1", "é")])
def test_text_that_is_the_fill_value_is_not_stored(dtype, fill, tmp_path):
    a = gpushard.create_array(
        tmp_path / "a", shape=(8,), dtype=dtype, chunks=(2,), fill_value=fill
    )
    a[...] = np.array(["x"] * 8, dtype)
    a[2:5] = fill
    kept = sorted(path.name for path in (tmp_path / "a" / "c").iterdir())
    assert kept == ["0", "2", "3"]
    assert a[1:6].tolist() == [a[0], fill, fill, fill, a[0]]


def test_text_behind_a_transpose_is_written_in_the_order_of_the_turned_axes(tmp_path):
    turned = TransposeCodec(order=(1, 0))
    about = {"dtype": "string", "filters": [turned], "chunks": (2, 3)}
    a = gpushard.create_array(tmp_path, shape=(4, 6), shards=(4, 6), **about)
    values = np.array([[f"{i},{j}" for j in range(6)] for i in range(4)], object)
    a[...] = values
    assert np.array_equal(a[...], values)
    with quiet_zarr():
        assert np.array_equal(zarr.open_array(tmp_path)[...], values)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_differences_behind_a_transpose_are_those_of_the_turned_axes(tmp_path):
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}
    about = {"filters": [TransposeCodec(order=(1, 0)), delta], "compressors": None}
    a = gpushard.create_array(
        tmp_path, shape=(3, 4), chunks=(3, 4), dtype="<i4", **about
    )
    values = np.arange(12, dtype="<i4").reshape(3, 4) ** 2
    a[...] = values
    stored = np.frombuffer((tmp_path / "c/0/0").read_bytes(), "<i4")
    assert np.array_equal(np.cumsum(stored), values.T.reshape(-1))
    assert_same_bits(a[...], values)


@pytest.mark.parametrize("dtype", ["?", "i2", "f4", "M8[s]", "U2", "i4,f4"])
def test_an_empty_list_holds_no_value_that_does_not_fit(dtype):
    got = fitting_values([[], []], (2, 0), np.dtype(dtype))
    assert_same_bits(got, np.empty((2, 0), dtype))


def test_long_text_in_shards_with_codecs_around_them_is_written_in_part(tmp_path):
    """Its metadata do not say how large the text of a shard is."""
    with quiet_zarr():
        inner = ShardingCodec(chunk_shape=(4,), codecs=[VLenUTF8Codec()])
        a = gpushard.create_array(
            tmp_path, shape=8, dtype=str, chunks=8, serializer=inner,
            compressors=GzipCodec(level=1), fill_value="", device="cpu",
        )  # fmt: skip
        want = np.array(["text " * (1 << 17)] * 8, object)
        a[...] = want
        a[1] = want[1] = "a"
        assert zarr.open_array(tmp_path)[...].tolist() == want.tolist()
