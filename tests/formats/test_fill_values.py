"""Fill values of metadata, compared bit for bit."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from data_type_documents import FIXED_BYTES, FIXED_TEXT, POINT, RAW_BYTES, SECONDS, fill
from gpushard.errors import MetadataError
from gpushard.formats.data_types import parse_data_type
from gpushard.formats.fill_values import parse_fill_value


def big_endian_hex(scalar):
    """Bits of an element, most significant byte first."""
    data = scalar.tobytes()
    return (data[::-1] if sys.byteorder == "little" else data).hex()


@pytest.mark.parametrize(
    ("data_type", "value", "bits"),
    [
        ("bool", True, "01"),
        ("bool", False, "00"),
        ("int8", -128, "80"),
        ("uint8", 255, "ff"),
        ("int64", -(2**63), "8000000000000000"),
        ("uint64", 2**64 - 1, "ffffffffffffffff"),
        ("int32", 3.0, "00000003"),
        ("float16", "NaN", "7e00"),
        ("float16", "-Infinity", "fc00"),
        ("float16", "0x7c01", "7c01"),
        ("float32", "NaN", "7fc00000"),
        ("float32", float("nan"), "7fc00000"),
        ("float32", "0x7fc00001", "7fc00001"),
        ("float32", "0x7f800001", "7f800001"),
        ("float32", "0xFF800001", "ff800001"),
        ("float32", "0x3f800000", "3f800000"),
        ("float32", -0.0, "80000000"),
        ("float32", 3, "40400000"),
        ("float32", 0.1, "3dcccccd"),
        ("float32", "Infinity", "7f800000"),
        ("float64", "NaN", "7ff8000000000000"),
        ("float64", "0x7ff0000000000001", "7ff0000000000001"),
        ("float64", -0.0, "8000000000000000"),
        ("float64", 0.1, "3fb999999999999a"),
        ("bfloat16", "NaN", "7fc0"),
        ("bfloat16", "0x7f81", "7f81"),
        ("bfloat16", "-Infinity", "ff80"),
        ("bfloat16", 1.5, "3fc0"),
        ("float8_e3m4", "NaN", "78"),
        ("float8_e4m3", "NaN", "7c"),
        ("float8_e4m3fn", "NaN", "7f"),
        ("float8_e4m3fnuz", "NaN", "80"),
        ("float8_e4m3b11fnuz", "NaN", "80"),
        ("float8_e5m2", "NaN", "7e"),
        ("float8_e5m2", "Infinity", "7c"),
        ("float8_e5m2", "0x7d", "7d"),
        ("float8_e5m2fnuz", "NaN", "80"),
        ("float8_e8m0fnu", "NaN", "ff"),
        ("float8_e8m0fnu", 1, "7f"),
        (SECONDS, "NaT", "8000000000000000"),
        (SECONDS, -1, "ffffffffffffffff"),
        (SECONDS, -(2**63), "8000000000000000"),
    ],
)
def test_fill_values_have_exactly_these_bits(data_type, value, bits):
    scalar = fill(data_type, value)
    assert scalar.shape == ()
    assert scalar.dtype == parse_data_type(data_type).dtype
    assert big_endian_hex(scalar) == bits
    assert not scalar.flags.writeable


@pytest.mark.parametrize(
    ("data_type", "n_bits"),
    [("float16", 16), ("bfloat16", 16), ("float8_e4m3fn", 8), ("float8_e5m2", 8)],
)
def test_every_bit_pattern_survives_its_hex_spelling(data_type, n_bits):
    parsed = parse_data_type(data_type)
    n_digits = n_bits // 4
    for pattern in range(0, 2**n_bits, 1 if n_bits == 8 else 13):
        spelled = f"0x{pattern:0{n_digits}x}"
        scalar = parse_fill_value(spelled, parsed, "fill_value")
        assert big_endian_hex(scalar) == spelled[2:]


@pytest.mark.parametrize(
    ("data_type", "value", "data"),
    [
        ("r8", [7], b"\x07"),
        ("r24", [1, 2, 255], b"\x01\x02\xff"),
        ("r16", "AQI=", b"\x01\x02"),
        (RAW_BYTES, "AQID", b"\x01\x02\x03"),
        (FIXED_BYTES, "YWI=", b"ab\x00\x00"),
        (FIXED_BYTES, "", b"\x00" * 4),
    ],
)
def test_byte_fill_values_are_the_bytes_spelled(data_type, value, data):
    assert fill(data_type, value).tobytes() == data


@pytest.mark.parametrize(
    ("data_type", "part_type"), [("complex64", "float32"), ("complex128", "float64")]
)
@pytest.mark.parametrize(
    "parts", [["NaN", "-Infinity"], [1, -0.0], [0.5, 2], ["NaN", "NaN"]]
)
def test_complex_fill_values_are_two_floats(data_type, part_type, parts):
    expected = b"".join(fill(part_type, part).tobytes() for part in parts)
    assert fill(data_type, parts).tobytes() == expected


def test_complex_parts_may_be_signalling_nans():
    scalar = fill("complex64", ["0x7f800001", "0xff800001"])
    bits = np.frombuffer(scalar.tobytes(), np.uint32)
    assert [hex(part) for part in bits] == ["0x7f800001", "0xff800001"]


def test_text_fill_values_are_the_text():
    assert fill(FIXED_TEXT, "aé") == np.array("aé", "U3")
    assert fill("string", "long text") == "long text"
    assert fill("variable_length_bytes", "AQI=")[()] == b"\x01\x02"
    assert fill("variable_length_bytes", [1, 2])[()] == b"\x01\x02"


def test_struct_fill_values_are_their_fields():
    scalar = fill(POINT, {"b": [1, 2], "x": "0x7f800001", "n": -2})
    assert big_endian_hex(scalar["x"]) == "7f800001"
    assert scalar["n"] == -2
    assert scalar["b"].tobytes() == b"\x01\x02"


def test_struct_fill_values_may_be_little_endian_base64():
    # 1.0 as float32, 258 as int16, two raw bytes.
    scalar = fill(POINT, "AACAPwIBCQg=")
    assert scalar["x"] == 1.0
    assert scalar["n"] == 258
    assert scalar["b"].tobytes() == b"\x09\x08"


def test_nested_structs_are_parsed_in_both_spellings():
    spelled = {"name": "structured", "configuration": {"fields": [["p", POINT]]}}
    parsed = parse_data_type(spelled)
    assert parsed.dtype["p"] == parse_data_type(POINT).dtype
    assert parsed.json == spelled
    scalar = fill(spelled, {"p": {"x": 1, "n": 2, "b": [3, 4]}})
    assert scalar["p"]["n"] == 2


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("bool", 0),
        ("bool", "true"),
        ("int8", 128),
        ("int8", -129),
        ("uint8", -1),
        ("uint64", 2**64),
        ("int32", 1.5),
        ("int32", True),
        ("int32", "1"),
        ("int32", "NaN"),
        ("int32", float("nan")),
        ("int32", float("inf")),
        ("int32", [1]),
        ("float32", "nan"),
        ("float32", "1.5"),
        ("float32", True),
        ("float32", [1]),
        ("float32", {}),
        ("float32", 1e39),
        ("float16", 70000),
        ("float64", 10**400),
        ("float32", "0x7fc0"),
        ("float32", "0x7fc0000000000000"),
        ("float32", "0xzz000000"),
        ("float32", "0x"),
        ("float8_e4m3fn", "Infinity"),
        ("float8_e4m3fn", 1e9),
        ("complex64", 1.0),
        ("complex64", [1]),
        ("complex64", [1, 2, 3]),
        ("complex64", "NaN"),
        ("r16", [1]),
        ("r16", [1, 256]),
        ("r16", [1, -1]),
        ("r16", "AQID"),
        ("r16", "AQ"),
        ("r16", "A!QI="),
        ("r16", "ä"),
        ("r16", 1),
        (SECONDS, "2020-01-01"),
        (SECONDS, 2**63),
        (SECONDS, 1.5),
        (FIXED_TEXT, "abcd"),
        (FIXED_TEXT, 1),
        (FIXED_BYTES, "YWJjZGU="),
        ("string", 1),
        ("string", "\ud800"),
        (POINT, {"x": 1, "n": 2}),
        (POINT, {"x": 1, "n": 2, "b": [0, 0], "z": 1}),
        (POINT, {"x": 1, "n": 2**15, "b": [0, 0]}),
        (POINT, "AAAA"),
        (POINT, 0),
    ],
)
def test_fill_values_of_another_type_or_range_are_refused(data_type, value):
    with pytest.raises(MetadataError) as caught:
        fill(data_type, value)
    assert caught.value.json_path.startswith("fill_value")


def test_hex_bits_must_fill_the_element():
    with pytest.raises(MetadataError, match="0x and 8 hex digits"):
        fill("float32", "0x7fc0")


def test_a_field_of_a_fill_value_is_named():
    with pytest.raises(MetadataError) as caught:
        fill(POINT, {"x": 1, "n": "?", "b": [0, 0]})
    assert caught.value.json_path == "fill_value.n"


def test_a_fill_value_is_required():
    with pytest.raises(MetadataError, match="no fill value") as caught:
        fill("int32", None)
    assert caught.value.json_path == "fill_value"
