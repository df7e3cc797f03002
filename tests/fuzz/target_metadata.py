"""A metadata document, opened as an array and as a group, and read where it opens.

Input: the text of a ``zarr.json``. Every other object of the store has the same few
bytes or, for documents of an even length, is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from array_strategies import codec
from fuzz.mutations import Donors, damaged, damaged_document, donors_of
from fuzz.opening import opens_array, opens_group
from fuzz.shard_cases import CHAINS, SAMPLES, OneObject, document, sharding

if TYPE_CHECKING:
    import random

NAME = "metadata"

_DOCUMENT = "zarr.json"
_OTHER = bytes(range(64))
_DATA_TYPES = (
    *("bool", "int8", "uint16", "float16", "float64", "complex64", "bfloat16", "r24"),
    *("string", "variable_length_bytes", "float8_e4m3fn", "int4"),
    "r18446744073709551616",
    codec("numpy.datetime64", unit="ns", scale_factor=1),
    codec("fixed_length_utf32", length_bytes=8),
    codec("null_terminated_bytes", length_bytes=5),
    codec("raw_bytes", length_bytes=3),
    codec("struct", fields=[["a", "int16"], ["b", "float32"]]),
)
_CODECS = (
    *(entry for chain in CHAINS.values() for entry in chain),
    *(sharding(chain) for chain in CHAINS.values()),
    *({"name": name} for name in ("vlen-utf8", "vlen-bytes", "crc32c", "bytes")),
    *(codec(f"numcodecs.{name}") for name in ("lzma", "bz2", "packbits", "pickle")),
    codec("numcodecs.bitround", keepbits=3),
    codec("numcodecs.lzma", format=3, filters=[{"id": 33, "dict_size": 4096}]),
    codec("numcodecs.fixedscaleoffset", offset=1, scale=10, dtype="<f8", astype="<i2"),
    codec("cast_value", data_type="float32"),
    codec("scale_offset", scale=2, offset=1),
)
_GRIDS = (
    codec("regular", chunk_shape=[4, 4]),
    codec("rectilinear", kind="inline", chunk_shapes=[[[4, 4]], [8, 24]]),
    codec("v2", separator="."),
    codec("default", separator="/"),
)
_FILL_VALUES = (
    *("NaN", "-Infinity", "0x7fc00000", [0, 0], ["NaN", 1], "AAA=", True, ""),
)


def seeds() -> list[bytes]:
    made = [document([sharding(chain)]) for chain in CHAINS.values()]
    array = made[0]
    made += [{**array, "data_type": kind, "fill_value": 0} for kind in _DATA_TYPES]
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    held = {"kind": "inline", "must_understand": False, "metadata": {"a": array}}
    made += [group, {**group, "consolidated_metadata": held}]
    return sorted({_text(some) for some in (*made, *_samples())})


def _samples() -> list[Any]:
    places = sorted((SAMPLES / "valid").rglob(_DOCUMENT))
    return [json.loads(place.read_bytes()) for place in places]


@cache
def _donors() -> Donors:
    """What stands in valid documents, and what may stand there."""
    more = {
        "data_type": _DATA_TYPES,
        "codecs": _CODECS,
        "index_codecs": _CODECS,
        "chunk_grid": _GRIDS,
        "chunk_key_encoding": _GRIDS,
        "fill_value": _FILL_VALUES,
        "storage_transformers": ({"name": "x"},),
    }
    found = dict(donors_of(json.loads(text) for text in seeds()))
    return {name: [*found.get(name, ()), *more.get(name, ())] for name in found | more}


def _text(some: Any) -> bytes:
    return json.dumps(some, separators=(",", ":")).encode()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another document, or other bytes where there is none."""
    return damaged_document(data, rng, _donors()) or damaged(data, rng)


class _Objects(Mapping[str, bytes]):
    """One document, and bytes for whatever else is asked for."""

    def __init__(self, text: bytes, other: bytes | None) -> None:
        self._text = text
        self._other = other

    def get(self, key: str, default: Any = None) -> Any:
        if key.endswith(_DOCUMENT):
            return self._text if key == _DOCUMENT else default
        return self._other

    def __getitem__(self, key: str) -> bytes:
        return self.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter([_DOCUMENT])

    def __len__(self) -> int:
        return 1


def objects_of(data: bytes) -> Mapping[str, bytes]:
    """Store whose document is `data`."""
    return _Objects(data, _OTHER if len(data) % 2 else None)


def check(data: bytes) -> bool:
    store = OneObject(objects_of(data))
    return opens_array(store) | opens_group(store)


DICTIONARY = tuple(
    _text(word)
    for word in (
        *("shape", "data_type", "chunk_grid", "fill_value", "codecs", "attributes"),
        *("chunk_key_encoding", "dimension_names", "storage_transformers", "name"),
        *("configuration", "must_understand", "index_codecs", "index_location"),
        *("consolidated_metadata", "metadata", "node_type", "sharding_indexed"),
        *(None, True, [], {}, 2**64, -1, 1e400, "NaN", "-Infinity"),
    )
)
