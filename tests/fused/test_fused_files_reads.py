"""Reads of files by the compiled loops: those that fail, and how little is read."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    FUSED,
    LITTLE,
    VALUES,
    assert_all_fused,
    need_fast_packages,
    stored,
)
from gpushard.fused import choice
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, write

need_fast_packages()

pytestmark = [
    pytest.mark.usefixtures("way"),
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
]


BOTH = pytest.mark.parametrize("name", ["raw", "zstd"])


_PREAD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
)


class Pread:
    """A `pread` that gives `most` bytes a call, and nothing from call `fails` on."""

    def __init__(self, most: int, fails: int, failure: int) -> None:
        self.calls: list[tuple[int, int]] = []
        self.most, self.fails, self.failure = most, fails, failure
        self._kept = _PREAD(self._read)
        self.address = ctypes.cast(self._kept, ctypes.c_void_p).value

    def _read(self, fd: int, target: int, nbytes: int, offset: int) -> int:
        self.calls.append((offset, nbytes))
        if len(self.calls) > self.fails:
            return self.failure
        data = os.pread(fd, min(nbytes, self.most), offset)
        ctypes.memmove(target, data, len(data))
        return len(data)


@pytest.fixture
def pread(monkeypatch):
    def interpose(most: int, fails: int = 10**9, failure: int = 0) -> Pread:
        made = Pread(most, fails, failure)
        monkeypatch.setattr(choice, "pread_address", lambda: made.address)
        return made

    return interpose


@pytest.mark.parametrize("name", ["raw", "crc32c", "lz4", "blosc lz4 shuffle 0"])
@pytest.mark.parametrize("failure", [0, -1])
def test_reads_that_fail_are_done_again_the_plain_way(
    name, failure, pread, seen, tmp_path
):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    for fails in (0, 1, 2, 7):
        made = pread(700, fails, failure)
        a = gpushard.open_array(place, options=FUSED)
        seen.n_left = 0
        assert_same_bits(a[::-1, 3:], VALUES[::-1, 3:])
        assert seen.n_left == 24 if not fails else 0 < seen.n_left <= 24
        assert_same_bits(a[...], VALUES)
        assert len(made.calls) > fails


def test_reads_that_fail_straight_into_the_output_are_done_again(pread, seen, tmp_path):
    # Whole rows are an inner chunk: they are read to where they belong.
    values = np.arange(64 * 8, dtype="i4").reshape(64, 8)
    here = document((64, 8), (16, 8), sharding((2, 8), codecs=[LITTLE]), dtype="int32")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    for fails in (0, 1, 2, 7, 10**9):
        made = pread(130, fails, -1)
        seen.n_left = 0
        a = gpushard.open_array(place, options=FUSED)
        assert_same_bits(a[...], values)
        assert bool(seen.n_left) == (len(made.calls) > fails)


@BOTH
@pytest.mark.parametrize("most", [1, 100, 3000])
def test_reads_that_give_less_are_continued(name, most, pread, seen, tmp_path):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    made = pread(most)
    a = gpushard.open_array(place, options=FUSED)
    for key in (np.s_[...], np.s_[30:40, ::2]):
        assert_same_bits(a[key], VALUES[key])
    assert_all_fused(seen)
    assert len(made.calls) > 4


def test_no_more_than_what_is_wanted_of_plain_elements_is_read(pread, seen, tmp_path):
    place = stored([]).placed("local", tmp_path)
    made = pread(1 << 30)
    a = gpushard.open_array(place, options=FUSED)
    row = 16 * 4
    assert_same_bits(a[2:4, 0:16], VALUES[2:4, 0:16])
    assert made.calls == [(2 * row, 2 * row)]
    made.calls.clear()
    assert_same_bits(a[2:9:3, 5:7], VALUES[2:9:3, 5:7])
    assert made.calls == [(2 * row + 5 * 4, 6 * row + 2 * 4)]
    made.calls.clear()
    # Of two files, each its own: what lies farther on in the other is of no meaning.
    assert_same_bits(a.oindex[2:9:3, [5, 85]], VALUES[2:9:3, [5, 85]])
    span = 6 * row + 4
    assert [nbytes for _, nbytes in made.calls] == [span, span]
    made.calls.clear()
    # A whole shard of whole inner chunks, one after the other: at most one window.
    assert_same_bits(a[:64, :64:2], VALUES[:64, :64:2])
    assert len(made.calls) == 1
    assert_all_fused(seen)


@pytest.mark.parametrize("endian", ["little", "big"])
def test_plain_elements_far_apart_are_read_alone(endian, pread, seen, tmp_path):
    values = np.arange(2 * 4 * 3 * 6000, dtype="u2").reshape(8, 3, 6000)
    inner = sharding(
        (4, 3, 6000), codecs=[{**LITTLE, "configuration": {"endian": endian}}]
    )
    here = document((8, 3, 6000), (8, 3, 6000), inner, dtype="uint16")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    key, row = np.s_[1:7:2, ::-2, 7:9], 12_000
    for fails in (10**9, 0, 5):
        made = pread(3, fails, -1)
        a = gpushard.open_array(place, options=FUSED)
        seen.n_left = 0
        assert_same_bits(a[key], values[key])
        assert bool(seen.n_left) == (len(made.calls) > fails)
    made = pread(1 << 30)
    a = gpushard.open_array(place, options=FUSED)
    assert_same_bits(a[key], values[key])
    rows = [
        3,
        5,
        9,
        11,
        15,
        17,
    ]
    alone = [(row * n + 14, 4) for n in rows]
    spans = [(row * 3 + 14, 8 * row + 4), (row * 15 + 14, 2 * row + 4)]
    assert sorted(made.calls) == (alone if endian == "little" else spans)


def test_planes_of_plain_elements_far_apart_are_read_alone(pread, seen, tmp_path):
    values = np.arange(6 * 12 * 1100, dtype="u2").reshape(6, 12, 1100)
    inner = sharding((6, 12, 1100), codecs=[LITTLE])
    here = document((6, 12, 1100), (6, 12, 1100), inner, dtype="uint16")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    key, row = np.s_[5:0:-2, ::2, 3::2], 2200
    for fails in (10**9, 0, 2):
        made = pread(1 << 30, fails, -1)
        seen.n_left = 0
        a = gpushard.open_array(place, options=FUSED)
        assert_same_bits(a[key], values[key])
        assert bool(seen.n_left) == (fails < 3)
    made = pread(1 << 30)
    a = gpushard.open_array(place, options=FUSED)
    assert_same_bits(a[key], values[key])
    plane, span = 12 * row, 10 * row + 2 * 1097
    assert sorted(made.calls) == [(n * plane + 6, span) for n in (1, 3, 5)]


def test_transposed_plain_elements_are_not_read_one_by_one(pread, tmp_path):
    values = np.arange(64 * 70 * 9, dtype="u2").reshape(64, 70, 9)
    turned = codec("transpose", order=[2, 1, 0])
    inner = sharding((64, 70, 9), codecs=[turned, LITTLE])
    here = document((64, 70, 9), (64, 70, 9), inner, dtype="uint16")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    made = pread(1 << 30)
    a = gpushard.open_array(place, options=FUSED)
    assert_same_bits(a[1:], values[1:])
    assert len(made.calls) == 1
