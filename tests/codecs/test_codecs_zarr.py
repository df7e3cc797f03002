"""Codecs that only zarr knows, through zarr's own objects."""

from __future__ import annotations

import json
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import Adler32
from numcodecs.errors import UnknownCodecError
from numpy.typing import NDArray
from packaging.version import Version
from zarr.abc.codec import ArrayArrayCodec
from zarr.codecs import BytesCodec
from zarr.core.buffer import cpu
from zarr.registry import get_codec_class, register_codec

import gpushard
from gpushard import codecs
from gpushard.codecs import zarr_codec
from gpushard.errors import CorruptShardError, MetadataError, UnsupportedError
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.pipeline import HostPipeline

# zarr warns of every codec and data type that has no specification yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

SERIALIZERS = ("bytes", "vlen-utf8", "vlen-bytes", "sharding_indexed")
RNG = np.random.default_rng(4)


def chain_of(document: dict[str, Any]) -> CodecChain:
    specs = [
        CodecSpec(entry["name"], entry.get("configuration", {}), f"codecs[{k}]")
        for k, entry in enumerate(document["codecs"])
    ]
    serializer = next(k for k, s in enumerate(specs) if s.name in SERIALIZERS)
    return CodecChain(
        tuple(specs[:serializer]), specs[serializer], tuple(specs[serializer + 1 :])
    )


def written(
    array: NDArray[Any], dtype: Any = None, **options: Any
) -> tuple[bytes, HostPipeline]:
    """One chunk as zarr-python writes it, and the pipeline of its metadata."""
    store: dict[str, Any] = {}
    options = {"compressors": []} | options
    stored = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=array.shape,
        chunks=options.pop("chunks", array.shape),
        dtype=array.dtype if dtype is None else dtype,
        config={"write_empty_chunks": True},
        **options,
    )
    stored[...] = array
    document = json.loads(store["zarr.json"].to_bytes())
    key = "/".join(["c", *("0" * array.ndim)])
    spelled = document["data_type"], document["fill_value"]
    elements = Elements(array.dtype, *spelled, np.zeros((), array.dtype))
    pipeline = HostPipeline.compile(chain_of(document), elements)
    return store[key].to_bytes(), pipeline


def codec(name: str, **configuration: Any) -> Any:
    """zarr's codec object of that name, wherever the installed version keeps it."""
    document: Any = {"name": name, "configuration": configuration}
    return get_codec_class(name).from_dict(document)


STRINGS = np.array([["", "a", "zwölf"], ["x" * 300, "日本", "\0"]], dtype=object)


@pytest.mark.parametrize("compressed", [False, True])
def test_strings_of_variable_length_are_read(compressed: bool) -> None:
    options = {"compressors": "auto"} if compressed else {}
    array = STRINGS.astype(np.dtypes.StringDType())
    encoded, pipeline = written(array, dtype=str, **options)
    assert not pipeline.is_raw
    assert pipeline.payload_nbytes((2, 3)) is None
    decoded = pipeline.decode(encoded, (2, 3))
    assert decoded.shape == (2, 3)
    assert decoded.tolist() == STRINGS.tolist()


@pytest.mark.parametrize("count", [0, 5, 7, 2**32 - 1])
def test_strings_that_claim_another_count_are_refused(count: int) -> None:
    array = STRINGS.astype(np.dtypes.StringDType())
    encoded, pipeline = written(array, dtype=str)
    damaged = struct.pack("<I", count) + encoded[4:]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError, match="number of items"):
            pipeline.decode(damaged, (2, 3))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


array_codecs = pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("numcodecs.quantize", {"digits": 2, "dtype": "<f4"}),
        pytest.param(
            "numcodecs.astype",
            {"encode_dtype": "<f8", "decode_dtype": "<f4"},
            marks=pytest.mark.skipif(
                Version(zarr.__version__) < Version("3.1.1"),
                reason="zarr 3.1.0 gives its own bytes codec a data type it refuses",
            ),
        ),
    ],
)


@array_codecs
def test_array_codec_of_zarr_is_undone(name: str, configuration: Any) -> None:
    array = np.round(RNG.random((4, 6), dtype=np.float32), 1)
    encoded, pipeline = written(array, filters=[codec(name, **configuration)])
    decoded = pipeline.decode(encoded, (4, 6))
    np.testing.assert_allclose(decoded, array, atol=0.01)
    assert pipeline.placements()[0].why == "only zarr decodes this codec"
    assert pipeline.working_nbytes((4, 6)) == 3 * len(encoded)


def test_codecs_of_zarr_are_fitted_once_to_a_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = CodecSpec("numcodecs.quantize", {"digits": 1, "dtype": "<f4"}, "codecs[0]")
    pipeline = compiled("float32", spec)
    fitted: list[tuple[int, ...]] = []
    plain = zarr_codec.fit

    def fit(spec: CodecSpec, codec: Any, array: Any) -> Any:
        fitted.append(array.shape)
        return plain(spec, codec, array)

    monkeypatch.setattr(zarr_codec, "fit", fit)
    for n in (4, 3, 4):
        assert pipeline.payload_nbytes((n,)) == 4 * n
        assert pipeline.working_nbytes((n,)) == 12 * n
        assert pipeline.decode(bytes(4 * n), (n,)).tolist() == [0] * n
    assert fitted == [(4,), (4,), (3,), (3,)]  # quantize and bytes


@array_codecs
def test_elements_get_the_byte_order_that_a_codec_of_zarr_assumes(
    name: str, configuration: Any
) -> None:
    array = np.round(RNG.random((4, 6), dtype=np.float32), 1)
    filters, serializer = [codec(name, **configuration)], BytesCodec(endian="big")
    encoded, pipeline = written(array, filters=filters, serializer=serializer)
    stored = np.frombuffer(encoded, f">f{len(encoded) // 24}").reshape(4, 6)
    np.testing.assert_allclose(stored, array, atol=0.01)
    np.testing.assert_allclose(pipeline.decode(encoded, (4, 6)), array, atol=0.01)


@pytest.mark.parametrize("name", ["crc32", "adler32"])
def test_checksum_codec_of_zarr_is_verified(name: str) -> None:
    array = RNG.integers(0, 9, (4, 6))
    encoded, pipeline = written(array, compressors=[codec(f"numcodecs.{name}")])
    np.testing.assert_array_equal(pipeline.decode(encoded, (4, 6)), array)
    damaged = bytearray(encoded)
    damaged[20] ^= 1
    with pytest.raises(CorruptShardError):
        pipeline.decode(damaged, (4, 6))
    with pytest.raises(CorruptShardError, match="wrong size"):
        pipeline.decode(encoded, (4, 5))


def test_a_codec_of_zarr_decodes_to_no_other_size_than_allowed() -> None:
    raw = bytes(range(100))
    checksum = codecs.bytes_codec(CodecSpec("numcodecs.adler32"))
    encoded = bytes(Adler32().encode(raw))
    assert bytes(checksum.decode(encoded, 101, exact=False)) == raw
    for limit, exact in ((99, False), (99, True), (101, True)):
        with pytest.raises(CorruptShardError, match=f"{limit} bytes"):
            checksum.decode(encoded, limit, exact=exact)


def test_sharding_codec_as_a_leaf_is_read_by_zarr() -> None:
    array = RNG.integers(0, 9, (8, 6))
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = codec(
        "sharding_indexed",
        chunk_shape=[2, 2],  # of equal sides: zarr validates it before it transposes
        codecs=[little, {"name": "crc32c"}],
        index_codecs=[little, {"name": "crc32c"}],
    )
    transpose = codec("transpose", order=[1, 0])
    encoded, pipeline = written(
        array, filters=[transpose], serializer=sharding, compressors="auto"
    )
    np.testing.assert_array_equal(pipeline.decode(encoded, (8, 6)), array)
    names = [placement.codec for placement in pipeline.placements()]
    assert names == ["zstd", "sharding_indexed", "transpose"]
    with pytest.raises(CorruptShardError):
        pipeline.decode(encoded[:-1], (8, 6))


def test_threads_share_a_codec_of_zarr() -> None:
    array = STRINGS.astype(np.dtypes.StringDType())
    encoded, pipeline = written(array, dtype=str)

    def decode_all(_: int) -> bool:
        return all(
            pipeline.decode(encoded, (2, 3)).tolist() == STRINGS.tolist()
            for _ in range(25)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode_all, range(4)))


def compiled(data_type: Any, *array_array: CodecSpec) -> HostPipeline:
    chain = CodecChain(array_array, CodecSpec("bytes", {"endian": "little"}), ())
    elements = Elements(np.dtype("f4"), data_type, 0, np.zeros((), "f4"))
    return HostPipeline.compile(chain, elements)


def test_unknown_array_codec_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="no-such-codec") as caught:
        compiled("float32", CodecSpec("no-such-codec", {}, "codecs[0]"))
    assert caught.value.json_path == "codecs[0]"


def test_data_type_that_zarr_does_not_know_is_refused() -> None:
    spec = CodecSpec("numcodecs.quantize", {"digits": 1, "dtype": "<f4"}, "codecs[0]")
    with pytest.raises(UnsupportedError, match="data type"):
        compiled("no-such-type", spec)


def test_configuration_that_zarr_refuses_is_named() -> None:
    spec = CodecSpec("numcodecs.quantize", {"id": "other"}, "codecs[0]")
    with pytest.raises(MetadataError) as caught:
        compiled("float32", spec)
    assert caught.value.json_path == "codecs[0].configuration"


class Needy(ArrayArrayCodec):
    """A codec that imports its package when it is made."""

    @classmethod
    def from_dict(cls, data: Any) -> Needy:
        raise ImportError("No module named 'needed'")


register_codec("needy", Needy)


def test_a_codec_whose_package_is_not_installed_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="No module named 'needed'") as caught:
        compiled("float32", CodecSpec("needy", {}, "codecs[1]"))
    assert caught.value.json_path == "codecs[1]"
    assert caught.value.hint == "install that package"


@pytest.mark.parametrize("name", ["pcodec", "zfpy"])
def test_codecs_of_numcodecs_name_what_installs_them(name: str) -> None:
    codecs = [{"name": f"numcodecs.{name}", "configuration": {}}]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    }
    data = cpu.Buffer.from_bytes(json.dumps(document).encode())
    with pytest.raises(UnsupportedError) as caught:
        gpushard.open_array({"zarr.json": data})
    assert caught.value.json_path == "codecs[0]"
    assert str(caught.value).endswith(f"; run: pip install 'numcodecs[{name}]'.")
    assert "''" not in str(caught.value)


def test_a_codec_that_lacks_its_package_when_it_decodes_blames_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = CodecSpec("numcodecs.quantize", {"digits": 1, "dtype": "<f4"}, "codecs[0]")
    pipeline = compiled("float32", spec)

    async def decode(*_: Any) -> Any:
        raise UnknownCodecError("pcodec")

    def decode_sync(*_: Any) -> Any:
        raise UnknownCodecError("pcodec")

    quantize = get_codec_class("numcodecs.quantize")
    monkeypatch.setattr(quantize, "decode", decode)
    monkeypatch.setattr(quantize, "_decode_sync", decode_sync, raising=False)
    with pytest.raises(UnsupportedError, match="package that is not installed"):
        pipeline.decode(bytes(16), (4,))


@pytest.mark.skipif(not zarr_codec._AT_ONCE, reason="this zarr has only the other way")
def test_an_event_loop_is_entered_only_for_codecs_that_need_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = np.array(["a", "bcd", ""], dtype=np.dtypes.StringDType())
    encoded, pipeline = written(words)
    entered: list[Any] = []
    plain = zarr_codec.sync

    def sync(coroutine: Any, loop: Any) -> Any:
        entered.append(coroutine)
        return plain(coroutine, loop)

    monkeypatch.setattr(zarr_codec, "sync", sync)
    assert pipeline.decode(encoded, (3,)).tolist() == words.tolist()
    assert not entered
    # So says a codec of zarr's whose own codecs need one.
    kind = get_codec_class("vlen-utf8")
    monkeypatch.setattr(kind, "_sync_capable", False, raising=False)
    assert pipeline.decode(encoded, (3,)).tolist() == words.tolist()
    assert len(entered) == 1
