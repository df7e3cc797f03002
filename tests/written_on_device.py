"""Small arrays on an (emulated) device that compresses what is written to them."""

from __future__ import annotations

import json

import numpy as np

import gpushard
from array_strategies import codec
from gpushard.options import Options
from gpushard.write_options import WriteOptions
from spec_shards import LITTLE, document, sharding

SHAPE, CHUNKS, SHARDS = (24, 40), (4, 10), (12, 20)
CODECS = {
    "zstd": codec("zstd", level=1, checksum=False),
    "lz4": codec("numcodecs.lz4"),
    "gzip": codec("gzip", level=5),
    "zlib": codec("numcodecs.zlib"),
    "zstd of numcodecs": codec("numcodecs.zstd"),
}


def numbers(shape=SHAPE, dtype="f4") -> np.ndarray:
    return np.random.default_rng(4).integers(1, 99, shape).astype(dtype)


def on_device(device, values):
    made = device.empty(values.shape, values.dtype)
    host = device.allocate_pinned(values.nbytes)
    host[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    device.upload(made.buffer.address, host, 0)
    device.drain()
    return made


def new(place, device, *codecs, shape=SHAPE, dtype="f4", chain=(), **options):
    """Array whose inner chunks go through `codecs`, opened on the device."""
    chain = chain or [sharding(CHUNKS, codecs=[LITTLE, *codecs])]
    made = document(shape, SHARDS, *chain, dtype=np.dtype(dtype).name)
    place.mkdir(exist_ok=True)
    (place / "zarr.json").write_text(json.dumps(made))
    given = Options(write=WriteOptions(**options))
    return gpushard.open_array(place, device=device, options=given)
