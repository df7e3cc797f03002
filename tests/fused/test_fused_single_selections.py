"""Selections of a part of one inner chunk are read in one call, as keys are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from fused_cases import CHAINS, FUSED, VALUES, ZSTD, stored
from gpushard.fused import choice
from gpushard.fused.short.single import SingleReader
from gpushard.options import MIB
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
pytestmark = pytest.mark.usefixtures("settled")

SINGLE = FUSED.but(small_read_chunks=8)
INSIDE = np.s_[35:60, 20:31]  # of one inner chunk of `VALUES`


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def opened(array, root):
    """Array whose indexes are all known."""
    a = gpushard.open_array(array.placed("local", root), options=SINGLE, device="cpu")
    a.read(...)
    return a


@pytest.fixture
def array(tmp_path):
    return opened(stored([ZSTD]), tmp_path)


@pytest.fixture
def taken(monkeypatch):
    """Whether each selection, parsed or not, was taken by the shortest way."""
    found, plain, of_key = [], SingleReader.read_into, SingleReader.read

    def read(*given):
        result = of_key(*given)
        found.extend([True] if result is not None else [])
        return result

    monkeypatch.setattr(SingleReader, "read", read)
    monkeypatch.setattr(
        SingleReader,
        "read_into",
        lambda *given: found.append(plain(*given)) or found[-1],
    )
    return found


@pytest.mark.parametrize("key", [INSIDE, np.s_[40, 17], np.s_[64:96:7, None, 17:32:3]])
def test_selections_of_a_part_of_an_inner_chunk_take_one_call(key, array, taken):
    want = np.asarray(VALUES[key])
    assert_same_bits(array.read(key), want)
    assert_same_bits(array.read(key, out=np.empty_like(want)), want)
    assert_same_bits(array.read_many([key, key])[1], want)
    assert taken == [True] * 4


def test_other_outputs_and_selections_than_it_can_write_are_left_to_others(
    array, taken
):
    out = np.zeros((50, 22), "i4")
    array.read(INSIDE, out=out[::2, ::2])
    assert_same_bits(out[::2, ::2], VALUES[INSIDE])
    assert_same_bits(array.read(np.s_[40:35:-1, 17]), VALUES[40:35:-1, 17])
    assert_same_bits(array.oindex[[40, 38], 17:20], VALUES[[40, 38], 17:20])
    both = gpushard.concat([array, array], axis=1)
    expected = np.concatenate([VALUES, VALUES], axis=1)
    assert_same_bits(both[3:6, 86:94], expected[3:6, 86:94])
    assert taken == [False] * 5


def test_a_read_that_asks_for_nothing_else_is_not_parsed_before_it_is_short(
    array, monkeypatch
):
    monkeypatch.setattr(SingleReader, "read_into", None)
    out = np.zeros((25, 11), "i4")
    assert array.read(INSIDE, out=out) is out
    assert_same_bits(out, VALUES[INSIDE])
    element = array.read((40, 17))
    assert isinstance(element, np.ndarray)
    assert_same_bits(element, np.asarray(VALUES[40, 17]))


@pytest.mark.parametrize(
    "manner",
    [{"dtype": "i8"}, {"errors": "fill"}, {"memory_limit": 64 * MIB}],
    ids=lambda manner: next(iter(manner)),
)
def test_a_read_that_asks_for_more_is_not_taken_before_it_is_parsed(
    manner, array, monkeypatch
):
    monkeypatch.setattr(SingleReader, "read", None)
    want = VALUES[INSIDE].astype(manner.get("dtype", VALUES.dtype))
    assert_same_bits(array.read(INSIDE, **manner), want)


class _Odd(np.ndarray):
    """An array that might write in a way of its own."""


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((25, 11), "i8"),
        np.zeros((25, 11), ">i4"),
        np.zeros((25, 11), "i4", order="F"),
        np.zeros(25 * 11 * 4 + 1, "u1")[1:].view("i4").reshape(25, 11),
        np.zeros((25, 11), "i4").view(_Odd),
    ],
    ids=["wider", "swapped", "columns", "unaligned", "subclass"],
)
def test_outputs_of_other_kinds_get_the_same_elements(out, array):
    assert array.read(INSIDE, out=out) is out
    assert np.array_equal(out, VALUES[INSIDE])


def test_outputs_that_do_not_fit_are_refused_by_what_is_wrong_with_them(array):
    fixed = np.zeros((25, 11), "i4")
    fixed.flags.writeable = False
    with pytest.raises(gpushard.SelectionError, match="read-only"):
        array.read(INSIDE, out=fixed)
    with pytest.raises(gpushard.SelectionError, match="another shape"):
        array.read(INSIDE, out=np.zeros((11, 25), "i4"))
    with pytest.raises(gpushard.OptionError, match="errors="):
        array.read(INSIDE, errors="ignore")
    assert not fixed.any()


@st.composite
def parts(draw) -> tuple[Any, ...]:
    """Integers and slices, of steps of both signs, inside one inner chunk."""
    key: list[Any] = []
    for begin, cell in ((32, 32), (64, 16)):
        first, last = sorted(draw(st.integers(begin, begin + cell - 1)) for _ in "ab")
        step = draw(st.integers(1, 4))
        up, down = slice(first, last + 1, step), slice(last, first - 1, -step)
        key.append(draw(st.sampled_from([first, up, up, down])))
    return tuple(key)


@pytest.fixture(scope="module", params=["raw", "zstd", "blosc lz4 shuffle 0"])
def array_of_chain(request, tmp_path_factory):
    return opened(stored(CHAINS[request.param]), tmp_path_factory.mktemp("a"))


@given(parts())
def test_any_part_of_an_inner_chunk_is_read_as_numpy_reads_it(array_of_chain, key):
    assert_same_bits(array_of_chain.read(key), np.asarray(VALUES[key]))
