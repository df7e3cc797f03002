"""Data types as metadata spells them."""

from __future__ import annotations

from gpushard.formats.data_types import parse_data_type
from gpushard.formats.fill_values import parse_fill_value

POINT = {
    "name": "struct",
    "configuration": {
        "fields": [
            {"name": "x", "data_type": "float32"},
            {"name": "n", "data_type": "int16"},
            {"name": "b", "data_type": "r16"},
        ]
    },
}
SECONDS = {
    "name": "numpy.datetime64",
    "configuration": {"unit": "s", "scale_factor": 10},
}
FIXED_TEXT = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}
FIXED_BYTES = {"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}}
RAW_BYTES = {"name": "raw_bytes", "configuration": {"length_bytes": 3}}


def fill(data_type, value):
    return parse_fill_value(value, parse_data_type(data_type), "fill_value")
