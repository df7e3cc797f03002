"""Large missing inner chunks are filled without memory that nobody counted."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from array_strategies import codec
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
def made(monkeypatch) -> list[tuple[weakref.ref[Any], int]]:
    """Fill values in a row that were made, with their number of bytes."""
    refs: list[tuple[weakref.ref[Any], int]] = []
    real = filling.stored_fill

    def stored_fill(source: Any, nbytes: int) -> Any:
        fill = real(source, nbytes)
        refs.append((weakref.ref(fill), fill.nbytes))
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
    assert [ref() for ref, _ in made] == [None, None]


@pytest.mark.parametrize("options", [FUSED, SHORT], ids=["fused", "short"])
def test_without_room_for_one_missing_inner_chunks_are_filled_all_the_same(
    place, made, options, monkeypatch
):
    let_little_count(monkeypatch)
    options = options.but(memory_limit=MIB)
    a = gpushard.open_array(place, device="cpu", options=options)
    assert np.array_equal(a[::-1], VALUES[::-1])
    assert not made


# Those in one inner chunk lie up to 89 elements apart.
APART = [CHUNK - 90, CHUNK - 1, CHUNK + 5, 2 * CHUNK + 7, N - 60, N - 1]


@pytest.mark.parametrize("options", [FUSED, SHORT], ids=["fused", "short"])
def test_no_more_fill_values_are_made_than_a_box_reaches_over(place, made, options):
    a = gpushard.open_array(place, device="cpu", options=options)
    assert np.array_equal(a.oindex[APART], VALUES[APART])
    assert np.array_equal(a[CHUNK - 3 : 4 * CHUNK : CHUNK], VALUES[CHUNK - 3 :: CHUNK])
    assert made
    assert [nbytes for _, nbytes in made if nbytes > 90] == []


def test_no_more_of_them_are_made_for_files_that_are_missing(tmp_path, made):
    chunks = document((N,), (CHUNK,), LITTLE, fill_value=7)
    stored = VALUES[CHUNK : 2 * CHUNK].tobytes()
    for options in FUSED, SHORT:
        root = put(tmp_path / str(options.small_read_chunks), chunks, c_1=stored)
        a = gpushard.open_array(root, device="cpu", options=options)
        assert np.array_equal(a.oindex[APART], VALUES[APART])
    assert [nbytes for _, nbytes in made if nbytes > 90] == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
@pytest.mark.parametrize("options", [FUSED, SHORT], ids=["fused", "short"])
def test_any_part_of_missing_inner_chunks_is_filled(
    tmp_path, monkeypatch, options, order
):
    monkeypatch.setattr(filling, "_LITTLE_NBYTES", 0)
    inner = sharding((8, 8), codecs=[codec("transpose", order=list(order)), LITTLE])
    meta = document((48, 48), (16, 16), inner, dtype="uint16", fill_value=513)
    a = gpushard.open_array(put(tmp_path / "a", meta), device="cpu", options=options)
    values = np.full((48, 48), 513, "u2")
    values[8:24, 16:24] = np.arange(128).reshape(16, 8)
    a[8:24, 16:24] = values[8:24, 16:24]
    rng = np.random.default_rng(4)
    for _ in range(60):
        first, step = rng.integers(0, 40, 2), rng.integers(1, 9, 2)
        box = tuple(np.s_[f::s] for f, s in zip(first, step, strict=True))
        assert np.array_equal(a[box], values[box])
        rows, columns = rng.integers(0, 48, 5), rng.integers(0, 48, 30)
        found = a.oindex[rows, columns]
        assert np.array_equal(found, values[np.ix_(rows, columns)])


def test_many_missing_inner_chunks_are_filled_one_by_one(place, monkeypatch):
    monkeypatch.setattr(sink, "address_of", None)  # nothing is made to copy from
    a = gpushard.open_array(place, device="cpu", options=FUSED)
    first, last = a.read_many([np.s_[:10], np.s_[-MIB:]])
    assert np.array_equal(first, VALUES[:10])
    assert np.array_equal(last, VALUES[-MIB:])
