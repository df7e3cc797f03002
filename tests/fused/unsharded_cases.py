"""Unsharded arrays in files, and what stands in for the C library's functions."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)

import gpushard
from gpushard.fused import opening, system_calls

need_opened_files = pytest.mark.skipif(
    system_calls.file_calls() is None, reason="this system opens no files for the loops"
)

COMPILED = gpushard.Options(compile_nbytes=0, small_read_chunks=0)
SHAPE, CHUNKS = (50, 37), (8, 10)
FILL = -7
CHAINS = {
    "raw": {},
    "big-endian": {"serializer": BytesCodec(endian="big")},
    "crc": {"compressors": [Crc32cCodec()]},
    "zstd": {"compressors": [ZstdCodec()]},
    "zstd-crc": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "blosc": {"compressors": [BloscCodec(cname="lz4")]},
    "turned gzip": {
        "compressors": [GzipCodec()],
        "filters": [TransposeCodec(order=(1, 0))],
    },
    "v2": {"zarr_format": 2},
    "flat v2": {
        "zarr_format": 2,
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "flat": {"chunk_key_encoding": {"name": "default", "separator": "."}},
}


def stored(place, values, written=(...,), *, chunks=CHUNKS, **chain):
    """Array of `values`, or of those at the keys `written`, as a file takes time."""
    chain = {"compressors": None, **chain}
    made = zarr.create_array(
        place,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        fill_value=FILL,
        **chain,
    )
    for key in written:
        made[key] = values[key]
    return made


def values_of(dtype="i4", *, with_gaps=True):
    values = np.random.default_rng(2).integers(-50, 50, SHAPE).astype(dtype)
    if with_gaps:
        values[16:32, 10:30] = FILL  # four inner chunks without a file
    return values


def opened(place, options=COMPILED, **arguments):
    return gpushard.open_array(place, device="cpu", options=options, **arguments)


STATX = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint),
    ctypes.c_void_p,
)
OPENAT2 = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 5)


@pytest.fixture
def calls_replaced(monkeypatch):
    """Puts functions of Python's in the place of the C library's."""
    held = []

    def put(name, kind, wrapped):
        plain = kind(getattr(system_calls.file_calls(), name))
        held.append(kind(partial(wrapped, plain)))
        address = ctypes.cast(held[-1], ctypes.c_void_p).value
        changed = system_calls.file_calls()._replace(**{name: address})
        monkeypatch.setattr(opening, "file_calls", lambda: changed)

    return put
