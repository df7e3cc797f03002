"""bfloat16 and the 8-bit floats are written and created as the bits that they are."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.registry import get_codec_class

import gpushard
from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.codecs.small_floats import SMALL_FLOAT_NAMES
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.write_options import WriteOptions
from zarr_oracle import quiet_zarr

NAMES = sorted(SMALL_FLOAT_NAMES)
SHARDED = {"chunks": (4, 5), "shards": (8, 10)}
CHAINS: dict[str, dict[str, Any]] = {
    "unsharded": {"chunks": (4, 5)},
    "raw": {**SHARDED, "compressors": None},
    "zstd": {**SHARDED, "compressors": ZstdCodec(level=1)},
    "blosc": {**SHARDED, "compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    "crc32c": {**SHARDED, "compressors": [ZstdCodec(level=1), Crc32cCodec()]},
    "big-endian": {**SHARDED, "serializer": BytesCodec(endian="big")},
    "transpose": {**SHARDED, "filters": TransposeCodec(order=(1, 0))},
    "nested": {
        "chunks": (8, 10),
        "compressors": None,
        "serializer": ShardingCodec(
            chunk_shape=(4, 10),
            codecs=[
                ShardingCodec(
                    chunk_shape=(4, 5),
                    codecs=[BytesCodec(endian="little"), ZstdCodec(level=1)],
                )
            ],
        ),
    },
}


def data_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name))


def elements(name: str, bits: Any) -> np.ndarray:
    dtype = data_type(name)
    return np.asarray(bits).astype(f"u{dtype.itemsize}").view(dtype)


def every_element(name: str) -> np.ndarray:
    """Elements with all bits that there are, or with a tenth of them, all NaNs too."""
    return elements(name, np.arange(20 * 33).reshape(20, 33) * 99)


def made(place: Any, name: str, **arguments: Any) -> gpushard.Array:
    given = {"shape": (20, 33), "chunks": (4, 5)} | arguments
    return gpushard.create_array(place, dtype=name, **given)


def document(place: Any) -> dict[str, Any]:
    return json.loads((place / "zarr.json").read_text())


def assert_holds(place: Any, want: np.ndarray) -> None:
    found = gpushard.open_array(place)[...]
    assert found.dtype == want.dtype
    assert found.tobytes() == want.tobytes()


def read_by_tensorstore(place: Any) -> np.ndarray:
    kvstore = {"driver": "file", "path": str(place)}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    return tensorstore.open(spec, open=True).result().read().result()


def peers(names: list[str]) -> list[str]:
    return [name for name in names if hasattr(tensorstore, name)]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", NAMES)
def test_every_bit_comes_back(name, chain, tmp_path):
    want = every_element(name)
    array = made(tmp_path, name, **CHAINS[chain])
    array[...] = want
    assert document(tmp_path)["data_type"] == name
    assert_holds(tmp_path, want)
    if name in peers(NAMES):
        assert read_by_tensorstore(tmp_path).tobytes() == want.tobytes()


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e8m0fnu"])
def test_elements_beside_those_written_stay(name, chain, tmp_path):
    want = every_element(name)
    array = made(tmp_path, name, **CHAINS[chain])
    array[...] = want
    changed = want[::-1, ::-1].copy()
    array[3:17, 2:31] = changed[3:17, 2:31]
    array.oindex[[0, 19], ::3] = changed[[0, 19], ::3]
    want[3:17, 2:31] = changed[3:17, 2:31]
    want[[0, 19], ::3] = changed[[0, 19], ::3]
    assert_holds(tmp_path, want)


@pytest.mark.parametrize(("endian", "order"), [("little", "<"), ("big", ">")])
def test_bytes_lie_in_the_order_of_the_codec(endian, order, tmp_path):
    want = every_element("bfloat16")
    array = made(
        tmp_path,
        "bfloat16",
        chunks=(20, 33),
        serializer=BytesCodec(endian=endian),
        compressors=None,
    )
    array[...] = want
    stored = (tmp_path / "c" / "0" / "0").read_bytes()
    assert stored == want.view("u2").astype(f"{order}u2").tobytes()


@pytest.mark.parametrize("name", peers(NAMES))
def test_tensorstore_writes_the_same_bytes(name, tmp_path):
    want = every_element(name)
    filters = TransposeCodec(order=(1, 0))
    array = made(tmp_path / "ours", name, filters=filters, compressors=None)
    array[...] = want
    (tmp_path / "theirs").mkdir()
    text = (tmp_path / "ours" / "zarr.json").read_text()
    (tmp_path / "theirs" / "zarr.json").write_text(text)
    kvstore = {"driver": "file", "path": str(tmp_path / "theirs")}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    tensorstore.open(spec, open=True).result()[...] = want
    ours, theirs = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "ours", tmp_path / "theirs")
    )
    assert len(ours) > 30
    assert ours == theirs


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_blosc_shuffles_whole_elements(name, tmp_path):
    compressors = BloscCodec(cname="lz4", shuffle="shuffle")
    array = made(tmp_path, name, chunks=(20, 33), compressors=compressors)
    array[...] = elements(name, np.arange(660).reshape(20, 33) % 100)
    typesize = (tmp_path / "c" / "0" / "0").read_bytes()[3]
    assert typesize == data_type(name).itemsize
    (blosc,) = (c for c in document(tmp_path)["codecs"] if c["name"] == "blosc")
    assert blosc["configuration"]["typesize"] == typesize


@pytest.mark.parametrize("as_given", [str, data_type, lambda n: getattr(ml_dtypes, n)])
@pytest.mark.parametrize("name", NAMES)
def test_data_types_are_given_by_name_or_as_such(name, as_given, tmp_path):
    array = gpushard.create_array(tmp_path, shape=4, chunks=2, dtype=as_given(name))
    assert array.dtype == data_type(name)
    assert document(tmp_path)["data_type"] == name
    assert not np.any(array[...].view(np.uint8))


@pytest.mark.parametrize(
    ("name", "given", "spelling"),
    [
        ("bfloat16", None, 0.0),
        ("bfloat16", 3, 3.0),
        ("bfloat16", np.float64(1.01), 1.0078125),
        ("bfloat16", ml_dtypes.bfloat16(-0.0), -0.0),
        ("bfloat16", np.nan, "NaN"),
        ("bfloat16", np.inf, "Infinity"),
        ("bfloat16", -np.inf, "-Infinity"),
        ("bfloat16", elements("bfloat16", 0x7FC1), "0x7fc1"),
        ("bfloat16", elements("bfloat16", 0xFFC0), "0xffc0"),
        ("bfloat16", "0x7f81", "0x7f81"),
        ("float8_e5m2", -np.inf, "-Infinity"),
        ("float8_e4m3fn", np.nan, "NaN"),
        ("float8_e4m3fn", elements("float8_e4m3fn", 0xFF), "0xff"),
        ("float8_e8m0fnu", None, "0x00"),
        ("float8_e8m0fnu", 2.0, "0x80"),
        ("float8_e8m0fnu", np.nan, "NaN"),
    ],
)
def test_fill_values_are_spelled_as_registered(name, given, spelling, tmp_path):
    array = made(tmp_path, name, fill_value=given, **SHARDED)
    found = document(tmp_path)["fill_value"]
    assert repr(found) == repr(spelling)
    if name in peers(NAMES):
        assert read_by_tensorstore(tmp_path).tobytes() == array[...].tobytes()
    if not isinstance(given, np.ndarray | None | str):
        with np.errstate(all="ignore"):
            want = np.full((20, 33), given).astype(data_type(name))
        assert array[...].tobytes() == want.tobytes()
    if isinstance(given, np.ndarray):
        assert array[0, 0].tobytes() == given.tobytes()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bfloat16", 1e39),
        ("bfloat16", 1j),
        ("bfloat16", [1, 2]),
        ("bfloat16", "one"),
        ("bfloat16", np.datetime64(0, "s")),
        ("float8_e4m3fn", 1000),
        ("float8_e4m3fn", np.inf),
        ("float8_e5m2", 1e6),
        ("float8_e8m0fnu", 0.0),
        ("float8_e8m0fnu", -1.0),
    ],
)
def test_fill_values_that_a_type_cannot_hold_are_refused(name, given, tmp_path):
    with pytest.raises(gpushard.OptionError, match="cannot hold the fill value"):
        made(tmp_path / "a", name, fill_value=given)
    assert not (tmp_path / "a").exists()


def test_a_fill_value_of_nan_is_recognized_by_its_bits(tmp_path):
    fill = elements("bfloat16", 0x7FC1)
    array = made(tmp_path, "bfloat16", chunks=(20, 11), fill_value=fill)
    values = np.full((20, 33), fill)
    values[:, 11:22] = np.nan
    array[...] = values
    stored = [p.name for p in (tmp_path / "c" / "0").iterdir()]
    assert stored == ["1"]
    assert_holds(tmp_path, values)
    options = gpushard.Options(write=WriteOptions(write_empty_chunks=True))
    gpushard.open_array(tmp_path, options=options)[...] = values
    assert len([*(tmp_path / "c" / "0").iterdir()]) == 3
    assert_holds(tmp_path, values)


@pytest.mark.parametrize("n_rows", [2, 1 << 12])
@pytest.mark.parametrize("given", ["f2", "f4", "f8", "i4", "u1", "?"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_values_are_cast_as_by_numpy(name, given, n_rows, tmp_path):
    values = (np.arange(n_rows * 512).reshape(n_rows, 512) % 201).astype(given)
    if values.dtype.kind == "f":
        values /= 7
    array = made(tmp_path, name, shape=values.shape, chunks=(n_rows, 128))
    array[...] = values
    assert_holds(tmp_path, values.astype(data_type(name)))


def test_lists_and_single_numbers_are_values(tmp_path):
    array = made(tmp_path, "bfloat16")
    array[0, :3] = [1.01, float("nan"), float("-inf")]
    array[1] = 3
    want = np.zeros((20, 33), ml_dtypes.bfloat16)
    want[0, :3] = [1.01, np.nan, -np.inf]
    want[1] = 3
    assert_holds(tmp_path, want)


@pytest.mark.parametrize("n", [1, 1 << 21])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bfloat16", np.float64(1e39)),
        ("bfloat16", np.float32(3.4e38)),
        ("float8_e5m2", np.int64(100_000)),
        ("float8_e5m2", np.float32(1e6)),
        ("float8_e4m3fn", np.float32(np.inf)),
        ("float8_e4m3fn", ml_dtypes.bfloat16(1e6)),
        ("float8_e8m0fnu", np.float32(0)),
        ("float8_e8m0fnu", np.float32(-1)),
        ("bfloat16", np.complex64(1)),
        ("bfloat16", np.datetime64(1, "s")),
    ],
)
def test_values_that_a_type_cannot_hold_are_refused(name, value, n, tmp_path):
    array = made(tmp_path, name, shape=(n,), chunks=(n,))
    values = np.ones(n, np.asarray(value).dtype)
    values[-1] = value
    with pytest.raises(gpushard.SelectionError):
        array[...] = values
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e8m0fnu", "bfloat16"])
@pytest.mark.parametrize("value", [[1e39], [10**6, -1e39]])
def test_lists_of_values_that_a_type_cannot_hold_are_refused(name, value, tmp_path):
    array = made(tmp_path, name, shape=(len(value),), chunks=1)
    with pytest.raises(gpushard.SelectionError, match="range"):
        array[...] = value


@pytest.mark.parametrize(
    ("name", "configuration"),
    [("numcodecs.delta", {"dtype": "<u2"}), ("numcodecs.bitround", {"keepbits": 3})],
)
def test_codecs_that_compute_with_values_are_refused(name, configuration, tmp_path):
    named = {"name": name, "configuration": configuration}
    with quiet_zarr():
        codec = get_codec_class(name).from_dict(named)
    with pytest.raises(gpushard.UnsupportedError) as caught:
        made(tmp_path / "a", "bfloat16", filters=codec)
    assert "bfloat16" in str(caught.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("numcodecs.delta", {"dtype": "<u2"}),
        ("cast_value", {"data_type": "int8"}),
        ("scale_offset", {"offset": 1}),
    ],
)
def test_no_bits_are_computed_with(name, configuration):
    filters = CodecSpec(name, configuration, "codecs[0]")
    little = CodecSpec("bytes", {"endian": "little"}, "codecs[1]")
    fill = elements("bfloat16", 0).reshape(())
    described = Elements(fill.dtype, "bfloat16", 0.0, fill)
    chain = CodecChain((filters,), little, ())
    with pytest.raises(gpushard.UnsupportedError, match="not written through") as told:
        ChainEncoder(chain, described)
    assert told.value.codec == name


def with_codecs(place: Any, codecs: list[dict[str, Any]]) -> gpushard.Array:
    """Array of a document that another library made."""
    made(place, "bfloat16")
    text = json.dumps({**document(place), "codecs": codecs})
    (place / "zarr.json").write_text(text)
    return gpushard.open_array(place)


@pytest.mark.parametrize(
    "codec",
    [
        {"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}},
        {"name": "numcodecs.delta", "configuration": {"dtype": "bfloat16"}},
        {"name": "numcodecs.bitround", "configuration": {"keepbits": 3}},
        {"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}},
    ],
)
def test_nothing_is_written_through_codecs_that_compute(codec, tmp_path):
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    with pytest.raises(gpushard.GpushardError) as caught:
        with_codecs(tmp_path, [codec, little])[...] = 1
    assert caught.type in (gpushard.UnsupportedError, gpushard.MetadataError)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("form", ["v2-prototype-ii", "v3-draft-transformer"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_historic_formats_have_no_such_elements(form, name, tmp_path):
    with pytest.raises(gpushard.UnsupportedError, match=name):
        made(tmp_path / "a", name, format=form, **SHARDED)


@pytest.mark.parametrize("name", NAMES)
def test_conversion_keeps_every_bit(name, tmp_path):
    want = every_element(name)
    fill = elements(name, 0x7FC1 if name == "bfloat16" else 0x85)
    made(tmp_path / "a", name, fill_value=fill, **SHARDED)[:8] = want[:8]
    want[8:] = fill
    gpushard.convert(tmp_path / "a", tmp_path / "b", chunks=(5, 11), shards=(10, 33))
    assert_holds(tmp_path / "b", want)
    assert document(tmp_path / "b")["data_type"] == name
    again = tmp_path / "c"
    gpushard.convert(tmp_path / "b", again, chunks=(20, 3), shards=(20, 33))
    assert_holds(again, want)
