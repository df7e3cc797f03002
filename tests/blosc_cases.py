"""Blosc frames for the kernels, whole and lying, and what each is judged to be."""

from __future__ import annotations

import struct as c
import zlib
from functools import cache, lru_cache
from itertools import product

import numpy as np

import blosc_frames
from blosc_frames import as_snappy, elements, encode
from cuda_host.statuses import Status
from gpushard.codecs import blosc_frame

OK, FORMAT, SIZE, HOST = Status.OK, Status.FORMAT, Status.SIZE, Status.HOST
NBYTES = 4096


# Each schedule and each class of streams asks again, under sanitizers, too.
parsed = lru_cache(1024)(blosc_frames.parse)


@cache
def frames_of(nbytes, kinds=("smooth", "noise", "zeros")):
    """Frames of `nbytes` decoded bytes: compressors, filters, item and block sizes."""
    frames = []
    cases = product(
        ["u1", "<i2", "<f4", "<f8", "S20"], kinds, [0, 1, 2], [0, 256, 1024]
    )
    for k, (dtype, kind, shuffle, blocksize) in enumerate(cases):
        itemsize = np.dtype(dtype).itemsize
        array = elements(kind, dtype, nbytes // itemsize)
        if array.nbytes != nbytes:
            continue
        cname = ["lz4", "zlib", "zstd", "lz4hc", "blosclz", "lz4"][k % 6]
        encoded = encode(array, cname, shuffle, blocksize)
        is_stored = encoded[2] & blosc_frame.MEMCPYED
        frames.append(as_snappy(encoded) if k % 6 == 5 and not is_stored else encoded)
    return tuple(frames)


def needs_host(data):
    frame = parsed(data)
    return frame.header.compressor == blosc_frame.BLOSCLZ and not frame.is_raw.all()


# ---- frames that lie

SPLIT = encode(elements("smooth", "<f4", NBYTES // 4), "lz4", 1, 1024)
ZSTD = encode(elements("smooth", "<f4", NBYTES // 4), "zstd", 1, 1024)
SNAPPY = as_snappy(SPLIT)
STORED = encode(elements("noise", "<f4", NBYTES // 4), "lz4", 1, 1024)
BLOSCLZ = encode(elements("smooth", "<f4", NBYTES // 4), "blosclz", 1, 1024)


def changed(data, offset, layout, *values):
    out = bytearray(data)
    c.pack_into(layout, out, offset, *values)
    return bytes(out)


def first_stream(data):
    """Offset of the size of the first stream, and the size."""
    (offset,) = c.unpack_from("<i", data, 16)
    return offset, c.unpack_from("<i", data, offset)[0]


def with_stream_byte(data, at, value):
    """The same frame with one byte of its first compressed stream changed."""
    frame = blosc_frames.parse(data)
    offset = int(frame.source_offset[~frame.is_raw][0])
    return changed(data, offset + at, "<B", value)


def one_stream(compressor, stream):
    """A frame of one block that is one stream."""
    flags = compressor << 5 | blosc_frame.DONT_SPLIT
    head = c.pack("<4B3I", 2, 1, flags, 1, NBYTES, NBYTES, 24 + len(stream))
    return head + c.pack("<ii", 20, len(stream)) + stream


def tiny_blocks():
    """A frame of one-byte blocks, all stored."""
    starts = [16 + 4 * NBYTES + 5 * k for k in range(NBYTES)]
    body = b"".join(c.pack("<iB", 1, k % 256) for k in range(NBYTES))
    nbytes = 16 + 9 * NBYTES
    head = c.pack("<4B3I", 2, 1, 1 << 5, 1, NBYTES, 1, nbytes)
    return head + c.pack(f"<{NBYTES}i", *starts) + body


CASES = {
    "split": (SPLIT, OK),
    "snappy": (SNAPPY, OK),
    "memcpyed": (STORED, OK),
    "memcpyed blosclz": (changed(STORED, 2, "<B", STORED[2] & 0x1F), OK),
    "two blocks at one place": (changed(ZSTD, 20, "<4s", ZSTD[16:20]), HOST),
    "blosclz": (BLOSCLZ, HOST),
    "blocks of one byte": (tiny_blocks(), HOST),
    "streams of version 3": (changed(SPLIT, 1, "<B", 3), HOST),
    "memcpyed, of version 3": (changed(STORED, 1, "<B", 3), OK),
    "zstd stream with dictionary": (with_stream_byte(ZSTD, 4, 0x21), HOST),
    "zstd stream with other magic": (with_stream_byte(ZSTD, 0, 0), FORMAT),
    "snappy stream of another size": (with_stream_byte(SNAPPY, 0, 1), FORMAT),
    "zlib": (one_stream(blosc_frame.ZLIB, zlib.compress(bytes(NBYTES))), OK),
    "zlib without check bits": (one_stream(blosc_frame.ZLIB, bytes(20)), FORMAT),
    "zlib dictionary": (one_stream(blosc_frame.ZLIB, b"\x78\xbb" + bytes(9)), HOST),
    "lz4 stream of no bytes": (one_stream(blosc_frame.LZ4, b""), FORMAT),
    "cut header": (SPLIT[:15], FORMAT),
    "empty": (b"", FORMAT),
    "version 3": (changed(SPLIT, 0, "<B", 3), FORMAT),
    "compressor 5": (changed(SPLIT, 2, "<B", SPLIT[2] & 31 | 5 << 5), FORMAT),
    "reserved flag": (changed(SPLIT, 2, "<B", SPLIT[2] | 8), FORMAT),
    "item size 0": (changed(SPLIT, 3, "<B", 0), FORMAT),
    "block size 0": (changed(SPLIT, 8, "<I", 0), FORMAT),
    "block size not split evenly": (changed(SPLIT, 8, "<I", 1022), FORMAT),
    "block beyond the bytes": (changed(SPLIT, 8, "<I", NBYTES + 4), FORMAT),
    "frame size too large": (changed(SPLIT, 12, "<I", len(SPLIT) + 1), FORMAT),
    "one byte less": (SPLIT[:-1], FORMAT),
    "start before the streams": (changed(SPLIT, 16, "<i", 31), FORMAT),
    "start below zero": (changed(SPLIT, 16, "<i", -4), FORMAT),
    "start at the end": (changed(SPLIT, 16, "<i", len(SPLIT) - 3), FORMAT),
    "stream below zero": (changed(SPLIT, first_stream(SPLIT)[0], "<i", -1), FORMAT),
    "stream beyond": (changed(SPLIT, first_stream(SPLIT)[0], "<i", 10**6), FORMAT),
    "memcpyed, cut": (changed(STORED[:-1], 12, "<I", len(STORED) - 1), FORMAT),
    "of no bytes": (changed(STORED[:16], 4, "<3I", 0, 0, 16), SIZE),
    "of more bytes": (encode(np.zeros(NBYTES + 1, "u1"), "lz4", 1), SIZE),
    "huge": (changed(SPLIT, 4, "<II", 2**32 - 4, 2**32 - 4), SIZE),
}
