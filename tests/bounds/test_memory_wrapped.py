"""Rare streams around a whole shard are decoded within the memory limit, too."""

from __future__ import annotations

import gzip
import tracemalloc
from bisect import bisect_left
from typing import Any

import crc32c
import numcodecs.blosc
import numpy as np
import pytest

import gpushard
from array_strategies import codec
from asked_store import opened, put
from gpushard import LimitError
from gpushard.codecs.wrapping import ObjectCodecs
from gpushard.layout import CodecSpec
from gpushard.options import KIB, MIB
from hostile_shards import ZSTD
from lone_chunks import let_little_count, trace_pages, zstd
from spec_shards import CRC, LITTLE, document, sharding

N = 256 * KIB
NOISE = np.random.default_rng(5).integers(0, 256, N, "u1").tobytes()
SHARD = NOISE + np.array([0, N], "<u8").tobytes()
BLOSC = codec("blosc", cname="lz4", clevel=1, shuffle="noshuffle", blocksize=0)


def in_frames(data: bytes) -> bytes:
    """A small frame and a large one, which are joined once both are decoded."""
    return zstd(data[:KIB]) + zstd(data[KIB:])


STREAMS: dict[str, tuple[Any, Any]] = {
    "zstd": (ZSTD, zstd),
    "zstd in frames": (ZSTD, in_frames),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_the_least_limit_reads_takes_no_more_than_that(
    tmp_path, monkeypatch, name
):
    codec, encode = STREAMS[name]
    let_little_count(monkeypatch)
    trace_pages(monkeypatch)
    inner = sharding((N,), codecs=[LITTLE], index_codecs=[LITTLE])
    place = put(tmp_path, document((N,), (N,), inner, codec), c_0=encode(SHARD))

    def fits(limit: int) -> bool:
        a, _ = opened(place, memory_limit=limit, batch_nbytes=1)
        try:
            return a[5:9].tobytes() == NOISE[5:9]
        except LimitError:
            return False

    least = bisect_left(range(8 * MIB), True, key=fits)
    assert fits(least)
    tracemalloc.start()
    try:
        assert fits(least)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < least + 128 * KIB


@pytest.mark.parametrize("name", [b"zstd", b"snappy"])
def test_what_a_blosc_frame_around_a_shard_takes_is_counted(name):
    data = numcodecs.blosc.compress(bytes(4 * MIB), b"zstd", 1, 1, 4 * MIB)
    if name == b"snappy":  # numcodecs knows it not; the head tells
        data = data[:2] + bytes([data[2] & 31 | 2 << 5]) + data[3:]
    one = ObjectCodecs([CodecSpec("blosc", BLOSC["configuration"])])
    needed = one.needed_nbytes(data, 4 * MIB)
    assert needed >= (4 if name == b"zstd" else 8) * 4 * MIB
    assert (
        one.most_nbytes(data, 4 * MIB, needed)
        == 4 * MIB
        > one.most_nbytes(data, 4 * MIB, needed - 1)
    )


def test_each_compressor_around_a_shard_needs_a_copy_and_a_checksum_none():
    specs = [CodecSpec("zstd"), CodecSpec("gzip"), CodecSpec("crc32c")]
    data = b"head and checksum"
    assert ObjectCodecs(specs).needed_nbytes(data, MIB) == 2 * MIB
    assert ObjectCodecs(specs[2:]).needed_nbytes(data, MIB) == MIB


@pytest.mark.parametrize("n_checksums", [1, 2])
def test_the_head_of_a_stream_behind_checksums_is_found(tmp_path, n_checksums):
    data = numcodecs.blosc.compress(SHARD, b"lz4", 1, 0)
    for _ in range(n_checksums):
        data += crc32c.crc32c(data).to_bytes(4, "little")
    inner = sharding((N,), codecs=[LITTLE], index_codecs=[LITTLE])
    around = [BLOSC, *[CRC] * n_checksums]
    place = put(tmp_path, document((N,), (N,), inner, *around), c_0=data)
    assert gpushard.open_array(place)[:].tobytes() == NOISE


def test_a_shard_in_four_compressors_that_does_not_fit_is_not_told_as_damaged(
    tmp_path, monkeypatch
):
    let_little_count(monkeypatch)
    data = zstd(SHARD)
    for _ in range(3):
        data = gzip.compress(data, 1)
    inner = sharding((N,), codecs=[LITTLE], index_codecs=[LITTLE])
    around = [ZSTD, *[codec("gzip", level=1)] * 3]
    place = put(tmp_path, document((N,), (N,), inner, *around), c_0=data)
    n_refused = 0
    for limit in range(2 * N, 8 * N, N // 8):
        a, _ = opened(place, memory_limit=limit, batch_nbytes=1)
        try:
            assert a[5:9].tobytes() == NOISE[5:9]
        except LimitError:
            n_refused += 1
    assert 0 < n_refused < 48


@pytest.mark.parametrize("codecs", [[LITTLE], [LITTLE, ZSTD]])
def test_the_limit_that_a_refused_wrapped_shard_asks_for_is_enough(
    tmp_path, monkeypatch, codecs
):
    let_little_count(monkeypatch)
    data = NOISE if codecs == [LITTLE] else zstd(NOISE)
    shard = data + np.array([0, len(data)], "<u8").tobytes()
    inner = sharding((N,), codecs=codecs, index_codecs=[LITTLE])
    place = put(tmp_path, document((N,), (N,), inner, ZSTD), c_0=zstd(shard))
    with pytest.raises(LimitError, match="codecs around it") as caught:
        opened(place, memory_limit=KIB, batch_nbytes=1)[0][5:9]
    enough = int(str(caught.value.got).split()[0])
    a, _ = opened(place, memory_limit=enough, batch_nbytes=1)
    assert a[5:9].tobytes() == NOISE[5:9]


def test_a_wrapped_shard_of_inner_chunks_that_compression_enlarges_is_valid(tmp_path):
    n, each = 600_000, zstd(b"\x07")  # 13 bytes
    inner = sharding((1,), codecs=[LITTLE, ZSTD], index_codecs=[LITTLE])
    entries = np.full((n, 2), len(each), "<u8")
    entries[:, 0] *= np.arange(n, dtype="<u8")
    shard = each * n + entries.tobytes()
    meta = document((n,), (n,), inner, codec("gzip", level=1))
    place = put(tmp_path, meta, c_0=gzip.compress(shard, 1))
    for nbytes in (1, 4 * MIB):
        a = gpushard.open_array(place, options=gpushard.Options(batch_nbytes=nbytes))
        assert a[n // 2 : n // 2 + 9].tolist() == [7] * 9
