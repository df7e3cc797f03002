"""The scatter kernels, run on the host, against the CPU path's scatter and NumPy."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from cuda_host.launch import (
    SCHEDULES,
)
from gpushard.devices.scattering.grids import GridScatter
from gpushard.devices.scattering.launch import Addresses
from gpushard.devices.scattering.points import PointScatter
from gpushard.devices.scattering.transfer import fill_pattern
from gpushard.devices.slabs import TablePage
from gpushard.errors import UnsupportedError
from gpushard.layout import GridAxis
from gpushard.planning import axes
from gpushard.planning.plan import plan_read
from gpushard.selecting.expressions import basic, orthogonal, points
from scatter_cases import (
    BFLOAT16,
    FAILED,
    STRUCT,
    Case,
    Store,
    assert_kernels_write_what_numpy_writes,
    launch,
    lay,
    random_elements,
    rows_of,
    scatter_by_kernels,
    scatter_by_numpy,
    straight_case,
)

COPIED = st.sampled_from(
    [
        np.dtype(bool),
        np.dtype("u1"),
        np.dtype("i2"),
        np.dtype("f4"),
        np.dtype("f8"),
        np.dtype("c8"),
        np.dtype("c16"),
        np.dtype("M8[s]"),
        np.dtype("S3"),
        np.dtype("U2"),
        np.dtype("V12"),
        BFLOAT16,
        STRUCT,
    ]
)


@st.composite
def cases(draw, dtypes=COPIED):
    """Cases whose elements keep their type."""
    layout = draw(sts.layouts(max_side=9, max_levels=1))
    dtype = draw(dtypes)
    is_swapped = dtype.kind not in "SVb" or dtype == BFLOAT16
    store = Store(
        dtype,
        is_swapped=is_swapped and draw(st.booleans()),
        axis_order=tuple(draw(st.permutations(range(len(layout.shape))))),
        misalignment=draw(st.sampled_from([0, 0, 4, 8, 1, 2])),
    )
    seed = draw(st.integers(0, 1000))
    return Case(
        layout,
        draw(sts.selections(layout.shape)),
        random_elements(layout.shape, dtype, seed),
        store,
        np.array(True) if dtype.kind == "b" else random_elements((), dtype, seed + 1),
        tuple(draw(st.lists(st.booleans(), max_size=5))),
    )


@st.composite
def output_forms(draw, ndim):
    """Steps, order of the axes, pads and misalignment of an output."""
    return (
        tuple(draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in range(ndim)),
        tuple(draw(st.permutations(range(ndim)))),
        tuple(draw(st.sampled_from([0, 0, 1])) for _ in range(ndim)),
        draw(st.sampled_from([0, 0, 0, 4, 8, 1])),
    )


@given(st.data(), cases(), st.sampled_from(SCHEDULES))
def test_the_kernels_write_what_numpy_writes_and_nothing_beside(data, case, schedule):
    form = data.draw(output_forms(len(case.selection.shape)))
    # Of long axes the tables come with the batch.
    long_cells = data.draw(st.sampled_from([0, axes.LONG_CELLS]))
    with mock.patch.object(axes, "LONG_CELLS", long_cells):
        names = assert_kernels_write_what_numpy_writes(case, form, schedule=schedule)
    assert not any("cast" in name for name in names)


@given(
    st.data(),
    cases(st.sampled_from([np.dtype("i2"), np.dtype("u8"), np.dtype("i4")])),
    st.sampled_from(["f4", "f8", ">f4"]),
    st.sampled_from(SCHEDULES),
)
def test_cast_elements_land_where_numpy_casts_them_to(data, case, target, schedule):
    form = data.draw(output_forms(len(case.selection.shape)))
    assert_kernels_write_what_numpy_writes(
        case, form, np.dtype(target), schedule=schedule
    )


# What follows looks at one thing each.


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("cells", [(7, 16, 11), (20, 15, 25)])
@pytest.mark.parametrize(
    "key",
    [
        ...,
        (slice(3, None, 2), slice(None, None, -1), slice(1, 24)),
        (slice(None, None, -3), slice(5, 29), slice(None, None, -2)),
    ],
    ids=["all", "steps", "turns"],
)
def test_boxes_that_begin_and_end_inside_of_cells_are_cut_there(order, cells, key):
    array = random_elements((20, 30, 25), np.dtype("i2"), 3)
    case = straight_case(
        array,
        cells,
        axis_order=order,
        selection=basic(key, array.shape),
        missing=(False, False, False, True),
    )
    form = (1, 1, 1), (0, 1, 2), (0, 0, 0), 0
    for target in ("i2", "f4"):
        assert_kernels_write_what_numpy_writes(case, form, np.dtype(target), schedule=2)


@pytest.mark.parametrize("pads", list(product([0, 1], repeat=3)))
@pytest.mark.parametrize("step", [1, -1, 2])
def test_loops_merge_only_where_they_lie_against_one_another(pads, step):
    case = straight_case(sts.numbered((4, 3, 5)), (2, 3, 5), missing=(False, True))
    form = (1, 1, step), (0, 1, 2), pads, 0
    assert_kernels_write_what_numpy_writes(case, form)


@pytest.mark.parametrize(("width", "pad"), [(20, 0), (16, 4), (16, 0)])
@pytest.mark.parametrize("index", [[5, 1, 1, 0, 2], slice(1, 6)])
def test_distances_within_a_box_count_for_the_width_of_words(width, pad, index):
    array = random_elements((6, width), np.dtype("u1"), 2)
    selection = orthogonal((index, slice(16)), array.shape)
    case = straight_case(array, (6, width), selection=selection)
    form = (1, 1), (0, 1), (0, pad), 0
    assert_kernels_write_what_numpy_writes(case, form)
    (part,) = plan_read(case.layout, [selection]).parts
    strides = (width, 1), (16 + pad, 1)
    transfer = case.transfer(np.dtype("u1"))
    scatter = GridScatter.lay(part, *strides, transfer, b"\0")
    batch = scatter.batch(np.zeros((2, 1), np.int64), TablePage())
    told = scatter.parameter.packed(batch, Addresses(0, 0, 0, 0))
    assert bool(told["in_bits"] % 16) == (width == 20)
    assert bool(told["out_bits"] % 16) == (pad == 4)


@pytest.mark.parametrize("misalignment", [(0, 0), (8, 8), (4, 4), (2, 6), (1, 0)])
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("dtype", ["?", "u2", "f4", "c8", "f8", "c16", "U4"])
def test_words_of_every_width_are_moved(dtype, is_swapped, misalignment):
    dtype = np.dtype(dtype)
    array = random_elements((6, 33), dtype, 9)
    case = straight_case(
        array,
        (3, 32),
        dtype,
        is_swapped=is_swapped and dtype.kind != "b",
        misalignment=misalignment[0],
        fill_value=np.zeros((), dtype),
        missing=(False, False, False, True),
    )
    for pads in ((0, 0), (0, 15)):
        form = (1, 1), (0, 1), pads, misalignment[1]
        assert_kernels_write_what_numpy_writes(case, form)


@pytest.mark.parametrize("n_axes", [1, 2, 3, 4, 5, 12])
@pytest.mark.parametrize("target", ["i4", "f8"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_finds_a_kernel_that_holds_its_loops(n_axes, target, schedule):
    shape = (3, *(2,) * (n_axes - 2), 3)[:n_axes]
    array = sts.numbered(shape)
    order = tuple(reversed(range(n_axes)))
    cells = (2,) * n_axes
    case = straight_case(array, cells, axis_order=order, missing=(False, True))
    out = np.zeros(shape, target)
    names = scatter_by_kernels(case, out, schedule=schedule)
    expected = array.astype(target)
    expected[..., 2:] = 0
    np.testing.assert_array_equal(out, expected)
    bucket = 2 if n_axes <= 2 else 4 if n_axes <= 4 else 32
    assert names == {f"gs_scatter_{'copy' if target == 'i4' else 'cast'}_{bucket}"}


def test_rank_32_is_read_and_rank_33_is_refused():
    shape = (1,) * 29 + (2, 3, 2)
    array = sts.numbered(shape)
    case = straight_case(array, (1,) * 32, axis_order=tuple(reversed(range(32))))
    out = np.zeros(shape, np.int32)
    scatter_by_kernels(case, out)
    np.testing.assert_array_equal(out, array)
    case = straight_case(array.reshape(1, *shape), (1,) * 33)
    with pytest.raises(UnsupportedError, match="axes of an array"):
        scatter_by_kernels(case, np.zeros((1, *shape), np.int32))


def many_loops(out_stride):
    """A 12-axis selection by integers, whose loops do not merge and vary in length."""
    shape = (5, *(2,) * 8)
    keys = ([4, 0, 0, 1, 3], *([1, 0],) * 8)
    layout = sts.make_layout(
        shape, (GridAxis(5, 2), *(GridAxis(2, 2) for _ in range(8)))
    )
    array = sts.numbered(shape)
    selection = orthogonal(keys, shape)
    out = np.zeros((*selection.shape[:-1], selection.shape[-1] * out_stride), "i4")
    case = Case(layout, selection, array, Store(array.dtype), np.zeros((), "i4"))
    return case, out[..., ::out_stride]


@pytest.mark.parametrize("out_stride", [1, 2])
def test_integer_axes_go_by_members_in_the_largest_kernel_too(out_stride):
    case, out = many_loops(out_stride)
    assert scatter_by_kernels(case, out) == {"gs_scatter_copy_32"}
    np.testing.assert_array_equal(out, sts.result_of(case.selection, case.array))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_row_much_larger_than_the_others_is_found_by_the_bounds_of_tiles(schedule):
    array = sts.numbered((90,))
    rng = np.random.default_rng(0)
    index = np.append(rng.integers(0, 4, 5000), np.arange(4, 90, 4))
    rng.shuffle(index)
    case = straight_case(array, (4,), selection=orthogonal((index,), (90,)))
    plan = plan_read(case.layout, [case.selection])
    (rows,) = rows_of(plan, case.layout, case.store, array, case.is_missing)
    out = np.zeros(len(index), np.int32)
    scatter = lay(plan.parts[0], rows, out, case.transfer(out.dtype), bytes(4))
    batch = scatter.batch(rows.position, TablePage())
    assert batch.fields["n_tiles"] == 10 + 22
    launch(scatter, rows, out, schedule=schedule, n_blocks=2)
    np.testing.assert_array_equal(out, array[index])


@pytest.mark.parametrize("n_blocks", [1, 3])
@pytest.mark.parametrize("shape", [(70_000,), (3, 20_011)])
def test_fewer_warps_than_tiles_take_the_rest_in_turns(shape, n_blocks):
    array = random_elements(shape, np.dtype("u1"), 5)
    cells = (30_000,) if len(shape) == 1 else (2, 7_000)
    case = straight_case(array, cells, missing=(False, False, True))
    expected, out = np.empty(shape, "u1"), np.empty(shape, "u1")
    scatter_by_numpy(case, expected)
    scatter_by_kernels(case, out, n_blocks=n_blocks)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("way", ["grid", "points"])
def test_batches_take_any_rows_in_any_order(way):
    array = sts.numbered((23, 17))
    selection = basic((slice(2, None), slice(None, None, 3)), array.shape)
    if way == "points":
        selection = points((np.arange(23) * 3 % 23, np.arange(23) % 17), array.shape)
    case = straight_case(array, (4, 5), selection=selection)
    plan = plan_read(case.layout, [selection])
    (rows,) = rows_of(plan, case.layout, case.store, array, case.is_missing)
    out = np.zeros(selection.shape, np.int32)
    scatter = lay(plan.parts[0], rows, out, case.transfer(out.dtype), bytes(4))
    order = np.random.default_rng(1).permutation(len(rows.src))
    for some in (order[:7], order[7:8], order[8:]):
        part = replace(rows, position=rows.position[:, some], src=rows.src[some])
        launch(scatter, part, out)
    np.testing.assert_array_equal(out, sts.result_of(selection, array))


def test_a_batch_without_rows_launches_nothing():
    case = straight_case(sts.numbered((4,)), (2,))
    (part,) = plan_read(case.layout, [case.selection]).parts
    transfer = case.transfer(np.dtype("i4"))
    for scatter in (
        GridScatter.lay(part, (4,), (4,), transfer, bytes(4)),
        PointScatter.lay(
            plan_read(case.layout, [points(([1],), (4,))]).parts[0],
            (4,),
            (4,),
            transfer,
            bytes(4),
        ),
    ):
        assert scatter.batch(np.empty((1, 0), np.int64), TablePage()).n_blocks(256) == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("way", ["grid", "points"])
def test_rows_with_a_status_are_left_alone(way, schedule):
    array = sts.numbered((9,))
    key = np.arange(9)
    selection = basic(..., (9,)) if way == "grid" else points((key,), (9,))
    case = straight_case(array, (3,), selection=selection)
    plan = plan_read(case.layout, [selection])
    (rows,) = rows_of(plan, case.layout, case.store, array, lambda n: n == 2)
    out = np.full(9, -7, np.int32)
    scatter = lay(plan.parts[0], rows, out, case.transfer(out.dtype), b"\5\0\0\0")
    status = np.array([0, FAILED, 0], np.uint32)
    launch(scatter, rows, out, status=status, schedule=schedule)
    np.testing.assert_array_equal(out, [1, 2, 3, -7, -7, -7, 5, 5, 5])
    status = np.array([0, 0, FAILED], np.uint32)
    launch(scatter, rows, out, status=status, schedule=schedule)
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 5, 6, 5, 5, 5])


@pytest.mark.parametrize("way", ["grid", "points"])
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("f4", 0x7FC12345),
        ("f4", 0x7F800001),
        ("f8", 0xFFF0DEADBEEF0001),
        ("f2", 0x7D01),
        ("f4", 0x80000000),
    ],
)
def test_a_missing_inner_chunk_gets_the_bits_of_the_fill_value(dtype, bits, way):
    width = np.dtype(dtype).itemsize
    fill = np.array(bits, f"u{width}").view(dtype)
    selection = basic(..., (7,)) if way == "grid" else points((np.arange(7),), (7,))
    case = straight_case(
        np.zeros(7, dtype), (5,), selection=selection, fill_value=fill, missing=(True,)
    )
    out = np.zeros(7, dtype)
    scatter_by_kernels(case, out)
    assert np.all(out.view(f"u{width}") == bits)


@pytest.mark.parametrize("nbytes", [1, 3, 5, 12, 16, 20])
def test_a_fill_value_of_any_size_is_repeated_from_each_element_on(nbytes):
    element = bytes(range(1, nbytes + 1))
    fill = np.frombuffer(element, f"V{nbytes}").reshape(())
    array = np.zeros((6, 7), f"V{nbytes}")
    case = straight_case(array, (4, 7), fill_value=fill, missing=(True,))
    out = np.zeros((6, 7), f"V{nbytes}")
    scatter_by_kernels(case, out)
    assert out.tobytes() == element * 42
    assert len(fill_pattern(element)) % 16 == 0
