"""Filters are undone as numcodecs undoes them, bit for bit."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from cuda_host.launch import (
    SCHEDULES,
    Kernels,
)
from cuda_host.statuses import Status
from kernel_rows import POISON, addresses, held, sizes, struct

# TYPE_* of kernels/scatter_cast.cuh.
TYPES = {"i1": 2, "i2": 3, "i4": 4, "i8": 5, "u1": 6, "u2": 7, "u4": 8, "u8": 9} | {
    "f4": 12,
    "f8": 13,
}
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f4", "f8"]

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@pytest.fixture(scope="module")
def kernels():
    return Kernels()


def undo(
    kernels, name, rows, to, n_items, *, source="u1", misalignment=0, grid=2, **numbers
):
    """Decoded rows, and their statuses, as kernel `name` leaves them."""
    schedule = numbers.get("schedule", 0)
    held_rows = [held(bytes(row), misalignment) for row in rows]
    out = [np.full(n_items, 0, to) for _ in rows]
    for array in out:
        array.view(np.uint8)[:] = POISON
    src, src_nbytes, dst = addresses(held_rows), sizes(held_rows), addresses(out)
    status = numbers.get("status", np.zeros(len(rows), np.uint32))
    tables = struct(
        src=src,
        src_nbytes=src_nbytes,
        dst=dst,
        status=status,
        n_items=np.uint64(n_items),
        scale=np.float64(numbers.get("scale", 1)),
        offset=np.float64(numbers.get("offset", 0)),
        n_rows=np.uint32(len(rows)),
        **{"from": np.uint32(TYPES[source])},
        to=np.uint32(TYPES.get(np.dtype(to).str[1:], 0)),
        reserved=np.uint32(0),
    )
    kernels.launch(name, grid, kernels.threads(name), [tables], schedule=schedule)
    return out, status.tolist()


def integers(dtype, shape, seed=0):
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def floats(dtype, shape):
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, shape)).astype(
        dtype
    )


# ---- delta


@schedules
@pytest.mark.parametrize("to", INTEGERS)
def test_sums_of_integers_wrap_around_as_numpys(kernels, to, schedule):
    for source in INTEGERS:
        is_narrower = np.dtype(to).itemsize < np.dtype(source).itemsize
        if is_narrower or np.result_type(source, to).kind == "f":
            continue  # left to the host
        encoded = integers(source, (3, 1300))
        codec = numcodecs.Delta(dtype=to, astype=source)
        out, status = undo(
            kernels, "gs_delta", encoded, to, 1300, source=source, schedule=schedule
        )
        assert status == [Status.OK] * 3
        for row, got in zip(encoded, out, strict=True):
            np.testing.assert_array_equal(got, codec.decode(row.copy()), source)


@pytest.mark.parametrize("n_items", [1, 2, 511, 512, 513, 1025])
@pytest.mark.parametrize("misalignment", [0, 1, 2, 6])
def test_sums_of_any_length_and_alignment_are_right(kernels, n_items, misalignment):
    encoded = integers("i4", (2, n_items), seed=n_items)
    out, _ = undo(
        *(kernels, "gs_delta", encoded, "i8", n_items),
        source="i4",
        misalignment=misalignment,
        schedule=2,
    )
    np.testing.assert_array_equal(out, np.cumsum(encoded, axis=1, dtype="i8"))


def test_real_deltas_come_back(kernels):
    data = integers("i2", 5000).cumsum().astype("i4")
    encoded = numcodecs.Delta("i4").encode(data)
    (out,), _ = undo(kernels, "gs_delta", [encoded], "i4", 5000, source="i4")
    np.testing.assert_array_equal(out, data)


@schedules
@pytest.mark.parametrize("to", FLOATS)
def test_sums_of_floats_have_numpys_rounding(kernels, to, schedule):
    for source in [*INTEGERS, *FLOATS]:
        if np.result_type(source, to) != to:
            continue  # left to the host
        make = floats if source in FLOATS else integers
        encoded = make(source, (5, 200))
        codec = numcodecs.Delta(dtype=to, astype=source)
        out, _ = undo(
            *(kernels, "gs_delta_float", encoded, to, 200),
            source=source,
            schedule=schedule,
        )
        for row, got in zip(encoded, out, strict=True):
            assert got.tobytes() == codec.decode(row.copy()).tobytes(), source


def test_a_sum_of_floats_may_begin_with_minus_zero(kernels):
    encoded = np.array([[-0.0, -0.0, 1.5, -1.5]], "f4")
    (out,), _ = undo(kernels, "gs_delta_float", encoded, "f4", 4, source="f4")
    assert out.tobytes() == np.cumsum(encoded[0]).tobytes()


@schedules
@pytest.mark.parametrize(("source", "to"), [("f4", "f4"), ("f4", "f8"), ("f8", "f8")])
def test_rows_with_a_nan_among_their_sums_are_the_hosts(kernels, source, to, schedule):
    rows = [[1, np.nan, 2], [np.nan, 1, 2], [np.inf, 1, -np.inf], [1, 2, np.inf]]
    encoded = np.array(rows, source)
    out, status = undo(
        *(kernels, "gs_delta_float", encoded, to, 3), source=source, schedule=schedule
    )
    assert status == [Status.HOST] * 3 + [Status.OK]
    assert out[3].tobytes() == np.cumsum(encoded[3], dtype=to).tobytes()


# ---- fixedscaleoffset


@schedules
@pytest.mark.parametrize("to", FLOATS)
def test_scaled_numbers_have_numpys_rounding(kernels, to, schedule):
    for source in [*INTEGERS, "f4", "f8"]:
        make = floats if source in FLOATS else integers
        encoded = make(source, (2, 400))
        scale, offset = 10.7, -273.15
        codec = numcodecs.FixedScaleOffset(offset, scale, to, source)
        out, _ = undo(
            *(kernels, "gs_scale_offset", encoded, to, 400),
            source=source,
            scale=scale,
            offset=offset,
            schedule=schedule,
            grid=(2, 3),
        )
        for row, got in zip(encoded, out, strict=True):
            assert got.tobytes() == codec.decode(row.copy()).tobytes(), source


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("to", FLOATS)
def test_infinities_and_nans_keep_their_bits(kernels, source, to):
    bits = {"f4": "u4", "f8": "u8"}[source]
    width = 8 * np.dtype(source).itemsize
    quiet = np.array([np.inf, -np.inf, np.nan, -0.0, 1e30], source)
    nans = np.array([np.nan] * 3, source).view(bits)
    nans += np.array([1, 5 << (width // 2), 1 << (width - 1)], bits)
    encoded = np.concatenate([quiet, nans.view(source)])[np.newaxis]
    with np.errstate(all="ignore"):
        wanted = numcodecs.FixedScaleOffset(2, 3, to, source).decode(encoded[0].copy())
    (out,), _ = undo(
        *(kernels, "gs_scale_offset", encoded, to, encoded.shape[1]),
        source=source,
        scale=3,
        offset=2,
    )
    assert out.tobytes() == wanted.tobytes()


# ---- packbits


@schedules
@pytest.mark.parametrize("n_items", [1, 7, 8, 9, 64, 2049])
def test_packed_bits_become_bools(kernels, n_items, schedule):
    data = np.random.default_rng(n_items).integers(0, 2, (3, n_items)).astype(bool)
    rows = [numcodecs.PackBits().encode(row) for row in data]
    out, status = undo(
        kernels, "gs_packbits", rows, "bool", n_items, grid=(2, 2), schedule=schedule
    )
    assert status == [Status.OK] * 3
    np.testing.assert_array_equal(out, data)


@schedules
def test_packed_bits_of_another_number_are_refused(kernels, schedule):
    packed = bytes(numcodecs.PackBits().encode(np.ones(20, bool)))
    rows = [packed, b"\5" + packed[1:], b"\3" + packed[1:]]
    rows += [packed[:-1], packed + b"\0", b"\4", b""]
    out, status = undo(
        kernels, "gs_packbits", rows, "bool", 20, grid=(2, 2), schedule=schedule
    )
    assert status == [Status.OK] + [Status.FORMAT] * 6
    assert out[0].all()
    assert (np.array(out[1:]).view(np.uint8) == POISON).all()


# ---- all


@pytest.mark.parametrize(
    ("name", "source", "to"),
    [
        ("gs_delta", "i4", "i4"),
        ("gs_delta_float", "f4", "f4"),
        ("gs_scale_offset", "u1", "f4"),
        ("gs_packbits", "u1", "bool"),
    ],
)
def test_rows_with_a_status_are_not_touched(kernels, name, source, to):
    rows, status = [bytes(64)] * 2, np.array([Status.HOST, Status.SHORT], np.uint32)
    out, got = undo(kernels, name, rows, to, 16, source=source, status=status)
    assert got == [Status.HOST, Status.SHORT]
    assert (np.array(out).view(np.uint8) == POISON).all()
