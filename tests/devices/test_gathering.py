"""Copies of rows put together what NumPy's indexing does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushard.devices.gathering import Strided, row_copies
from gpushard.devices.output import contiguous_strides


def carried_out(copies, to, source):
    """`to` after the copies, addresses being offsets into the arrays."""
    for copy in copies:
        for i in range(copy.n_rows):
            begin = copy.address + i * copy.pitch
            lies = copy.source + i * copy.source_pitch
            to[begin : begin + copy.nbytes] = source[lies : lies + copy.nbytes]
    return to


@st.composite
def boxes(draw):
    """Shape of an array, a box in it by steps, and the shape of an inner chunk."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    shape = (*shape[:-1], shape[-1] * draw(st.sampled_from([1, 8])))
    begins = [draw(st.integers(0, n - 1)) for n in shape]
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    key = tuple(
        slice(b, draw(st.integers(b + 1, n)), step)
        for b, n, step in zip(begins, shape, steps, strict=True)
    )
    return shape, key, draw(st.integers(0, 3))


@given(boxes(), st.sampled_from(["u1", "f4", "f8", "c16"]))
def test_copies_move_exactly_the_box(box, dtype):
    shape, key, more = box
    values = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    wanted = values[key]
    chunk = np.zeros(tuple(n + more for n in wanted.shape), dtype)
    itemsize = values.dtype.itemsize
    offset = wanted.ctypes.data - values.ctypes.data
    to = Strided(0, contiguous_strides(chunk.shape, itemsize))
    lies = Strided(offset, wanted.strides)
    copies = row_copies(to, lies, wanted.shape, itemsize)
    assert copies is not None
    got = carried_out(
        copies, chunk.reshape(-1).view("u1"), values.reshape(-1).view("u1")
    )
    chunk[tuple(slice(n) for n in wanted.shape)] = wanted
    assert got.tobytes() == chunk.tobytes()


def moved(shape, strides, to=None):
    to = contiguous_strides(shape, 4) if to is None else to
    return row_copies(Strided(0, to), Strided(100, strides), shape, 4)


def test_what_lies_in_one_piece_is_one_copy():
    [copy] = moved((5, 7, 16), (448, 64, 4))
    assert (copy.source, copy.nbytes, copy.n_rows) == (100, 5 * 448, 1)


def test_an_axis_of_one_element_divides_no_piece_wherever_it_would_go_on():
    for stride in (9999, -400, 0):
        [copy] = moved((5, 1, 16), (64, stride, 4))
        assert (copy.source, copy.nbytes, copy.n_rows) == (100, 5 * 64, 1)


def test_rows_of_an_axis_are_one_copy_and_evenly_spaced_planes_too():
    [copy] = moved((8, 16), (400, 4))
    assert (copy.nbytes, copy.n_rows, copy.source_pitch) == (64, 8, 400)
    [copy] = moved((3, 8, 16), (3200, 400, 4))
    assert (copy.nbytes, copy.n_rows, copy.source_pitch) == (64, 24, 400)
    assert len(moved((3, 8, 16), (9000, 400, 4))) == 3
    # An inner chunk with room behind its rows and planes.
    assert len(moved((3, 8, 16), (512, 64, 4), to=(2000, 68, 4))) == 3


def test_too_many_short_and_backward_repeated_and_far_apart_rows_are_no_way():
    assert moved((1024, 7), (400, 4)) is not None
    assert moved((1025, 7), (400, 4)) is None
    assert moved((2, 600, 7), (400_000, 400, 4)) is None
    assert moved((8, 16), (-400, 4)) is None
    assert moved((8, 16), (0, 4)) is None
    assert moved((8, 16), (2**31, 4)) is None
    assert moved((257, 2, 16), (9000, 400, 4)) is None
