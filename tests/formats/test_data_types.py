"""Data types of metadata are native NumPy types."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from data_type_documents import FIXED_BYTES, FIXED_TEXT, POINT, RAW_BYTES, SECONDS, fill
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.formats.data_types import parse_data_type
from gpushard.formats.fill_values import parse_fill_value


@pytest.mark.parametrize(
    ("spelled", "dtype", "has_byte_order"),
    [
        ("bool", "?", False),
        ("int8", "i1", False),
        ("uint64", "u8", True),
        ("float16", "f2", True),
        ("complex128", "c16", True),
        ("r8", "V1", False),
        ("r24", "V3", False),
        ({"name": "int32"}, "i4", True),
        ({"name": "int32", "configuration": {}}, "i4", True),
        (SECONDS, "M8[10s]", True),
        (FIXED_TEXT, "U3", True),
        (FIXED_BYTES, "S4", False),
        (RAW_BYTES, "V3", False),
        (POINT, [("x", "f4"), ("n", "i2"), ("b", "V2")], True),
    ],
)
def test_data_types_are_native_numpy_types(spelled, dtype, has_byte_order):
    parsed = parse_data_type(spelled)
    assert parsed.dtype == np.dtype(dtype)
    assert parsed.dtype.isnative
    assert parsed.has_byte_order == has_byte_order
    assert not parsed.is_variable_length


def test_a_core_type_is_given_to_zarr_by_its_bare_name():
    assert parse_data_type({"name": "int32", "configuration": {}}).json == "int32"


@pytest.mark.parametrize(
    "name",
    [
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ],
)
def test_small_floats_are_those_of_ml_dtypes(name):
    parsed = parse_data_type(name)
    assert parsed.dtype == np.dtype(getattr(ml_dtypes, name))
    assert parsed.has_byte_order == (name == "bfloat16")


def test_variable_length_types_are_those_of_zarr():
    assert parse_data_type("string").dtype.kind == "T"
    assert parse_data_type("string").is_variable_length
    assert parse_data_type("variable_length_bytes").dtype == np.dtype(object)


@pytest.mark.parametrize(
    "spelled",
    ["int4", "uint2", "float4_e2m1fn", "complex_bfloat16", "quaternion", "int128", "r"],
)
def test_unknown_data_types_are_unsupported(spelled):
    with pytest.raises(UnsupportedError, match=spelled) as caught:
        parse_data_type(spelled)
    assert caught.value.json_path == "data_type"


@pytest.mark.parametrize(
    ("spelled", "json_path"),
    [
        (5, "data_type"),
        (None, "data_type"),
        ([], "data_type"),
        ({}, "data_type.name"),
        ("r12", "data_type"),
        ("r99999999999", "data_type"),
        ("r99999999992", "data_type"),
        ({"name": "numpy.datetime64", "configuration": {"unit": "x"}}, "data_type"),
        ({"name": "struct"}, "data_type.configuration.fields"),
        (
            {"name": "struct", "configuration": {"fields": []}},
            "data_type.configuration.fields",
        ),
        (
            {"name": "struct", "configuration": {"fields": [["a", "int8", 1]]}},
            "data_type.configuration.fields[0]",
        ),
        (
            {"name": "struct", "configuration": {"fields": [{"name": "a"}]}},
            "data_type.configuration.fields[0]",
        ),
        (
            {"name": "struct", "configuration": {"fields": [["", "int8"]]}},
            "data_type.configuration.fields[0]",
        ),
        (
            {"name": "struct", "configuration": {"fields": [["a", "int8"]] * 2}},
            "data_type.configuration.fields",
        ),
        (
            {"name": "struct", "configuration": {"fields": [["a", "string"]]}},
            "data_type.configuration.fields[0][1]",
        ),
    ],
)
def test_malformed_data_types_are_refused(spelled, json_path):
    with pytest.raises((MetadataError, UnsupportedError)) as caught:
        parse_data_type(spelled)
    assert caught.value.json_path == json_path


def test_an_unknown_field_type_names_the_field():
    spelled = {"name": "struct", "configuration": {"fields": [["a", "nope"]]}}
    with pytest.raises(UnsupportedError) as caught:
        parse_data_type(spelled)
    assert caught.value.json_path == "data_type.configuration.fields[0][1]"


def test_a_small_float_inside_a_struct_is_unsupported():
    spelled = {"name": "struct", "configuration": {"fields": [["a", "bfloat16"]]}}
    with pytest.raises(UnsupportedError, match="'bfloat16' inside a struct") as caught:
        parse_data_type(spelled)
    assert caught.value.json_path == "data_type.configuration.fields[0][1]"


def test_a_core_type_takes_no_configuration():
    with pytest.raises(UnsupportedError) as caught:
        parse_data_type({"name": "int32", "configuration": {"endian": "big"}})
    assert caught.value.json_path == "data_type.configuration.endian"


def test_types_of_other_packages_are_read_through_zarr(monkeypatch):
    from zarr.dtype import Int16, data_type_registry

    class Sample(Int16):
        _zarr_v3_name = "sample16"

        def to_native_dtype(self):
            return np.dtype(np.int16).newbyteorder("S")

        def from_json_scalar(self, data, *, zarr_format):
            number = {"seven": 7}.get(data, data)
            return super().from_json_scalar(number, zarr_format=zarr_format)

    Sample.__module__ = "elsewhere"
    monkeypatch.setitem(data_type_registry.contents, "sample16", Sample)
    parsed = parse_data_type("sample16")
    assert parsed.dtype == np.int16
    assert parsed.dtype.isnative
    assert parsed.foreign is not None
    assert fill("sample16", 7) == fill("sample16", "seven") == 7
    with pytest.raises(MetadataError):
        fill("sample16", "eight")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", True),
        ("int8", -5),
        ("uint64", 2**64 - 1),
        ("float16", -0.0),
        ("float32", float("-inf")),
        ("float64", 0.1),
        ("complex64", complex(1, -2)),
        ("complex128", complex(0.0, float("inf"))),
        ("M8[ns]", np.datetime64(12345, "ns")),
        ("M8[10s]", np.datetime64("NaT", "s")),
        ("m8[D]", np.timedelta64(-3, "D")),
        ("U5", "héllo"),
        ("S5", b"ab"),
        ("V3", b"abc"),
        ([("x", "f4"), ("y", "i8")], (1.5, -7)),
    ],
)
@pytest.mark.filterwarnings("ignore:The data type")  # zarr: no specification yet
def test_what_zarr_writes_has_the_type_and_bits_that_zarr_reads(dtype, value):
    import zarr

    store = zarr.storage.MemoryStore()
    dtype = np.dtype(dtype)
    array = zarr.create_array(
        store,
        shape=(2,),
        chunks=(2,),
        dtype=dtype,
        fill_value=np.array(value, dtype)[()],
    )
    fields = json.loads(store._store_dict["zarr.json"].to_bytes())
    parsed = parse_data_type(fields["data_type"])
    assert parsed.dtype == array.dtype
    scalar = parse_fill_value(fields["fill_value"], parsed, "fill_value")
    assert scalar.tobytes() == array[0:1].tobytes()
    assert scalar.tobytes() == np.array(value, dtype).tobytes()
