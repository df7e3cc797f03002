"""Documents of older formats and of rolling arrays, opened and read like any others.

Input: a JSON object of key -> document, as they lie in a store: `.zarray`, `.zattrs`,
`.zgroup`, `.zmetadata` of Zarr v2 and prototype II, those of the draft of v3, or the
`zarr.json` of a rolling array. Anything else is the text of a `.zarray`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from array_strategies import codec
from fuzz.mutations import Donors, damaged, damaged_document, donors_of
from fuzz.opening import opens_array, opens_group, opens_rolling
from fuzz.shard_cases import LITTLE, SAMPLES, ZSTD, OneObject, document, sharding

if TYPE_CHECKING:
    import random

NAME = "historic"

_OTHER = bytes(range(64))
_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", ".json")
_DTYPES = (
    *("<i4", ">f8", "|b1", "|S3", "<U2", "|V5", "<M8[ns]", "<m8", "<c16", "|O", "f4"),
    [["a", "<i2"], ["b", ">f4", [2]]],
    {"extension": "x/complex-dtypes/v1.0.html", "fallback": None, "type": "<c8"},
)
_V2_CODECS = (
    *({"id": name} for name in ("vlen-utf8", "pickle", "zlib", "crc32c", "bz2")),
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "delta", "dtype": "<i4", "astype": "<i2"},
    {"id": "fixedscaleoffset", "offset": 1, "scale": 10, "dtype": "<f8"},
    {"id": "lzma", "format": 3, "filters": [{"id": 33, "dict_size": 4096}]},
    {"id": "shuffle", "elementsize": 4},
    None,
)
_ZARRAY = {
    "zarr_format": 2,
    "shape": [20, 9],
    "chunks": [4, 3],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
_MORE: Mapping[str, tuple[Any, ...]] = {
    "dtype": _DTYPES,
    "data_type": _DTYPES,
    "filters": ([_V2_CODECS[5]], None, [_V2_CODECS[6]]),
    "compressor": _V2_CODECS,
    "fill_value": (None, "NaN", "AAA=", [0.0, 1.0], "-Infinity", "", 10**30, True),
    "origin": ([1, 0], [-3, 2**40], [], None),
    "_offset": ([1, 0], [-3, 2**62], [], ["1", 2]),
    "order": ("F", "C"),
    "shards": ([2, 2], [1, 1], None, [2**40, 2**40]),
    "rolling": ({"version": 1}, {"version": 2}, {"version": 1, "tags": {"a": "b"}}),
}


def seeds() -> list[bytes]:
    rolling = {
        **document([sharding([LITTLE, ZSTD])]),
        "attributes": {"origin": [3, -1], "rolling": {"version": 1}},
    }
    plain = {".zarray": _ZARRAY, ".zattrs": {"_offset": [2, -1], "a": 1}}
    prototype = {**_ZARRAY, "shard_format": "indexed", "shards": [2, 2]}
    nodes = {".zgroup": {"zarr_format": 2}, "a/.zarray": _ZARRAY, "a/.zattrs": {"b": 1}}
    made = [
        {"zarr.json": rolling},
        {"zarr.json": {**rolling, "codecs": [codec("bytes", endian="big")]}},
        plain,
        {".zarray": {**_ZARRAY, "origin": [2, -1], "dimension_separator": "/"}},
        {".zarray": prototype, ".zattrs": {"_offset": [2, -1]}},
        {".zmetadata": {"zarr_consolidated_format": 1, "metadata": nodes}, **nodes},
        nodes,
        *_samples(),
    ]
    made += [{".zarray": {**_ZARRAY, "dtype": dtype}} for dtype in _DTYPES]
    made += [{".zarray": {**_ZARRAY, "compressor": some}} for some in _V2_CODECS]
    made += [{".zarray": {**_ZARRAY, "filters": [some]}} for some in _V2_CODECS[5:]]
    return sorted({_text(some) for some in made})


def _samples() -> list[dict[str, Any]]:
    """Documents of the stored samples, those of an array together."""
    found: list[dict[str, Any]] = []
    for place in sorted((SAMPLES / "legacy").glob("*/*/")):
        files = [f for f in sorted(place.rglob("*")) if f.name.endswith(_DOCUMENTS)]
        found.append(
            {f.relative_to(place).as_posix(): json.loads(f.read_text()) for f in files}
        )
    return found


@cache
def _donors() -> Donors:
    found = dict(donors_of(json.loads(text) for text in seeds()))
    return {
        name: [*found.get(name, ()), *_MORE.get(name, ())]
        for name in found.keys() | _MORE.keys()
    }


def _text(some: Any) -> bytes:
    return json.dumps(some, separators=(",", ":")).encode()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another document, or other bytes where there is none."""
    return damaged_document(data, rng, _donors()) or damaged(data, rng)


class _Objects(Mapping[str, bytes]):
    """Some documents, and bytes for whatever else is asked for."""

    def __init__(self, documents: Mapping[str, bytes], other: bytes | None) -> None:
        self._documents = documents
        self._other = other

    def get(self, key: str, default: Any = None) -> Any:
        if key.endswith(_DOCUMENTS):
            return self._documents.get(key, default)
        return self._other

    def __getitem__(self, key: str) -> bytes:
        return self.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


def check(data: bytes) -> bool:
    objects = _Objects(_documents(data), _OTHER if len(data) % 2 else None)
    store = OneObject(objects)
    accepted = False
    for path in ("", "a", "arr"):
        accepted |= opens_array(store, path) | opens_group(store, path)
        accepted |= opens_rolling(store, path)
    return accepted


def _documents(data: bytes) -> dict[str, bytes]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {".zarray": data}
    return {key: _text(value) for key, value in found.items()}


DICTIONARY = tuple(
    _text(word)
    for word in (
        *(".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json", "_offset"),
        *("shape", "chunks", "dtype", "compressor", "fill_value", "filters", "order"),
        *("shard_format", "shards", "dimension_separator", "storage_transformers"),
        *("origin", "rolling", "chunk_grid", "chunk_memory_layout", "extensions"),
        *(None, True, [], {}, 2**64, -1, 1e400, "NaN", "-Infinity"),
    )
)
