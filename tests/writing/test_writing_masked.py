"""Writes to many true elements of a mask, of which no columns are made."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, ShardingCodec, ZstdCodec

import gpushard
from gpushard import CorruptShardError, Options, SelectionError, WriteOptions
from gpushard.selecting import index_arrays, listing
from gpushard.writing import assign, grown, masked
from zarr_oracle import HAS_RECTILINEAR

SHAPE = (12, 10, 14)
VALUES = np.arange(12 * 10 * 14, dtype="i4").reshape(SHAPE)
ALL = np.ones(SHAPE, bool)
CUT = {"chunks": (3, 2, 2), "shards": (6, 4, 6)}


def put(place, values=VALUES, **how):
    kept = {"shape": values.shape, "dtype": values.dtype, "fill_value": 0}
    made = zarr.create_array(str(place), **kept | how)
    made[...] = values
    return place


def opened(place, **options):
    return gpushard.open_array(place, device="cpu", options=Options(**options))


@contextmanager
def masks_pay(block=64, around=10**6, **bounds):
    """Let any mask be written by its pieces; yields whether each was."""
    answers = []

    def noted(*given):
        answers.append(masked.masked_cells(*given))
        return answers[-1]

    bounds = {"_AROUND_PER_TRUE": around, "_PICKED": 8, **bounds}
    with (
        mock.patch.object(index_arrays, "KEPT_ELEMENTS", 0),
        mock.patch.object(listing, "BLOCK_ELEMENTS", block),
        mock.patch.multiple(masked, **bounds),
        mock.patch.object(assign, "masked_cells", noted),
    ):
        yield answers


@st.composite
def cut_arrays(draw):
    """Shape of an array, and how it is cut."""
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 40 // ndim**2 + 3)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in shape)
    shards = tuple(n * draw(st.integers(1, 4)) for n in chunks)
    match draw(st.sampled_from(["chunks", "shards", "nested"])):
        case "chunks":
            return shape, {"chunks": chunks}
        case "shards":
            return shape, {"chunks": chunks, "shards": shards}
    outer = tuple(n * draw(st.integers(1, 2)) for n in shards)
    inner = ShardingCodec(chunk_shape=chunks)
    nested = ShardingCodec(chunk_shape=shards, codecs=[inner])
    return shape, {"chunks": outer, "serializer": nested}


@given(cut_arrays(), st.data())
def test_masks_of_any_array_change_what_numpy_changes(tmp_path_factory, cut, data):
    shape, how = cut
    place = tmp_path_factory.mktemp("masked")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    expected = rng.integers(0, 9, shape, "i4")
    mask = rng.random(shape) < data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.1]))
    mask[tuple(slice(n // 2) for n in shape)] = data.draw(st.booleans())
    if data.draw(st.booleans()):
        mask = np.asfortranarray(mask)
    strategy = "rewrite"
    if "shards" in how:
        strategy = data.draw(st.sampled_from(["rewrite", "append_only", "fixed_order"]))
    write = WriteOptions(strategy=strategy, max_unused_fraction=0.9)
    a = opened(put(place, expected, compressors=None, **how), write=write)
    values = np.int32(7)
    if data.draw(st.booleans()):
        values = rng.integers(10, 99, 2 * int(mask.sum()), "i4")[::2]
    at_once = data.draw(st.sampled_from([40, 400]))
    picked = data.draw(st.sampled_from([2, 8, 999]))
    bounds = {"_LEAST_CELLS": data.draw(st.integers(1, 8)), "_MOST_NBYTES": at_once}
    with masks_pay(_PICKED=picked) as answers, mock.patch.multiple(grown, **bounds):
        a.vindex[mask] = values
    expected[mask] = values
    assert None not in answers
    assert len(answers) == mask.any()
    np.testing.assert_array_equal(a[...], expected)
    np.testing.assert_array_equal(opened(place)[...], expected)


@pytest.mark.parametrize("shape", [(4, 62), (62, 4), (4, 62, 3), (62,)])
def test_inner_chunks_that_are_cut_are_read_some_at_a_time(tmp_path, shape):
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    chunks, shards = (4,) * len(shape), tuple(-(-n // 4) * 4 for n in shape)
    a = opened(put(tmp_path, values, chunks=chunks, shards=shards), threads=1)
    mask = values % 5 > 0
    read = mock.Mock(wraps=grown.read_new)
    bounds = {"_LEAST_CELLS": 2, "_MOST_NBYTES": 4 ** len(shape) * 4 * 6}
    with masks_pay(), mock.patch.multiple(grown, read_new=read, **bounds):
        a[mask] = -values[mask]
    assert (read.call_count > 2) == (shape != (4, 62, 3))  # all cut at the last axis
    np.testing.assert_array_equal(a[...], np.where(mask, -values, values))


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="zarr 3.1 has no rectilinear grids")
def test_cells_of_several_lengths_are_written_by_their_own_pieces(tmp_path):
    grid = [[1, 5, 2, 4], [10], [3, 4, 7]]
    with zarr.config.set({"array.rectilinear_chunks": True}):
        a = opened(put(tmp_path, chunks=grid))
    mask = VALUES % 3 > 0
    with masks_pay() as answers:
        a[mask] = -VALUES[mask]
    assert None not in answers
    np.testing.assert_array_equal(a[...], np.where(mask, -VALUES, VALUES))


@pytest.mark.parametrize(
    ("bounds", "is_taken"),
    [
        ({"around": 16}, True),
        ({"around": 15}, False),
        ({"_ROWS_SHARE": 1 << 40}, False),
    ],
)
def test_pieces_are_kept_if_that_takes_less_time_and_little_memory(
    tmp_path, bounds, is_taken
):
    a = opened(put(tmp_path, **CUT))
    mask = np.arange(VALUES.size).reshape(SHAPE) % 16 == 0
    with masks_pay(**bounds) as answers:
        a[mask] = -1
    assert [cells is not None for cells in answers] == [is_taken]
    np.testing.assert_array_equal(a[...], np.where(mask, -1, VALUES))


def payloads(place, coordinate="0/0/0"):
    """Stored bytes of each inner chunk of a shard; None for missing ones."""
    stored = (place / "c" / coordinate).read_bytes()
    index = np.frombuffer(stored[-12 * 16 - 4 : -4], "<u8").reshape(-1, 2).tolist()
    return [
        None if nbytes == 2**64 - 1 else stored[at : at + nbytes]
        for at, nbytes in index
    ]


def flip(place, entry):
    """Damage an inner chunk of the first shard."""
    shard = place / "c/0/0/0"
    stored = shard.read_bytes()
    payload = payloads(place)[entry]
    assert stored.count(payload) == 1
    damaged = bytearray(payload)
    damaged[5] ^= 0xFF
    shard.write_bytes(stored.replace(payload, bytes(damaged)))


@pytest.mark.parametrize("least", [1, 8, 100])
def test_inner_chunks_without_true_elements_are_copied_even_damaged(tmp_path, least):
    put(tmp_path, compressors=[ZstdCodec(), Crc32cCodec()], **CUT)
    flip(tmp_path, 0)
    flip(tmp_path, 7)
    before = payloads(tmp_path)
    a = opened(tmp_path)
    mask = VALUES % 3 > 0
    mask[:3, :2, :2] = False
    mask[3:6, :2, 2:4] = True  # all of the other damaged one
    with masks_pay(), mock.patch.object(grown, "_LEAST_CELLS", least):
        a[mask] = 1 - VALUES[mask]
    after = payloads(tmp_path)
    assert [k for k in range(12) if before[k] == after[k]] == [0]
    expected = np.where(mask, 1 - VALUES, VALUES)
    np.testing.assert_array_equal(a[3:], expected[3:])
    np.testing.assert_array_equal(a[:3, 2:], expected[:3, 2:])
    np.testing.assert_array_equal(a[:3, :, 2:], expected[:3, :, 2:])


def test_inner_chunks_that_are_missing_and_have_no_true_element_stay_missing(tmp_path):
    values = VALUES.copy()
    values[:3, :2, :2] = 0
    place = put(tmp_path, values, **CUT)
    mask = values > 0
    with masks_pay():
        opened(place)[mask] = 5
    assert [k for k, one in enumerate(payloads(place)) if one is None] == [0]
    np.testing.assert_array_equal(opened(place)[...], np.where(mask, 5, 0))


@pytest.mark.parametrize("least", [1, 100])
def test_a_damaged_inner_chunk_that_is_cut_is_an_error_and_its_shard_stays(
    tmp_path, least
):
    put(tmp_path, compressors=[ZstdCodec(), Crc32cCodec()], **CUT)
    flip(tmp_path, 3)
    stored = (tmp_path / "c/0/0/0").read_bytes()
    a = opened(tmp_path, threads=1)
    told = pytest.raises(CorruptShardError)
    with masks_pay(), mock.patch.object(grown, "_LEAST_CELLS", least), told as caught:
        a[VALUES % 3 > 0] = 1
    assert caught.value.shard_key == "c/0/0/0"
    assert (tmp_path / "c/0/0/0").read_bytes() == stored


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("picked", [8, 999])
@pytest.mark.parametrize("at_once", [1, 400, 1 << 20])
@pytest.mark.parametrize("least", [1, 100])
def test_a_mask_that_changes_meanwhile_is_an_error(
    tmp_path, more, picked, at_once, least
):
    a = opened(put(tmp_path, **CUT), threads=1)
    mask = VALUES % 2 == 0
    real = assign.WriteSession.write

    def changing(*given, **named):
        mask[...] = more
        real(*given, **named)

    changed = mock.patch.object(assign.WriteSession, "write", changing)
    told = pytest.raises(SelectionError, match="was changed")
    bounds = {"_MOST_NBYTES": at_once, "_LEAST_CELLS": least}
    with masks_pay(_PICKED=picked), mock.patch.multiple(grown, **bounds), changed, told:
        a[mask] = VALUES[mask]
    stored = opened(tmp_path)[...]
    np.testing.assert_array_equal(stored, VALUES)


@pytest.mark.parametrize("n_before", [0, 1])
def test_a_mask_that_changes_before_the_first_look_is_an_error(tmp_path, n_before):
    a = opened(put(tmp_path, **CUT))
    mask = VALUES % 2 == 0
    real = assign.masked_cells

    def changing(*given):
        mask[-1] = n_before
        return real(*given)

    told = pytest.raises(SelectionError, match="was changed")
    with masks_pay(), mock.patch.object(assign, "masked_cells", changing), told:
        a[mask] = 1
