"""The text of a selection, and how a selection is cut into pieces."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import run, sentence, write_shards
from gpushard.cli.pieces import cut_selection, per_axis, result_shape
from gpushard.cli.selection_text import parse_selection, split_target
from gpushard.errors import SelectionError
from gpushard.layout import GridAxis

BOUND = st.none() | st.integers(-9, 9)
STEP = st.none() | st.integers(-4, 4).filter(bool)
SPACE = st.sampled_from(["", " ", "\t "])
UNENDED = "end a selection with ], and quote it for the shell."
LISTS = "a selection has no lists in it: write integers, slices and ..."


@st.composite
def keys(draw, shape):
    """A basic index that fits `shape`: integers, slices, at most one ellipsis."""
    items = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        integers = st.integers(-n, n - 1) if n else st.nothing()
        items.append(draw(integers | st.builds(slice, BOUND, BOUND, STEP)))
    if draw(st.booleans()):
        # All behind the ellipsis count from the last axis: let them be slices.
        at = draw(st.integers(0, len(items)))
        tail = [draw(st.builds(slice, BOUND, BOUND, STEP)) for _ in items[at:]]
        items = [*items[:at], ..., *tail]
    return tuple(items)


@st.composite
def shapes_and_keys(draw):
    shape = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple))
    key = draw(keys(shape).filter(bool))
    return shape, key


@st.composite
def spelled(draw, key):
    """`key` as somebody may write it."""

    def bound(value):
        sign = "+" if value is not None and value >= 0 and draw(st.booleans()) else ""
        return draw(SPACE) + ("" if value is None else f"{sign}{value}") + draw(SPACE)

    def item(value):
        if value is ...:
            return draw(SPACE) + "..."
        if isinstance(value, int):
            return bound(value)
        text = f"{bound(value.start)}:{bound(value.stop)}"
        if value.step is not None or draw(st.booleans()):
            text += f":{bound(value.step)}"
        return text

    return ",".join(map(item, key)) + draw(st.sampled_from(["", ",", ", "]))


@given(st.data())
def test_selection_text_means_what_numpy_means_by_it(data):
    shape, key = data.draw(shapes_and_keys())
    text = data.draw(spelled(key))
    array = np.arange(prod(shape)).reshape(shape)
    parsed = parse_selection(text)
    assert parsed == key
    np.testing.assert_array_equal(array[parsed], eval(f"array[{text}]"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("...", (...,)),
        (":", (slice(None),)),
        ("::", (slice(None),)),
        (" -1 ", (-1,)),
        ("0,", (0,)),
        ("+3:-2:-1", (slice(3, -2, -1),)),
        ("1" * 40, (int("1" * 40),)),
    ],
)
def test_selection_text_gives_its_key(text, key):
    assert parse_selection(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "0,,1",
        "0,1,,",
        "a",
        "0x10",
        "1_000",
        "1.0",
        "1e3",
        "- 1",
        "--1",
        "1 2",
        "....",
        ". . .",
        "1:2:3:4",
        "None",
        "True",
        "[1, 2]",
        "slice(1)",
        "__import__('os')",
        "٣",
        "²",
        "1" * 41,
        "0::0",
    ],
)
def test_anything_else_is_refused_in_a_sentence(text):
    with pytest.raises(SelectionError) as caught:
        parse_selection(text)
    assert str(caught.value).endswith(".")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("a.zarr", ("a.zarr", None)),
        ("a.zarr[0]", ("a.zarr", "0")),
        ("s3://bucket/a[1].zarr", ("s3://bucket/a[1].zarr", None)),
        ("a[1].zarr[2, :]", ("a[1].zarr", "2, :")),
        ("dir[1][...]", ("dir[1]", "...")),
        ("a.zarr[]", ("a.zarr", "")),
        ("a.zarr]", ("a.zarr]", None)),
        ("http://[::1]:80/a.zarr[0]", ("http://[::1]:80/a.zarr", "0")),
    ],
)
def test_the_last_bracket_opens_the_selection(target, parts):
    assert split_target(target) == parts


@st.composite
def grids(draw, shape):
    """A regular or rectilinear grid over each axis of `shape`."""
    axes = []
    for extent in shape:
        if draw(st.booleans()):
            axes.append(GridAxis(extent, draw(st.integers(1, 5))))
        else:
            inside = draw(st.sets(st.integers(1, max(extent - 1, 1)), max_size=3))
            ends = sorted({0, *inside, max(extent, 1)})
            axes.append(GridAxis(extent, 0, np.array(ends, np.int64)))
    return tuple(axes)


@given(st.data())
def test_pieces_put_together_are_the_selection(data):
    shape, key = data.draw(shapes_and_keys())
    grid = data.draw(grids(shape))
    array = np.arange(prod(shape)).reshape(shape)
    items = per_axis(key, shape)
    expected = array[key]
    assert result_shape(items) == expected.shape
    out = np.full(expected.shape, -1)
    for piece in cut_selection(items, grid, 8, data.draw(st.integers(1, 200))):
        assert piece.shape == out[(*piece.place, ...)].shape
        out[(*piece.place, ...)] = array[piece.key]
    np.testing.assert_array_equal(out, expected)


@given(st.data())
def test_no_shard_is_read_for_two_pieces(data):
    shape, key = data.draw(shapes_and_keys())
    grid = data.draw(grids(shape))
    items = per_axis(key, shape)
    owners: dict[tuple[int, ...], int] = {}
    for number, piece in enumerate(
        cut_selection(items, grid, 8, data.draw(st.integers(1, 200)))
    ):
        taken = [[i] if isinstance(i, int) else list(i) for i in piece.items]
        for element in np.ndindex(*map(len, taken)):
            shard = tuple(
                int(axis.cell_at(where[i]))
                for axis, where, i in zip(grid, taken, element, strict=True)
            )
            assert owners.setdefault(shard, number) == number


def test_pieces_grow_to_the_wanted_size():
    items = per_axis((..., 0), (1000, 10, 2))
    grid = GridAxis(1000, 10), GridAxis(10, 10), GridAxis(2, 2)
    pieces = cut_selection(items, grid, 4, 1000)
    sizes = [prod(piece.shape) * 4 for piece in pieces]
    assert sizes[:-1] == [1200] * (len(sizes) - 1)
    assert sum(sizes) == 40_000


def test_a_selection_within_the_wanted_size_is_one_piece():
    items = per_axis((...,), (100,))
    (piece,) = cut_selection(items, [GridAxis(100, 10)], 4, 400)
    assert piece.items == items


def test_the_first_axis_that_meets_several_shards_is_cut():
    items = per_axis((0, ...), (4, 5, 6))
    grid = GridAxis(4, 1), GridAxis(5, 5), GridAxis(6, 2)
    pieces = cut_selection(items, grid, 1, 1)
    assert [piece.place for piece in pieces] == [
        (slice(0, 5), slice(first, first + 2)) for first in (0, 2, 4)
    ]


def test_a_descending_selection_is_cut_where_its_shards_end():
    items = per_axis((slice(None, None, -1),), (10,))
    pieces = cut_selection(items, [GridAxis(10, 4)], 1, 1)
    assert [piece.place for piece in pieces] == [
        (slice(0, 2),),
        (slice(2, 6),),
        (slice(6, 10),),
    ]
    assert [piece.items for piece in pieces] == [
        (range(9, 7, -1),),
        (range(7, 3, -1),),
        (range(3, -1, -1),),
    ]


def test_a_piece_of_just_the_wanted_size_grows_no_more():
    pieces = cut_selection(per_axis((...,), (100,)), [GridAxis(100, 10)], 1, 20)
    assert [piece.shape for piece in pieces] == [(20,)] * 5


@pytest.mark.parametrize(
    ("selection", "hint"),
    [("[0, 1", UNENDED), ("[0,", UNENDED), ("[0, [1, 2]]", LISTS)],
)
def test_a_selection_that_does_not_end_is_told_from_a_wrong_path(
    selection, hint, tmp_path
):
    array = write_shards(tmp_path / "a.zarr")
    assert f"; {hint}" in sentence(run("read", f"{array}{selection}", code=2))
    wrong_path = sentence(run("read", f"{array}[x]/wrong[0]", code=2))
    assert wrong_path.endswith("check the path's spelling.")
