"""Streams that decode to more than they claim, and arrays of them."""

from __future__ import annotations

import json
import zlib
from struct import pack

import numpy as np
import zstandard
from crc32c import crc32c
from numcodecs.lz4 import compress as lz4_block

from array_strategies import codec
from gpushard.codecs import blosc_frame
from spec_shards import LITTLE, document, shard_of, sharding

N_CHUNKS, N_ITEMS = 9, 500
NBYTES = 4 * N_ITEMS
FILL = 7


def zstd(data, claimed):
    """A frame that claims a size, and has a checksum if it is told the truth."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert frame[4] == 0
    return frame[:4] + b"\x80" + frame[5:6] + pack("<I", claimed) + frame[6:]


def lz4(data, claimed):
    return pack("<I", claimed) + bytes(lz4_block(data))[4:]


def gzip(data, claimed):
    deflated = zlib.compressobj(wbits=-15)
    body = deflated.compress(data) + deflated.flush()
    trailer = pack("<II", zlib.crc32(data), claimed)
    return b"\x1f\x8b\x08" + bytes(7) + body + trailer


def zlib_stream(data, claimed):
    del claimed  # it does not tell
    return zlib.compress(data)


def in_blosc(compressor, stream_of, data, claimed):
    """A Blosc frame of one block that is one stream."""
    stream = stream_of(data, claimed)
    flags = compressor << 5 | blosc_frame.DONT_SPLIT
    sizes = claimed, claimed, 24 + len(stream), 20, len(stream)
    return pack("<4B5I", 2, 1, flags, 1, *sizes) + stream


def blosc_zstd(data, claimed):
    return in_blosc(blosc_frame.ZSTD, zstd, data, claimed)


def blosc_lz4(data, claimed):
    return in_blosc(blosc_frame.LZ4, lambda *told: lz4(*told)[4:], data, claimed)


BLOSC = {"typesize": 1, "clevel": 5, "shuffle": "noshuffle", "blocksize": 0}
CHAINS = {
    "zstd": (codec("zstd", level=3, checksum=False), zstd),
    "lz4": (codec("numcodecs.lz4", acceleration=1), lz4),
    "gzip": (codec("gzip", level=5), gzip),
    "zlib": (codec("numcodecs.zlib", level=1), zlib_stream),
    "blosc zstd": (codec("blosc", cname="zstd", **BLOSC), blosc_zstd),
    "blosc lz4": (codec("blosc", cname="lz4", **BLOSC), blosc_lz4),
}


def overrunning_array(chain, victims, n_behind, *codecs):
    """Objects of an array of rows, of which `victims` decode to more; and its values.

    They decode to `n_behind` bytes too many. `codecs` are those behind the compressor:
    none, or crc32c.
    """
    compressor, encode = CHAINS[chain]
    rng = np.random.default_rng(5)
    values = rng.integers(0, 50, (N_CHUNKS, N_ITEMS)).astype("<i4")
    chunks = []
    for k, chunk in enumerate(values):
        data = chunk.tobytes() + (bytes(n_behind) if k in victims else b"")
        encoded = encode(data, NBYTES)
        if codecs:
            encoded += crc32c(encoded).to_bytes(4, "little")
        chunks.append(encoded)
    inner = sharding((1, N_ITEMS), codecs=[LITTLE, compressor, *codecs])
    metadata = document(
        values.shape, values.shape, inner, dtype="int32", fill_value=FILL
    )
    objects = {"zarr.json": json.dumps(metadata).encode(), "c/0/0": shard_of(*chunks)}
    return objects, values
