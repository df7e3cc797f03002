"""Caps on what arrays may ask for: numbers in the options, refused by name."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

import gpushard
from cli_runs import run_json
from damaged_arrays import WAYS, on_host, opened
from gpushard import HostMemoryError, LimitError, SelectionError
from gpushard.fused import choice, shares
from gpushard.fused.short import sharded, single, ways
from gpushard.hierarchies import documents
from gpushard.inspection.verify import verify_array
from gpushard.options import GIB, KIB, MIB
from gpushard.pipeline import HostPipeline
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.expressions import basic
from gpushard.threads.workers import run_tasks
from hostile_shards import GZIP, ZSTD
from spec_shards import LITTLE, document, index_of, sharding
from zarr_oracle import held

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
    with pytest.raises(gpushard.CorruptShardError, match="at most 319 bytes") as told:
        opened(place, way, max_chunk_nbytes=len(text) - 1)[3]
    assert "or raise options.max_chunk_nbytes" in str(told.value)
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

    meta = document((4096,), (4096,), LITTLE, GZIP)
    a = opened(put(tmp_path / "a", meta, gzip(bytes(4096))), way)
    monkeypatch.setattr(HostPipeline, "decode", exhausted)
    monkeypatch.setattr("gpushard.fused.placer.PlanPlacer.run", exhausted)
    monkeypatch.setattr(single.SingleReader, "_part_of", lambda *_: None)
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
    monkeypatch.setattr("gpushard.planning.blocks.BLOCK_CHUNKS", 5)
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
    monkeypatch.setattr("gpushard.planning.blocks.BLOCK_CHUNKS", 5)
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
    monkeypatch.setattr("gpushard.planning.blocks.BLOCK_CHUNKS", 5)
    inner = sharding((1,), index_codecs=[LITTLE])
    put(tmp_path / "a", document((64,), (64,), inner, GZIP), b"no stream")
    found: list[gpushard.CorruptShardError] = []
    got = gpushard.open_array(tmp_path / "a").read(errors=found.append)
    assert not got.any()
    assert sorted(error.inner_chunk or () for error in found) == [
        (i,) for i in range(64)
    ]


def small_shards(place: Any, *compressors: Any) -> Any:
    """Array of 16 KiB in four inner chunks of 4 KiB, two a shard."""
    made = zarr.create_array(
        place, shape=(16384,), dtype="u1", shards=(8192,), chunks=(4096,),
        compressors=compressors or None, fill_value=0,
    )  # fmt: skip
    made[:] = np.resize(np.arange(1, 252), 16384)
    return place


@pytest.mark.parametrize("compressors", [(), (ZstdCodec(),)])
def test_the_short_compiled_way_is_held_to_the_cap(tmp_path, compressors):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    place = small_shards(tmp_path / "a", *compressors)
    for most in (4096, 4095):
        options = gpushard.Options(compile_nbytes=0, max_chunk_nbytes=most)
        a = gpushard.open_array(place, options=options)
        assert (ways.short_ways(a.source).short is None) == (most < 4096)
        if most < 4096:
            with pytest.raises(LimitError, match="raise options"):
                a[:]


def test_the_short_compiled_way_has_no_more_threads_than_room(tmp_path, monkeypatch):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    monkeypatch.setattr(shares, "_SHARE_US", 1)
    seen: list[int] = []

    def run(tasks: Any, n_workers: int) -> None:
        seen.append(n_workers)
        run_tasks(tasks, n_workers)

    monkeypatch.setattr(sharded, "run_tasks", run)
    place = small_shards(tmp_path / "a", ZstdCodec())
    for limit in (2 * 4096, 4 * 4096, 6 * 4096):
        options = gpushard.Options(threads=4, compile_nbytes=0, memory_limit=limit)
        a = gpushard.open_array(place, options=options)
        reader = ways.short_ways(a.source).short
        out = np.empty(16384, np.uint8)
        assert reader is not None
        assert reader.read(a.source, basic(slice(None), a.shape), out)
    assert seen == [2, 3]  # a single one needs no task


@pytest.mark.parametrize("way", ["plain", "decoded"])
def test_a_verification_is_held_to_the_cap(tmp_path, way):
    place = small_shards(tmp_path / "a", ZstdCodec())
    for most, is_refused in ((4096, False), (4095, way == "decoded")):
        options = gpushard.Options(max_chunk_nbytes=most)
        source = gpushard.open_array(place, options=options).source
        found = verify_array(source, decodes=way == "decoded")
        assert [f.kind for f in found.findings] == ["unreadable"] * is_refused
        assert found.status == ("unverified" if is_refused else "whole")
        assert found.n_findings == is_refused


def test_beyond_the_cap_all_but_the_bytes_of_inner_chunks_is_verified(tmp_path):
    place = small_shards(tmp_path / "a", ZstdCodec())
    shard = bytearray((place / "c" / "1").read_bytes())
    first, second = np.frombuffer(shard[-36:-4], "<u8").reshape(2, 2).tolist()
    broken = index_of([first, (10**6, second[1])])
    (place / "c" / "1").write_bytes(shard[:-36] + broken)
    (place / "c" / "0").write_bytes(shard[:-36] + index_of([first, first]))
    options = gpushard.Options(max_chunk_nbytes=4095)
    found = verify_array(
        gpushard.open_array(place, options=options).source, decodes=True
    )
    assert [(f.kind, f.shard_key) for f in found.findings] == [
        ("unreadable", ""),
        ("bounds", "c/1"),
    ]
    assert (found.status, found.n_damaged_inner_chunks) == ("damaged", 1)
    assert found.counts["n_inner_chunks"] == 3
    (told,) = [c for c in found.checks if c.what == "bytes of inner chunks"]
    assert not told.is_done
    assert "4096 bytes" in told.how


def test_a_verification_goes_on_behind_an_array_beyond_its_limits(tmp_path):
    n = 64 * GIB
    group = zarr.create_group(tmp_path / "g")
    put(tmp_path / "g" / "a", document((n,), (n,), LITTLE, ZSTD), b"\0" * 64)
    group.create_array("b", shape=(4,), chunks=(2,), dtype="i4")[:] = 7
    facts = run_json("verify", tmp_path / "g", "--decode", code=2)
    large, small = facts["arrays"]
    assert large["findings"][0]["got"] == f"{n} bytes"
    assert small["counts"]["n_checked_inner_chunks"] == 2


@pytest.mark.parametrize("compressors", [(), (ZstdCodec(),)])
def test_inner_chunks_written_to_in_part_are_held_to_the_cap(tmp_path, compressors):
    place = small_shards(tmp_path / "a", *compressors)
    before = (place / "c" / "0").read_bytes()
    a = gpushard.open_array(place, options=gpushard.Options(max_chunk_nbytes=4095))
    with pytest.raises(LimitError, match="raise options"):
        a[5:6] = 1
    assert (place / "c" / "0").read_bytes() == before
    a[4096:8192] = 1  # nothing of it has to be decoded
    assert np.array_equal(gpushard.open_array(place)[4000:8192:4000], [236, 1])


def test_wrapped_shards_written_to_in_part_are_held_to_the_cap(tmp_path):
    inner = sharding((16,), index_codecs=[LITTLE])
    meta = document((64,), (64,), inner, GZIP)
    data = bytes(64) + np.array([[k, 16] for k in range(0, 64, 16)], "<u8").tobytes()
    place = put(tmp_path / "a", meta, gzip(data))
    for most in (63, 64):
        a = gpushard.open_array(place, options=gpushard.Options(max_chunk_nbytes=most))
        if most == 63:
            with pytest.raises(LimitError, match="a shard with codecs around it"):
                a[0:16] = 3
        else:
            a[0:16] = 3
    assert gpushard.open_array(place)[:].sum() == 48


@pytest.mark.parametrize(("most", "is_read"), [(5063, False), (5064, True)])
def test_gaps_of_wrapped_shards_are_held_to_the_cap(tmp_path, most, is_read):
    inner = sharding((16,), index_codecs=[LITTLE])
    entries = np.array([[5000 + k, 16] for k in range(0, 64, 16)], "<u8")
    data = bytes(5000) + bytes(range(64)) + entries.tobytes()
    place = put(tmp_path / "a", document((64,), (64,), inner, GZIP), gzip(data))
    a = gpushard.open_array(place, options=gpushard.Options(max_chunk_nbytes=most))
    if is_read:
        assert np.array_equal(a[:], np.arange(64))
    else:
        with pytest.raises(gpushard.CorruptShardError):
            a[:]


def test_an_object_too_large_is_not_read_to_be_written_to_in_part(tmp_path):
    place = put(tmp_path / "a", document((64,), (64,), LITTLE, GZIP), b"")
    os.truncate(place / "c" / "0", 1 << 40)
    a = gpushard.open_array(place)
    with pytest.raises(gpushard.CorruptShardError, match="larger than any encoding"):
        a[:5] = 1
    a[:] = 1
    assert a[:].sum() == 64


def test_shards_that_have_to_be_held_are_written_to_in_part_up_to_the_cap(tmp_path):
    place = small_shards(tmp_path / "a")
    data = (place / "c" / "0").read_bytes()
    document = (place / "zarr.json").read_bytes()
    for most in (len(data) - 1, len(data)):
        store = held({"zarr.json": document, "c/0": data})
        options = gpushard.Options(max_chunk_nbytes=most)
        a = gpushard.open_array(store, options=options)
        if most < len(data):
            with pytest.raises(LimitError, match="held to be written to in part"):
                a[5:9] = 1
            assert store._store_dict["c/0"].to_bytes() == data
        else:
            a[5:9] = 1
            assert a[4:10].tolist() == [5, 1, 1, 1, 1, 10]
