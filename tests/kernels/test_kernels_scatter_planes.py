"""Rows whose byte shuffle is still on come out of the scatter kernels as elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from cuda_host.launch import (
    SCHEDULES,
)
from gpushard.selecting.expressions import basic, orthogonal, points
from scatter_cases import (
    BFLOAT16,
    Case,
    Store,
    assert_kernels_write_what_numpy_writes,
    random_elements,
    straight_case,
)
from test_kernels_scatter import output_forms

TAKEN_APART = [np.dtype(t) for t in ("i2", "f4", "f8", "c8", "M8[s]", "S4")]
TAKEN_APART.append(BFLOAT16)
STRAIGHT = ((1, 1), (0, 1), (0, 0), 0)


@st.composite
def shuffled_cases(draw, dtypes):
    """Cases with some of the inner chunks shuffled."""
    layout = draw(sts.layouts(max_side=9, max_levels=1))
    dtype = draw(st.sampled_from(dtypes))
    is_swappable = dtype.kind not in "SV" or dtype == BFLOAT16
    store = Store(
        dtype,
        is_swapped=is_swappable and draw(st.booleans()),
        axis_order=tuple(draw(st.permutations(range(len(layout.shape))))),
        misalignment=draw(st.sampled_from([0, 0, 4, 1])),
        block_items=tuple(
            draw(st.lists(st.sampled_from([0, 1, 3, 4, 8, 999]), min_size=1))
        ),
    )
    seed = draw(st.integers(0, 1000))
    return Case(
        layout,
        draw(sts.selections(layout.shape)),
        random_elements(layout.shape, dtype, seed),
        store,
        random_elements((), dtype, seed + 1),
        tuple(draw(st.lists(st.booleans(), max_size=5))),
    )


@given(st.data(), shuffled_cases(TAKEN_APART), st.sampled_from(SCHEDULES))
def test_shuffled_rows_are_written_as_numpy_writes_them(data, case, schedule):
    form = data.draw(output_forms(len(case.selection.shape)))
    assert_kernels_write_what_numpy_writes(case, form, schedule=schedule)


@given(
    st.data(),
    shuffled_cases([np.dtype("i2"), np.dtype("u8"), np.dtype("i4")]),
    st.sampled_from(["f4", "f8", ">f4"]),
)
def test_shuffled_numbers_change_their_type(data, case, target):
    form = data.draw(output_forms(len(case.selection.shape)))
    assert_kernels_write_what_numpy_writes(case, form, np.dtype(target))


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c8"])
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("block_items", [64, 12, 2048, 6, 7])
@pytest.mark.parametrize("misalignment", [(0, 0), (4, 8), (1, 0), (0, 3)])
def test_items_go_by_fours_or_one_by_one(dtype, is_swapped, block_items, misalignment):
    dtype = np.dtype(dtype)
    array = random_elements((9, 64), dtype, 4)
    case = straight_case(
        array,
        (4, 64),
        is_swapped=is_swapped,
        misalignment=misalignment[0],
        block_items=(block_items, block_items, 0),
    )
    for pads in ((0, 0), (0, 4), (0, 1)):
        form = (1, 1), (0, 1), pads, misalignment[1]
        names = assert_kernels_write_what_numpy_writes(case, form)
        assert names == {"gs_scatter_planes_2"}


@pytest.mark.parametrize("columns", [slice(4, 60), slice(3, 62), slice(0, 64, 4)])
def test_parts_of_blocks_are_read_where_they_lie(columns):
    array = random_elements((6, 64), np.dtype("f8"), 5)
    selection = basic((slice(None), columns), array.shape)
    case = straight_case(array, (3, 64), selection=selection, block_items=(32, 48))
    assert_kernels_write_what_numpy_writes(case, STRAIGHT)


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8"])
def test_the_planes_of_a_shorter_last_block_may_be_at_any_byte(dtype):
    array = random_elements((3, 14), np.dtype(dtype), 7)
    selection = basic((slice(None), slice(12)), array.shape)  # four items of the last
    case = straight_case(array, (1, 14), selection=selection, block_items=(8,))
    assert_kernels_write_what_numpy_writes(case, STRAIGHT)


def test_rows_of_an_array_begin_within_fours_of_items():
    array = random_elements((2, 6), np.dtype("f8"), 8)
    selection = basic((slice(None), slice(4)), array.shape)
    case = straight_case(array, (2, 6), selection=selection, block_items=(4,))
    assert_kernels_write_what_numpy_writes(case, STRAIGHT)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_both_parts_of_a_shuffled_complex_number_are_cast(is_swapped):
    array = np.linspace(-9, 1e30, 80).astype("f4").view("c8").reshape(4, 10)
    kept = {"block_items": (8, 0), "is_swapped": is_swapped}
    case = straight_case(array, (2, 10), **kept)
    assert_kernels_write_what_numpy_writes(case, STRAIGHT, np.dtype("c16"))
    index = np.arange(30) * 7
    single = points((index % 4, index % 10), array.shape)
    case = straight_case(array, (2, 10), selection=single, **kept)
    form = (1,), (0,), (0,), 0
    assert_kernels_write_what_numpy_writes(case, form, np.dtype("c16"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_integers_points_and_missing_rows_go_with_shuffled_ones(schedule):
    array = random_elements((12, 20), np.dtype("i4"), 6)
    kept = {"block_items": (16, 0), "missing": (False, False, True)}
    picked = orthogonal(([5, 0, 0, 11], slice(None)), array.shape)
    case = straight_case(array, (4, 8), selection=picked, **kept)
    assert_kernels_write_what_numpy_writes(case, STRAIGHT, schedule=schedule)
    index = np.arange(30) * 7
    single = points((index % 12, index % 20), array.shape)
    case = straight_case(array, (4, 8), selection=single, **kept)
    form = (1,), (0,), (0,), 0
    for target in ("i4", "f8"):
        assert_kernels_write_what_numpy_writes(
            case, form, np.dtype(target), schedule=schedule
        )


@pytest.mark.parametrize("n_axes", [2, 4, 5])
@pytest.mark.parametrize(("target", "kind"), [("i4", "planes"), ("f8", "castplanes")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_has_a_kernel_for_shuffled_rows(n_axes, target, kind, schedule):
    shape = (3,) * n_axes
    array = sts.numbered(shape)
    order = tuple(reversed(range(n_axes)))
    case = straight_case(array, (2,) * n_axes, axis_order=order, block_items=(4, 3))
    form = (1,) * n_axes, tuple(range(n_axes)), (0,) * n_axes, 0
    names = assert_kernels_write_what_numpy_writes(
        case, form, np.dtype(target), schedule=schedule
    )
    rank = 32 if kind == "castplanes" or n_axes > 4 else n_axes
    assert names == {f"gs_scatter_{kind}_{rank}"}
