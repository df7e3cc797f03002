"""An inner chunk that does not fit the memory limit is refused, whoever reads it."""

from __future__ import annotations

import bz2
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs.blosc
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from asked_store import BY_PRICE, put
from asked_store import opened as asked
from cli_runs import run
from damaged_arrays import WAYS, on_host, opened
from gpushard import LimitError, Options
from gpushard.codecs import blosc, blosc_frame
from gpushard.codecs.crc32c import with_checksum
from gpushard.inspection.verify import verify_array
from gpushard.layout import CodecSpec
from gpushard.memory import chunk_room
from gpushard.memory.chunk_room import ChunkRoom, usual_stored
from gpushard.options import KIB, MIB
from hostile_shards import GZIP, ZSTD
from lone_chunks import N, gzip, let_little_count, put_chunk, zstd
from spec_shards import LITTLE, document, sharding

NOISE = np.random.default_rng(3).integers(0, 256, N, "u1")
TEXT = {"data_type": "string", "fill_value": ""}
BLOSC = {
    "name": "numcodecs.blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
}

BZ2 = {"name": "numcodecs.bz2", "configuration": {"level": 1}}

RAISE = r"raise options\.memory_limit"


@pytest.fixture(autouse=True)
def _nothing_is_little(monkeypatch):
    """Let small arrays meet what large ones do."""
    let_little_count(monkeypatch)


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "device"])
def test_an_inner_chunk_fits_with_the_bytes_that_it_is_stored_in(
    tmp_path, way, is_sharded
):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=is_sharded)
    enough = len(data) + N
    a = opened(place, way, memory_limit=enough)
    for key in (slice(5, 9), slice(None)):
        assert np.array_equal(a[key], NOISE[key])
        for limit in (enough - 1, N, N - 1):
            with pytest.raises(
                LimitError, match=r"raise options\.memory_limit"
            ) as told:
                a.read(key, memory_limit=limit)
            assert f"at most {limit} bytes" in str(told.value)
            assert str(place) in str(told.value)


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("costs", [None, BY_PRICE])
@pytest.mark.parametrize("n_small", [0, 8])
def test_what_does_not_fit_is_not_fetched(tmp_path, costs, is_sharded, n_small):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=is_sharded)
    given = () if costs is None else (costs,)
    for limit in (N - 1, N + 100):
        a, store = asked(place, *given, small_read_chunks=n_small, memory_limit=limit)
        with pytest.raises(LimitError):
            a[3:5]
        assert not (limit < N and store.calls)
        requests = [r for call in store.calls for r in call]
        assert all(r.start < 0 or r.stop or r.max_nbytes for r in requests)
        most = max((r.max_nbytes or 0 for r in requests), default=0)
        assert most <= max(0, limit - N) + 1 or costs
        if is_sharded and not costs:
            assert not any(store.payload_nbytes())


def blosc_of(data: bytes, block_nbytes: int) -> bytes:
    return numcodecs.blosc.compress(data, b"lz4", 5, 1, block_nbytes)


HALF = NOISE[: N // 2].tobytes() + bytes(N // 2)
EMPTY = zstd(b"")
STREAMS: dict[str, tuple[Any, bytes, int]] = {
    # Beside the decoded bytes: what is joined, a window, blocks that are unshuffled.
    "zstd frames": (ZSTD, zstd(HALF[:3000]) + zstd(HALF[3000:]), 2 * N),
    "zstd untold": (ZSTD, zstd(HALF, has_size=False), N),
    "zstd untold, padded": (ZSTD, zstd(HALF, has_size=False) + EMPTY, 2 * N),
    "zstd padded": (ZSTD, zstd(HALF) + struct.pack("<II", 0x184D2A50, 9) + bytes(9), 0),
    "gzip members": (GZIP, gzip(HALF[:3000]) + gzip(HALF[3000:]), 0),
    "blosc": (BLOSC, blosc_of(HALF, 0), 3 * N),
    "blosc stored": (BLOSC, blosc_of(NOISE.tobytes(), 0), 3 * N),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_that_take_more_are_refused_where_there_is_no_more(tmp_path, name):
    codec, data, extra = STREAMS[name]
    place = put_chunk(tmp_path, [codec], data, is_sharded=True)
    enough = len(data) + N + extra
    a = opened(place, "plain", memory_limit=enough)
    whole = NOISE if name == "blosc stored" else np.frombuffer(HALF, "u1")
    assert np.array_equal(a[:], whole)
    with pytest.raises(LimitError, match=f"got {enough} bytes"):
        a.read(memory_limit=enough - 1)


def test_blosc_counts_the_blocks_that_its_threads_work_in(monkeypatch):
    codec = blosc.from_spec(CodecSpec("blosc", {}))
    monkeypatch.setattr(blosc_frame, "LARGE_BLOCK_NBYTES", KIB)
    counted = 3 * KIB
    assert codec.beside_nbytes(N) == counted
    assert codec.beside_nbytes(100) == 300
    large = blosc_of(HALF, N)
    small = numcodecs.blosc.compress(HALF, b"zstd", 5, 1, 2 * KIB)
    assert codec.beside_nbytes(N, large) == 3 * N
    # On the main thread numcodecs decodes with several threads.
    assert codec.beside_nbytes(N, small) == 3 * N
    with ThreadPoolExecutor(1) as other:
        assert other.submit(codec.beside_nbytes, N, small).result() == 2 * counted
    assert codec.beside_nbytes(N, blosc_of(NOISE.tobytes(), N)) == counted
    assert codec.beside_nbytes(0, blosc_of(b"", 0)) == 0


def test_bz2_counts_what_it_works_in_however_little_it_decodes(tmp_path):
    place = put_chunk(tmp_path, [BZ2], bz2.compress(HALF), is_sharded=True)
    a = opened(place, "plain")
    assert a.source.work_nbytes == N + 4 * MIB


def test_of_a_blosc_frame_only_the_blocks_that_are_wanted_have_to_fit(tmp_path):
    n = 4 * MIB
    values = np.arange(n // 4, dtype="<u4")
    data = numcodecs.blosc.compress(values, b"zstd", 5, 1, 64 * KIB)
    assert len(data) < n // 8
    meta = document((n // 4,), (n // 4,), LITTLE, BLOSC) | {"data_type": "uint32"}
    place = put(tmp_path, meta, c_0=data)
    a = opened(place, "small", memory_limit=n - 1)
    assert np.array_equal(a[1000:1500], values[1000:1500])
    for key, limit in ((slice(None), n - 1), (slice(1000, 1500), 3 * 64 * KIB)):
        with pytest.raises(LimitError):
            a.read(key, memory_limit=limit)


@pytest.mark.parametrize("way", ["plain", "small"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_of_plain_elements_what_is_wanted_has_to_fit_twice(tmp_path, way, is_sharded):
    place = put_chunk(tmp_path, [], NOISE.tobytes(), is_sharded=is_sharded)
    a = opened(place, way, memory_limit=N, threads=2)
    for key in (slice(None), slice(100, 100 + N // 2)):
        assert np.array_equal(a[key], NOISE[key])
    for key, limit in ((slice(None), N - 1), (slice(1, N // 2 + 2), N)):
        with pytest.raises(LimitError, match=RAISE) as told:
            a.read(key, memory_limit=limit)
        assert told.value.inner_chunk == (0,)


def test_text_has_to_fit_as_python_has_it(tmp_path):
    text = "x" * 5000
    data = (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text.encode()
    meta = document((1,), (1,), {"name": "vlen-utf8"}, GZIP) | TEXT
    place = put(tmp_path, meta, c_0=gzip(data))
    stored = len(gzip(data))
    enough = stored + 128 + 8 * len(data)
    a = opened(place, "plain", memory_limit=enough)
    assert a[0] == text
    with pytest.raises(LimitError, match=RAISE):
        a.read(0, memory_limit=enough - 8)
    capped = opened(place, "plain", max_chunk_nbytes=len(data) - 1)
    with pytest.raises(gpushard.CorruptShardError, match="max_chunk_nbytes"):
        capped.read(0)


def test_a_shard_with_codecs_around_it_has_to_fit_with_what_it_is_stored_in(tmp_path):
    inner = sharding((N // 4,), index_codecs=[LITTLE])
    entries = [[k * N // 4, N // 4] for k in range(4)]
    shard = NOISE.tobytes() + np.array(entries, "<u8").tobytes()
    data = gzip(shard)
    place = put(tmp_path, document((N,), (N,), inner, GZIP), c_0=data)
    enough = len(data) + len(shard)
    a = opened(place, "plain", memory_limit=enough)
    assert np.array_equal(a[:], NOISE)
    for limit in (enough - 1, len(data) + 1, N - 1):
        with pytest.raises(LimitError, match=RAISE):
            a.read(memory_limit=limit)


def test_a_chunk_that_is_padded_is_fetched_alone_if_it_fits(tmp_path):
    n = 256 * KIB
    data = zstd(bytes(n)) + struct.pack("<II", 0x184D2A50, n + KIB) + bytes(n + KIB)
    data += struct.pack("<II", 0x184D2A50, 80 * KIB) + bytes(80 * KIB)
    place = put(tmp_path, document((4 * n,), (n,), LITTLE, ZSTD), c_0=data, c_3=data)
    for costs in ((), (BY_PRICE,)):
        a, store = asked(place, *costs, small_read_chunks=0)
        assert not a[:].any()
        asked_for = [r.max_nbytes for call in store.calls for r in call]
        assert min(asked_for) == usual_stored(n) + 1 < len(data) < max(asked_for)
        limit = len(data) + n
        assert not a.read(slice(2, n), memory_limit=limit).any()
        with pytest.raises(LimitError):
            a.read(memory_limit=limit - 1)


DOORS: dict[str, Any] = {
    "read": lambda a, n: a.read(memory_limit=n),
    "read_many": lambda a, n: a.read_many([slice(3), slice(5, 9)], memory_limit=n),
    "concat": lambda a, n: gpushard.concat([a, a]).read(memory_limit=n),
    "dask": lambda a, n: limited(a, n).to_dask().compute(),
    "loader": lambda a, n: next(iter(gpushard.Loader(limited(a, n), batch_size=4))),
    "verify": lambda a, n: found_by_verify(limited(a, n)),
    "write": lambda a, n: limited(a, n).__setitem__(5, 1),
}


def limited(a: gpushard.Array, limit: int) -> gpushard.Array:
    store: Any = a.source.store
    return gpushard.open_array(store, options=Options(memory_limit=limit))


def found_by_verify(a: gpushard.Array) -> None:
    """Verify an array; what says that it cannot be is raised."""
    for finding in verify_array(a.source, decodes=True).findings:
        raise LimitError(f"{finding}", hint="raise options.memory_limit")


@pytest.mark.parametrize("door", ["read", "read_many", "concat", "dask", "loader"])
def test_every_door_is_held_to_the_limit(tmp_path, door):
    if door == "dask":
        pytest.importorskip("dask", reason="dask (extra `dask`) is not installed")
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=True)
    a = gpushard.open_array(place, device="cpu")
    DOORS[door](a, len(data) + N)
    with pytest.raises(LimitError, match="memory_limit"):
        DOORS[door](a, len(data) + N - 1)


@pytest.mark.parametrize("door", ["verify", "write"])
def test_doors_that_have_to_decode_whole_inner_chunks_are_held_to_it(tmp_path, door):
    place = put_chunk(tmp_path, [ZSTD], zstd(NOISE.tobytes()), is_sharded=True)
    a = gpushard.open_array(place, device="cpu")
    DOORS[door](a, 4 * N)
    with pytest.raises(LimitError, match="memory_limit"):
        DOORS[door](a, N - 1)


def test_zarrs_pipeline_says_which_limit_to_raise(tmp_path):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=True)
    ours = {"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}
    with zarr.config.set(ours):
        with zarr.config.set({"gpushard.memory_limit": len(data) + N - 1}):
            a = zarr.open_array(place, mode="r")
            with pytest.raises(LimitError, match=r"gpushard\.memory_limit"):
                a[:]
        assert np.array_equal(a[:], NOISE)


def test_the_command_line_says_which_limit_to_raise(tmp_path):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=True)
    told = run("read", place, "--limit", f"memory_limit={N}", code=2)
    assert "raise it with --limit memory_limit=SIZE" in told.stdout + told.stderr
    run("read", place, "--limit", f"memory_limit={len(data) + N}")


def test_a_device_leaves_what_does_not_fit_to_the_host_and_its_limit(tmp_path):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=True)
    enough = len(data) + 3 * N
    a = opened(place, "device", memory_limit=enough)
    assert np.array_equal(on_host(a[:]), NOISE)
    assert a.explain(slice(None)).codecs[0].where == "host"
    with pytest.raises(LimitError, match="memory_limit"):
        a.read(memory_limit=enough - 1)
    wide = opened(place, "device", memory_limit=MIB)
    assert wide.explain(slice(None)).codecs[0].where == "device"


def test_what_is_said_to_be_needed_is_enough_as_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_room, "_FIXED_NBYTES", KIB)
    place = put_chunk(tmp_path, [GZIP], gzip(HALF), is_sharded=True)
    needed = N + len(gzip(HALF)) + KIB
    with pytest.raises(LimitError, match=f"got {needed} bytes"):
        opened(place, "plain", memory_limit=needed - 1)[:]
    assert opened(place, "plain", memory_limit=needed)[:].tobytes() == HALF


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_limit_of_what_is_said_to_be_needed_reads(tmp_path, is_sharded):
    data = zstd(NOISE.tobytes())
    place = put_chunk(tmp_path, [ZSTD], data, is_sharded=is_sharded)
    with pytest.raises(LimitError, match=RAISE) as error:
        opened(place, "plain", memory_limit=N // 2)[:]
    needed = int(str(error.value.got).split()[0])
    assert np.array_equal(opened(place, "plain", memory_limit=needed)[:], NOISE)


@pytest.mark.parametrize("n_checksums", [1, 2])
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "device"])
def test_a_checksum_is_no_part_of_the_stream_before_it(
    tmp_path, way, name, n_checksums
):
    codec, data, extra = STREAMS[name]
    whole = NOISE if name == "blosc stored" else np.frombuffer(HALF, "u1")
    for _ in range(n_checksums):
        data = with_checksum(data)
    codecs = [codec, *[{"name": "crc32c"}] * n_checksums]
    place = put_chunk(tmp_path, codecs, data, is_sharded=True)
    enough = len(data) + N + extra
    assert np.array_equal(opened(place, way, memory_limit=enough)[:], whole)


# zarr 3.1.0 does not know its own string codec.
@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_text_is_read_whatever_stands_before_its_checksum(tmp_path):
    text = np.array(["", "a", "wide"], "T")
    before = {"blosc": BloscCodec(), "zstd": ZstdCodec(), "gzip": GzipCodec()}
    for name, codec in before.items():
        b = zarr.create_array(
            tmp_path / name,
            shape=3,
            chunks=3,
            dtype=text.dtype,
            compressors=[codec, Crc32cCodec()],
        )
        b[:] = text
        assert gpushard.open_array(tmp_path / name)[:].tolist() == text.tolist()


@pytest.mark.parametrize("kind", ["plain", "encoded", "wrapped"])
def test_what_a_large_inner_chunk_needs_is_told_with_its_stored_bytes(kind):
    n, work = 100 * MIB, 0 if kind == "plain" else 130 * MIB
    stored = {"plain": n, "encoded": usual_stored(n), "wrapped": n}[kind]
    if kind == "wrapped":  # the shard, and what it is stored in
        stored += usual_stored(n)
    options = Options(memory_limit=64 * MIB).resolved()
    kinds = (kind == "plain", kind == "wrapped", 0, False)
    room = ChunkRoom("", options, n, n, work, *kinds)
    needed = stored + work
    with pytest.raises(LimitError, match=f"got {needed} bytes"):
        room.refuse_large(in_part=False)
    if kind == "plain":
        room.refuse_large(in_part=True)


def test_what_shards_with_codecs_may_hold_beside_elements_makes_workers_fewer():
    options = Options(memory_limit=256 * MIB).resolved()
    few, many = (
        ChunkRoom("", options, KIB, KIB, KIB, False, True, added, False).most_workers
        for added in (16 * MIB, 4 * KIB)
    )
    assert (few, many > 32) == (2, True)
