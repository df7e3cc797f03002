"""Arrays whose single inner chunks the loops never read, and what asking costs."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpushard
from fused_cases import FUSED, VALUES, ZSTD, stored
from gpushard.fused import choice
from gpushard.fused.short import one_call, ways
from gpushard.fused.short.ways import short_ways
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

INSIDE = (slice(35, 60), slice(20, 31))  # of one inner chunk of `VALUES`


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def opened(root: Path) -> gpushard.Array:
    place = stored([ZSTD]).placed("local", root)
    options = FUSED.but(small_read_chunks=8)
    return gpushard.open_array(place, options=options, device="cpu")


def spying(function, calls):
    def spied(*args):
        calls.append(args)
        return function(*args)

    return spied


def test_arrays_that_never_have_a_reader_look_for_one_once(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(ways, "fused_chain", asked.append)  # no loops for the chain
    a = opened(tmp_path)
    for _ in range(3):
        assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert len(asked) == 1


def test_arrays_of_large_inner_chunks_have_the_longer_way_only(
    monkeypatch, taken, tmp_path
):
    asked = []
    a = opened(tmp_path)
    monkeypatch.setattr(one_call, "MOST_NBYTES", 1024)
    monkeypatch.setattr(ways, "one_call", spying(ways.one_call, asked))
    for _ in range(3):
        assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert (len(asked), taken) == (1, [])
    assert short_ways(a.source).short is not None
