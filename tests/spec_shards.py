"""Shards put together from the text of the specification, and arrays of them."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import crc32c

import gpushard
from array_strategies import codec
from gpushard import Options
from zarr_oracle import held

LITTLE, BIG = codec("bytes", endian="little"), codec("bytes", endian="big")
CRC = {"name": "crc32c"}
EMPTY = 2**64 - 1


def sharding(chunk_shape, /, **changes) -> dict[str, Any]:
    configuration = {
        "chunk_shape": list(chunk_shape),
        "codecs": [LITTLE],
        "index_codecs": [LITTLE, CRC],
        "index_location": "end",
        **changes,
    }
    return codec(
        "sharding_indexed", **{k: v for k, v in configuration.items() if v is not ...}
    )


def document(
    shape, shard_shape, *codecs, dtype="uint8", fill_value=0
) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(shard_shape)},
        },
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill_value,
        "codecs": list(codecs),
    }


def opened(document, options=Options(), **shards: bytes) -> gpushard.Array:  # noqa: B008 - frozen
    objects = {"zarr.json": json.dumps(document).encode()}
    objects |= {
        f"c/{key.replace('_', '/')}".rstrip("/"): b for key, b in shards.items()
    }
    return gpushard.open_array(held(objects), options=options)


def index_of(entries, endian="<", checksum=True) -> bytes:
    raw = b"".join(struct.pack(f"{endian}2Q", *entry) for entry in entries)
    return raw + struct.pack("<I", crc32c.crc32c(raw)) if checksum else raw


def shard_of(*chunks: bytes) -> bytes:
    """Inner chunks one after the other, then their index."""
    offsets = itertools.accumulate(map(len, chunks), initial=0)
    entries = [(o, len(c)) for o, c in zip(offsets, chunks, strict=False)]
    return b"".join(chunks) + index_of(entries)
