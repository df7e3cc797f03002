"""Streams for the gates, whole and lying, and what each is judged to be."""

from __future__ import annotations

import gzip
import struct as c
import zlib

import numcodecs
import numpy as np
import zstandard

from cuda_host.statuses import Status

OK, FORMAT, SIZE, HOST = Status.OK, Status.FORMAT, Status.SIZE, Status.HOST

NBYTES = 5000
DATA = (np.arange(NBYTES) // 7 % 251).astype(np.uint8).tobytes()
NOISE = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8).tobytes()


# ---- zstd


def zstd(data=DATA, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def frame(*blocks, size=NBYTES, flags=0, window=0x50, tail=b""):
    """Frame of (type, size field, bytes) blocks, by hand; `size` None: untold."""
    out = c.pack("<IB", 0xFD2FB528, flags | (0 if size is None else 0x80))
    if not flags & 0x20:
        out += bytes([window])
    out += b"" if size is None else c.pack("<I", size)
    for k, (kind, nbytes, data) in enumerate(blocks):
        last = k == len(blocks) - 1
        out += (nbytes << 3 | kind << 1 | last).to_bytes(3, "little") + data
    return out + tail


def raw(data=DATA):
    return 0, len(data), data


SKIPPABLE = c.pack("<II", 0x184D2A55, 3) + b"abc"
UNSIZED = zstd(write_content_size=False)

ZSTD_CASES = {
    "plain": (zstd(), OK),
    "with checksum": (zstd(write_checksum=True), OK),
    "not compressible": (zstd(NOISE), OK),
    "no content size": (UNSIZED, OK),
    "one stored block": (frame(raw()), OK),
    "two stored blocks": (frame(raw(DATA[:100]), raw(DATA[100:])), OK),
    "one repeated byte": (frame((1, NBYTES, b"x")), OK),
    "empty block at the end": (frame(raw(), raw(b"")), OK),
    "unused bit set": (frame(raw(), flags=0x10), OK),
    "single segment": (frame(raw(), flags=0x20), OK),
    "two frames": (zstd(DATA[:2000]) + zstd(DATA[2000:]), HOST),
    "skippable frame first": (SKIPPABLE + zstd(), HOST),
    "skippable frame last": (zstd() + SKIPPABLE, HOST),
    "bytes behind": (zstd() + b"\0", HOST),
    "dictionary": (frame(raw(), flags=1), HOST),
    "window of 2 TiB": (frame(raw(), window=0xF8), HOST),
    "block beyond the window": (frame(raw(), window=0, size=NBYTES), HOST),
    "a thousand blocks": (frame(*[raw(b"")] * 1000, raw()), HOST),
    "reserved bit set": (frame(raw(), flags=8), FORMAT),
    "reserved block type": (frame((3, 10, b"0123456789")), FORMAT),
    "compressed block of one byte": (frame((2, 1, b"x")), FORMAT),
    "other magic": (b"\x29" + zstd()[1:], FORMAT),
    "empty": (b"", FORMAT),
    "another content size": (zstd(DATA[:-1]), SIZE),
    "content size of 2**32 more": (
        c.pack("<IBBQ", 0xFD2FB528, 0xC0, 0x50, 2**32 + NBYTES) + frame(raw())[10:],
        SIZE,
    ),
    "stored more than told": (frame(raw(DATA + b"x")), SIZE),
    "stored less than told": (frame(raw(DATA[1:])), SIZE),
    "stored more, untold": (frame(raw(DATA + b"x"), size=None), SIZE),
    "repeated too often": (frame((1, NBYTES + 1, b"x")), SIZE),
}


# ---- lz4, gzip, zlib

LZ4 = bytes(numcodecs.LZ4().encode(DATA))


def member(data=DATA, flags=0, fields=b"", **changes):
    deflated = zlib.compressobj(wbits=-15)
    body = deflated.compress(data) + deflated.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
    trailer = c.pack("<II", zlib.crc32(data), changes.get("size", len(data)))
    return head + fields + body + trailer


EXTRA = c.pack("<H", 5) + b"extra"
GZIP_CASES = {
    "plain": (gzip.compress(DATA), OK),
    "with name": (member(flags=8, fields=b"name\0"), OK),
    "with all fields": (member(flags=29, fields=EXTRA + b"name\0comment\0"), OK),
    "header checksum": (member(flags=2, fields=b"\0\0"), HOST),
    "another size": (member(DATA[1:]), HOST),
    "two members": (gzip.compress(DATA[:100]) + gzip.compress(DATA[100:]), HOST),
    "zeros behind": (gzip.compress(DATA) + bytes(4), HOST),
    "name of 5,000 bytes": (member(flags=8, fields=b"n" * 5000 + b"\0"), HOST),
    "reserved flag": (member(flags=32), FORMAT),
    "other method": (b"\x1f\x8b\x07" + member()[3:], FORMAT),
    "name without end": (member(flags=8)[:10] + b"n" * 100, FORMAT),
    "extra field too long": (member(flags=4, fields=b"\xff\xff"), FORMAT),
    "nothing deflated": (member()[:10] + member()[-9:], FORMAT),
    "short": (b"\x1f\x8b\x08", FORMAT),
    "empty": (b"", FORMAT),
}

ZLIB = zlib.compress(DATA)
ZLIB_CASES = {
    "plain": (ZLIB, OK),
    "fastest": (zlib.compress(DATA, 1), OK),
    "of no bytes": (zlib.compress(b""), OK),
    "dictionary": (b"\x78\xbb" + ZLIB[2:], HOST),
    "wrong check bits": (b"\x78\x9d" + ZLIB[2:], FORMAT),
    "other method": (b"\x77\x85" + ZLIB[2:], FORMAT),
    "window too large": (b"\x88\x1c" + ZLIB[2:], FORMAT),
    "short": (zlib.compress(b"")[:7], FORMAT),
    "empty": (b"", FORMAT),
}
