"""Decoded inner chunks into outputs of every memory layout, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
import strategies as sts
from gpushard.errors import SelectionError
from gpushard.layout import GridAxis
from gpushard.options import Options
from gpushard.placing.scatter import GridTarget, PointTarget, check_cast, make_target
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic, orthogonal, points

UNTOUCHED = -7


@st.composite
def outputs(draw, shape, dtype="int32"):
    """A writable view of `shape`, any strides, and the buffer that it lies in."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    lengths = [shape[d] * abs(steps[d]) for d in order]
    buffer = np.full(lengths, UNTOUCHED, dtype)
    view = buffer[(*(slice(None, None, steps[d]) for d in order), ...)]
    out = view.transpose(np.argsort(order)) if shape else view
    assert out.shape == shape
    return out, buffer


@st.composite
def scattered(draw, max_selections=1):
    """A layout, selections of it, and an output for each."""
    layout = draw(sts.layouts(max_side=9, max_levels=1))
    n = draw(st.integers(1, max_selections))
    selections = [draw(sts.selections(layout.shape)) for _ in range(n)]
    return layout, selections, [draw(outputs(s.shape)) for s in selections]


def scatter(layout, selections, outs, array):
    """Write every inner chunk of a plan; no values instead of `array` for missing."""
    plan = plan_read(layout, selections)
    targets = [make_target(p, o) for p, o in zip(plan.parts, outs, strict=True)]
    for block in sts.pieces_of(plan):
        for p, target in enumerate(targets):
            position = block.position[:, block.part == p]
            indexes = list(target.indexes(position))
            assert len(indexes) == position.shape[1]
            for index, column in zip(indexes, position.T, strict=True):
                if array is None:
                    target.fill(index, np.array(5, np.int32))
                    continue
                coordinate = target.part.chunk_coordinate(column)
                target.place(index, sts.whole_chunk(layout, coordinate, array))


def untouched(buffer, out):
    """Elements of the buffer beside the output."""
    return np.count_nonzero(buffer == UNTOUCHED) == buffer.size - out.size


@given(scattered())
def test_placed_inner_chunks_make_the_selection_in_any_output(scattered):
    layout, (selection,), ((out, buffer),) = scattered
    array = sts.numbered(layout.shape)
    scatter(layout, [selection], [out], array)
    np.testing.assert_array_equal(out, sts.result_of(selection, array))
    assert untouched(buffer, out)


@given(scattered())
def test_columns_looked_at_one_by_one_are_as_all_together(scattered):
    layout, (selection,), ((out, _),) = scattered
    part = plan_read(layout, [selection]).parts[0]
    target = make_target(part, out)
    for block in sts.pieces_of(plan_read(layout, [selection])):
        together = list(target.indexes(np.repeat(block.position, 5, axis=1)))[::5]
        singly = [next(iter(target.indexes(at[:, None]))) for at in block.position.T]
        for pair, other in zip(together, singly, strict=True):
            for index, same in zip(pair, other, strict=True):
                for one, another in zip(index, same, strict=True):
                    assert np.array_equal(one, another)


@given(scattered())
def test_filled_inner_chunks_fill_the_output_and_nothing_beside(scattered):
    layout, (selection,), ((out, buffer),) = scattered
    scatter(layout, [selection], [out], None)
    assert np.all(out == 5)
    assert untouched(buffer, out)


@given(scattered(max_selections=3))
def test_parts_of_one_plan_land_each_in_its_own_output(scattered):
    layout, selections, made = scattered
    array = sts.numbered(layout.shape)
    scatter(layout, selections, [out for out, _ in made], array)
    for selection, (out, buffer) in zip(selections, made, strict=True):
        np.testing.assert_array_equal(out, sts.result_of(selection, array))
        assert untouched(buffer, out)


@pytest.mark.parametrize(
    "key",
    [
        (None, slice(None, None, -1), 3),
        (2, None, slice(4, 1, -2)),
        (..., None),
        (-1, None, -1, None),
    ],
)
def test_new_and_dropped_axes_of_a_reversed_output_land_where_numpy_puts_them(key):
    layout = sts.make_layout((5, 7), (GridAxis(5, 2), GridAxis(7, 3)))
    array = sts.numbered((5, 7))
    expected = array[key]
    out = np.full(expected.shape, UNTOUCHED, np.int32)[::-1]
    scatter(layout, [basic(key, (5, 7))], [out], array)
    np.testing.assert_array_equal(out, expected)


def test_a_0d_array_lands_in_a_0d_output():
    layout = sts.make_layout((), ())
    array = np.array(9, np.int32)
    for selection in (basic((), ()), basic(None, ()), points((), ())):
        out = np.zeros(selection.shape, np.int32)
        scatter(layout, [selection], [out], array)
        assert np.all(out == 9)


def test_a_target_fits_its_part():
    layout = sts.make_layout((4,), (GridAxis(4, 2),))
    selections = [basic(..., (4,)), points(([1],), (4,))]
    grid, point = plan_read(layout, selections).parts
    assert isinstance(make_target(grid, np.empty(4)), GridTarget)
    assert isinstance(make_target(point, np.empty(1)), PointTarget)


@pytest.mark.parametrize("stored", [">i4", "<i4"])
@pytest.mark.parametrize("wanted", ["int32", "float64", ">i8", "int16", "float16"])
@pytest.mark.parametrize("way", ["grid", "points"])
def test_byte_order_and_cast_happen_in_the_one_write(stored, wanted, way):
    layout = sts.make_layout((6,), (GridAxis(6, 4),))
    selection = (
        basic(slice(None, None, -1), (6,))
        if way == "grid"
        else points((np.arange(6)[::-1],), (6,))
    )
    out = np.zeros(12, wanted)[::2]
    scatter(layout, [selection], [out], sts.numbered((6,)).astype(stored))
    np.testing.assert_array_equal(out, np.arange(6, 0, -1).astype(wanted))


def test_a_gather_along_two_axes_crosses_them():
    layout = sts.make_layout((6, 6), (GridAxis(6, 3), GridAxis(6, 4)))
    array = sts.numbered((6, 6))
    selection = orthogonal(([5, 0, 5], [1, 4]), (6, 6))
    out = np.zeros((3, 2), np.int32)
    scatter(layout, [selection], [out], array)
    np.testing.assert_array_equal(out, array[np.ix_([5, 0, 5], [1, 4])])


BFLOAT16 = ml_dtypes.bfloat16
FLOAT8 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "float16"),
        ("float32", BFLOAT16),
        ("float64", BFLOAT16),
        ("float32", FLOAT8),
        (BFLOAT16, "float32"),
        (BFLOAT16, BFLOAT16),
        ("int32", "float32"),
        ("int32", BFLOAT16),
        ("int64", "int8"),
        ("uint8", "int16"),
        ("bool", "float32"),
        ("float32", "complex64"),
        (">f4", "<f4"),
        ("complex128", "complex64"),
        ("datetime64[s]", "datetime64[ms]"),
    ],
)
def test_a_cast_within_a_kind_or_to_a_wider_one_is_allowed(source, target):
    check_cast(np.dtype(source), np.dtype(target))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"),
        ("float32", "bool"),
        ("complex64", "float32"),
        ("complex64", BFLOAT16),
        ("complex64", FLOAT8),
        ("int64", "uint64"),
        (BFLOAT16, "int32"),
        ("int64", "bool"),
        ("datetime64[s]", "int64"),
        ("int32", "datetime64[s]"),
    ],
)
def test_a_cast_to_another_kind_is_refused_with_both_types(source, target):
    source, target = np.dtype(source), np.dtype(target)
    with pytest.raises(SelectionError, match="cannot be cast") as caught:
        check_cast(source, target)
    assert caught.value.expected == f"a data type that holds {source} values"
    assert caught.value.got == str(target)
    assert "convert" in caught.value.hint


def test_where_many_small_objects_land_is_computed_together(tmp_path, monkeypatch):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    how = {"chunks": (8, 8), "compressors": numcodecs.BZ2(), "zarr_format": 2}
    zarr.create_array(tmp_path, data=values, **how)
    found, calls = GridTarget.indexes, []

    def counting(self, position):
        calls.append(position.shape[1])
        return found(self, position)

    monkeypatch.setattr(GridTarget, "indexes", counting)
    a = gpushard.open_array(tmp_path, options=Options(small_read_chunks=0, threads=1))
    assert np.array_equal(a[1::3, ::-2], values[1::3, ::-2])
    assert sum(calls) == 64
    assert len(calls) == 1
