"""How far the compiled loops read on, and into what, as Python runs these steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused.columns import (
    BLOSC,
    FILE,
    FILLED,
    FIRST_LENGTH,
    GAP_NBYTES,
    HIGH,
    INFLATE,
    LIBDEFLATE,
    LOW,
    LZ4,
    NBYTES,
    NO_FILE,
    OFFSET,
    PART,
    RAW,
    SOURCE,
    TARGET,
    WORK_AXES,
    WORK_ROWS,
    ZSTD,
)
from gpushard.fused.compiled import copies, loops

NEAR, FAR = 200 + GAP_NBYTES, 201 + GAP_NBYTES
FIRST = (3, 100, 200)
WINDOW, NOTHING = 1 << 30, (-1, 0, 0)


def columns_of(*boxes):
    """Columns of boxes that are given as (file, low, high)."""
    columns = np.zeros((len(boxes), FIRST_LENGTH), np.int64)
    columns[:, [FILE, LOW, HIGH]] = boxes
    return columns


def reach(*boxes, most=1 << 20, end=None):
    """Stop of what is read for the first of boxes."""
    at = 0, end or len(boxes)
    return loops._reach.py_func(columns_of(*boxes), at, most)


def test_boxes_that_follow_closely_are_read_with_the_first():
    assert reach(FIRST, (3, NEAR, NEAR + 50), (3, NEAR + 60, NEAR + 90)) == NEAR + 90


def test_a_box_within_another_does_not_end_what_is_read():
    assert reach(FIRST, (3, 150, 600), (3, 160, 300)) == 600


@pytest.mark.parametrize(
    "box",
    [(3, FAR, FAR + 50), (4, 210, 300), (3, 90, 300)],
    ids=["far away", "another file", "before it"],
)
def test_reading_ends_before_a_box_that(box):
    assert reach(FIRST, box, (3, 220, 250)) == 200


def test_of_a_box_beyond_the_window_nothing_is_read():
    """It would be read again from its first byte on."""
    assert reach(FIRST, (3, 210, 301), (3, 301, 302), most=300) == 200
    assert reach(FIRST, (3, 210, 300), most=300) == 300


def test_what_other_threads_read_is_not_read_here():
    assert reach(FIRST, (3, 210, 300), (3, 310, 400), end=2) == 300


def test_kept_inner_chunks_are_passed_over():
    kept = (FILLED, 0, 0)
    assert reach(FIRST, kept, kept, (3, 210, 300)) == 300
    # The bytes of the kept ones lie between, and are too many to be read in vain.
    assert reach(FIRST, kept, (3, FAR, FAR + 50)) == 200


def shared(*boxes, end=None):
    """Whether the first of boxes is not the only one of its inner chunk."""
    columns = columns_of(*boxes)
    columns[:, SOURCE] = columns[:, LOW]
    return copies.is_shared.py_func(columns, 0, end or len(boxes))


def test_an_inner_chunk_is_shared_with_the_next_box_of_the_same_place_and_file():
    """Otherwise it is decoded straight to its output."""
    assert shared(FIRST, FIRST)
    assert not shared(FIRST, FIRST, end=1)
    assert not shared(FIRST)
    assert not shared(FIRST, (3, 101, 200))
    # The first inner chunks of files lie in the same place.
    assert not shared(FIRST, (4, 100, 200))


def wanted(*boxes, kind=ZSTD, end=None, shuffle_itemsize=0):
    """Bytes to decode for the first of boxes, given as (place, part, offset, length).

    The inner chunk has 1000 bytes. Wanted elements, of 4 bytes each, are neighbours in
    part 0 and 40 bytes apart in part 1.
    """
    columns = np.zeros((len(boxes), FIRST_LENGTH + 1), np.int64)
    columns[:, [SOURCE, PART, OFFSET, FIRST_LENGTH]] = boxes
    d = SimpleNamespace(
        kind=kind, chunk_nbytes=1000, itemsize=4, shuffle_itemsize=shuffle_itemsize
    )
    strides = np.array([[[4], [40]], [[8], [8]]])
    return loops._wanted.py_func(d, columns, 0, end or len(boxes), strides)


@pytest.mark.parametrize("kind", [ZSTD, BLOSC, LZ4])
def test_decoding_reaches_from_the_first_to_the_end_of_the_last_wanted_byte(kind):
    assert wanted((7, 0, 512, 1), kind=kind) == (512, 516)
    assert wanted((7, 0, 512, 3), kind=kind) == (512, 524)
    assert wanted((7, 1, 512, 3), kind=kind) == (512, 596)
    boxes = (7, 0, 600, 1), (7, 1, 400, 2), (7, 0, 500, 9)
    for order in (boxes, boxes[::-1]):
        assert wanted(*order, kind=kind) == (400, 604)
    assert wanted(*boxes, (8, 0, 0, 1), kind=kind) == (400, 604)
    assert wanted(*boxes, kind=kind, end=2) == (400, 604)
    assert wanted(*boxes, kind=kind, end=1) == (600, 604)


def test_all_is_decoded_where_parts_are_not():
    for kind in (RAW, INFLATE, LIBDEFLATE):
        assert wanted((7, 0, 512, 1), kind=kind) == (0, 1000)
    for kind in (LZ4, ZSTD):
        assert wanted((7, 0, 512, 1), kind=kind, shuffle_itemsize=4) == (0, 1000)


@pytest.fixture
def read(monkeypatch):
    """Whether the first of boxes is in the window, what was read, what the window has.

    A window of `room` bytes has `held`; files have 300 bytes.
    """

    def read(*boxes, room, held=NOTHING):
        asked = []

        def read_at(_, file, target, nbytes, offset):
            assert target == WINDOW
            asked.append((file, offset, nbytes))
            return min(nbytes, 300 - offset)

        monkeypatch.setattr(loops, "_read_at", read_at)
        d, held = SimpleNamespace(window=WINDOW, window_nbytes=room), list(held)
        at = 0, len(boxes)
        is_there = loops._read_ahead.py_func(d, columns_of(*boxes), at, held)
        return is_there, asked, tuple(held)

    monkeypatch.setattr(loops, "_reach", loops._reach.py_func)
    return read


@pytest.mark.parametrize(("room", "stop"), [(100, 200), (149, 200), (150, 250)])
def test_no_more_is_read_than_the_window_takes(read, room, stop):
    found = True, [(3, 100, stop - 100)], (3, 100, stop)
    assert read(FIRST, (3, 201, 250), room=room) == found


def test_for_a_box_that_the_window_does_not_take_nothing_is_read(read):
    assert read(FIRST, room=99) == (False, [], NOTHING)


@pytest.mark.parametrize(
    ("held", "is_read"),
    [((3, 100, 200), False), ((3, 90, 260), False)]
    + [(held, True) for held in ((4, 100, 200), (3, 101, 260), (3, 90, 199), NOTHING)],
)
def test_only_what_the_window_has_not_is_read(read, held, is_read):
    told = ([(3, 100, 100)], FIRST) if is_read else ([], held)
    assert read(FIRST, room=200, held=held) == (True, *told)


def test_where_a_file_ends_early_the_window_has_what_there_is(read):
    assert read((3, 250, 301), room=99) == (False, [(3, 250, 51)], (3, 250, 300))
    behind = (3, 250, 300), (3, 300, 340)
    assert read(*behind, room=99) == (True, [(3, 250, 90)], (3, 250, 300))


@pytest.fixture
def straight(monkeypatch):
    """Result of a step that reads plain elements, and what it has read to where.

    Files have `n_there` bytes, and the window `room`. What is copied from the window is
    not noted.
    """

    def straight(step, *arguments, n_there=1 << 20, room=1 << 20):
        asked = []

        def read_at(_, file, target, nbytes, offset):
            asked.append((file, target, offset, nbytes))
            return max(min(nbytes, n_there - offset), 0)

        monkeypatch.setattr(loops, "_read_at", read_at)
        monkeypatch.setattr(loops, "copy_box", lambda *_: None)
        for name in ("far_axis", "merge_axes", "next_line"):
            monkeypatch.setattr(loops, name, getattr(copies, name).py_func)
        apart = loops._read_apart
        monkeypatch.setattr(loops, "_read_apart", getattr(apart, "py_func", apart))
        sizes = {"itemsize": 4, "out_itemsize": 4, "chunk_nbytes": 400}
        sizes["window_nbytes"] = room
        d = SimpleNamespace(window=WINDOW, **sizes)
        step = getattr(loops, step)
        return getattr(step, "py_func", step)(d, *arguments), asked

    return straight


def far_apart():
    """A box, and memory to work in: three runs of 8 bytes, 9000 bytes apart."""
    work = np.zeros((WORK_ROWS, WORK_AXES), np.int64)
    work[:3, 0] = 3, 9000, 8
    work[4, :3] = 3, 0, 500  # the window has the first bytes of the file
    box = columns_of((3, 0, 0))[0]
    box[SOURCE], box[TARGET] = 100, 1000
    return box, work


def slabs_far_apart():
    """The same, with three slabs of 40 bytes, and three runs within each."""
    box, work = far_apart()
    work[:3, 1] = work[:3, 0]
    work[:3, 0] = 3, 16, 8
    return box, work


PLACES = [100, 9100, 18100]


@pytest.mark.parametrize(("n_there", "is_read"), [(18108, True), (18107, False)])
def test_runs_far_apart_are_read_to_their_places_unless_the_file_ends_within(
    n_there, is_read, straight
):
    box, work = far_apart()
    arguments = box, (8, 1), (0, 8), work
    result, asked = straight("_read_apart", *arguments, n_there=n_there)
    assert result is is_read
    assert asked == [(3, 1000 + 8 * k, at, 8) for k, at in enumerate(PLACES)]


@pytest.mark.parametrize(("n_there", "is_read"), [(18140, True), (18139, False)])
def test_slabs_far_apart_go_through_the_window_which_then_has_nothing_else(
    n_there, is_read, straight
):
    """A later box would take what was there before for its own bytes."""
    box, work = slabs_far_apart()
    arguments = box, (8, 2), (1, 40), work
    result, asked = straight("_read_apart", *arguments, n_there=n_there)
    assert result is is_read
    assert asked == [(3, WINDOW, at, 40) for at in PLACES]
    assert work[4, 0] == NO_FILE


@pytest.mark.parametrize(("room", "n_tried"), [(40, 1), (39, 0)])
def test_slabs_that_the_window_does_not_take_are_not_read(room, n_tried, straight):
    box, work = slabs_far_apart()
    arguments = box[np.newaxis], (0, 1), (8, 2), None, work
    result, asked = straight("_read_plain", *arguments, room=room)
    assert result == (n_tried, n_tried)
    assert asked == [(3, WINDOW, at, 40) for at in PLACES] * n_tried


def adjacent():
    """Columns of three inner chunks that follow each other in a file and an output."""
    columns = np.zeros((3, FIRST_LENGTH + 1), np.int64)
    columns[:, FILE], columns[:, NBYTES], columns[:, FIRST_LENGTH] = 3, 400, 100
    columns[:, SOURCE], columns[:, TARGET] = [[0, 400, 800], [5000, 5400, 5800]]
    return columns


@pytest.fixture
def read_into(straight):
    """Boxes done and tried, the bytes asked for; see `straight`."""

    def read_into(columns, **files):
        strides = np.full((2, 1, 1), 4, np.int64)
        work = np.zeros((WORK_ROWS, WORK_AXES), np.int64)
        arguments = columns, (0, len(columns)), 400, strides, work
        counts, asked = straight("_read_into", *arguments, **files)
        ((file, target, offset, nbytes),) = asked
        assert (file, target, offset) == (3, 5000, 0)
        return *counts, nbytes

    return read_into


def test_adjacent_boxes_are_read_at_once_and_none_is_done_where_the_file_ends(
    read_into,
):
    assert read_into(adjacent()) == (3, 3, 1200)
    assert read_into(adjacent(), n_there=1199) == (0, 3, 1200)


@pytest.mark.parametrize(
    ("column", "value"),
    [(FILE, 4), (SOURCE, 404), (TARGET, 5404), (NBYTES, 404)],
    ids=["file", "place", "target", "size"],
)
def test_a_box_that_does_not_follow_in_all_is_read_by_itself(column, value, read_into):
    columns = adjacent()
    columns[1, column] = value
    assert read_into(columns) == (1, 1, 400)
