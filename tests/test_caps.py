"""Caps on what arrays may ask for: numbers in the options, refused by name."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

import gpushard
from damaged_arrays import WAYS, on_host, opened
from gpushard import HostMemoryError, LimitError, SelectionError
from gpushard.expressions import basic
from gpushard.hierarchies import documents
from gpushard.options import KIB, MIB
from gpushard.pipeline import HostPipeline
from gpushard.report import Tally
from gpushard.results import host_job
from hostile_shards import GZIP, ZSTD
from spec_shards import LITTLE, document, sharding

GIB = 1 << 30
TEXT = {"data_type": "string", "fill_value": ""}
VLEN = {"name": "vlen-utf8"}


def put(place: Any, meta: Any, data: bytes | None = None) -> Any:
    (place / "c").mkdir(parents=True)
    (place / "zarr.json").write_text(json.dumps(meta))
    if data is not None:
        (place / "c" / "0").write_bytes(data)
    return place


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codecs", [(LITTLE, GZIP), (sharding((4096,)), GZIP)])
def test_what_is_decoded_as_one_is_refused_above_the_cap(tmp_path, way, codecs):
    values = np.resize(np.arange(256), 4096).astype(np.uint8)
    data = values.tobytes()
    if codecs[0] is not LITTLE:
        data += np.array([0, 4096], "<u8").tobytes()
        codecs = (sharding((4096,), index_codecs=[LITTLE]), GZIP)
    place = put(tmp_path / "a", document((4096,), (4096,), *codecs), gzip(data))
    a = opened(place, way, max_chunk_nbytes=4096)
    assert np.array_equal(on_host(a[:]), values)
    a = opened(place, way, max_chunk_nbytes=4095)
    with pytest.raises(LimitError, match="raise options") as refused:
        a[5:7]
    assert "4096 bytes" in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_of_plain_elements_the_wanted_part_is_held_to_the_cap(
    tmp_path, way, is_sharded
):
    values = np.resize(np.arange(256), 4096).astype(np.uint8)
    data, codec = values.tobytes(), LITTLE
    if is_sharded:
        data += np.array([0, 4096], "<u8").tobytes()
        codec = sharding((4096,), index_codecs=[LITTLE])
    place = put(tmp_path / "a", document((4096,), (4096,), codec), data)
    a = opened(place, way, max_chunk_nbytes=1000)
    assert np.array_equal(on_host(a[2000:3000]), values[2000:3000])
    for key in (slice(2000, 3001), slice(0, 4096, 4095)):
        with pytest.raises(LimitError, match="raise options") as refused:
            a[key]
        assert refused.value.inner_chunk == (0,)


@pytest.mark.parametrize("way", ["plain", "small"])
def test_strings_are_held_to_the_cap_with_what_each_takes(tmp_path, way):
    meta = document((4,), (4,), VLEN, GZIP) | TEXT
    text = b"".join(n.to_bytes(4, "little") for n in (4, 0, 0, 0, 300)) + b"x" * 300
    place = put(tmp_path / "a", meta, gzip(text))
    a = opened(place, way, max_chunk_nbytes=len(text))
    assert a[3] == "x" * 300
    with pytest.raises(gpushard.CorruptShardError, match="at most 319 bytes"):
        opened(place, way, max_chunk_nbytes=len(text) - 1)[3]
    with pytest.raises(LimitError, match="256 bytes"):
        opened(place, way, max_chunk_nbytes=255)[3]


@pytest.mark.parametrize("claimed", [299, 301, 2**31 - 1, 2**32 - 1])
def test_strings_have_no_more_text_than_their_bytes(tmp_path, claimed):
    meta = document((2,), (2,), VLEN) | TEXT
    text = b"".join(n.to_bytes(4, "little") for n in (2, claimed)) + b"x" * 300
    place = put(tmp_path / "a", meta, text)
    with pytest.raises(gpushard.CorruptShardError):
        gpushard.open_array(place)[:]


def test_chunks_of_64_gib_are_refused_before_anything_is_fetched(tmp_path):
    n = 64 * GIB
    place = put(tmp_path / "a", document((n,), (n,), LITTLE, ZSTD), b"\0" * 64)
    a = gpushard.open_array(place)
    with pytest.raises(LimitError, match=f"got {n} bytes"):
        a[:8]
    assert a[5:5].shape == (0,)


def test_a_result_of_2_to_the_60_elements_is_refused_by_the_tree(tmp_path):
    place = put(tmp_path / "a", document((2**60,), (2**20,), LITTLE, ZSTD))
    a = gpushard.open_array(place)
    with pytest.raises(SelectionError, match="not enough memory for the result"):
        a[:]
    assert np.array_equal(a[2**59 : 2**59 + 3], np.zeros(3))


@pytest.mark.parametrize("way", ["plain", "small", "compiled"])
def test_a_decoder_without_memory_is_an_error_of_the_tree(tmp_path, way, monkeypatch):
    def exhausted(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 1 GiB")

    data = gzip(bytes(4096))
    place = put(tmp_path / "a", document((4096,), (4096,), LITTLE, GZIP), data)
    a = opened(place, way)
    monkeypatch.setattr(HostPipeline, "decode", exhausted)
    monkeypatch.setattr("gpushard.fused.runner.BoxRunner.run", exhausted)
    with pytest.raises(HostMemoryError, match="Unable to allocate 1 GiB") as failed:
        a[:]
    assert str(tmp_path) in str(failed.value)


@pytest.mark.parametrize("member", ["[],", "{},", '{"a":0},'])
@pytest.mark.parametrize(("nbytes", "is_costly"), [(MIB, False), (16 * MIB, True)])
def test_small_documents_that_take_much_memory_are_refused(
    tmp_path, member, nbytes, is_costly
):
    values = member * (nbytes // len(member))
    (tmp_path / "zarr.json").write_text(f'{{"attributes": [{values}0]}}')
    with pytest.raises(gpushard.GpushardError) as refused:
        gpushard.open_array(tmp_path)
    assert isinstance(refused.value, LimitError) == is_costly


def test_a_document_at_its_cap_is_parsed(monkeypatch):
    data = b'{"a": [1, 2, {"b": 3}]}'
    needed = 3 * len(data) + 56 * 2 + 64 + 144 * 2
    monkeypatch.setattr(documents, "MAX_PARSED_NBYTES", needed)
    assert documents.decode_document(data, "zarr.json", "") == json.loads(data)
    monkeypatch.setattr(documents, "MAX_PARSED_NBYTES", needed - 1)
    with pytest.raises(LimitError, match="too much memory"):
        documents.decode_document(data, "zarr.json", "")


@pytest.mark.parametrize(("limit", "n_workers"), [(1, 1), (2 * MIB, 2), (4 * MIB, 4)])
def test_no_more_threads_work_than_have_room_for_an_inner_chunk(
    tmp_path, limit, n_workers
):
    n = 512 * KIB
    put(tmp_path / "a", document((8 * n,), (n,), LITTLE, ZSTD))
    options = gpushard.Options(threads=4, memory_limit=limit)
    a = gpushard.open_array(tmp_path / "a", options=options)
    selection = basic(slice(None), a.shape)
    job = host_job(a.source, [selection], [np.empty(8 * n, np.uint8)], Tally())
    assert job.n_workers == n_workers


@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
@pytest.mark.parametrize("n_compressors", [0, 1])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_shard_larger_than_a_block_reads_piece_by_piece(
    tmp_path, monkeypatch, way, n_compressors, is_nested
):
    monkeypatch.setattr("gpushard.blocks.BLOCK_CHUNKS", 5)
    values = np.arange(24 * 10 * 6, dtype=np.uint16).reshape(24, 10, 6)
    serializer: Any = "auto"
    compressors = [ZstdCodec()] * n_compressors
    if is_nested:
        serializer = ShardingCodec(
            chunk_shape=(2, 2, 1), codecs=[BytesCodec(), *compressors]
        )
        compressors = []
    stored = zarr.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype=values.dtype,
        shards=(12, 10, 6),
        chunks=(4, 2, 2),
        serializer=serializer,
        compressors=compressors or None,
        fill_value=0,
    )
    values[:6] = 0  # missing inner chunks
    stored[6:] = values[6:]
    a = opened(tmp_path / "a", way)
    for key in (..., (slice(3, 22, 2), slice(None), 4), (slice(None), 7, slice(2, 5))):
        assert np.array_equal(on_host(a[key]), values[key])
    keys = [slice(1, 9), slice(5, 24), slice(20, 20)]
    for key, got in zip(keys, a.read_many(keys), strict=True):
        assert np.array_equal(on_host(got), values[key])


@pytest.mark.parametrize("way", ["plain", "compiled", "device"])
def test_damage_in_a_shard_larger_than_a_block_costs_what_it_costs(
    tmp_path, monkeypatch, way
):
    monkeypatch.setattr("gpushard.blocks.BLOCK_CHUNKS", 5)
    n = 64
    entries = np.stack([np.arange(n), np.ones(n)], axis=1).astype("<u8")
    entries[[7, 40]] = 2**40, 5
    values = np.arange(1, n + 1, dtype=np.uint8)
    meta = document((n,), (n,), sharding((1,), index_codecs=[LITTLE]))
    put(tmp_path / "a", meta, values.tobytes() + entries.tobytes())
    values[[7, 40]] = 0
    found: list[gpushard.CorruptShardError] = []
    got = opened(tmp_path / "a", way).read(errors=found.append)
    assert np.array_equal(on_host(got), values)
    assert {error.inner_chunk for error in found} == {(7,), (40,)}


def test_a_damaged_object_around_a_shard_larger_than_a_block_costs_all_of_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gpushard.blocks.BLOCK_CHUNKS", 5)
    inner = sharding((1,), index_codecs=[LITTLE])
    put(tmp_path / "a", document((64,), (64,), inner, GZIP), b"no stream")
    found: list[gpushard.CorruptShardError] = []
    got = gpushard.open_array(tmp_path / "a").read(errors=found.append)
    assert not got.any()
    assert sorted(error.inner_chunk or () for error in found) == [
        (i,) for i in range(64)
    ]
