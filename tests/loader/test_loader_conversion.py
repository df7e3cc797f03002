"""Conversions of a loader: tables of all elements beside arithmetic on each."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpushard import Loader
from gpushard.loader import conversion as conversions
from gpushard.loader.conversion import ElementConversion
from loader_data import stored

SHORT = ("bool", "uint8", "int8", "uint16", "int16", ">u2", ">i2", "float16")


def every(stored: str) -> np.ndarray:
    """All elements of a data type of one or two bytes, shuffled, in rows."""
    dtype = np.dtype(stored)
    if dtype.kind == "b":
        return np.array([[False, True], [True, True]])
    bits = np.random.default_rng(7).permutation(1 << 8 * dtype.itemsize)
    return bits.astype(f"u{dtype.itemsize}").view(dtype).reshape(16, -1)


@pytest.mark.parametrize("stored", SHORT)
@pytest.mark.parametrize(("scale", "offset"), [(1 / 255, None), (0.25, -3.0)])
def test_elements_looked_up_are_those_that_single_precision_gives(
    stored, scale, offset
):
    values = every(stored)
    conversion = ElementConversion.to(values.dtype, np.dtype("float16"), scale, offset)
    assert conversion.is_tabulated
    out = np.empty(values.shape, "float16")
    conversion.apply(values, out)
    with np.errstate(all="ignore"):
        expected = values.astype("float32") * np.float32(scale)
        if offset is not None:
            expected += np.float32(offset)
        assert_array_equal(out, expected.astype("float16"))


@pytest.mark.parametrize("stored", SHORT[:-1])
def test_integers_looked_up_are_those_that_numpy_casts(stored):
    values = every(stored)
    out = np.empty(values.shape, "float16")
    ElementConversion.to(values.dtype, out.dtype, None, None).apply(values, out)
    with np.errstate(all="ignore"):
        assert_array_equal(out, values.astype("float16"))


def test_halves_are_looked_up_as_larger_floats():
    values = every("float16")
    out = np.empty(values.shape, "float32")
    conversion = ElementConversion.to(values.dtype, out.dtype, None, None)
    assert conversion.is_tabulated
    conversion.apply(values, out)
    assert_array_equal(out, values.astype("float32"))


@pytest.mark.parametrize(
    ("stored", "half"), [("float32", 1.0), ("int32", 1.0), ("float64", 1 + 2**-10)]
)
def test_halves_are_rounded_from_single_precision_unless_doubles_are_stored(
    stored, half
):
    """In single precision the factor is 1, and the sum lies amid two halves."""
    factors = 1 + 2**-30, 2**-11
    out = np.empty(1, "float16")
    ElementConversion.to(np.dtype(stored), out.dtype, *factors).apply(
        np.ones(1, stored), out
    )
    assert out[0] == half


@pytest.mark.parametrize(
    ("stored", "dtype"), [("float32", "float16"), ("uint8", "float32")]
)
def test_no_table_is_made_where_it_would_be_large_or_save_nothing(stored, dtype):
    conversion = ElementConversion.to(np.dtype(stored), np.dtype(dtype), 0.5, None)
    assert not conversion.is_tabulated


def test_slices_of_samples_are_looked_up_where_they_lie():
    values = every("uint16")[::3, ::2]
    out = np.zeros((2 * len(values), values.shape[1]), "float16")
    conversion = ElementConversion.to(values.dtype, out.dtype, 1e-3, None)
    conversion.apply(values, out[::2])
    plain = (values.astype("float32") * np.float32(1e-3)).astype("float16")
    assert_array_equal(out[::2], plain)
    assert not out[1::2].any()


def test_tables_of_zeros_with_other_signs_are_apart():
    zeros = np.array([-0.0, 0.0], "float16")
    for offset, signs in [(0.0, [False, False]), (-0.0, [True, False])]:
        out = np.empty(2, "float16")
        ElementConversion.to(zeros.dtype, out.dtype, None, offset).apply(zeros, out)
        assert_array_equal(np.signbit(out), signs)


def test_tables_of_scales_that_are_used_no_more_are_let_go_of():
    values, out = every("uint8"), np.empty((16, 16), "float16")
    for n in range(100):
        ElementConversion.to(values.dtype, out.dtype, 1 / (n + 2), None).apply(
            values, out
        )
    assert conversions._table.cache_info().currsize <= 16


@pytest.mark.parametrize(
    ("dtype", "wanted", "more", "is_cast"),
    [
        ("float32", "float16", {}, True),
        ("float64", "float32", {}, True),
        ("float32", "bfloat16", {}, True),
        ("float32", "int8", {}, False),  # the loops have no such cast
        ("float32", "float16", {"scale": 0.5}, False),
        ("float32", "float16", {"offset": 1.0}, False),
    ],
)
@pytest.mark.parametrize("window", [None, 3, (3, 100)])
def test_a_read_casts_where_the_loops_can(dtype, wanted, more, is_cast, window):
    values = np.arange(20 * 200).reshape(20, 200).astype(dtype)
    a = stored(values, (4, 200), (12, 200), fill=70)
    options = {} if window is None else {"window": window, "padding": "fill"}
    loader = Loader(a, batch_size=20, dtype=wanted, **more, **options)
    (field,) = loader._settings.fields
    on_read, after_read = field.on_read, field.after_read
    assert (after_read.is_none, on_read.is_none) == (is_cast, not is_cast)
    found = np.concatenate(list(loader))
    whole = np.full((21, 200), 70, dtype)
    whole[:20] = values
    whole = whole.astype("float32") * np.float32(more.get("scale", 1))
    whole = (whole + np.float32(more.get("offset", 0))).astype(found.dtype)
    n, m = {None: (1, 200), 3: (3, 200), (3, 100): (3, 100)}[window]
    cut = [
        whole[i : i + n, j : j + m] for i in range(0, 20, n) for j in range(0, 200, m)
    ]
    assert found.dtype.name == np.dtype(wanted).name
    assert_array_equal(found, np.stack(cut).reshape(found.shape))


@pytest.mark.parametrize(
    ("dtype", "wanted", "in_place"),
    [
        ("float32", "float16", True),
        ("float32", None, True),
        ("uint16", "float32", False),  # which takes twice the memory
        ("float32", "int8", False),
    ],
)
def test_samples_land_in_place_where_they_take_no_more_memory(dtype, wanted, in_place):
    a = stored(np.zeros((8, 400), dtype), (4, 400))
    (field,) = Loader(a, batch_size=2, dtype=wanted)._settings.fields
    assert field.lands_in_place == in_place
