"""Codec chains, from the bytes that zarr-python wrote to inner chunks."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import zarr
import zstandard
from numpy.typing import NDArray
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)

from gpushard.codecs.blosc_frame import parse_header
from gpushard.codecs.wrapping import ObjectCodecs
from gpushard.errors import CorruptShardError, MetadataError, UnsupportedError
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.pipeline import HostPipeline, NoRoomError

BYTES_LE = CodecSpec("bytes", {"endian": "little"}, "codecs[0]")
BYTES_BE = CodecSpec("bytes", {"endian": "big"}, "codecs[0]")
RNG = np.random.default_rng(3)


def compiled(
    dtype: Any,
    *bytes_bytes: str,
    array_array: tuple[CodecSpec, ...] = (),
    array_bytes: CodecSpec = BYTES_LE,
) -> HostPipeline:
    chain = CodecChain(
        array_array, array_bytes, tuple(CodecSpec(name) for name in bytes_bytes)
    )
    elements = Elements(np.dtype(dtype), None, 0, np.zeros((), dtype))
    return HostPipeline.compile(chain, elements)


def transpose(*order: int) -> CodecSpec:
    return CodecSpec("transpose", {"order": list(order)}, "codecs[0]")


def crc(data: bytes) -> bytes:
    return data + google_crc32c.value(data).to_bytes(4, "little")


def written(array: NDArray[Any], **codecs: Any) -> tuple[bytes, HostPipeline]:
    """One chunk as zarr-python writes it, and the pipeline of its metadata."""
    store: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types and codecs without specification
        stored = zarr.create_array(
            zarr.storage.MemoryStore(store),
            shape=array.shape,
            chunks=array.shape,
            dtype=array.dtype,
            config={"write_empty_chunks": True},
            **codecs,
        )
        stored[...] = array
        document = stored.metadata.to_dict()
    key = "/".join(["c", *("0" * array.ndim)])
    return store[key].to_bytes(), pipeline_of(document, array.dtype)


def pipeline_of(document: dict[str, Any], dtype: np.dtype[Any]) -> HostPipeline:
    specs = [
        CodecSpec(entry["name"], entry.get("configuration", {}), f"codecs[{k}]")
        for k, entry in enumerate(document["codecs"])
    ]
    serializer = next(
        k
        for k, spec in enumerate(specs)
        if spec.name == "bytes" or spec.name.startswith("vlen")
    )
    chain = CodecChain(
        tuple(specs[:serializer]), specs[serializer], tuple(specs[serializer + 1 :])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spelled = document["data_type"], document["fill_value"]
        elements = Elements(dtype, *spelled, np.zeros((), dtype))
        return HostPipeline.compile(chain, elements)


COMPRESSORS = {
    "none": [],
    "zstd": [ZstdCodec(level=3)],
    "zstd checksum": [ZstdCodec(level=1, checksum=True)],
    "gzip": [GzipCodec(level=5)],
    "blosc": [BloscCodec(cname="lz4")],
    "crc32c": [Crc32cCodec()],
    "zstd, crc32c": [ZstdCodec(), Crc32cCodec()],
    "crc32c, zstd": [Crc32cCodec(), ZstdCodec()],
    "gzip, zstd, blosc": [GzipCodec(), ZstdCodec(), BloscCodec()],
}


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("shape", [(), (1,), (7, 11), (2, 3, 4, 5)])
def test_chunk_that_zarr_wrote_is_read(name: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(RNG.integers(0, 1000, shape, dtype=np.int32))
    encoded, pipeline = written(array, compressors=COMPRESSORS[name])
    for data in (encoded, memoryview(encoded), np.frombuffer(encoded, np.uint8)):
        np.testing.assert_array_equal(pipeline.decode(data, shape), array, strict=True)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("second", [None, (1, 0, 2), (2, 0, 1)])
def test_transposes_of_zarr_are_undone(
    order: tuple[int, ...], second: tuple[int, ...] | None
) -> None:
    array = RNG.integers(0, 1000, (2, 3, 4))
    filters = [TransposeCodec(order=o) for o in (order, second) if o is not None]
    encoded, pipeline = written(array, filters=filters, compressors=[])
    np.testing.assert_array_equal(pipeline.decode(encoded, (2, 3, 4)), array)
    assert pipeline.is_raw
    stored_axes = pipeline.axis_order(3)
    payload = np.frombuffer(encoded, pipeline.stored_dtype)
    stored = payload.reshape([array.shape[axis] for axis in stored_axes])
    np.testing.assert_array_equal(stored, array.transpose(stored_axes))


def sample(dtype: str, shape: tuple[int, ...] = (5, 4)) -> NDArray[Any]:
    wanted = np.dtype(dtype)
    n = int(np.prod(shape))
    if wanted.kind == "b":
        return (np.arange(n) % 3 == 0).reshape(shape)
    if wanted.kind in "US":
        words = [f"a{k}é" if wanted.kind == "U" else f"a{k}" for k in range(n)]
        return np.array(words).astype(wanted).reshape(shape)
    if wanted.kind == "V":
        raw = RNG.integers(0, 256, n * wanted.itemsize, dtype=np.uint8)
        return raw.view(wanted).reshape(shape)
    if wanted.kind in "mM":
        return np.arange(n).astype(wanted).reshape(shape)
    values = RNG.integers(0, 100, n) + (1j if wanted.kind == "c" else 0)
    return values.astype(wanted).reshape(shape)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    "dtype",
    [
        "?",
        "i1",
        "u1",
        "i2",
        "u4",
        "i8",
        "f2",
        "f4",
        "f8",
        "c8",
        "c16",
        "M8[s]",
        "m8[ns]",
        "U5",
        "S7",
        "V3",
    ],
)
def test_data_types_in_both_byte_orders_equal_zarrs(dtype: str, endian: Any) -> None:
    array = sample(dtype)
    serializer = BytesCodec(endian=endian)
    for compressors in ([], [ZstdCodec()]):
        encoded, pipeline = written(
            array, serializer=serializer, compressors=compressors
        )
        decoded = pipeline.decode(encoded, array.shape)
        assert decoded.astype(array.dtype).tobytes() == array.tobytes()
        if pipeline.is_raw:
            viewed = np.frombuffer(encoded, pipeline.stored_dtype).astype(array.dtype)
            assert viewed.tobytes() == array.tobytes()


def test_raw_chain_gives_a_view_on_the_payload() -> None:
    payload = np.arange(24, dtype="<i4").tobytes()
    decoded = compiled("<i4", array_array=(transpose(1, 0),)).decode(payload, (4, 6))
    assert np.shares_memory(decoded, np.frombuffer(payload, np.uint8))


@pytest.mark.parametrize("endian", ["little", "big"])
def test_struct_fields_have_the_byte_order_of_the_codec(endian: str) -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<u2", (2,))])
    array = np.zeros(6, dtype)
    array["a"], array["b"], array["c"] = range(6), np.linspace(0, 1, 6), b"xyz"
    array["d"] = [[1, 2]] * 6
    spec = CodecSpec("bytes", {"endian": endian})
    encoded = array.astype(dtype.newbyteorder(endian)).tobytes()
    decoded = compiled(dtype, array_bytes=spec).decode(encoded, (6,))
    assert decoded.astype(dtype).tobytes() == array.tobytes()
    if endian == "little":  # what zarr assumes where nothing is said
        silent = compiled(dtype, array_bytes=CodecSpec("bytes"))
        assert silent.decode(encoded, (6,)).tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("spec", [BYTES_LE, BYTES_BE])
def test_small_floats_are_read_in_both_byte_orders(name: str, spec: CodecSpec) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(12).astype(dtype).reshape(3, 4)
    stored = array.view(f"u{dtype.itemsize}")
    order = ">" if spec is BYTES_BE else "<"
    encoded = stored.astype(stored.dtype.newbyteorder(order)).tobytes()
    pipeline = compiled(dtype, array_bytes=spec)
    decoded = pipeline.decode(encoded, (3, 4))
    assert decoded.dtype == dtype
    assert decoded.tobytes() == array.tobytes()
    assert pipeline.is_raw == (order == "<" or dtype.itemsize == 1)


def test_bytes_that_are_no_bools_become_true() -> None:
    pipeline = compiled("?", array_bytes=CodecSpec("bytes"))
    decoded = pipeline.decode(bytes([0, 1, 2, 255]), (4,))
    assert decoded.dtype == np.bool_
    assert decoded.view(np.uint8).tolist() == [0, 1, 1, 1]
    assert pipeline.stored_dtype == np.uint8


def test_bits_of_a_signalling_nan_survive() -> None:
    payload = bytes.fromhex("0100a07f" * 4)
    for spec, expected in ((BYTES_LE, payload), (BYTES_BE, payload[::-1])):
        decoded = compiled("f4", array_bytes=spec).decode(
            payload if spec is BYTES_LE else expected, (4,)
        )
        native = np.empty(4, "<f4")
        native[...] = decoded
        assert native.tobytes() == payload


@pytest.mark.parametrize("nbytes", [0, 1, 95, 97, 192])
@pytest.mark.parametrize("wrapped", [False, True])
def test_payload_of_a_wrong_size_is_an_error(nbytes: int, wrapped: bool) -> None:
    payload = bytes(nbytes)
    names = ("zstd",) if wrapped else ()
    data = zstandard.ZstdCompressor().compress(payload) if wrapped else payload
    with pytest.raises(CorruptShardError) as caught:
        compiled("<i4", *names).decode(data, (4, 6))
    assert caught.value.codec == ("zstd" if wrapped else "bytes")


def test_chunks_of_different_shapes_go_through_one_pipeline() -> None:
    pipeline = compiled("<i2", array_array=(transpose(1, 0),))
    for _ in range(2):
        for shape in [(2, 3), (3, 2), (1, 6), (0, 4), *((k, 2) for k in range(300))]:
            array = np.arange(shape[0] * shape[1], dtype="<i2").reshape(shape)
            decoded = pipeline.decode(array.T.tobytes(), shape)
            np.testing.assert_array_equal(decoded, array)


def test_sizes_that_are_known_beforehand() -> None:
    assert compiled("<i4").payload_nbytes((3, 4)) == 48
    assert compiled("<i4", "crc32c").payload_nbytes((3, 4)) == 52
    assert compiled("<i4", "crc32c", "crc32c").payload_nbytes(()) == 12
    assert compiled("<i4", "zstd").payload_nbytes((3, 4)) is None
    assert compiled("<i4", "zstd", "crc32c").payload_nbytes((3, 4)) is None
    packed = compiled("?", array_array=(CodecSpec("numcodecs.packbits"),))
    assert packed.payload_nbytes((3, 4)) == 3
    assert compiled("<i4", "crc32c").encoded_limit((3, 4)) == 52
    assert compiled("<i4", "zstd").encoded_limit((256, 256)) == 2**19 + 2**16
    delta = CodecSpec("numcodecs.delta", {"dtype": "<i4"}, "codecs[0]")
    checked = compiled("i4", "crc32c", "zstd", array_array=(delta,))
    assert checked.working_nbytes((100,)) == 404 + 400  # the checksum copies nothing


@pytest.mark.parametrize("endian", ["little", "big"])
def test_index_chain_is_decoded(endian: str) -> None:
    index = np.arange(24, dtype=np.uint64).reshape(3, 4, 2)
    index[1, 1] = 2**64 - 1
    spec = CodecSpec("bytes", {"endian": endian})
    pipeline = compiled(np.uint64, "crc32c", array_bytes=spec)
    encoded = crc(index.astype(index.dtype.newbyteorder(endian)).tobytes())
    assert pipeline.payload_nbytes((3, 4, 2)) == len(encoded)
    np.testing.assert_array_equal(pipeline.decode(encoded, (3, 4, 2)), index)


def test_only_plain_elements_are_raw() -> None:
    assert compiled("<i4").is_raw
    assert compiled("<i4", array_array=(transpose(1, 0),)).is_raw
    assert compiled("<i4", array_bytes=BYTES_BE).stored_dtype == np.dtype(">i4")
    assert not compiled("<i4", "crc32c").is_raw
    assert not compiled("<i4", "zstd").is_raw
    delta = CodecSpec("numcodecs.delta", {"dtype": "<i4"})
    assert not compiled("<i4", array_array=(delta,)).is_raw


def test_filters_after_a_transpose_and_in_big_endian() -> None:
    array = np.cumsum(np.arange(12)).astype("<i4").reshape(3, 4)
    delta = CodecSpec("numcodecs.delta", {"dtype": "<i4", "astype": "<i2"})
    turned = np.ascontiguousarray(array.T)
    encoded = np.diff(turned.ravel(), prepend=0).astype(">i2").tobytes()
    pipeline = compiled(
        "<i4", array_array=(transpose(1, 0), delta), array_bytes=BYTES_BE
    )
    decoded = pipeline.decode(encoded, (3, 4))
    np.testing.assert_array_equal(decoded, array, strict=True)


def test_transpose_after_a_filter_is_undone_first() -> None:
    array = np.cumsum(np.arange(12)).astype("<i4").reshape(3, 4)
    delta = CodecSpec("numcodecs.delta", {"dtype": "<i4"})
    filtered = np.diff(array.ravel(), prepend=0).astype("<i4").reshape(3, 4)
    pipeline = compiled("<i4", array_array=(delta, transpose(1, 0)))
    decoded = pipeline.decode(filtered.T.tobytes(), (3, 4))
    np.testing.assert_array_equal(decoded, array, strict=True)


def test_transposes_before_and_after_packed_bits_are_undone() -> None:
    array = np.arange(21).reshape(3, 7) % 3 == 0
    encoded = bytes([-21 % 8]) + np.packbits(array.T.ravel()).tobytes()
    chain = transpose(1, 0), CodecSpec("numcodecs.packbits"), transpose(0)
    decoded = compiled("?", array_array=chain).decode(encoded, (3, 7))
    np.testing.assert_array_equal(decoded, array, strict=True)


def test_placements_name_every_codec_in_decoding_order() -> None:
    pipeline = compiled("<i4", "zstd", "crc32c", array_array=(transpose(1, 0),))
    placements = pipeline.placements()
    names = [placement.codec for placement in placements]
    assert names == ["crc32c", "zstd", "bytes", "transpose"]
    assert {placement.where for placement in placements} == {"host"}
    assert placements[1].library.startswith("zstandard 0")


@pytest.mark.parametrize(
    ("dtype", "spec", "error"),
    [
        ("<i4", CodecSpec("bytes", {}, "codecs[0]"), MetadataError),
        ("O", BYTES_LE, UnsupportedError),
        (np.dtypes.StringDType(), BYTES_LE, UnsupportedError),
        (np.dtype([("a", ml_dtypes.bfloat16)]), BYTES_BE, UnsupportedError),
    ],
)
def test_bytes_codec_that_cannot_hold_the_elements_is_refused(
    dtype: Any, spec: CodecSpec, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"codecs\[0\]"):
        compiled(dtype, array_bytes=spec)


def test_unknown_codecs_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="no-such-codec"):
        compiled("<i4", "no-such-codec")


def test_object_codecs_are_undone_last_to_first() -> None:
    raw = RNG.integers(0, 4, 5000, dtype=np.uint8).tobytes()
    encoded = zstandard.ZstdCompressor().compress(crc(raw))
    specs = (CodecSpec("crc32c"), CodecSpec("zstd"))
    assert bytes(ObjectCodecs(specs).decode(encoded, 5000)) == raw
    assert bytes(ObjectCodecs(specs).decode(encoded, 50_000)) == raw
    assert bytes(ObjectCodecs(()).decode(raw, 5000)) == raw
    with pytest.raises(CorruptShardError, match="at most"):
        ObjectCodecs(specs).decode(encoded, 4999)


def test_a_part_that_no_decoder_takes_alone_needs_room_for_all() -> None:
    array = np.arange(1 << 16, dtype="i4").reshape(256, 256)
    codec = BloscCodec(typesize=4, cname="lz4", shuffle="shuffle", blocksize=8192)
    data, pipeline = written(array, compressors=[codec])
    encoded = np.frombuffer(data, np.uint8)
    working = pipeline.working_nbytes(array.shape)
    block = parse_header(encoded, "blosc").block_nbytes
    assert pipeline.holds_ranges
    parts = [((0, 4096), 3 * block), ((block, 2 * block), 3 * block)]
    for wanted, needed in [*parts, ((0, array.nbytes), working)]:
        with pytest.raises(NoRoomError) as caught:
            pipeline.decode(encoded, array.shape, wanted, needed - 1)
        assert caught.value.nbytes == needed
        found = pipeline.decode(encoded, array.shape, wanted, needed)
        part = slice(wanted[0] // 4, wanted[1] // 4)
        np.testing.assert_array_equal(found.reshape(-1)[part], array.reshape(-1)[part])


def test_threads_share_a_pipeline() -> None:
    pipeline = compiled("<i4", "zstd", "crc32c")
    compressor = zstandard.ZstdCompressor()
    arrays = [RNG.integers(0, 9, (k + 1, 500)).astype("<i4") for k in range(8)]
    streams = [crc(compressor.compress(array.tobytes())) for array in arrays]

    def decode_all(shift: int) -> bool:
        turns = [(k + shift) % 8 for k in range(200)]
        return all(
            np.array_equal(pipeline.decode(streams[k], arrays[k].shape), arrays[k])
            for k in turns
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode_all, range(4)))
