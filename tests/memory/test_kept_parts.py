"""Long reads that take only a part of their inner chunks keep them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

pytest.importorskip("numba", reason="only reads in the compiled loops keep so early")

import gpushard
from gpushard import Options
from gpushard.fused import choice, kept_chunks
from gpushard.options import MIB
from test_kept_by_default import cache_of, n_kept
from test_kept_chunks import settle
from zarr_oracle import assert_same_bits

# In one call for a few inner chunks, and as any larger read.
WAYS = {
    "short": Options(compile_nbytes=0),
    "whole": Options(compile_nbytes=0, small_read_chunks=0),
}
VALUES = np.arange(2048 * 1024, dtype="i4").reshape(2048, 1024) * 7
# 16 x 3 inner chunks, and 19 x 2, of which 13 x 2 are among the others.
PART, OTHER = np.s_[10:500, 100:600], np.s_[100:700, 400:700]


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


@pytest.fixture(params=WAYS)
def options(request):
    return WAYS[request.param]


def written(place: Path, values: Any = VALUES, **how: Any) -> None:
    """An array of 32 x 256 inner chunks (32 KiB) in one shard."""
    shape = tuple(-(-n // c) * c for n, c in zip(values.shape, (32, 256), strict=True))
    how = {"chunks": (32, 256), "shards": shape, "compressors": [ZstdCodec()], **how}
    z = zarr.create_array(place, shape=values.shape, dtype=values.dtype, **how)
    z[...] = values
    settle()


@pytest.fixture
def short_of_time(monkeypatch):
    """Any read takes long, so that small arrays show what larger ones do."""
    monkeypatch.setattr(kept_chunks, "_LONG_US", 1)


def test_the_second_read_finds_what_the_first_decoded(tmp_path, options, short_of_time):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    for key in (PART, PART, OTHER, PART):
        assert_same_bits(a[key], VALUES[key])
    assert n_kept(a) == 16 * 3 + 6 * 2
    report = a.explain(OTHER)
    assert (report.n_kept_inner_chunks, report.n_payload_requests) == (19 * 2, 0)


def test_a_read_that_takes_little_time_keeps_nothing_at_first(tmp_path, options):
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    assert_same_bits(a[PART], VALUES[PART])
    assert n_kept(a) == 0


@pytest.mark.parametrize("n_columns", [32, 128])
def test_inner_chunks_that_take_long_each_are_kept_at_once(
    tmp_path, options, n_columns
):
    written(tmp_path, chunks=(1024, n_columns * 2), shards=(2048, 1024))
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    key = np.s_[:, 7]
    assert_same_bits(a[key], VALUES[key])
    assert n_kept(a) == (2 if n_columns == 128 else 0)


@pytest.mark.parametrize(
    ("shape", "key"),
    [
        ((512, 1024), np.s_[:, :]),
        ((512, 1024), np.s_[64:480, 256:]),
        ((33, 257), np.s_[:, :]),  # which fills a quarter of the last inner chunks
        ((2048, 1024), np.s_[5:2040, 10:1000]),
    ],
    ids=["all", "whole inner chunks", "all with an edge", "nearly all"],
)
def test_a_read_that_takes_all_of_its_inner_chunks_keeps_nothing_at_first(
    tmp_path, options, short_of_time, shape, key
):
    values = np.ascontiguousarray(VALUES[: shape[0], : shape[1]])
    written(tmp_path, values)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    assert_same_bits(a[key], values[key])
    assert (n_kept(a), cache_of(a).held_nbytes) == (0, 0)


def test_a_read_of_more_than_fits_keeps_what_there_is_room_for(
    tmp_path, options, short_of_time, monkeypatch
):
    monkeypatch.setattr("gpushard.options._SHARED_CACHE_NBYTES", MIB)
    written(tmp_path)
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    n_most = cache_of(a).n_most
    assert n_most == 32
    assert_same_bits(a[PART], VALUES[PART])
    before = set(cache_of(a)._slot_of)
    assert len(before) == n_most
    # Another such read finds some of them, drops none and is not remembered.
    key = np.s_[5:2000:3, ::2]
    for _ in range(2):
        assert_same_bits(a[key], VALUES[key])
    assert set(cache_of(a)._slot_of) == before
    assert a.explain(PART).n_kept_inner_chunks == n_most
    # One that fits drops others for its own.
    key = np.s_[1500:1600, 300:500]
    assert_same_bits(a[key], VALUES[key])
    assert a.explain(key).n_kept_inner_chunks == 4


@pytest.mark.parametrize(
    ("key", "n"),
    [
        (np.s_[900:1100, 7], 0),
        (np.s_[900:1100:2, 3:9], 0),
        (np.s_[::1000, 7], 2),  # whatever lies between is decoded, too
        (np.s_[100:2000, 7], 2),
    ],
)
def test_parts_of_frames_of_which_only_some_blocks_are_decoded_wait(
    tmp_path, options, key, n
):
    codec = BloscCodec(cname="zstd", shuffle="noshuffle", blocksize=1 << 14)
    written(tmp_path, chunks=(1024, 256), shards=(2048, 1024), compressors=[codec])
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    assert_same_bits(a[key], VALUES[key])
    assert n_kept(a) == n
