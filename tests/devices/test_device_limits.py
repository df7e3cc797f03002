"""What a read to a device holds where single inner chunks, or lists, are large."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import gpushard
from array_strategies import codec
from device_fetch_cases import LockedDevice, MeasuredDevice, emulated
from gpushard import Options
from gpushard.device_reading import read
from gpushard.device_reading.choice import choose_chain, room_nbytes
from gpushard.device_reading.sink import DeviceSink
from gpushard.devices.budget import Budget
from gpushard.options import GIB, KIB, MIB
from hostile_shards import ZSTD
from spec_shards import LITTLE, document, index_of, sharding

LIMIT = 64 * MIB
BLOSC = codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle", blocksize=0)


class LockedAndMeasured(LockedDevice, MeasuredDevice):
    """For reads with several threads."""


def put(place: Path, nbytes: int, codecs: list[Any], n_chunks: int = 4) -> Path:
    """A shard of inner chunks of `nbytes` ones, all of them in the same bytes."""
    data = b"\1" * nbytes
    if codecs:
        data = zstandard.ZstdCompressor(level=1).compress(data)
    shard = sharding((nbytes,), codecs=[LITTLE, *codecs])
    meta = document((n_chunks * nbytes,), (n_chunks * nbytes,), shard)
    (place / "zarr.json").write_text(json.dumps(meta))
    (place / "c").mkdir()
    entries = [(0, len(data))] * n_chunks
    (place / "c/0").write_bytes(data + index_of(entries))
    return place


@pytest.mark.parametrize("placement", ["device", "host"])
@pytest.mark.parametrize(
    ("nbytes", "codecs"), [(8 * MIB, [ZSTD]), (11 * MIB, [])], ids=["zstd", "plain"]
)
def test_a_device_takes_fewer_large_inner_chunks_at_a_time(
    nbytes, codecs, placement, tmp_path
):
    device = emulated(LockedAndMeasured, seed=5)
    options = Options(placement=placement, memory_limit=LIMIT, threads=8)
    a = gpushard.open_array(
        put(tmp_path, nbytes, codecs), device=device, options=options
    )
    result = a[:: MIB // 4]
    assert (result.get() == 1).all()
    assert nbytes < device.peak_nbytes <= LIMIT


def test_filters_that_encode_to_wider_items_count_as_what_they_take(tmp_path):
    n, n_chunks = MIB // 16, 160
    types = {"dtype": "<f4", "astype": "<f8"}
    scaled = codec("numcodecs.fixedscaleoffset", scale=1, offset=0, **types)
    shard = sharding((n,), codecs=[scaled, LITTLE, ZSTD])
    meta = document((n_chunks * n,), (n_chunks * n,), shard, dtype="float32")
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c").mkdir()
    data = zstandard.ZstdCompressor().compress(np.ones(n).tobytes())
    (tmp_path / "c/0").write_bytes(data + index_of([(0, len(data))] * n_chunks))
    device = emulated(LockedAndMeasured, seed=5)
    options = Options(placement="device", memory_limit=LIMIT, threads=4)
    a = gpushard.open_array(tmp_path, device=device, options=options)
    assert (a[:: MIB // 4].get() == 1).all()
    assert device.peak_nbytes <= LIMIT


@pytest.mark.parametrize(("codecs", "most"), [([ZSTD], 2**31 - 1), ([], 2**31)])
def test_inner_chunks_that_are_too_large_a_stream_are_left_to_the_host(
    codecs, most, tmp_path
):
    for n in (most, 2**31):
        shard = sharding((n,), codecs=[LITTLE, *codecs])
        (tmp_path / "zarr.json").write_text(json.dumps(document((n,), (n,), shard)))
        options = Options(max_chunk_nbytes=GIB * 4)
        a = gpushard.open_array(tmp_path, device="cpu", options=options)
        _, why = choose_chain(a.source)
        assert bool(why) == (n > most), why


@pytest.mark.parametrize(
    ("nbytes", "limit", "expected"),
    [
        (64 * 1024, LIMIT, (4, 3)),
        (8 * MIB, LIMIT, (2, 1)),
        (8 * MIB, 1 << 30, (4, 3)),
        (100 * MIB, LIMIT, (1, 1)),
    ],
)
def test_there_are_as_many_slots_and_lanes_as_fit(nbytes, limit, expected, tmp_path):
    a = gpushard.open_array(put(tmp_path, 4, [ZSTD]), device="cpu")
    chain, _ = choose_chain(a.source)
    assert chain is not None
    steps = tuple(replace(step, decoded_nbytes=nbytes) for step in chain.steps)
    large = replace(chain, steps=steps, decoded_nbytes=nbytes)
    options = Options(memory_limit=limit).resolved()
    budget = Budget.of(large, options, decodes=True)
    assert (budget.n_slots, budget.n_lanes) == expected
    assert budget.pinned_nbytes <= limit // 2 or nbytes > LIMIT // 2


@pytest.mark.parametrize(
    ("codecs", "decodes", "is_assembled"),
    [([ZSTD], True, True), ([ZSTD], False, True), ([], True, False), ([], False, True)],
)
def test_what_the_host_may_have_to_decode_is_pinned_beside_the_slots(
    codecs, decodes, is_assembled, tmp_path
):
    a = gpushard.open_array(put(tmp_path, 4, codecs), device="cpu")
    chain, _ = choose_chain(a.source)
    assert chain is not None
    options = Options(memory_limit=LIMIT).resolved()
    budget = Budget.of(chain, options, decodes=decodes)
    beside_nbytes = budget.pinned_nbytes - budget.n_slots * budget.encoded_nbytes
    rows_nbytes = budget.n_lanes * budget.n_rows * chain.decoded_nbytes
    assert beside_nbytes == (rows_nbytes if is_assembled else 0)


def test_streams_get_what_the_rows_of_a_batch_leave_or_what_they_usually_take():
    budget = Budget(
        encoded_nbytes=1, rows_nbytes=1000, row_nbytes=100, row_streams_nbytes=20
    )
    assert budget.n_rows == 8
    found = [budget.streams_nbytes(n_rows) for n_rows in (2, 8, 9)]
    assert found == [800, 200, 180]


@pytest.mark.parametrize(
    ("codecs", "n_streams"), [([], 0), ([ZSTD], 1), ([BLOSC], 1 + 5)]
)
def test_scratch_is_for_the_streams_that_an_inner_chunk_usually_has(
    codecs, n_streams, tmp_path
):
    nbytes = 5 * 32 * KIB + 1
    a = gpushard.open_array(put(tmp_path, nbytes, codecs), device="cpu")
    chain, _ = choose_chain(a.source)
    assert chain is not None
    budget = Budget.of(chain, Options().resolved(), decodes=True)
    decoded_nbytes = 3 * nbytes if codecs else 0
    assert budget.row_streams_nbytes == decoded_nbytes + n_streams * 8 * KIB


@pytest.mark.parametrize(
    ("codecs", "options", "is_raised"),
    [
        ([ZSTD], {}, True),
        ([codec("numcodecs.bz2", level=1)], {}, False),  # which the host decodes
        ([ZSTD], {"memory_limit": LIMIT}, False),
    ],
)
def test_a_limit_left_open_is_raised_where_the_device_decodes(
    codecs, options, is_raised, tmp_path
):
    place = put(tmp_path, 4, codecs)
    a = gpushard.open_array(place, device="cpu", options=Options(**options))
    limit = a.source.options.memory_limit
    device = emulated(limit_nbytes=24 * GIB)
    found = [room_nbytes(a.source, device, n_sharing) for n_sharing in (1, 2)]
    assert found == ([3 * GIB, 3 * GIB // 2] if is_raised else [limit] * 2)


def test_rounds_of_a_device_have_room_for_its_tables(tmp_path, monkeypatch):
    """Half of the limit, of 96 bytes an element for columns, and 128 for tables."""
    rounds: list[Any] = []

    class Noting(DeviceSink):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            rounds.append(named["source"].options.memory_limit)

    monkeypatch.setattr(read, "DeviceSink", Noting)
    put(tmp_path, 1 << 16, [])
    a = gpushard.open_array(tmp_path, device=emulated(LockedDevice, seed=5))
    listed = np.arange(280_000) * 7919 % (1 << 18)
    result = a.read_many([np.sort(listed)], memory_limit=LIMIT)[0]
    assert (result.get() == 1).all()
    assert len(rounds) == 2


def test_indexes_of_a_host_leave_a_device_its_batches(tmp_path):
    """A device holds far more than the host, by whose limit indexes are counted."""
    shard = 1 << 13
    a = gpushard.create_array(
        tmp_path,
        shape=(24 * shard,),
        dtype="u1",
        chunks=(1,),
        shards=(shard,),
        compressors=[ZSTD],
        device="cpu",
    )
    a[:: shard // 2] = 1
    device = emulated(LockedDevice, limit_nbytes=64 * GIB)
    options = Options(placement="device")
    a = gpushard.open_array(tmp_path, device=device, options=options)
    assert (a.oindex[np.arange(0, len(a), shard // 2)].get() == 1).all()
    assert [kind for _, kind, _ in device.log].count("decode") == 1
