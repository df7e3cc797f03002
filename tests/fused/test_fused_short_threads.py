"""Short reads in compiled loops: how many threads share the inner chunks."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from fused_cases import (
    CHAINS,
    FUSED,
    VALUES,
    ZSTD,
    need_fast_packages,
    stored,
)
from gpushard.fused import choice, shares
from gpushard.fused.short import sharded as short_sharded
from gpushard.fused.short.ways import short_ways
from zarr_oracle import assert_same_bits

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

SHORT = FUSED.but(small_read_chunks=1)
BOX = np.s_[20:50, 10:70]  # of ten inner chunks


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


@pytest.fixture
def shared(monkeypatch):
    """Threads that shared each read."""
    numbers: list[int] = []
    plain = short_sharded.run_tasks

    def run_tasks(tasks, n_workers):
        numbers.append(n_workers)
        plain(tasks, n_workers)

    monkeypatch.setattr(short_sharded, "run_tasks", run_tasks)
    return numbers


def test_several_threads_share_the_inner_chunks(seen, shared, monkeypatch, tmp_path):
    monkeypatch.setattr(shares, "_SHARE_US", 13)  # as two inner chunks take
    options = SHORT.but(threads=3)
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=options)
    for key in (np.s_[...], BOX, np.s_[:, 3]):
        assert_same_bits(a[key], VALUES[key])
    assert shared == [3, 3, 2]
    assert short_ways(a.source).short is not None


def test_no_thread_is_left_without_an_inner_chunk(shared, monkeypatch, tmp_path):
    monkeypatch.setattr(shares, "_SHARE_US", 1)
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=SHORT.but(threads=8))
    assert_same_bits(a[30:34, 3], VALUES[30:34, 3])
    assert shared == [2]


@pytest.mark.parametrize(
    ("chain", "n_tasks"),
    [
        *(("raw", 1), ("lz4", 1), ("blosc lz4 shuffle 0", 1), ("zstd", 2)),
        *(("blosc zstd shuffle 0", 2), ("gzip", 3)),
    ],
)
def test_what_decodes_slowly_is_shared_sooner(
    chain, n_tasks, seen, shared, monkeypatch, tmp_path
):
    monkeypatch.setattr(shares, "_SHARE_US", 30)
    place = stored(CHAINS[chain]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=SHORT.but(threads=3))
    assert_same_bits(a[BOX], VALUES[BOX])
    assert seen.n_short == 1
    assert sum(shared) == (n_tasks if n_tasks > 1 else 0)
