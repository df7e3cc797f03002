"""crc32c, lz4, shuffle, transposes and numcodecs' filters, one codec at a time."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest

from gpushard import codecs
from gpushard.codecs.base import ArrayCodec, BytesCodec
from gpushard.errors import ChecksumError, CorruptShardError, MetadataError
from gpushard.layout import CodecSpec
from spec_shards import document, opened, shard_of, sharding

RAW = np.cumsum(np.arange(3000) % 7).astype("<i4").tobytes()


def bytes_codec(name: str, /, **configuration: Any) -> BytesCodec:
    spec = CodecSpec(name, configuration, "codecs[1]")
    return codecs.bytes_codec(spec)


def array_codec(name: str, dtype: str, /, **configuration: Any) -> ArrayCodec:
    spec = CodecSpec(name, configuration, "codecs[0]")
    codec = codecs.array_codec(spec, dtype_of(dtype))
    assert codec is not None
    return codec


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def test_crc32c_known_answer_is_verified_and_cut_off() -> None:
    # RFC 3720 B.4: 32 bytes of zeros have the checksum aa 36 91 8a.
    stream = bytes(32) + bytes.fromhex("aa36918a")
    assert bytes(bytes_codec("crc32c").decode(stream, 32, exact=True)) == bytes(32)


def test_crc32c_of_another_library_is_verified() -> None:
    stream = RAW + struct.pack("<I", google_crc32c.value(RAW))
    data = np.frombuffer(stream, np.uint8)
    decoded = bytes_codec("crc32c").decode(data, 20_000, exact=False)
    assert bytes(decoded) == RAW


def test_wrong_crc32c_shows_both_values() -> None:
    with pytest.raises(ChecksumError) as caught:
        bytes_codec("crc32c").decode(bytes(36), 32, exact=True)
    assert caught.value.expected == "0x00000000"
    assert caught.value.got == "0x8a9136aa"


@pytest.mark.parametrize("nbytes", [0, 3, 35, 37])
def test_crc32c_of_a_wrong_size_is_an_error(nbytes: int) -> None:
    with pytest.raises(CorruptShardError):
        bytes_codec("crc32c").decode(bytes(nbytes), 32, exact=True)


def test_lz4_of_numcodecs_is_read() -> None:
    stream = numcodecs.LZ4().encode(RAW)
    codec = bytes_codec("numcodecs.lz4")
    assert bytes(codec.decode(stream, len(RAW), exact=True)) == RAW
    assert bytes(codec.decode(stream, 2 * len(RAW), exact=False)) == RAW
    assert bytes(codec.decode(numcodecs.LZ4().encode(b""), 0, exact=True)) == b""


@pytest.mark.parametrize("claim", [0, 11_999, 12_001, (1 << 31) - 1, (1 << 32) - 1])
def test_lz4_claim_of_another_size_is_an_error(claim: int) -> None:
    stream = struct.pack("<I", claim) + bytes(numcodecs.LZ4().encode(RAW))[4:]
    for exact in (True, False):
        with pytest.raises(CorruptShardError):
            bytes_codec("numcodecs.lz4").decode(stream, len(RAW), exact=exact)


def test_lz4_without_literals_that_claims_bytes_is_an_error() -> None:
    with pytest.raises(CorruptShardError):
        bytes_codec("numcodecs.lz4").decode(struct.pack("<IB", 5, 0), 5, exact=True)


def test_lz4_of_more_bytes_than_accepted_is_an_error() -> None:
    stream = numcodecs.LZ4().encode(RAW)
    with pytest.raises(CorruptShardError, match="at most 11999"):
        bytes_codec("numcodecs.lz4").decode(stream, len(RAW) - 1, exact=False)


@pytest.mark.parametrize("nbytes", [0, 3, 4])
def test_lz4_without_a_block_is_an_error(nbytes: int) -> None:
    with pytest.raises(CorruptShardError):
        bytes_codec("numcodecs.lz4").decode(bytes(nbytes), 0, exact=True)


@pytest.mark.parametrize("element_nbytes", [1, 2, 4, 3])
def test_shuffle_of_numcodecs_is_undone(element_nbytes: int) -> None:
    stream = numcodecs.Shuffle(element_nbytes).encode(np.frombuffer(RAW, "u1"))
    codec = bytes_codec("numcodecs.shuffle", elementsize=element_nbytes)
    decoded = codec.decode(stream.tobytes(), len(RAW), exact=True)
    assert bytes(decoded) == RAW
    assert codec.encoded_nbytes(10) == 10


@pytest.mark.parametrize(("nbytes", "exact"), [(8, True), (16, True), (16, False)])
def test_shuffle_of_a_wrong_size_is_an_error(nbytes: int, exact: bool) -> None:
    codec = bytes_codec("numcodecs.shuffle", elementsize=4)
    with pytest.raises(CorruptShardError, match="wrong size"):
        codec.decode(bytes(nbytes), 12, exact=exact)


def test_shuffle_of_half_an_element_is_an_error() -> None:
    codec = bytes_codec("numcodecs.shuffle", elementsize=4)
    with pytest.raises(CorruptShardError, match="whole elements"):
        codec.decode(bytes(6), 6, exact=True)


def test_a_shuffle_around_a_shard_has_items_of_the_size_of_an_element() -> None:
    elements = np.arange(8, dtype="<i4")
    shard = shard_of(*(elements[i : i + 2].tobytes() for i in range(0, 8, 2)))
    shuffle = numcodecs.Shuffle(4)
    stored = shuffle.encode(np.frombuffer(shard, "u1")).tobytes()
    chain = [sharding((2,)), {"name": "numcodecs.shuffle"}]
    array = opened(document((8,), (8,), *chain, dtype="int32"), **{"0": stored})
    assert array[:].tolist() == elements.tolist()
    array[:] = elements + 1
    told = array.source.store.get("c/0") or b""
    assert (elements + 1).tobytes() in shuffle.decode(told).tobytes()


@pytest.mark.parametrize("element_nbytes", [0, -1, "4", 2.0, True])
def test_shuffle_of_a_senseless_element_size_is_refused(element_nbytes: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        bytes_codec("numcodecs.shuffle", elementsize=element_nbytes)
    assert caught.value.json_path == "codecs[1].configuration.elementsize"


def test_transpose_gives_a_view_in_the_decoded_axes() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    codec = array_codec("transpose", "i8", order=[2, 0, 1])
    encoded = array.transpose(2, 0, 1).copy()
    assert codec.encoded_spec((2, 3, 4), array.dtype) == ((4, 2, 3), array.dtype)
    decoded = codec.decode(encoded, (2, 3, 4), array.dtype)
    assert np.shares_memory(decoded, encoded)
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize(
    ("dtype", "astype"), [("<i4", None), ("<i4", "<i2"), ("<u2", "<u2"), ("<f4", None)]
)
def test_delta_of_numcodecs_is_undone(dtype: str, astype: str | None) -> None:
    array = (np.cumsum(np.arange(60) % 5).astype(dtype)).reshape(6, 10)
    encoded = numcodecs.Delta(dtype, astype).encode(array)
    configuration = {"dtype": dtype} | ({"astype": astype} if astype else {})
    codec = array_codec("numcodecs.delta", dtype, **configuration)
    shape, encoded_dtype = codec.encoded_spec((6, 10), array.dtype)
    assert shape == (6, 10)
    assert encoded_dtype == encoded.dtype
    decoded = codec.decode(encoded.reshape(6, 10), (6, 10), array.dtype)
    np.testing.assert_array_equal(decoded, array, strict=True)


def test_delta_runs_in_c_order_whatever_the_memory_order() -> None:
    array = np.arange(12, dtype="<i4").reshape(3, 4) ** 2
    encoded = numcodecs.Delta("<i4").encode(array).reshape(3, 4)
    codec = array_codec("numcodecs.delta", "<i4", dtype="<i4")
    decoded = codec.decode(np.asfortranarray(encoded), (3, 4), array.dtype)
    np.testing.assert_array_equal(decoded, array)


def test_fixedscaleoffset_of_numcodecs_is_undone() -> None:
    array = np.linspace(1000, 1001, 30).reshape(5, 6)
    reference = numcodecs.FixedScaleOffset(1000, 100, "<f8", "u1")
    codec = array_codec(
        "numcodecs.fixedscaleoffset", "<f8", offset=1000, scale=100, astype="u1"
    )
    encoded = reference.encode(array)
    assert codec.encoded_spec((5, 6), array.dtype) == ((5, 6), np.dtype("u1"))
    decoded = codec.decode(encoded.reshape(5, 6), (5, 6), array.dtype)
    expected = reference.decode(encoded).reshape(5, 6)
    np.testing.assert_array_equal(decoded, expected, strict=True)


def test_bitround_has_nothing_to_decode() -> None:
    array = np.linspace(0, 1, 12, dtype="<f4").reshape(3, 4)
    encoded = numcodecs.BitRound(3).encode(array).view("<f4")
    codec = array_codec("numcodecs.bitround", "<f4", keepbits=3)
    assert codec.decode(encoded, (3, 4), array.dtype) is encoded


@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 5), (4, 8), (0, 3)])
def test_packbits_of_numcodecs_is_undone(shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 3 == 0)
    codec = array_codec("numcodecs.packbits", "?")
    encoded = numcodecs.PackBits().encode(array)
    assert codec.encoded_spec(shape, array.dtype) == (encoded.shape, encoded.dtype)
    decoded = codec.decode(encoded, shape, array.dtype)
    np.testing.assert_array_equal(decoded, array, strict=True)


@pytest.mark.parametrize("padding", [0, 2, 8, 255])
def test_packbits_with_a_wrong_padding_is_an_error(padding: int) -> None:
    encoded = np.array([padding, 0, 0], np.uint8)
    codec = array_codec("numcodecs.packbits", "?")
    with pytest.raises(CorruptShardError, match="padding"):
        codec.decode(encoded, (3, 5), np.dtype(bool))


@pytest.mark.parametrize(
    ("name", "dtype", "configuration"),
    [
        ("numcodecs.delta", "<i4", {"dtype": "no such type"}),
        ("numcodecs.delta", "<i4", {"dtype": "O"}),
        ("numcodecs.delta", "<i4", {"dtype": "<U4"}),
        ("numcodecs.delta", "<i4", {"dtype": "<i4", "astype": 5}),
        ("numcodecs.delta", "<i4", {"dtype": "<i4", "nonsense": 5}),
        ("numcodecs.fixedscaleoffset", "<f4", {"scale": 1}),
        ("numcodecs.fixedscaleoffset", "<f4", {"scale": "1", "offset": 0}),
        ("numcodecs.fixedscaleoffset", "<f4", {"scale": 1, "offset": True}),
        ("numcodecs.packbits", "<i4", {}),
        ("numcodecs.bitround", "<i4", {"keepbits": 3}),
    ],
)
def test_filter_that_cannot_be_configured_is_refused(
    name: str, dtype: str, configuration: dict[str, Any]
) -> None:
    with pytest.raises(MetadataError) as caught:
        array_codec(name, dtype, **configuration)
    assert caught.value.json_path == "codecs[0].configuration"
    assert caught.value.codec == name


@pytest.mark.parametrize(
    ("dtype", "named"),
    [("<f4", "<i4"), ("<i4", "<f4"), ("<i4", "<i2"), ("S4", "<i4"), ("<c8", "<i8")],
)
def test_filter_of_another_data_type_is_refused(dtype: str, named: str) -> None:
    with pytest.raises(MetadataError) as caught:
        array_codec("numcodecs.delta", dtype, dtype=named)
    assert caught.value.json_path == "codecs[0].configuration.dtype"


def test_filter_of_an_equivalent_data_type_needs_room_for_a_cast() -> None:
    booleans = dtype_of("?")
    plain = array_codec("numcodecs.delta", "u1", dtype="u1")
    assert plain.working_nbytes(100, dtype_of("u1")) == 100
    cast = array_codec("numcodecs.delta", "?", dtype="u1")
    assert cast.working_nbytes(100, booleans) == 200


def test_damaged_elements_of_a_filter_raise_no_warning() -> None:
    codec = array_codec(
        "numcodecs.fixedscaleoffset", "<i4", offset=0, scale=1e-300, astype="<f8"
    )
    encoded = np.array([np.nan, np.inf, 1e300])
    assert codec.decode(encoded, (3,), np.dtype("<i4")).shape == (3,)
