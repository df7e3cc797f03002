"""Boxes whose axes trade places are turned in squares."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from unittest import mock

import numpy as np
import pytest

from cuda_host.launch import (
    SCHEDULES,
)
from gpushard.devices.scattering.launch import Addresses
from gpushard.devices.slabs import TablePage
from gpushard.planning import axes
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic, orthogonal
from scatter_cases import (
    FAILED,
    Case,
    assert_kernels_write_what_numpy_writes,
    launch,
    lay,
    random_elements,
    rows_of,
    straight_case,
)

FLAT = ((1, 1), (0, 1), (0, 0), 0)


def turned_case(shape, cells, dtype="i4", **kept):
    """A matrix whose inner chunks are stored by columns."""
    array = random_elements(shape, np.dtype(dtype), 8)
    order = tuple(reversed(range(len(shape))))
    return straight_case(array, cells, axis_order=order, **kept)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "?"])
@pytest.mark.parametrize("cells", [(32, 32), (40, 70), (33, 200)])
def test_transposed_inner_chunks_are_turned(cells, dtype, schedule):
    fill = np.array(1, dtype)
    array = random_elements((90, 150), np.dtype(dtype), 8)
    missing = (False, True, False)
    case = straight_case(
        array,
        cells,
        np.dtype(dtype),
        axis_order=(1, 0),
        fill_value=fill,
        missing=missing,
    )
    names = assert_kernels_write_what_numpy_writes(case, FLAT, schedule=schedule)
    assert names == {"gs_scatter_turn_4"}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("dtype", ["i2", "i4", "f8"])
def test_aligned_words_are_turned_in_patches(dtype, is_swapped, schedule):
    # Lines of the output are 152 elements apart, and patches at the edges are cut.
    case = turned_case((101, 151), (64, 72), dtype, is_swapped=is_swapped)
    form = (1, 1), (0, 1), (0, 1), 0
    names = assert_kernels_write_what_numpy_writes(case, form, schedule=schedule)
    assert names == {"gs_scatter_turn_4"}


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("nth", range(2))
def test_any_order_of_axes_meets_any_other(order, nth):
    array = random_elements((23, 37, 20), np.dtype("i2"), 3)
    case = straight_case(array, (20, 33, 17), axis_order=order)
    # Each order, of either side, meets either kind of steps.
    out_orders = list(permutations(range(3)))[nth::2]
    for k, out_order in enumerate(out_orders, sum(order[:2])):
        steps = ((1, 1, 1), (2, 1, -1))[k % 2]
        form = steps, out_order, (0, 0, 1), 0
        names = assert_kernels_write_what_numpy_writes(case, form)
        is_turned = order[-1] != out_order[-1]
        assert names == {f"gs_scatter_{'turn_4' if is_turned else 'copy_4'}"} or (
            not is_turned and names == {"gs_scatter_copy_2"}
        )


@pytest.mark.parametrize("misalignment", [(0, 0), (1, 0), (0, 2), (4, 4)])
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("block_items", [(), (100, 0, 44)])
def test_units_lie_anywhere_swapped_or_shuffled(misalignment, is_swapped, block_items):
    case = turned_case(
        (50, 70),
        (40, 33),
        "f8",
        is_swapped=is_swapped,
        misalignment=misalignment[0],
        block_items=block_items,
    )
    form = (1, 1), (0, 1), (0, 0), misalignment[1]
    names = assert_kernels_write_what_numpy_writes(case, form)
    assert names == {"gs_scatter_turn_4"}


@pytest.mark.parametrize("target", ["f4", "f8", ">f8"])
@pytest.mark.parametrize("block_items", [(), (64, 0)])
def test_numbers_change_their_type_while_they_are_turned(target, block_items):
    case = turned_case(
        (50, 70), (40, 33), "i2", missing=(False, True), block_items=block_items
    )
    names = assert_kernels_write_what_numpy_writes(case, FLAT, np.dtype(target))
    assert names == {"gs_scatter_castturn_4"}


def test_pixels_are_turned_whole():
    array = random_elements((40, 50, 4), np.dtype("u1"), 3)
    case = straight_case(array, (40, 33, 4), axis_order=(1, 0, 2))
    form = (1, 1, 1), (0, 1, 2), (0, 0, 0), 0
    names = assert_kernels_write_what_numpy_writes(case, form)
    assert names == {"gs_scatter_turn_4"}


@pytest.mark.parametrize(
    "selection",
    [
        basic((slice(5, 88), slice(None, None, 2)), (90, 150)),
        basic((slice(None, None, -1), slice(140, 3, -1)), (90, 150)),
        basic((slice(0, 90, 4), slice(None)), (90, 150)),
    ],
    ids=["steps", "turns", "few"],
)
@pytest.mark.parametrize("long_cells", [0, axes.LONG_CELLS])
def test_parts_of_transposed_inner_chunks_are_turned(selection, long_cells):
    case = replace(turned_case((90, 150), (64, 128)), selection=selection)
    with mock.patch.object(axes, "LONG_CELLS", long_cells):
        names = assert_kernels_write_what_numpy_writes(case, FLAT)
    assert names == {"gs_scatter_turn_4"}


def test_integer_axes_beside_the_sides_of_the_squares_are_followed():
    array = random_elements((9, 40, 40), np.dtype("f4"), 3)
    picked = orthogonal(([8, 0, 0, 3], slice(None), slice(None)), array.shape)
    case = straight_case(array, (4, 40, 40), axis_order=(0, 2, 1), selection=picked)
    form = (1, 1, 1), (0, 1, 2), (0, 0, 0), 0
    names = assert_kernels_write_what_numpy_writes(case, form)
    assert names == {"gs_scatter_turn_4"}


@pytest.mark.parametrize(
    "case",
    [
        turned_case((90, 8), (64, 8)),
        turned_case((90, 64), (64, 64), "c16"),
        turned_case((32, 64), (16, 64), "u1"),
        straight_case(random_elements((90, 64), np.dtype("i4"), 1), (64, 32)),
    ],
    ids=["narrow", "wide elements", "few bytes apart", "not turned"],
)
def test_what_does_not_pay_goes_the_plain_way(case: Case):
    names = assert_kernels_write_what_numpy_writes(case, FLAT)
    assert names == {"gs_scatter_copy_2"}


def laid(case, out):
    plan = plan_read(case.layout, [case.selection])
    (rows,) = rows_of(plan, case.layout, case.store, case.array, case.is_missing)
    return lay(plan.parts[0], rows, out, case.transfer(out.dtype), bytes(4)), rows


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fewer_blocks_than_squares_take_the_rest_in_turns(schedule):
    case = turned_case((90, 150), (64, 128))
    out = np.zeros((90, 150), "i4")
    scatter, rows = laid(case, out)
    status = np.zeros(len(rows.src), np.uint32)
    status[1] = FAILED
    launch(scatter, rows, out, schedule=schedule, n_blocks=3, status=status)
    expected = case.array.copy()
    expected[:64, 128:] = 0
    np.testing.assert_array_equal(out, expected)


def test_squares_of_rows_are_counted():
    case = turned_case((130, 330), (128, 320))
    out = np.zeros((130, 330), "i4")
    scatter, rows = laid(case, out)
    batch = scatter.batch(rows.position, TablePage())
    n_squares = 2 * 5 + 2 * 1 + 1 * 5 + 1
    assert batch.fields["n_tiles"] == n_squares
    assert batch.n_threads == 256 * n_squares
    told = scatter.parameter.packed(batch, Addresses(0, 0, 0, 0))
    assert told["n_loops"] == 2
    assert told["tile_log2"] == 0
