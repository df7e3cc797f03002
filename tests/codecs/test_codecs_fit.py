"""Codecs beside data types and settings that they do not fit: refused at open.

The oracle is zarr-python: what opens is read as zarr reads it, bit for bit; whatever
zarr cannot open, write or read does not open. Nothing is left to blame bytes for.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from packaging.version import Version
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import gpushard
from gpushard.errors import GpushardError, MetadataError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SHAPE = (4, 4)
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
NUMBERS = (np.arange(16).reshape(SHAPE) * 6) % 32
TIMES = {
    "name": "numpy.datetime64",
    "configuration": {"unit": "s", "scale_factor": 1},
}
BYTES_4 = {"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}}
TYPES: dict[str, tuple[Any, Any, NDArray[Any]]] = {
    "bool": ("bool", False, NUMBERS % 4 == 2),
    "uint8": ("uint8", 0, NUMBERS.astype("u1")),
    "int32": ("int32", 0, NUMBERS.astype("i4")),
    "float32": ("float32", 0.0, NUMBERS.astype("f4")),
    "float64": ("float64", 0.0, NUMBERS.astype("f8")),
    "complex64": ("complex64", [0.0, 0.0], NUMBERS.astype("c8")),
    "times": (TIMES, 0, NUMBERS.astype("M8[s]")),
    "bytes": (BYTES_4, "", NUMBERS.astype("S4")),
    "string": ("string", "", NUMBERS.astype(np.dtypes.StringDType())),
}
# Settings that we read and zarr does not: the data type is the array's by default, and
# how floats were rounded does not matter once they are.
ONLY_OURS = {"numcodecs.delta", "numcodecs.bitround"}
if Version(zarr.__version__) < Version("3.1.1"):
    # zarr 3.1.0 gives its own bytes codec a data type it refuses.
    ONLY_OURS |= {"numcodecs.fixedscaleoffset", "numcodecs.packbits"}


def codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def offset(dtype: str, astype: str | None = "<i2", **more: Any) -> dict[str, Any]:
    settings = {"offset": 1, "scale": 2, "dtype": dtype, "astype": astype} | more
    return codec("numcodecs.fixedscaleoffset", **settings)


ARRAY_CODECS = [
    codec("numcodecs.delta"),
    *[
        codec("numcodecs.delta", dtype=dtype)
        for dtype in ("<f8", "<f4", "<i4", ">i4", "|u1", "<M8[s]", "|S4", "x", 5)
    ],
    codec("numcodecs.delta", dtype="<i4", astype="<i2"),
    codec("numcodecs.delta", dtype="<i4", astype="|O"),
    offset("<f8"),
    offset("<f4"),
    offset("<i4"),
    offset("<f8", None),
    offset("<f8", scale="x"),
    offset("<f8", offset=None),
    codec("numcodecs.quantize", digits=2, dtype="<f4"),
    codec("numcodecs.quantize", digits="x", dtype="<f4"),
    codec("numcodecs.quantize"),
    codec("numcodecs.bitround", keepbits=3),
    codec("numcodecs.bitround", keepbits="x"),
    codec("numcodecs.packbits"),
    codec("numcodecs.packbits", order="big"),
    codec("numcodecs.astype", encode_dtype="<i2", decode_dtype="<i4"),
    codec("numcodecs.astype", encode_dtype=">i2", decode_dtype="<i4"),
    codec("numcodecs.astype", encode_dtype="<f4", decode_dtype="<f8"),
    codec("numcodecs.astype", encode_dtype="x", decode_dtype="<i4"),
    codec("numcodecs.astype"),
    codec("transpose", order=[1, 0]),
    codec("transpose", order=[0]),
]
NEW_ARRAY_CODECS = [
    codec("scale_offset", offset=1, scale=2),
    codec("scale_offset", offset=0, scale="x"),
    codec("scale_offset", offset=0, scale=0.5),
    codec("scale_offset", offset=0, scale=0),
    codec("scale_offset", offset=-1, scale=1),
    codec("scale_offset", other=1),
    codec("cast_value", data_type="int16"),
    codec("cast_value", data_type="float32", out_of_range="wrap"),
    codec("cast_value", data_type="int16", rounding="x"),
    codec("cast_value", data_type="int16", scalar_map={"decode": [["x", 1]]}),
    codec("cast_value", data_type="string"),
    codec("cast_value"),
]
if Version(zarr.__version__) >= Version("3.3"):
    ARRAY_CODECS += NEW_ARRAY_CODECS
SERIALIZERS = [
    codec("bytes"),
    codec("bytes", endian="x"),
    codec("vlen-utf8"),
    codec("vlen-bytes"),
    codec("numcodecs.pcodec"),
    codec("numcodecs.zfpy", mode=4),
]
CHECKSUMS = [
    codec(f"numcodecs.{name}", **settings)
    for name in ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")
    for settings in ({}, {"location": "x"}, {"initval": "x"}, {"other": 1})
]


def stored(data_type: str, codecs: list[Any]) -> MemoryStore:
    """Array with these codecs; its chunk is zarr's, or the bare elements."""
    name, fill_value, values = TYPES[data_type]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": name,
        "chunk_grid": codec("regular", chunk_shape=SHAPE),
        "chunk_key_encoding": codec("default", separator="/"),
        "fill_value": fill_value,
        "codecs": codecs,
    }
    as_buffer = default_buffer_prototype().buffer.from_bytes
    held = {"zarr.json": as_buffer(json.dumps(document).encode())}
    store = MemoryStore(held)
    try:
        zarr.open_array(store, mode="r+")[...] = values
    except Exception:  # noqa: BLE001 - zarr raises anything where it does not write
        held["c/0/0"] = as_buffer(values.tobytes())
    return store


def read_by_zarr(store: MemoryStore) -> NDArray[Any] | None:
    try:
        return np.asarray(zarr.open_array(store, mode="r")[...])
    except Exception:  # noqa: BLE001 - zarr raises anything where it does not read
        return None


def opened(store: MemoryStore) -> tuple[gpushard.Array | None, str]:
    """Array, or the JSON path that it is refused at."""
    try:
        return gpushard.open_array(store, device="cpu"), ""
    except (MetadataError, UnsupportedError) as error:
        return None, error.json_path or str(error)


def assert_read_as_zarr_or_refused(data_type: str, codecs: list[Any]) -> None:
    store = stored(data_type, codecs)
    array, refused_at = opened(store)
    if array is None:
        assert refused_at.startswith("codecs[")
        return
    expected = read_by_zarr(store)
    if expected is None:
        assert codecs[0]["name"] in ONLY_OURS, "it opened, and zarr cannot read it"
        return
    try:
        found = array[...]
    except GpushardError as error:
        raise AssertionError(f"it opened, and was refused when read: {error}") from None
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def serializer_of(data_type: str) -> Any:
    return codec("vlen-utf8") if data_type == "string" else LITTLE


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("first", ARRAY_CODECS, ids=json.dumps)
def test_array_codec_is_read_as_zarr_does_or_refused_at_open(
    data_type: str, first: Any
) -> None:
    assert_read_as_zarr_or_refused(data_type, [first, serializer_of(data_type)])


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("serializer", SERIALIZERS, ids=json.dumps)
def test_array_to_bytes_codec_is_read_as_zarr_does_or_refused_at_open(
    data_type: str, serializer: Any
) -> None:
    assert_read_as_zarr_or_refused(data_type, [serializer])


@pytest.mark.parametrize("checksum", CHECKSUMS, ids=json.dumps)
def test_checksum_of_numcodecs_is_read_as_zarr_does_or_refused_at_open(
    checksum: Any,
) -> None:
    assert_read_as_zarr_or_refused("int32", [LITTLE, checksum])


@pytest.mark.parametrize(
    ("data_type", "codecs", "path"),
    [
        ("int32", [codec("numcodecs.delta", dtype="<f8"), LITTLE], "codecs[0]"),
        ("int32", [offset("<f8"), LITTLE], "codecs[0]"),
        ("int32", [codec("vlen-utf8")], "codecs[0]"),
        ("string", [codec("vlen-bytes")], "codecs[0]"),
        ("string", [codec("numcodecs.delta"), codec("vlen-utf8")], "codecs[0]"),
        ("int32", [codec("numcodecs.pcodec")], "codecs[0]"),
        ("int32", [LITTLE, codec("numcodecs.crc32", location="x")], "codecs[1]"),
        (
            "int32",
            [codec("transpose", order=[1, 0]), codec("numcodecs.quantize"), LITTLE],
            "codecs[1]",
        ),
    ],
)
def test_codec_that_does_not_fit_is_named_by_its_json_path(
    data_type: str, codecs: list[Any], path: str
) -> None:
    with pytest.raises((MetadataError, UnsupportedError)) as caught:
        gpushard.open_array(stored(data_type, codecs), device="cpu")
    assert (caught.value.json_path or "").startswith(path)
    assert "Corrupt" not in type(caught.value).__name__


@pytest.mark.parametrize("scale", ["x", 0.5])
@pytest.mark.skipif(
    Version(zarr.__version__) < Version("3.3"), reason="zarr has no scale_offset yet"
)
def test_scale_that_is_no_integer_is_refused_at_open(scale: Any) -> None:
    document = [codec("scale_offset", offset=0, scale=scale), LITTLE]
    with pytest.raises(MetadataError, match="scale") as caught:
        gpushard.open_array(stored("int32", document), device="cpu")
    assert caught.value.json_path == "codecs[0].configuration"


def test_booleans_stored_as_differences_of_bytes_are_read() -> None:
    store = stored("bool", [codec("numcodecs.delta", dtype="|u1"), LITTLE])
    found = gpushard.open_array(store, device="cpu")[...]
    np.testing.assert_array_equal(found, TYPES["bool"][2])
