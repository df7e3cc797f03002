"""What fuzzing found: each input that once ended in something else than it should."""

from __future__ import annotations

import json
import lzma
import struct
from types import SimpleNamespace

import crc32c
import numpy as np
import pytest
import zstandard
from numcodecs.blosc import Blosc

import gpushard
from array_strategies import codec
from blosc_frames import as_snappy
from fuzz import shard_cases, target_device
from gpushard.codecs.blosc import BloscCodec
from gpushard.codecs.blosc_frame import parse_header
from gpushard.codecs.zstd import from_spec
from gpushard.errors import (
    ChecksumError,
    CorruptShardError,
    MetadataError,
    StoreError,
    UnsupportedError,
)
from gpushard.layout import CodecSpec
from gpushard.options import Options
from gpushard.stores import patience
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest
from gpushard.stores.failures import failed_write
from gpushard.stores.patience import WaitLimits
from gpushard.stores.remote_url import open_url
from gpushard.write_options import WriteOptions
from range_server import RangeServer
from raw_server import RawServer, sized
from small_array import write_values
from zarr_oracle import held

LITTLE = codec("bytes", endian="little")
ZSTD = from_spec(CodecSpec("zstd", {}))


# What lies behind the cap on inner chunks has to hold without it.
UNCAPPED = gpushard.Options(max_chunk_nbytes=2**62, memory_limit=2**62)


def opened(codecs, chunk_shape=(8,), **objects: bytes) -> gpushard.Array:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8],
        "data_type": "int32",
        "chunk_grid": codec("regular", chunk_shape=list(chunk_shape)),
        "chunk_key_encoding": codec("default", separator="."),
        "fill_value": 7,
        "codecs": [LITTLE, *codecs],
    }
    stored = {"zarr.json": json.dumps(document).encode()}
    stored |= {key.replace("_", "."): data for key, data in objects.items()}
    return gpushard.open_array(held(stored), options=UNCAPPED)


# ---- zstd: frames without content were believed what they say about it


def zstd_frame(flags: int, content: bytes, *blocks: bytes, tail: bytes = b"") -> bytes:
    """Frame of stored blocks behind a header whose content size is `content`."""
    out = struct.pack("<IB", 0xFD2FB528, flags) + content
    for k, block in enumerate(blocks):
        is_last = k == len(blocks) - 1
        out += (len(block) << 3 | is_last).to_bytes(3, "little") + block
    return out + tail


@pytest.mark.parametrize("limit", [0, 100])
def test_the_checksum_of_a_zstd_frame_without_content_counts(limit):
    good = zstandard.ZstdCompressor(write_checksum=True).compress(b"")
    assert ZSTD.decode(good, limit, exact=False) == b""
    with pytest.raises(ChecksumError):
        ZSTD.decode(good[:-1] + b"\0", limit, exact=False)


@pytest.mark.parametrize(
    "frame",
    [
        zstd_frame(0x20, b"\0", b"abc"),
        zstd_frame(0x20, b"\5", b""),
        zstd_frame(0x20, b"\5", b"abc"),
    ],
    ids=["none of three", "five of none", "five of three"],
)
def test_a_zstd_frame_that_lies_about_its_size_is_refused(frame):
    with pytest.raises(CorruptShardError):
        ZSTD.decode(frame, 100, exact=False)
    honest = zstd_frame(0x20, b"\3", b"abc")
    assert ZSTD.decode(honest, 100, exact=False) == b"abc"
    with pytest.raises(CorruptShardError):
        ZSTD.decode(honest + frame, 100, exact=False)


# ---- metadata: numbers that a library's C integers do not hold


@pytest.mark.parametrize("number", [2**31, 2**62, -(2**40)])
def test_an_lzma_format_beyond_an_int_is_refused_as_metadata(number):
    with pytest.raises(MetadataError, match="cannot be configured"):
        opened([codec("numcodecs.lzma", format=number)])


def test_an_lzma_dictionary_beyond_all_presets_is_refused_at_open():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**31}]
    raw = codec("numcodecs.lzma", format=lzma.FORMAT_RAW, filters=filters)
    with pytest.raises(UnsupportedError, match="too much memory"):
        opened([raw])


@pytest.mark.parametrize(
    "codecs",
    [
        [codec("gzip", level=1)],
        [codec("gzip", level=1), codec("gzip", level=1)],
        [codec("zstd", level=1, checksum=False)],
        [codec("numcodecs.zlib", level=1)],
        [codec("numcodecs.bz2", level=1)],
        [codec("numcodecs.lzma")],
        [codec("numcodecs.lz4", acceleration=1)],
        [codec("blosc", cname="lz4", clevel=1, shuffle="noshuffle", blocksize=0)],
    ],
    ids=lambda codecs: ", ".join(entry["name"] for entry in codecs),
)
def test_an_inner_chunk_beyond_all_memory_is_absent_or_damaged(codecs):
    # Some chains hold it twice, and the largest limit is four times as much.
    shape = (2**58,)
    assert opened(codecs, shape)[3] == 7
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc")
    claiming = zstd_frame(0xE0, struct.pack("<Q", 2**61), b"abc")
    streams = (
        b"abc",
        unsized,
        claiming,
        lzma.compress(b"abc"),
        np.arange(64).tobytes(),
    )
    for stream in streams:
        with pytest.raises(CorruptShardError):
            opened(codecs, shape, c_0=stream)[3]


def test_an_inner_chunk_whose_bytes_cannot_be_counted_is_refused_at_open():
    with pytest.raises(UnsupportedError, match="can be counted"):
        opened([], (2**60 + 1,))


# ---- an uncompressed chunk cut short, in a store that does not tell how long it is


@pytest.mark.parametrize("n_elements", [0, 3, 7])
def test_a_cut_uncompressed_chunk_never_reads_as_what_was_in_memory(n_elements):
    data = np.arange(8, dtype="<i4").tobytes()[: 4 * n_elements + 2]
    a = opened([], c_0=data)
    for key in (..., np.s_[7], np.s_[n_elements:], np.s_[1::3]):
        with pytest.raises(CorruptShardError, match="another size"):
            a[key]
    for key in range(n_elements):
        assert a[key] == key


# ---- Zarr v2: a type in a filter reached NumPy before it was checked


@pytest.mark.parametrize("member", ["dtype", "astype"])
@pytest.mark.parametrize("name", [".", "<f3", "", "O"])
def test_a_filter_of_an_unknown_type_is_refused_by_its_name(member, name):
    delta = {"id": "delta", "dtype": "<i4", "astype": "<i4", member: name}
    document = {
        "zarr_format": 2,
        "shape": [8],
        "chunks": [8],
        "dtype": "<i4",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": [delta],
    }
    with pytest.raises(UnsupportedError) as caught:
        gpushard.open_array(held({".zarray": json.dumps(document).encode()}))
    assert caught.value.json_path == f"filters[0].{member}"


# ---- writes in place to a damaged shard, which made other damage look sound


def written_in_place(place, strategy, *, at_start=False):
    """Array of one uncompressed shard of four inner chunks, and the shard's path."""
    at_start |= strategy == "random_write"
    a = gpushard.create_array(
        place,
        shape=(8,),
        dtype="i4",
        chunks=(2,),
        shards={"shape": (8,), "index_location": "start" if at_start else "end"},
        compressors=None,
        options=Options(write=WriteOptions(strategy=strategy, max_unused_fraction=1)),
    )
    a[...] = np.arange(1, 9)
    return a, place / "c" / "0"


def with_entry(shard, at_start, entry, offset, nbytes):
    """Give an inner chunk another byte range, under a good checksum."""
    data = bytearray(shard.read_bytes())
    start = 0 if at_start else len(data) - 68
    struct.pack_into("<QQ", data, start + 16 * entry, offset, nbytes)
    checksum = crc32c.crc32c(bytes(data[start : start + 64]))
    struct.pack_into("<I", data, start + 64, checksum)
    shard.write_bytes(bytes(data))


@pytest.mark.parametrize("strategy", ["append_only", "random_write"])
def test_a_range_beyond_the_file_does_not_come_into_it_by_a_write(strategy, tmp_path):
    a, shard = written_in_place(tmp_path / "a", strategy)
    with_entry(shard, strategy == "random_write", 3, shard.stat().st_size, 8)
    before = shard.read_bytes()
    with pytest.raises(CorruptShardError) as caught:
        a[0] = 50
    assert caught.value.shard_key == "c/0"
    assert shard.read_bytes() == before
    a[6:] = [70, 80]  # what is damaged may be written anew
    a[0] = 50
    assert a[...].tolist() == [50, 2, 3, 4, 5, 6, 70, 80]


def test_an_inner_chunk_in_the_index_stays_what_it_was(tmp_path):
    a, shard = written_in_place(tmp_path / "a", "random_write")
    with_entry(shard, True, 3, 0, 8)  # the entry of the first, which is written to
    want = a[6:]
    a[0] = 50
    assert np.array_equal(a[6:], want)
    assert a[:6].tolist() == [50, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("start", [60, 64])
def test_an_inner_chunk_in_the_index_is_not_written_where_it_lies(start, tmp_path):
    a, shard = written_in_place(tmp_path / "a", "fixed_order", at_start=True)
    with_entry(shard, True, 3, start, 8)
    a[6:] = [70, 80]
    assert a[...].tolist() == [1, 2, 3, 4, 5, 6, 70, 80]


# ---- Blosc: a device read streams of a version that c-blosc refuses


@pytest.mark.parametrize("cname", ["lz4", "zlib"])
def test_blosc_streams_of_another_version_are_refused_by_a_device_too(cname):
    number = [*shard_cases.CHAINS].index(f"blosc {cname}")
    frames = bytearray(shard_cases.cases()[number].object)
    frames[1] = 3  # of the first frame, with which the shard begins
    assert not target_device.check(bytes([number, 0]) + frames)


# ---- servers: what one answer said wrong was remembered, or taken for fill value


class _SaysLess(shard_cases.OneObject):
    """Store that tells, once, that an object is smaller than it is."""

    is_wrong = True

    def read(self, requests):
        answers = super().read(requests)
        if self.is_wrong:
            return [a and a._replace(object_nbytes=40) for a in answers]
        return answers


@pytest.mark.parametrize("n_small", [0, 8])
def test_what_an_index_is_by_a_wrong_size_is_not_remembered(n_small):
    case = shard_cases.cases()[0]
    options = Options(small_read_chunks=n_small, threads=1)
    store = _SaysLess(case.objects)
    store.is_wrong = False
    a = gpushard.open_array(store, options=options)
    store.is_wrong = True
    with pytest.raises(CorruptShardError, match="no valid byte range"):
        a[3:9, 20]
    store.is_wrong = False
    assert np.array_equal(a[3:9, 20], shard_cases.VALUES[3:9, 20])


@pytest.mark.network
@pytest.mark.parametrize(
    "fault",
    [
        {"statuses": {"c/0/0": 405}},
        {"answers_head": False, "answers_suffixes": False},
        {"answers_head": False, "answers_suffixes": False, "suffix_status": 416},
    ],
    ids=["GET", "suffix and HEAD", "suffix, with 416, and HEAD"],
)
def test_an_object_is_not_missing_because_a_method_is_refused(fault, tmp_path):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    with RangeServer(write_values(tmp_path / "a")) as server:
        a = gpushard.open_array(server.url, options=Options(whole_object_fraction=1))
        for name, value in fault.items():
            setattr(server, name, value)
        with pytest.raises(StoreError, match="405"):
            a[1:3, 3:9]


@pytest.mark.parametrize("most", [0, 3])
def test_a_busy_server_is_asked_with_pauses_whatever_the_settings(most, monkeypatch):
    now, n_asked = [0.0], [0]

    def sleep(seconds):
        now[0] += seconds

    def work(_request):
        n_asked[0] += 1
        assert n_asked[0] < 100
        raise StoreError("status code: 500") from RefusalError("busy", 500)

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(patience, "time", clock)
    asker = patience.Patience(
        WaitLimits(15, 1 << 16), patience.Repeats(0, longest_pause_s=0, n_most=most)
    )
    with pytest.raises(StoreError, match="500"):
        asker.ask(work, ByteRequest("c/0"))
    assert 15 + most <= n_asked[0] <= 32 + most
    assert 14 <= now[0] <= 15


@pytest.mark.network
def test_a_date_that_no_calendar_has_is_an_error_of_ours():
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    date = "Last-Modified: Fri, 31 Dec 99999 23:59:59 GMT"
    with RawServer(lambda *_: [sized(b"body", date)]) as server:
        settings = {"endpoint": server.url, "anon": True, "region": "us-east-1"}
        with pytest.raises(StoreError, match="year"):
            open_url("s3://bucket", settings).get("a")
        assert open_url(server.url, {}).get("a") == b"body"


def test_a_failed_write_is_told_in_a_line_without_credentials():
    error = OSError("no PUT to http://me:secret@host/a\n\nDebug source:\nA {\n}")
    told = str(failed_write("s3://bucket", "c/0", error))
    assert "no PUT to http://host/a" in told
    assert "\n" not in told
    assert "secret" not in told
    assert "'c/0': OSError (" in str(failed_write("s3://bucket", "c/0", OSError()))


@pytest.mark.parametrize("told", [0.0, 0.1])
def test_a_server_that_asks_for_no_pause_is_not_asked_without_one(told, monkeypatch):
    now, n_asked = [0.0], [0]

    def sleep(seconds):
        now[0] += seconds

    def work(_request):
        n_asked[0] += 1
        assert n_asked[0] < 100
        raise refusal.as_store_error("http://x", "c/0") from refusal

    refusal = RefusalError("status code: 503", 503, retry_after_s=told)
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(patience, "time", clock)
    asker = patience.Patience(WaitLimits(15, 1 << 16))
    with pytest.raises(StoreError, match="503"):
        asker.ask(work, ByteRequest("c/0"))
    assert 16 <= n_asked[0] <= 32  # at once, and then every half second or second
    assert 14 <= now[0] <= 15


def test_snappy_blocks_without_a_whole_item_are_read():
    """Such a last block is not shuffled. Giving it a shape raised NumPy's error."""
    whole = np.arange((1 << 16) // 8 + 1).tobytes()
    for shuffle in (1, 2):
        frame = as_snappy(bytes(Blosc("lz4", 5, shuffle, 1024, 16).encode(whole)))
        header = parse_header(frame, "blosc")
        assert header.nbytes % header.block_nbytes == 8
        decoder = BloscCodec("blosc", "")
        assert bytes(decoder.decode(frame, len(whole), exact=True)) == whole
