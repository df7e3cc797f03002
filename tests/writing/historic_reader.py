"""Arrays of the two historic shard formats, read by their drafts' words alone.

Nothing of gpushard: JSON, `struct` and numcodecs.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

MISSING = 2**64 - 1


@dataclass
class Stored:
    """An array as its documents describe it."""

    shape: list[int]
    chunks: list[int]
    per_shard: list[int]
    dtype: np.dtype[Any]
    order: str
    codecs: list[dict[str, Any]]
    compressor: dict[str, Any] | None
    fill_value: Any
    directory: Path
    prefix: str
    separator: str


def prototype(root: Path, path: str = "") -> Stored:
    place = root / path
    document = json.loads((place / ".zarray").read_text())
    assert (document["zarr_format"], document["shard_format"]) == (2, "indexed")
    return Stored(
        document["shape"],
        document["chunks"],
        document["shards"],
        data_type(document["dtype"]),
        document["order"],
        [*(document["filters"] or []), *filter(None, [document["compressor"]])],
        document["compressor"],
        document["fill_value"],
        place,
        "",
        document["dimension_separator"],
    )


def data_type(spelled: Any) -> np.dtype[Any]:
    """NumPy's string, or a list of fields: name, type and perhaps a shape."""
    if isinstance(spelled, str):
        return np.dtype(spelled)
    fields = [(name, data_type(of), *map(tuple, rest)) for name, of, *rest in spelled]
    return np.dtype(fields)


def draft(root: Path, path: str = "") -> Stored:
    hierarchy = json.loads((root / "zarr.json").read_text())
    assert hierarchy["zarr_format"].endswith("protocol/core/3.0")
    below = f"/{path}" if path else ""
    name = f"meta/root{below}.array{hierarchy['metadata_key_suffix']}"
    document = json.loads((root / name).read_text())
    (transformer,) = document["storage_transformers"]
    assert transformer["extension"].endswith("sharding/1.0")
    assert transformer["type"] == "indexed"
    spelled = document["data_type"]
    spelled = spelled["type"] if isinstance(spelled, dict) else spelled
    compressor = document.get("compressor")
    codecs = list(document["attributes"].get("filters", []))
    if compressor is not None:
        address, _, version = compressor["codec"].rpartition("/")
        assert version == "1.0"
        compressor = {**compressor["configuration"], "id": address.split("/")[-1]}
        codecs.append(compressor)
    return Stored(
        document["shape"],
        document["chunk_grid"]["chunk_shape"],
        transformer["configuration"]["chunks_per_shard"],
        np.dtype(spelled),
        document["chunk_memory_layout"],
        codecs,
        compressor,
        document["fill_value"],
        root / f"data/root{below}",
        "c",
        document["chunk_grid"]["separator"],
    )


def read(stored: Stored) -> np.ndarray:
    """All elements."""
    out = np.empty(stored.shape, stored.dtype)
    out[...] = fill(stored)
    counts = [-(-n // c) for n, c in zip(stored.shape, stored.chunks, strict=True)]
    for at in itertools.product(*map(range, counts)):
        payload = chunk_payload(stored, at)
        if payload is None:
            continue
        chunk = decoded(stored, payload)
        place = tuple(
            slice(i * c, (i + 1) * c) for i, c in zip(at, stored.chunks, strict=True)
        )
        part = out[(*place, ...)]
        part[...] = chunk[tuple(slice(n) for n in part.shape)]
    return out


def chunk_payload(stored: Stored, at: tuple[int, ...]) -> bytes | None:
    pairs = list(zip(at, stored.per_shard, strict=True))
    name = stored.separator.join(str(i // n) for i, n in pairs) or "0"
    path = stored.directory / (stored.prefix + name)
    if not path.exists():
        return None
    shard = path.read_bytes()
    n_chunks = int(np.prod(stored.per_shard, dtype=int))
    entry = 0
    for i, n in pairs:
        entry = entry * n + i % n
    where = len(shard) - 16 * n_chunks + 16 * entry
    offset, nbytes = struct.unpack_from("<QQ", shard, where)
    if (offset, nbytes) == (MISSING, MISSING):
        return None
    assert offset + nbytes <= len(shard) - 16 * n_chunks
    return shard[offset : offset + nbytes]


def decoded(stored: Stored, payload: bytes) -> np.ndarray:
    data: Any = payload
    for configuration in reversed(stored.codecs):
        data = numcodecs.get_codec(dict(configuration)).decode(data)
    plain = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    elements = np.frombuffer(plain, stored.dtype)
    return elements.reshape(stored.chunks, order=stored.order)


def fill(stored: Stored) -> Any:
    value, kind = stored.fill_value, stored.dtype.kind
    if kind in "SV":
        return np.frombuffer(base64.b64decode(value), stored.dtype)[0]
    if kind == "c":
        return complex(*map(float, value))
    if kind in "mM":
        return np.asarray(value).astype(stored.dtype)
    return float(value) if kind == "f" else value
