"""Large missing inner chunks are filled without memory that nobody counted."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import put
from fused_cases import FUSED
from gpushard.fused import filling, sink
from gpushard.options import KIB, MIB
from lone_chunks import let_little_count
from spec_shards import EMPTY, LITTLE, document, sharding

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

CHUNK = 512 * KIB
N = 4 * CHUNK
VALUES = np.full(N, 7, "u1")
VALUES[CHUNK : 2 * CHUNK] = np.arange(CHUNK) % 251
SHORT = FUSED.but(small_read_chunks=8)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two shards of two inner chunks each, of which there is one."""
    inner = sharding((CHUNK,), codecs=[LITTLE], index_codecs=[LITTLE])
    meta = document((N,), (2 * CHUNK,), inner, fill_value=7)
    shard = VALUES[CHUNK : 2 * CHUNK].tobytes()
    entries = np.array([EMPTY, EMPTY, 0, CHUNK], "<u8").tobytes()
    return put(tmp_path_factory.mktemp("large"), meta, c_0=shard + entries)


@pytest.fixture
def made(monkeypatch) -> list[weakref.ref[Any]]:
    """Inner chunks of fill values that were made."""
    refs: list[weakref.ref[Any]] = []
    real = filling.stored_fill

    def stored_fill(source: Any) -> Any:
        fill = real(source)
        refs.append(weakref.ref(fill))
        return fill

    monkeypatch.setattr(filling, "stored_fill", stored_fill)
    return refs


@pytest.mark.parametrize("options", [FUSED, SHORT], ids=["fused", "short"])
def test_what_missing_inner_chunks_are_filled_by_is_held_no_longer(
    place, made, options
):
    a = gpushard.open_array(place, device="cpu", options=options)
    for _ in range(2):
        assert np.array_equal(a[:], VALUES)
    assert len(made) == 2
    assert [ref() for ref in made] == [None, None]


@pytest.mark.parametrize("options", [FUSED, SHORT], ids=["fused", "short"])
def test_without_room_for_one_missing_inner_chunks_are_filled_all_the_same(
    place, made, options, monkeypatch
):
    let_little_count(monkeypatch)
    options = options.but(memory_limit=MIB)
    a = gpushard.open_array(place, device="cpu", options=options)
    assert np.array_equal(a[::-1], VALUES[::-1])
    assert not made


def test_many_missing_inner_chunks_are_filled_one_by_one(place, monkeypatch):
    monkeypatch.setattr(sink, "address_of", None)  # nothing is made to copy from
    a = gpushard.open_array(place, device="cpu", options=FUSED)
    first, last = a.read_many([np.s_[:10], np.s_[-MIB:]])
    assert np.array_equal(first, VALUES[:10])
    assert np.array_equal(last, VALUES[-MIB:])
