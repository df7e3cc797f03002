"""Hostile shards on every way of the compiled loops, with indexes that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpushard
from fused_cases import FUSED, need_fast_packages, take_way
from gpushard.fused import choice
from gpushard.fused.single import SingleReader
from hostile_shards import N, all_rows
from test_hostile_shards import REST, outcome, place_of

need_fast_packages()

pytestmark = pytest.mark.usefixtures("settled")

# The two ends of the inner chunk, and what needs all of its bytes.
KEYS = [np.s_[:N], np.s_[5:9], np.s_[N - 4 : N]]
# The rows whose index can be read, as far as it is about other inner chunks.
ROWS = [
    hostile
    for hostile in all_rows()
    if not hostile.row.startswith(("shard of", "index checksum", "flipped bit"))
]
WAYS = {
    "direct": FUSED,
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
    for hostile, place in zip(ROWS, places, strict=True):
        a = gpushard.open_array(place, device="cpu", options=WAYS[way])
        came = {repr(key): outcome(a, key) for key in KEYS}  # now the index is known
        came |= {f"{key} again": outcome(a, key) for key in KEYS}
        wrong += [
            (hostile.row, key, found)
            for key, found in came.items()
            if found not in ("error", *hostile.outcomes)
        ]
        beside = a[N : 4 * N], a[N + 5 : N + 9]
        if not all(map(np.array_equal, beside, (REST, REST[5:9]))):
            wrong.append((hostile.row, "what is beside it", beside))
    assert not wrong
    assert any(taken) is (way == "single")
