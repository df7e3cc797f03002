"""Index expressions against NumPy's results, and against zarr's for its own kinds."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import strategies as sts
from gpushard.errors import SelectionError
from gpushard.layout import GridAxis
from gpushard.selecting.expressions import basic, blocks, hyperslab, orthogonal, points
from gpushard.selecting.projection import project
from gpushard.selecting.selection import IndexAxis, Orthogonal, Points, SliceAxis
from listings import crossed

SHAPE = (4, 5)


@st.composite
def keyed(draw, keys_of):
    """A shape, a grid over it, and a key for it."""
    shape = draw(sts.shapes(max_side=6))
    return shape, draw(sts.grids(shape)), draw(keys_of(shape))


def through_projections(selection, array, grid):
    """Result of a selection, put together cell by cell as a reader does."""
    along = [
        sts.landings(project(s, axis))
        for s, axis in zip(selection.axes, grid, strict=True)
    ]
    spread = np.zeros(selection.grid_shape, array.dtype)
    for at in np.ndindex(*map(len, along)):
        cells = [landings[i] for landings, i in zip(along, at, strict=True)]
        starts = [axis.start_of(c.cell) for axis, c in zip(grid, cells, strict=True)]
        inside = [c.inside + start for c, start in zip(cells, starts, strict=True)]
        spread[np.ix_(*(c.out for c in cells))] = array[np.ix_(*inside)]
    out = np.zeros(selection.shape, array.dtype)
    selection.on_grid(out)[...] = spread
    return out


def picked(selection: Points, array):
    """Result of a point selection."""
    out = np.zeros(selection.n_points, array.dtype)
    out[selection.out_index] = array[selection.coordinates]
    return out.reshape(selection.shape)


@given(keyed(sts.basic_keys))
def test_basic_indexing_gives_what_numpy_gives(keyed):
    shape, grid, key = keyed
    array = sts.numbered(shape)
    selection = basic(key, shape)
    assert isinstance(selection, Orthogonal)
    expected = array[key]
    assert selection.shape == np.shape(expected)
    np.testing.assert_array_equal(through_projections(selection, array, grid), expected)


@given(keyed(sts.basic_keys))
def test_a_basic_selection_is_a_scalar_where_numpy_gives_one(keyed):
    shape, _, key = keyed
    is_scalar = not isinstance(sts.numbered(shape)[key], np.ndarray)
    assert basic(key, shape).scalar is is_scalar


@pytest.mark.parametrize(
    ("key", "is_scalar"),
    [
        ((1, 2), True),
        ((1, np.int16(-2)), True),
        ((1, ..., 2), False),
        ((..., 1, 2), False),
        ((1, 2, None), False),
        ((1, slice(2, 3)), False),
        (1, False),
    ],
)
def test_only_integers_for_every_axis_and_nothing_else_make_a_scalar(key, is_scalar):
    assert basic(key, SHAPE).scalar is is_scalar
    assert isinstance(sts.numbered(SHAPE)[key], np.generic) is is_scalar


def test_integers_for_every_axis_make_a_scalar_of_the_other_kinds_of_key_too():
    assert orthogonal((1, 2), SHAPE).scalar
    assert points((1, 2), SHAPE).scalar
    assert not orthogonal((1, slice(2, 3)), SHAPE).scalar
    assert not points((1, [2]), SHAPE).scalar


@given(keyed(sts.orthogonal_keys))
def test_orthogonal_indexing_gives_the_cross_product(keyed):
    shape, grid, key = keyed
    array = sts.numbered(shape)
    selection = orthogonal(key, shape)
    expected = crossed(key, array)
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(through_projections(selection, array, grid), expected)


@given(keyed(sts.point_keys))
def test_points_give_what_numpy_gives_for_integer_arrays(keyed):
    shape, _, key = keyed
    array = sts.numbered(shape)
    selection = points(key, shape)
    expected = array[key]
    assert selection.shape == np.shape(expected)
    np.testing.assert_array_equal(picked(selection, array), expected)


@given(keyed(sts.point_keys))
def test_basic_indexing_with_arrays_gives_numpys_result_or_refuses(keyed):
    shape, grid, key = keyed
    array = sts.numbered(shape)
    try:
        selection = basic(key, shape)
    except SelectionError as error:
        assert "oindex or vindex" in str(error)  # noqa: PT017 - the other outcome
        return
    found = (
        picked(selection, array)
        if isinstance(selection, Points)
        else through_projections(selection, array, grid)
    )
    assert found.shape == np.shape(array[key])
    np.testing.assert_array_equal(found, array[key])


@given(keyed(sts.orthogonal_keys))
def test_a_mix_of_arrays_and_slices_gives_numpys_result_or_is_refused(keyed):
    shape, grid, key = keyed
    array = sts.numbered(shape)
    try:
        selection = basic(key, shape)
    except SelectionError as error:
        assert any(isinstance(k, np.ndarray) for k in key)
        assert "NumPy" in str(error) or "broadcast" in str(error)  # noqa: PT017
        return
    found = (
        picked(selection, array)
        if isinstance(selection, Points)
        else through_projections(selection, array, grid)
    )
    np.testing.assert_array_equal(found, array[key])
    assert found.shape == np.shape(array[key])


@given(st.data(), sts.shapes(max_side=5).filter(bool))
def test_a_mask_gives_what_numpy_gives(data, shape):
    array = sts.numbered(shape)
    mask = np.asarray(
        data.draw(sts.masks(shape)), order=data.draw(st.sampled_from("CF"))
    )
    selection = points(mask, shape)
    assert selection.shape == array[mask].shape
    np.testing.assert_array_equal(picked(selection, array), array[mask])
    if len(shape) > 1:
        np.testing.assert_array_equal(picked(basic(mask, shape), array), array[mask])


def test_an_ellipsis_among_selectors_takes_all_of_the_axes_left_out():
    assert orthogonal((1, ..., 2), (4, 5)) == orthogonal((1, 2), (4, 5))
    whole = slice(None)
    assert orthogonal((1, ..., 2), (4, 3, 5)) == orthogonal((1, whole, 2), (4, 3, 5))


def test_lists_count_as_arrays():
    array = sts.numbered(SHAPE)
    selection = basic([0, -1, 0], SHAPE)
    np.testing.assert_array_equal(sts.expected_of(selection, array), array[[0, -1, 0]])
    mask = [True, False, False, True]
    selection = basic(mask, SHAPE)
    np.testing.assert_array_equal(sts.expected_of(selection, array), array[mask])


@pytest.mark.parametrize("key", [[], (slice(None), []), ([], slice(1, 3))])
def test_an_empty_list_selects_nothing(key):
    assert basic(key, SHAPE).shape == np.empty(SHAPE)[key].shape


@pytest.mark.parametrize("integer", [np.int8(-1), np.uint64(3), np.array(3), True + 2])
def test_whatever_is_an_integer_to_python_is_one_here(integer):
    expected = SliceAxis(operator.index(integer) % 4, 1, 1, drop=True)
    assert basic(integer, SHAPE).axes[0] == expected
    assert orthogonal(integer, SHAPE).axes[0] == expected


def test_an_array_of_one_element_that_passes_for_an_integer_keeps_its_axis():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array([2])

        def __index__(self):
            return 2

    assert basic(Tensor(), SHAPE).shape == (1, 5)


def test_the_whole_array_is_selected_by_an_ellipsis_or_an_empty_tuple():
    assert basic(..., SHAPE) == basic((), SHAPE)._replace(scalar=False)
    assert basic(..., SHAPE).axes == (SliceAxis(0, 1, 4), SliceAxis(0, 1, 5))


@pytest.mark.parametrize("step", [10**30, -(10**30), 2**63 - 1, -(2**63)])
def test_a_step_larger_than_any_axis_takes_one_element(step):
    selection = basic(slice(None, None, step), (9,))
    projection = project(selection.axes[0], GridAxis(9, 2))
    expected = np.arange(9)[::step]
    assert selection.shape == expected.shape == (1,)
    assert (projection.cell * 2 + projection.in_start).tolist() == expected.tolist()


@pytest.mark.parametrize("bound", [10**30, -(10**30)])
def test_a_slice_bound_beyond_any_integer_type_is_cut_to_the_axis(bound):
    assert basic(slice(bound, None), (9,)).shape == np.empty(9)[bound:].shape
    assert basic(slice(None, bound), (9,)).shape == np.empty(9)[:bound].shape


# Blocks


@given(st.data())
def test_blocks_take_whole_cells_of_the_grid(data):
    shape = data.draw(sts.shapes(max_side=6))
    grid = data.draw(sts.grids(shape))
    array = sts.numbered(shape)
    runs, key = [], []
    for axis in grid:
        cells = range(axis.n_cells)
        if axis.n_cells and data.draw(st.booleans()):
            cell = data.draw(st.integers(-axis.n_cells, axis.n_cells - 1))
            key.append(cell)
            cells = cells[cell : cell + 1 or None]
        else:
            key.append(slice(*data.draw(st.tuples(*[st.integers(-9, 9)] * 2))))
            cells = cells[key[-1]]
        bounds = [axis.start_of(c) for c in cells]
        bounds += [axis.start_of(c) + axis.length_of(c) for c in cells]
        runs.append(slice(min(bounds, default=0), max(bounds, default=0)))
    selection = blocks(tuple(key), grid)
    expected = array[tuple(runs)]
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(through_projections(selection, array, grid), expected)


def test_an_integer_block_keeps_its_axis():
    assert blocks(1, (GridAxis(5, 2), GridAxis(7, 3))).shape == (2, 7)
    assert blocks((-1, 0), (GridAxis(5, 2), GridAxis(7, 3))).shape == (1, 3)


# Hyperslabs


def test_a_hyperslab_stops_just_behind_its_last_element():
    assert hyperslab([10, 0], [3, 4], [2, 1]) == (slice(10, 15, 2), slice(0, 4, 1))
    assert hyperslab([5], [1], [100]) == (slice(5, 6, 100),)
    assert hyperslab([5], [0], [3]) == (slice(5, 5, 3),)
    assert hyperslab([], []) == ()


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 2, st.integers(1, 4)), max_size=3))
def test_a_hyperslab_takes_count_elements_from_start_every_stride(dimensions):
    start, count, stride = ([d[k] for d in dimensions] for k in range(3))
    shape = tuple(s + n * t for s, n, t in dimensions)
    array = sts.numbered(shape)
    expected = array[np.ix_(*(s + t * np.arange(n) for s, n, t in dimensions))]
    key = hyperslab(start, count, stride)
    np.testing.assert_array_equal(array[key], expected)
    assert [k.stop for k in key if k.stop > k.start] == [
        s + (n - 1) * t + 1 for s, n, t in dimensions if n
    ]
    selection = basic(key, shape)
    np.testing.assert_array_equal(sts.expected_of(selection, array), expected)


def test_a_hyperslab_without_stride_takes_neighbours():
    assert hyperslab([2], [3]) == hyperslab([2], [3], [1])


def test_a_hyperslab_never_reaches_a_chunk_without_a_wanted_element():
    selection = basic(hyperslab([0], [3], [40]), (100,))
    assert project(selection.axes[0], GridAxis(100, 10)).cell.tolist() == [0, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0], [1, 2]), "differ in length: got 1, 2 and 1"),
        (([0], [1], [1, 1]), "differ in length: got 1, 1 and 2"),
        (([-1], [1]), "at least 0"),
        (([0], [-1]), "at least 0"),
        (([0], [1], [0]), "stride at least 1"),
        (([0], [1], [-2]), "stride at least 1"),
    ],
)
def test_a_hyperslab_of_no_meaning_is_refused(arguments, said):
    with pytest.raises(SelectionError, match=said):
        hyperslab(*arguments)


# zarr-python as the second oracle


@pytest.fixture(scope="module")
def zarr_array():
    array = zarr.create_array({}, shape=(7, 5), chunks=(2, 3), dtype="int32")
    array[...] = sts.numbered((7, 5))
    return array


ZARR_GRID = (GridAxis(7, 2), GridAxis(5, 3))


@pytest.mark.parametrize(
    "key",
    [
        ([0, 6, 3], slice(1, 4)),
        ([0, 2, 6], [1, 4]),
        (slice(None, None, 3), [0, 4]),
        (np.array([True, False, True, False, False, False, True]), slice(None)),
        (3, [1, 2]),
        ([-1, 0], -2),
        (slice(0, 0), [1]),
    ],
)
def test_orthogonal_keys_mean_what_they_mean_to_zarr(zarr_array, key):
    found = through_projections(orthogonal(key, (7, 5)), zarr_array[...], ZARR_GRID)
    expected = zarr_array.oindex[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "key",
    [
        ([0, 6, 3], [1, 4, 0]),
        ([[0], [6]], [[1, 2]]),
        ([-1, -7], [0, -1]),
        sts.numbered((7, 5)) % 3 == 0,
    ],
)
def test_points_mean_what_they_mean_to_zarr(zarr_array, key):
    found = picked(points(key, (7, 5)), zarr_array[...])
    expected = zarr_array.vindex[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "key", [0, (3, 1), (slice(1, 3), 0), slice(2, 4), (-1, -1), (..., 1)]
)
def test_blocks_mean_what_they_mean_to_zarr(zarr_array, key):
    found = through_projections(blocks(key, ZARR_GRID), zarr_array[...], ZARR_GRID)
    expected = zarr_array.blocks[key]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_selections_hold_int64_columns():
    axis = orthogonal(([1, 2], slice(None)), SHAPE).axes[0]
    assert isinstance(axis, IndexAxis)
    assert axis.element.dtype == axis.out_index.dtype == np.int64
    selection = points((np.array([1], np.uint8), [2]), SHAPE)
    assert {c.dtype for c in (*selection.coordinates, selection.out_index)} == {
        np.dtype(np.int64)
    }


@pytest.mark.parametrize("mask", [np.array(True), np.array(False), np.True_, False])
def test_a_mask_without_axes_fits_an_array_without_axes(mask):
    assert basic(mask, ()).shape == np.zeros(())[mask].shape
