"""Hostile shards on every way of the compiled loops, with indexes that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest

import gpushard
from array_strategies import codec
from asked_store import AskedStore, put
from fused_cases import FUSED, need_fast_packages, take_way
from gpushard.fused import choice
from gpushard.fused.short.single import SingleReader
from hostile_shards import PART, N, all_rows
from spec_shards import CRC, LITTLE, document, index_of, shard_of, sharding
from test_hostile_shards import REST, outcome, place_of

need_fast_packages()

pytestmark = pytest.mark.usefixtures("settled")

# The two ends of the inner chunk, and what needs all of its bytes.
KEYS = [np.s_[:N], PART, np.s_[N - 4 : N]]
# The rows whose index can be read, as far as it is about other inner chunks.
ROWS = [hostile for hostile in all_rows() if not hostile.spoils_its_index]
WAYS = {
    "whole": FUSED,
    "requests": FUSED,
    "short": FUSED.but(small_read_chunks=1024),
    "one call": FUSED.but(small_read_chunks=1024),
    "single": FUSED.but(small_read_chunks=8),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> list[Path]:
    place = tmp_path_factory.mktemp("hostile")
    return [place_of(hostile, place / f"{k}") for k, hostile in enumerate(ROWS)]


@pytest.mark.parametrize("way", WAYS)
def test_the_loops_refuse_what_is_hostile_and_read_what_is_beside_it(
    way, places, taken, monkeypatch
):
    choice._load()
    take_way(monkeypatch, way)
    if way != "single":
        monkeypatch.setattr(SingleReader, "read", lambda *_: None)
    wrong = []
    for k, (hostile, place) in enumerate(zip(ROWS, places, strict=True)):
        a = gpushard.open_array(place, device="cpu", options=WAYS[way])
        # After the first one, the index is known. The ends are read in turn.
        keys = (KEYS[0], KEYS[0], KEYS[1 + k % 2])
        came = [(key, outcome(a, key)) for key in keys]
        wrong += [
            (hostile.row, key, found)
            for key, found in came
            if not hostile.may_give(found, key)
        ]
        beside = a[N : 4 * N], a[N + 5 : N + 9]
        if not all(map(np.array_equal, beside, (REST, REST[5:9]))):
            wrong.append((hostile.row, "what is beside it", beside))
    assert not wrong
    assert any(taken) is (way == "single")


@pytest.mark.parametrize("way", ["whole", "requests", "short", "single"])
def test_a_checksum_around_a_shard_is_verified_on_every_way(way, tmp_path, monkeypatch):
    """What it is around could be read without it: the index stands at the start."""
    choice._load()
    take_way(monkeypatch, way)
    first = len(index_of([(0, 0)] * 2))
    shard = index_of([(first, N), (first + N, N)]) + bytes(range(256)) * 8
    shard += crc32c.crc32c(shard).to_bytes(4, "little")
    inside = sharding((N,), codecs=[LITTLE], index_location="start")
    described = document((2 * N,), (2 * N,), inside, CRC)
    a = gpushard.open_array(put(tmp_path, described, c_0=shard), options=WAYS[way])
    keys = [np.s_[:N], np.s_[5:9]] * 2
    assert all(a[key].tolist() == [*(bytes(range(256)) * 8)[key]] for key in keys)
    damaged = shard[:-6] + b"x" + shard[-5:]
    b = gpushard.open_array(
        put(tmp_path / "b", described, c_0=damaged), options=WAYS[way]
    )
    for key in keys:
        with pytest.raises(gpushard.CorruptShardError, match="checksum"):
            b[key]


@pytest.mark.parametrize(
    "options",
    [FUSED, FUSED.but(compile_nbytes=2**62), FUSED.but(small_read_chunks=8)],
    ids=["loops", "general", "small"],
)
def test_elements_that_an_answer_leaves_out_are_not_made_up(options, tmp_path):
    class Shortening(AskedStore):
        """A faulty store: it tells the right size of an object, and gives less."""

        def read(self, requests: Any) -> Any:
            answers = super().read(requests)
            return [answer._replace(data=answer.data[:-3]) for answer in answers]

    choice._load()
    place = put(tmp_path, document((N,), (N,), LITTLE), c_0=b"x" * N)
    a = gpushard.open_array(Shortening(place), device="cpu", options=options)
    for key, got in [(np.s_[:], f"{N - 3} of {N}"), (np.s_[5:9], "1 of 4")]:
        with pytest.raises(gpushard.CorruptShardError, match=f"got {got} bytes"):
            a[key]


@pytest.mark.parametrize("way", ["whole", "requests", "short", "single"])
def test_what_is_too_large_to_be_held_at_once_the_loops_refuse_too(
    way, tmp_path, monkeypatch
):
    choice._load()
    take_way(monkeypatch, way)
    described = document((2 * N,), (2 * N,), sharding((N,), codecs=[LITTLE]))
    place = put(tmp_path, described, c_0=shard_of(bytes(N), bytes(N)))
    a = gpushard.open_array(place, options=WAYS[way].but(max_chunk_nbytes=N // 2))
    for _ in range(2):
        with pytest.raises(gpushard.LimitError, match="max_chunk_nbytes"):
            a[:N]


@pytest.mark.parametrize("way", ["whole", "requests", "short", "single"])
def test_elements_that_a_filter_changes_are_not_taken_as_they_are(
    way, tmp_path, monkeypatch
):
    choice._load()
    take_way(monkeypatch, way)
    delta = codec("numcodecs.delta", dtype="|u1")
    inside = sharding((N,), codecs=[delta, LITTLE])
    ones = bytes([1]) * N
    described = document((2 * N,), (2 * N,), inside)
    place = put(tmp_path, described, c_0=shard_of(ones, ones))
    a = gpushard.open_array(place, options=WAYS[way])
    for _ in range(2):
        assert a[5:9].tolist() == [6, 7, 8, 9]
        assert a[N - 1 : N + 1].tolist() == [0, 1]
