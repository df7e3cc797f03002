"""Arrays of the two historic shard formats, laid out by the words of their drafts."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import numpy as np

PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
MISSING = struct.pack("<QQ", 2**64 - 1, 2**64 - 1)
ROOT = {
    "zarr_format": PROTOCOL,
    "metadata_encoding": PROTOCOL,
    "metadata_key_suffix": ".json",
    "extensions": [],
}


def json_bytes(document: Any) -> bytes:
    return json.dumps(document).encode()


def shard(chunks: list[bytes | None], gap: bytes = b"") -> bytes:
    """Chunks one after the other, the last first; then the index."""
    body, entries = b"", [MISSING] * len(chunks)
    for k in reversed(range(len(chunks))):
        data = chunks[k]
        if data is not None:
            body += gap
            entries[k] = struct.pack("<QQ", len(body), len(data))
            body += data
    return body + b"".join(entries)


def chunk_bytes(values, at, chunks, order="C") -> bytes:
    chunk = np.zeros(chunks, values.dtype)
    where = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, chunks, strict=True))
    part = values[where]
    chunk[tuple(slice(n) for n in part.shape)] = part
    return chunk.tobytes(order)


def grouped(chunks: dict[tuple[int, ...], bytes], per_shard):
    """Shards by coordinate, of the chunks in them by coordinate."""
    homes = {tuple(i // n for i, n in zip(at, per_shard, strict=True)) for at in chunks}
    return {
        home: shard(
            [
                chunks.get(
                    tuple(
                        h * n + i
                        for h, n, i in zip(home, per_shard, inner, strict=True)
                    )
                )
                for inner in itertools.product(*map(range, per_shard))
            ],
            gap=b"~",
        )
        for home in homes
    }


def all_chunks(values, chunks, order="C", encode=lambda data: data):
    counts = [-(-n // c) for n, c in zip(values.shape, chunks, strict=True)]
    return {
        at: encode(chunk_bytes(values, at, chunks, order))
        for at in itertools.product(*map(range, counts))
    }


def draft_document(values, chunks, *transformers, separator="/", **changes):
    base = {
        "attributes": {},
        "chunk_grid": {
            "type": "regular",
            "chunk_shape": list(chunks),
            "separator": separator,
        },
        "chunk_memory_layout": "C",
        "data_type": values.dtype.str,
        "dimension_separator": separator,
        "extensions": [],
        "fill_value": 0,
        "shape": list(values.shape),
        "storage_transformers": [
            {
                "extension": f"{PROTOCOL.partition('protocol')[0]}"
                "storage_transformers/sharding/1.0",
                "type": "indexed",
                "configuration": {"chunks_per_shard": list(per_shard)},
            }
            for per_shard in transformers
        ],
    }
    return {**base, **changes}


def draft_key(at, separator="/") -> str:
    return "c" + (separator.join(map(str, at)) or "0")


def prototype_document(values, chunk_shape, per_shard, **changes):
    base = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": list(chunk_shape),
        "dtype": values.dtype.str,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "shard_format": "indexed",
        "shards": list(per_shard),
    }
    fields = {**base, **changes}
    return {name: value for name, value in fields.items() if value is not ...}
