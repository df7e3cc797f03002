"""Missing inner chunks hold the fill value, bit for bit, whoever writes it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zstandard

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    FUSED,
    PLAIN,
    assert_all_fused,
    need_fast_packages,
    watch_sinks,
)
from gpushard.formats.data_types import parse_data_type
from gpushard.placing.place import HostSink
from spec_shards import EMPTY, document, index_of, sharding
from zarr_oracle import StoredArray, assert_same_bits

need_fast_packages()

SHAPE, SHARD, CHUNK = (20, 13), (8, 8), (4, 2)
KEYS = [np.s_[...], np.s_[::-1, ::3], np.s_[3:18, 1:12], np.s_[5], np.s_[7:9, 6:9]]

DATES = {"unit": "ms", "scale_factor": 10}


def of_length(name: str, n: int) -> dict[str, Any]:
    return {"name": name, "configuration": {"length_bytes": n}}


def of_time(name: str) -> dict[str, Any]:
    return {"name": name, "configuration": DATES}


CASES: dict[str, tuple[Any, Any]] = {
    "bool": ("bool", True),
    "int8": ("int8", -128),
    "uint16": ("uint16", 0xA1B2),
    "int64": ("int64", -(2**63)),
    "half": ("float16", "-Infinity"),
    "quiet NaN": ("float32", "0x7fc12345"),
    "signalling NaN": ("float32", "0x7f812345"),
    "signalling NaN of 64 bits": ("float64", "0xfff0000000000123"),
    "negative zero": ("float64", -0.0),
    "complex": ("complex64", ["0x7fc12345", "0xffc00001"]),
    "complex of 128 bits": ("complex128", ["-Infinity", "0x7ff0000000000001"]),
    "date": (of_time("numpy.datetime64"), 123456789),
    "no date": (of_time("numpy.datetime64"), "NaT"),
    "duration": (of_time("numpy.timedelta64"), -5),
    "text": (of_length("fixed_length_utf32", 12), "é\U0001f600"),
    "no text": (of_length("fixed_length_utf32", 12), ""),
    "odd bytes": (of_length("null_terminated_bytes", 7), "YWIA"),
    "no bytes": (of_length("null_terminated_bytes", 3), ""),
}
# What must come out, where equal values may have other bits.
BITS: dict[str, bytes] = {
    "quiet NaN": np.uint32(0x7FC12345).tobytes(),
    "signalling NaN": np.uint32(0x7F812345).tobytes(),
    "signalling NaN of 64 bits": np.uint64(0xFFF0000000000123).tobytes(),
    "negative zero": np.float64(-0.0).tobytes(),
    "complex": np.array([0x7FC12345, 0xFFC00001], "u4").tobytes(),
    "complex of 128 bits": np.array(
        [0xFFF0000000000000, 0x7FF0000000000001], "u8"
    ).tobytes(),
    "no date": np.datetime64("NaT", "ms").tobytes(),
    "text": np.array("é\U0001f600", "U3").tobytes(),
    "odd bytes": b"ab" + bytes(5),
}


def must_not_fill(*_):
    raise AssertionError("filled the plain way")


def array_of(name: str, endian: str, chain: list[Any]) -> StoredArray:
    """Of the shards one holds a few inner chunks, one none, and the others are not."""
    data_type, fill = CASES[name]
    inner = sharding(CHUNK, codecs=[codec("bytes", endian=endian), *chain])
    here = document(SHAPE, SHARD, inner, dtype=data_type, fill_value=fill)
    n = 8 * parse_data_type(data_type).dtype.itemsize
    entries = [(EMPTY, EMPTY)] * 8
    objects = {"zarr.json": json.dumps(here).encode(), "c/0/1": index_of(entries)}
    body = np.random.default_rng(3).integers(0, 2, n, np.uint8).tobytes()
    if chain:
        body = zstandard.ZstdCompressor().compress(body)
    entries[2] = entries[5] = (0, len(body))
    objects["c/1/0"] = body + index_of(entries)
    return StoredArray(objects, np.empty(0))


def reads(store: Any, options: gpushard.Options) -> list[np.ndarray]:
    a = gpushard.open_array(store, options=options)
    return [a.oindex[::2, [12, 0, 0, 7]], *[a[key] for key in KEYS], *a.read_many(KEYS)]


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("chain", ["raw", "zstd"])
@pytest.mark.parametrize("name", CASES)
def test_missing_inner_chunks_are_filled_alike(
    name, chain, endian, monkeypatch, tmp_path
):
    array = array_of(name, endian, CHAINS[chain])
    stores = [array.placed(kind, tmp_path) for kind in ("local", "memory")]
    want = reads(stores[0], PLAIN)
    seen = watch_sinks(monkeypatch)
    monkeypatch.setattr(HostSink, "fill", must_not_fill)
    for store in stores:
        for x, y in zip(reads(store, FUSED), want, strict=True):
            assert_same_bits(x, y)
    assert_all_fused(seen)
    if name in BITS:
        assert want[1][:1, :1].tobytes() == BITS[name]
        assert want[1][-1:, -1:].tobytes() == BITS[name]


def test_a_gather_too_dense_for_boxes_is_filled_the_plain_way(tmp_path):
    store = array_of("complex", "big", []).placed("local", tmp_path)
    rows = np.sort(np.arange(200) % 20)
    got = gpushard.open_array(store, options=FUSED).oindex[rows, 2:]
    want = gpushard.open_array(store, options=PLAIN)[...]
    assert_same_bits(got, want[rows, 2:])


def test_parts_of_any_strides_are_filled(tmp_path):
    store = array_of("signalling NaN of 64 bits", "big", []).placed("local", tmp_path)
    a = gpushard.open_array(store, options=FUSED)
    want = gpushard.open_array(store, options=PLAIN)[...]
    key = np.s_[::-2, 1:9]
    out = np.empty((2, 8, 3, 10), "f8")[1, ::-1, 2].T
    assert_same_bits(np.ascontiguousarray(a.read(key, out=out)), want[key])
