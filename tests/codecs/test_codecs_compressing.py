"""What compressors' own functions encode, zarr's codecs decode."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numcodecs
import numpy as np
import pytest
import zstandard
from zarr.codecs import BloscCodec

import gpushard
from gpushard.codecs import compressing
from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.codecs.compressing import compressor
from gpushard.codecs.encoded import EncodedArrays
from gpushard.layout import INDEX_ELEMENTS, CodecChain, CodecSpec

DATA = (np.arange(5000) % 97).astype("<u2").view(np.uint8)


def own(name, **configuration):
    encode = compressor(CodecSpec(name, configuration, "$"), configuration)
    return lambda data: encode(EncodedArrays.of([data]), 1).items()[0]


def decoded(name, data, **configuration):
    return bytes(numcodecs.get_codec({"id": name, **configuration}).decode(data))


@pytest.mark.parametrize("name", ["zstd", "numcodecs.zstd"])
@pytest.mark.parametrize("level", [-7, 0, 3, 22, 40])
@pytest.mark.parametrize("has_checksum", [True, False])
def test_zstd_has_the_level_and_checksum_that_numcodecs_gives(
    name, level, has_checksum
):
    encoded = own(name, level=level, checksum=has_checksum)(DATA)
    peer = numcodecs.Zstd(level=level, checksum=has_checksum).encode(DATA)
    assert decoded("zstd", encoded) == DATA.tobytes()
    # The releases of libzstd differ, but hardly in what they find.
    assert len(encoded) == pytest.approx(len(peer), rel=0.1)
    # RFC 8878, 3.1.1.1.1: a bit says whether there is a checksum.
    assert bool(encoded[4] & 4) == has_checksum


def in_a_chain(name, **configuration):
    """What a chain makes of `DATA`."""
    little = CodecSpec("bytes", {"endian": "little"})
    chain = CodecChain((), little, (CodecSpec(name, configuration),))
    return ChainEncoder(chain, INDEX_ELEMENTS).encode_one(DATA.view("<u8"))


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_shuffle_is_that_of_numcodecs(size):
    encoded = own("numcodecs.shuffle", elementsize=size)(DATA)
    assert bytes(encoded) == numcodecs.Shuffle(size).encode(DATA).tobytes()
    assert decoded("shuffle", encoded, elementsize=size) == DATA.tobytes()


def test_zstd_keeps_no_memory_that_a_frame_does_not_take():
    noise = np.random.default_rng(2).integers(0, 256, 1 << 20, "u1")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [own("zstd", level=1, checksum=False)(d) for d in (noise, noise * 0)]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kept[1]) < 1024
    assert held < len(kept[0]) + 64 * 1024


# zarr 3.1 says so wherever one of numcodecs' codecs is made.
NUMCODECS_WARNS = "ignore:Numcodecs codecs are not in the Zarr"


@pytest.mark.filterwarnings(NUMCODECS_WARNS)
@pytest.mark.parametrize("name", ["zstd", "gzip"])
def test_settings_that_the_metadata_leave_open_are_those_of_numcodecs(
    name, monkeypatch
):
    monkeypatch.setattr(compressing.libdeflate, "find", lambda: None)
    encoded = in_a_chain(f"numcodecs.{name}")
    peer = numcodecs.get_codec({"id": name})
    assert decoded(name, encoded) == DATA.tobytes()
    assert len(encoded) == pytest.approx(len(peer.encode(DATA)), rel=0.1)
    if name == "zstd":
        assert not encoded[4] & 4


@pytest.mark.filterwarnings(NUMCODECS_WARNS)
@pytest.mark.parametrize("level", [3.0, -(1 << 40)])
def test_odd_levels_of_zstd_are_taken(level):
    encoded = in_a_chain("numcodecs.zstd", level=level)
    assert decoded("zstd", encoded) == DATA.tobytes()


@pytest.mark.filterwarnings(NUMCODECS_WARNS)
def test_a_level_of_zstd_that_is_no_number_is_refused():
    with pytest.raises(gpushard.UnsupportedError, match="cannot be encoded"):
        in_a_chain("numcodecs.zstd", level="most")


@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "blosclz", "zlib", "zstd"])
@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
def test_blosc_has_the_bytes_that_zarrs_codec_gives(cname, shuffle):
    codec = BloscCodec(
        cname=cname, shuffle=shuffle, clevel=3, typesize=2, blocksize=1024
    )
    encoded = own("blosc", **codec.to_dict()["configuration"])(DATA)
    assert encoded.tobytes() == bytes(codec._blosc_codec.encode(DATA))


@pytest.fixture
def library(request, monkeypatch):
    """What encodes gzip."""
    if request.param == "zlib":
        monkeypatch.setattr(compressing.libdeflate, "find", lambda: None)
    elif compressing.libdeflate.find() is None:
        pytest.skip("this system has no libdeflate")


@pytest.mark.parametrize("library", ["libdeflate", "zlib"], indirect=True)
@pytest.mark.parametrize("name", ["gzip", "numcodecs.gzip"])
@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.usefixtures("library")
def test_gzip_has_its_level_and_tells_no_time(name, level):
    encoded = own(name, level=level)(DATA)
    assert decoded("gzip", encoded) == DATA.tobytes()
    assert (len(encoded) < len(DATA)) == (level > 0)
    assert not np.any(encoded[4:8])  # RFC 1952: MTIME
    assert len(own(name, level=9)(DATA)) <= len(encoded)


@pytest.mark.parametrize("library", ["libdeflate", "zlib"], indirect=True)
@pytest.mark.usefixtures("library")
def test_threads_encode_gzip_beside_one_another():
    encode = own("gzip", level=5)
    blocks = blocks_of(64, 40_000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encode, blocks))
    assert [decoded("gzip", one) for one in found] == [one.tobytes() for one in blocks]


@pytest.mark.parametrize(("level", "told"), [(10, "level"), (3.0, "integer")])
def test_a_level_that_zlib_lacks_is_refused_by_zlib(level, told):
    assert compressing.libdeflate.gzip_compressor(level) is None
    with pytest.raises(Exception, match=told):
        own("gzip", level=level)(DATA)


def test_zlib_encodes_where_libdeflate_only_decodes(monkeypatch):
    monkeypatch.setattr(compressing.libdeflate, "find", SimpleNamespace)
    assert decoded("gzip", own("gzip", level=5)(DATA)) == DATA.tobytes()


@pytest.mark.parametrize("library", ["libdeflate", "zlib"], indirect=True)
@pytest.mark.usefixtures("library")
def test_no_bytes_are_a_stream_of_gzip_too():
    encoded = own("gzip", level=5)(np.empty(0, np.uint8))
    assert decoded("gzip", encoded) == b""


@pytest.mark.parametrize(
    ("name", "about"), [("lz4", {"acceleration": 3}), ("zlib", {"level": 2})]
)
def test_codecs_of_numcodecs_have_the_bytes_that_it_gives(name, about):
    encoded = own(f"numcodecs.{name}", **about)(DATA)
    assert encoded.tobytes() == numcodecs.get_codec({"id": name, **about}).encode(DATA)


def test_a_checksum_follows_the_bytes():
    encoded = own("crc32c")(np.frombuffer(b"123456789", np.uint8))
    assert encoded.tobytes() == b"123456789" + (0xE3069283).to_bytes(4, "little")


def test_a_checksum_copies_the_bytes_once():
    data = np.zeros(1 << 20, np.uint8)
    tracemalloc.start()
    try:
        own("crc32c")(data)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings(NUMCODECS_WARNS)
@pytest.mark.parametrize("name", ["gzip", "bz2"])  # of our own, and zarr's
def test_a_lack_of_memory_is_not_said_to_be_about_the_values(name, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(compressing.libdeflate, "find", lambda: None)
    monkeypatch.setattr(f"{name}.compress", fail)
    with pytest.raises(MemoryError):
        in_a_chain(f"numcodecs.{name}", level=1)


def test_other_codecs_are_left_to_zarr():
    assert compressor(CodecSpec("numcodecs.bz2", {}, "$"), {"level": 1}) is None


BATCHES = {
    "many small ones": (2000, 300),
    "few large ones": (5, 100_000),
    "one": (1, 100_000),
    "several sizes": (40, None),
}


def blocks_of(n, nbytes):
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9000, n) if nbytes is None else [nbytes] * n
    return [rng.integers(0, 5, size).astype(np.uint8) for size in sizes]


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("batch", BATCHES)
def test_zstd_encodes_a_batch_as_it_does_one_by_one(batch, n_threads):
    spec = CodecSpec("zstd", {}, "$")
    encode = compressor(spec, {"level": 5, "checksum": True})
    blocks = blocks_of(*BATCHES[batch])
    found = encode(EncodedArrays.of(blocks), n_threads).items()
    assert [decoded("zstd", one) for one in found] == [one.tobytes() for one in blocks]
    alone = [encode(EncodedArrays.of([block]), 1).items()[0] for block in blocks]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in alone]


@pytest.mark.parametrize(("n", "n_threads"), [(15, 0), (16, 1), (64, 3)])
def test_zstd_takes_threads_of_which_each_has_64_kib(n, n_threads, monkeypatch):
    usual, asked = zstandard.ZstdCompressor, []

    class Noting:
        def __init__(self, *args, **kwargs):
            self.compress = usual(*args, **kwargs).compress

        def multi_compress_to_buffer(self, batch, threads):
            asked.append(threads)
            return [self.compress(data) for data in batch]

    monkeypatch.setattr(compressing.zstandard, "ZstdCompressor", Noting)
    encode = compressor(CodecSpec("zstd", {}, "$"), {"level": 1, "checksum": False})
    encode(EncodedArrays.of(blocks_of(n, 4096)), 3)
    assert asked == [n_threads]


class Plain:
    """A compressor of zstandard, without the call for batches."""

    _usual = zstandard.ZstdCompressor

    def __init__(self, *args, **kwargs):
        self.compress = self._usual(*args, **kwargs).compress


class Threadless(Plain):
    """One that gets no thread from the system."""

    def multi_compress_to_buffer(self, batch, threads):
        if threads > 1:
            raise zstandard.ZstdError("could not initialize zstd thread pool")
        return [self.compress(data) for data in batch]


@pytest.mark.parametrize("lacking", [Plain, Threadless])
def test_zstd_goes_on_without_threads_and_the_call_for_batches(lacking, monkeypatch):
    encode = compressor(CodecSpec("zstd", {}, "$"), {"level": 1, "checksum": False})
    monkeypatch.setattr(compressing.zstandard, "ZstdCompressor", lacking)
    without = compressor(CodecSpec("zstd", {}, "$"), {"level": 1, "checksum": False})
    blocks = EncodedArrays.of(blocks_of(64, 4096))
    expected = [one.tobytes() for one in encode(blocks, 3).items()]
    assert [one.tobytes() for one in without(blocks, 3).items()] == expected


def test_threads_have_compressors_of_their_own():
    encode = own("zstd", level=5, checksum=True)
    blocks = blocks_of(64, 40_000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encode, blocks))
    assert [decoded("zstd", one) for one in found] == [one.tobytes() for one in blocks]


def test_lz4_refuses_what_is_longer_than_it_can_encode():
    # The memory is never touched.
    with pytest.raises(ValueError, match="LZ4 encodes at most 2113929216 bytes"):
        own("numcodecs.lz4", acceleration=1)(np.zeros((1 << 32) + 16, np.uint8))
