"""Zarr v3 array documents for the tests of their parser, and how they are parsed."""

from __future__ import annotations

import json

import pytest

from gpushard.metadata import parse_array
from gpushard.options import DEFAULT

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}


def grid(*chunk_shape):
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharding(chunk_shape, codecs=(LITTLE,), index_codecs=(LITTLE, CRC), **more):
    configuration = {
        "chunk_shape": list(chunk_shape),
        "codecs": list(codecs),
        "index_codecs": list(index_codecs),
        **more,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def document(**changes):
    base = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10, 12],
        "data_type": "int32",
        "chunk_grid": grid(4, 6),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [LITTLE],
    }
    fields = {**base, **changes}
    return json.loads(
        json.dumps({name: value for name, value in fields.items() if value is not ...})
    )


def parse(options=DEFAULT, **changes):
    return parse_array(document(**changes), "a", options)


def refused(error, json_path, **changes):
    with pytest.raises(error) as caught:
        parse(**changes)
    assert type(caught.value) is error
    assert caught.value.json_path == json_path
    assert caught.value.array_path == "a"
    return caught.value


def rectilinear(*chunk_shapes, kind="inline", **more):
    configuration = {"kind": kind, "chunk_shapes": list(chunk_shapes), **more}
    return {"name": "rectilinear", "configuration": configuration}
