"""Numbers that change their type on the way through the scatter kernels."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import strategies as sts
from gpushard.devices.scattering.transfer import (
    Affine,
    fill_element,
    plan_transfer,
)
from gpushard.errors import UnsupportedError
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic, points
from scatter_cases import (
    BFLOAT16,
    STRUCT,
    assert_kernels_write_what_numpy_writes,
    launch,
    lay,
    rows_of,
    scatter_by_kernels,
    straight_case,
)

NUMBERS = [
    *map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")),
    *map(np.dtype, ("f2", "f4", "f8")),
    BFLOAT16,
]
FLOATS = [np.dtype("f2"), BFLOAT16, np.dtype("f4"), np.dtype("f8")]


def is_float(dtype):
    return dtype.kind == "f" or dtype == BFLOAT16


def numbers_of(dtype):
    """Every bit pattern of small types; of others random ones and the edges."""
    width = dtype.itemsize
    if dtype.kind == "b":
        return np.array([False, True])
    if width <= 2:
        return np.arange(1 << (8 * width), dtype=f"u{width}").view(dtype)
    rng = np.random.default_rng(width)
    found = [np.frombuffer(rng.bytes(3000 * width), dtype)]
    if is_float(dtype):
        with np.errstate(all="ignore"):
            near = [numbers_of(np.dtype("f2")), numbers_of(BFLOAT16)]
            for numbers in (n.astype("f8") for n in near):
                numbers = numbers[np.isfinite(numbers)][::7]
                # Ties between the narrow numbers, and their neighbours on both sides.
                ties = ((numbers[1:] + numbers[:-1]) / 2).astype(dtype)
                found += [numbers.astype(dtype), ties]
                found += [np.nextafter(ties, dtype.type(s)) for s in (-1e9, 1e9)]
            big = np.array([65504, 65519.996, 65520, 65536, 3.3895e38, np.inf], dtype)
            found += [big, -big, big * 0]
    else:
        info = np.iinfo(dtype)
        powers = np.array([1 << k for k in range(8 * width - 1)], dtype)
        found += [powers, powers + 1, np.array([info.min, info.max], dtype)]
        # Near ties of bfloat16 and float16, and on them.
        found += [powers + powers // 256 + 1, powers + powers // 2048]
    return np.concatenate([f.astype(dtype) for f in found])


def cast_by_kernels(values, target, affine=None, **kept):
    case = straight_case(values, (len(values),), **kept)
    plan = plan_read(case.layout, [case.selection])
    (rows,) = rows_of(plan, case.layout, case.store, values, case.is_missing)
    out = np.zeros(len(values), target)
    transfer = plan_transfer(
        values.dtype, target, is_swapped=case.store.is_swapped, affine=affine
    )
    scatter = lay(plan.parts[0], rows, out, transfer, bytes(target.itemsize))
    launch(scatter, rows, out, n_blocks=4)
    return out


def assert_same_numbers(got, expected, source):
    """Same bits; of a signalling NaN only that it became a quiet one of its sign."""
    bits = f"u{got.dtype.itemsize}"
    same = got.view(bits) == expected.view(bits)
    with np.errstate(invalid="ignore"):  # signalling NaNs signal
        rest, told = got[~same].astype("f8"), expected[~same].astype("f8")
    assert np.all(np.isnan(rest)), (source[~same][:5], rest[:5], told[:5])
    assert np.all(np.isnan(told))
    np.testing.assert_array_equal(np.signbit(rest), np.signbit(told))
    assert np.all(is_quiet(got[~same]))
    assert not np.any(is_quiet(source[~same])), source[~same]


def is_quiet(values):
    """Whether the first bit of the mantissa is set."""
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
    bits = values.view(f"u{values.dtype.itemsize}")
    return (bits >> (mantissa[values.dtype.name] - 1)) & 1 == 1


PAIRS = [
    (s, t)
    for s in NUMBERS
    for t in NUMBERS
    if s != t and (is_float(t) or not is_float(s)) and t.kind != "b"
]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda d: d.name)
def test_a_number_is_cast_to_the_bits_that_numpy_casts_it_to(source, target):
    values = numbers_of(source)
    with np.errstate(all="ignore"):
        expected = values.astype(target)
    got = cast_by_kernels(values, target)
    if not is_float(target):
        np.testing.assert_array_equal(got, expected)
    elif is_float(source):
        assert_same_numbers(got, expected, values)
    else:
        bits = f"u{target.itemsize}"
        np.testing.assert_array_equal(got.view(bits), expected.view(bits))


@pytest.mark.parametrize(("source", "target"), [("c8", "c16"), ("c16", "c8")])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_complex_numbers_change_their_width_part_by_part(source, target, is_swapped):
    parts = np.linspace(-9, 1e30, 34).astype(np.dtype(source).char.lower())
    values = parts.view(source)
    got = cast_by_kernels(values, np.dtype(target), is_swapped=is_swapped)
    np.testing.assert_array_equal(got, values.astype(target))


@pytest.mark.parametrize("target", FLOATS[:3], ids=str)
@pytest.mark.parametrize("source", ["u1", "i2", "f4", "f2", "?"])
def test_scale_and_offset_are_rounded_after_each_step_as_float32(source, target):
    values = numbers_of(np.dtype(source))
    affine = Affine(1 / 255, -0.4811)
    with np.errstate(all="ignore"):
        scaled = values.astype("f4") * np.float32(affine.scale)
        expected = (scaled + np.float32(affine.offset)).astype(target)
    got = cast_by_kernels(values, target, affine)
    is_number = ~np.isnan(expected.astype("f4"))
    bits = f"u{target.itemsize}"
    np.testing.assert_array_equal(
        got.view(bits)[is_number], expected.view(bits)[is_number]
    )
    assert np.all(np.isnan(got.astype("f4")[~is_number]))
    fill = np.frombuffer(fill_element(values[5 % len(values)], target, affine), target)
    np.testing.assert_array_equal(fill, expected[5 % len(values)])


@pytest.mark.parametrize("misalignment", range(9))
@pytest.mark.parametrize("target", [">i4", ">f8", "f4"])
def test_swapped_and_cast_numbers_may_lie_at_any_address(misalignment, target):
    array = sts.numbered((4, 5))
    case = straight_case(
        array, (2, 3), is_swapped=True, misalignment=misalignment, missing=(False, True)
    )
    form = (1, 1), (0, 1), (0, 0), misalignment
    assert_kernels_write_what_numpy_writes(case, form, np.dtype(target))


def test_any_byte_but_0_is_true():
    array = np.arange(256, dtype=np.uint8)
    for way in (basic(..., (256,)), points((np.arange(256),), (256,))):
        case = straight_case(
            array, (100,), np.dtype(bool), selection=way, fill_value=np.array(False)
        )
        out = np.zeros(256, bool)
        scatter_by_kernels(case, out)
        assert out.tobytes() == b"\0" + b"\1" * 255


@pytest.mark.parametrize(
    ("source", "target", "affine"),
    [
        ("f4", "i4", None),
        ("c8", "f4", None),
        ("f4", "c8", None),
        ("M8[s]", "M8[ms]", None),
        ("S3", "S4", None),
        ("i4", "?", None),
        ([("a", "<i2")], [("a", ">i2")], None),
        (ml_dtypes.float8_e4m3fn, "f4", None),
        ("f8", "f4", Affine(2, 0)),
        ("f4", "f8", Affine(2, 0)),
        ("c8", "c8", Affine(2, 0)),
        ("u1", "u1", Affine(2, 0)),
    ],
)
def test_what_the_kernels_do_not_cast_is_refused(source, target, affine):
    with pytest.raises(UnsupportedError, match="do not cast") as caught:
        plan_transfer(np.dtype(source), np.dtype(target), affine=affine)
    assert "CPU" in str(caught.value)


def test_a_swapped_struct_is_refused():
    with pytest.raises(UnsupportedError, match="swap the bytes of structs"):
        plan_transfer(STRUCT, STRUCT, is_swapped=True)


def test_two_wrong_byte_orders_make_a_plain_copy():
    big = np.dtype(">i4")
    assert plan_transfer(big, big) == plan_transfer(np.dtype("i4"), np.dtype("i4"))
    native = plan_transfer(np.dtype("i4"), np.dtype("i4"), is_swapped=True)
    assert plan_transfer(big, np.dtype("i4")) == native
    assert native == replace(plan_transfer(big, big), in_swap=4)
