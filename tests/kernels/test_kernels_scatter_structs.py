"""What the scatter kernels are told: loops, runs, divisors and structs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.devices import structs
from gpushard.devices.scattering.grids import GridScatter
from gpushard.devices.scattering.launch import Addresses, field_place
from gpushard.devices.scattering.transfer import plan_transfer
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import fast_divisor
from gpushard.errors import UnsupportedError
from gpushard.layout import GridAxis
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic
from scatter_cases import KERNELS, lay, rows_of, straight_case


@pytest.mark.parametrize(
    ("cells", "key", "nest"),
    [
        ((2, 4, 6), ..., ([192], 1)),
        ((8, 4, 6), ..., ([768], 0)),
        ((2, 4, 3), ..., ([12, 8], 2)),
        ((2, 2, 6), ..., ([48, 2], 2)),
        ((1, 4, 6), (slice(None), slice(None), 2), ([4, 4], 1)),
        # Every other element of whole rows: the step goes on into the next row.
        ((8, 4, 6), (slice(None), slice(None), slice(0, 6, 2)), ([4, 96], 0)),
        ((8, 4, 6), (slice(None), slice(1, 3), slice(0, 4)), ([16, 2, 8], 0)),
    ],
)
def test_what_lies_side_by_side_becomes_a_run_and_the_rest_few_loops(cells, key, nest):
    array = sts.numbered((8, 4, 6))
    case = straight_case(array, cells, selection=basic(key, array.shape))
    plan = plan_read(case.layout, [case.selection])
    (rows,) = rows_of(plan, case.layout, case.store, array, case.is_missing)
    out = np.zeros(case.selection.shape, np.int32)
    scatter = lay(plan.parts[0], rows, out, case.transfer(out.dtype), bytes(4))
    batch = scatter.batch(rows.position, TablePage())
    told = scatter.parameter.packed(batch, Addresses(0, 0, 0, 0))
    loops = told["loops"]["length"]["divisor"][: told["n_loops"]].tolist()
    run = int(told["run"]["length"]["divisor"])
    assert ([run, *loops], int(told["n_columns"])) == nest


def test_2_gib_of_one_inner_chunk_are_refused():
    layout = sts.make_layout((1 << 16, 1 << 15), (GridAxis(1 << 16, 1 << 16),) * 2)
    part = plan_read(layout, [basic(..., layout.shape)]).parts[0]
    transfer = plan_transfer(np.dtype("u1"), np.dtype("u1"))
    strides = (1 << 15, 1)
    with pytest.raises(UnsupportedError, match="bytes wanted of an inner chunk"):
        GridScatter.lay(part, strides, strides, transfer, b"\0")


@given(st.integers(1, (1 << 31) - 1), st.integers(0, (1 << 32) - 1))
def test_a_fast_divisor_divides(divisor, n):
    by = fast_divisor(divisor)
    for number in (n, n - n % divisor, max(0, n - n % divisor - 1)):
        high = (int(by["magic"]) * number) >> 32
        quotient = (high + ((number - high) >> int(by["shift_first"]))) & 0xFFFFFFFF
        assert quotient >> int(by["shift_last"]) == number // divisor


def test_fast_divisors_of_powers_and_their_neighbours_divide_the_largest_number():
    divisors = np.array([(1 << k) + d for k in range(1, 31) for d in (-1, 0, 1)])
    for divisor, by in zip(divisors.tolist(), fast_divisor(divisors), strict=True):
        number = (1 << 32) - 1
        high = (int(by["magic"]) * number) >> 32
        quotient = high + ((number - high) >> int(by["shift_first"]))
        assert quotient >> int(by["shift_last"]) == number // divisor


def test_structs_lie_in_memory_as_the_kernels_see_them():
    found = np.zeros(19, np.uint32)
    KERNELS.launch("gs_scatter_structs", 1, 32, [found])
    place, s = field_place, structs
    scatter = s.SCATTER[4]
    assert found.tolist() == [
        s.LANDING.itemsize,
        s.CELL.itemsize,
        s.COLUMN.itemsize,
        s.TRANSFER.itemsize,
        s.LOOP.itemsize,
        place(s.LOOP, "length"),
        *(s.SCATTER[n].itemsize for n in (2, 4, 32)),
        place(scatter, "tiles_per_row"),
        place(scatter, "transfer"),
        place(scatter, "n_rows"),
        place(scatter, "in_bits"),
        place(scatter, "run"),
        place(scatter, "columns"),
        place(scatter, "loops"),
        s.POINTS.itemsize,
        place(s.POINTS, "transfer"),
        place(s.POINTS, "n_units"),
    ]
