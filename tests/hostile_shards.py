"""One shard for each row of the table of threats in ``docs/reliability.md``.

Every shard holds four inner chunks of 1,024 elements; the first is the hostile one.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import crc32c
import numcodecs
import numpy as np
import zstandard

from array_strategies import codec
from spec_shards import CRC, EMPTY, LITTLE, document, index_of, shard_of, sharding

N = 1024
"""Elements, and bytes, of an inner chunk."""

# A part of the first inner chunk.
PART = np.s_[5:9]
RIGHT, ANY = ("right",), ("right", "wrong")

ELEMENTS = [bytes((np.arange(N) * (k + 3) % 251).astype("u1")) for k in range(4)]
ZSTD = codec("zstd", level=1, checksum=False)
GZIP = codec("gzip", level=1)
ZLIB = codec("numcodecs.zlib", level=1)
LZ4 = codec("numcodecs.lz4", acceleration=1)


def blosc(cname: str = "lz4", shuffle: str = "shuffle") -> dict[str, Any]:
    return codec(
        "blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=4, blocksize=0
    )


@dataclass(frozen=True)
class Hostile:
    """A stored object, and the codecs that its metadata names.

    `outcomes`: what a read of the hostile inner chunk may give beside an error:
    "right" elements, "wrong" ones. `part_outcomes`: what a read of a part of it may
    give as well.
    """

    row: str
    shard: bytes
    codecs: list[Any]
    outcomes: tuple[str, ...] = ()
    index_codecs: list[Any] | None = None
    part_outcomes: tuple[str, ...] = ()

    def may_give(self, outcome: str, key: Any) -> bool:
        """Whether an outcome of a read of `key` surprises nobody."""
        of_a_part = self.part_outcomes if key == PART else ()
        return outcome in ("error", *self.outcomes, *of_a_part)

    @property
    def spoils_its_index(self) -> bool:
        """Whether nothing of the shard can be read."""
        return self.row.startswith(("shard of", "index checksum", "flipped bit"))

    def document(self, n_extra: int = 0) -> dict[str, Any]:
        """Metadata of an array of this shard and of a good one after it."""
        inner = sharding(
            (N,), codecs=self.codecs, index_codecs=self.index_codecs or [LITTLE, CRC]
        )
        return document((8 * N + n_extra,), (4 * N,), inner)


def _zstd(data: bytes, *, has_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=has_size).compress(data)


def _zstd_frame(content_nbytes: int, window: int, payload: bytes = b"") -> bytes:
    """Frame head (RFC 8878, 3.1.1) with an 8-byte size, one raw block after it."""
    head = struct.pack("<IBBQ", 0xFD2FB528, 0b11_0_00_0_00, window, content_nbytes)
    block = struct.pack("<I", len(payload) << 3 | 1)[:3]
    return head + block + payload


def _gzip_bomb(n_mib: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        for _ in range(n_mib):
            file.write(bytes(1 << 20))
    return out.getvalue()


def _zstd_bomb(n_mib: int, *, has_size: bool) -> bytes:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=has_size)
    stream = compressor.compressobj(n_mib << 20 if has_size else -1)
    parts = [stream.compress(bytes(1 << 20)) for _ in range(n_mib)]
    return b"".join([*parts, stream.flush()])


def _lz4_bomb(n_mib: int) -> bytes:
    return numcodecs.LZ4().encode(bytes(n_mib << 20))


def _with(encode: Callable[[bytes], bytes], first: bytes) -> bytes:
    return shard_of(first, *map(encode, ELEMENTS[1:]))


def _of_entry(
    first: tuple[int, int], encode: Callable[[bytes], bytes] = bytes
) -> bytes:
    """Shard of sound inner chunks; the entry of the first one is given."""
    good = shard_of(*map(encode, ELEMENTS))
    entries = np.frombuffer(good[-68:-4], "<u8").reshape(4, 2).tolist()
    return good[:-68] + index_of([first, *entries[1:]])


def indexes() -> Iterator[Hostile]:
    """Rows about the index."""
    rows = {
        "offset beyond the file": (10**6, N),
        "nbytes beyond the file": (0, 10**6),
        "offset + nbytes wraps to a small number": (2**64 - 100, 100 + N),
        "offset + nbytes wraps to zero": (2**64 - N, N),
        "offset of 2^63": (2**63, N),
        "nbytes of 2^62": (0, 2**62),
        "nbytes of 2^64 - 2": (0, 2**64 - 2),
        "only the offset is 2^64 - 1": (EMPTY, N),
        "only nbytes is 2^64 - 1": (0, EMPTY),
        "nbytes of zero": (0, 0),
        "nbytes of zero at the very end": (4 * N + 68, 0),
        "one byte too few": (0, N - 1),
        "one byte too many": (0, N + 1),
    }
    for row, entry in rows.items():
        yield Hostile(row, _of_entry(entry), [LITTLE])
        yield Hostile(f"{row}, zstd", _of_entry(entry, _zstd), [LITTLE, ZSTD])
    entry = (4 * N, N)
    yield Hostile("range inside the index", _of_entry(entry), [LITTLE], ANY)
    good = shard_of(*ELEMENTS)
    flipped = good[:-66] + bytes([good[-66] ^ 4]) + good[-65:]
    yield Hostile("flipped bit in the index", flipped, [LITTLE])
    wrong = good[:-1] + bytes([good[-1] ^ 1])
    yield Hostile("index checksum wrong", wrong, [LITTLE])
    for n in (0, 1, 3, 16, 64, 67):
        yield Hostile(f"shard of {n} bytes", good[len(good) - n :], [LITTLE])
        raw = shard_of(*ELEMENTS)[: max(n - 4, 0)]
        yield Hostile(
            f"shard of {len(raw)} bytes, no checksum", raw, [LITTLE], (), [LITTLE]
        )


def streams() -> Iterator[Hostile]:
    """Rows about encoded inner chunks."""
    first = ELEMENTS[0]
    for name, n in (("short", N - 1), ("long", N + 1), ("empty", 0), ("odd", 1)):
        other = (first * 2)[:n]
        yield Hostile(f"raw {name}", _with(bytes, other), [LITTLE])
        yield Hostile(
            f"zstd decodes {name}", _with(_zstd, _zstd(other)), [LITTLE, ZSTD]
        )
        sizeless = _zstd(other, has_size=False)
        yield Hostile(
            f"zstd without size decodes {name}", _with(_zstd, sizeless), [LITTLE, ZSTD]
        )
        packed = gzip.compress(other)
        yield Hostile(
            f"gzip decodes {name}", _with(gzip.compress, packed), [LITTLE, GZIP]
        )
        encode = numcodecs.Blosc("lz4", 5, 1).encode
        if n:
            yield Hostile(
                f"blosc decodes {name}", _with(encode, encode(other)), [LITTLE, blosc()]
            )
        lz4 = numcodecs.LZ4().encode
        yield Hostile(
            f"lz4 decodes {name}",
            _with(lz4, lz4(other)),
            [LITTLE, LZ4],
        )
    for claim in (2**64 - 1, 2**63, 8 << 30, N + 1, N - 1, 0):
        for window in (0, 0b10101_000, 0b11111_111):
            frame = _zstd_frame(claim, window, first)
            yield Hostile(
                f"zstd claims {claim} bytes in a window {window}",
                _with(_zstd, frame),
                [LITTLE, ZSTD],
                # This very number says that the size is not told.
                RIGHT if claim == 2**64 - 1 else (),
            )
    frame = _zstd_frame(N, 0b10101_000, first)
    yield Hostile("zstd window of 2 GiB", _with(_zstd, frame), [LITTLE, ZSTD], RIGHT)


def remainders() -> Iterator[Hostile]:
    """Rows about streams of the right elements, and what is beside these."""
    first = ELEMENTS[0]
    cut = struct.pack("<II", 0x184D2A50, 4) + b"abc"  # of a skippable frame
    rows = {
        "gzip": (gzip.compress, GZIP, (b"x",)),
        "zlib": (zlib.compress, ZLIB, (b"x", b"\0")),
        "zstd": (_zstd, ZSTD, (b"x", b"\0", cut)),
        "lz4": (numcodecs.LZ4().encode, LZ4, (b"x", b"\0")),
    }
    for name, (encode, spec, behind) in rows.items():
        good = bytes(encode(first))
        for more in behind:
            shard = _with(encode, good + more)
            row = f"{name} with {more!r} behind it"
            # LZ4 is decoded no further than what is wanted.
            of_a_part = RIGHT if name == "lz4" else ()
            yield Hostile(row, shard, [LITTLE, spec], part_outcomes=of_a_part)
    encode = numcodecs.LZ4().encode
    block = bytes(encode(first))[4:]
    for n in (0, N - 1, N + 1, 2**31 - 1, 2**32 - 1):
        shard = _with(encode, struct.pack("<I", n) + block)
        yield Hostile(f"lz4 claims {n}", shard, [LITTLE, LZ4])


def checksums() -> Iterator[Hostile]:
    """Rows about a checksum behind a stream that is as it should be."""
    rows = {
        "raw": (bytes, []),
        "gzip": (gzip.compress, [GZIP]),
        "zstd": (_zstd, [ZSTD]),
        "lz4": (numcodecs.LZ4().encode, [LZ4]),
        "blosc": (numcodecs.Blosc("lz4", 5, 1).encode, [blosc()]),
    }
    for name, (encode, specs) in rows.items():

        def checked(data: bytes, encode: Callable[[bytes], bytes] = encode) -> bytes:
            stream = bytes(encode(data))
            return stream + struct.pack("<I", crc32c.crc32c(stream))

        good = checked(ELEMENTS[0])
        odd = {
            "with a bit of its checksum flipped": good[:-1] + bytes([good[-1] ^ 1]),
            "that is its checksum": good[-4:],
            "shorter than a checksum": good[-3:],
        }
        for what, stream in odd.items():
            shard = _with(checked, stream)
            yield Hostile(f"{name} {what}", shard, [LITTLE, *specs, CRC])


def bombs(n_mib: int) -> Iterator[Hostile]:
    """Rows about streams that decode to far more than an inner chunk."""
    for has_size in (True, False):
        bomb = _zstd_bomb(n_mib, has_size=has_size)
        yield Hostile(
            f"zstd bomb, size {'told' if has_size else 'untold'}",
            _with(_zstd, bomb),
            [LITTLE, ZSTD],
        )
    yield Hostile("gzip bomb", _with(gzip.compress, _gzip_bomb(n_mib)), [LITTLE, GZIP])
    bomb = _lz4_bomb(n_mib)
    yield Hostile("lz4 bomb", _with(numcodecs.LZ4().encode, bomb), [LITTLE, LZ4])
    for name, make in (("bz2", numcodecs.BZ2(1)), ("lzma", numcodecs.LZMA())):
        bomb = make.encode(bytes(n_mib << 20))
        spec = codec(f"numcodecs.{name}", **({"level": 1} if name == "bz2" else {}))
        yield Hostile(f"{name} bomb", _with(make.encode, bomb), [LITTLE, spec])
    bomb = numcodecs.Blosc("zstd", 1, 0).encode(bytes(n_mib << 20))
    encode = numcodecs.Blosc("zstd", 1, 0).encode
    yield Hostile("blosc bomb", _with(encode, bomb), [LITTLE, blosc("zstd")])


def blosc_headers() -> Iterator[Hostile]:
    """Rows about Blosc frames whose header lies (its first 16 bytes)."""
    encode = numcodecs.Blosc("lz4", 5, 1, blocksize=0).encode
    good = bytes(encode(ELEMENTS[0] * 1))
    plain = bytes(numcodecs.Blosc("lz4", 0, 0).encode(ELEMENTS[0]))

    def row(name: str, frame: bytes, outcomes: tuple[str, ...] = ()) -> Hostile:
        return Hostile(
            f"blosc {name}", _with(encode, frame), [LITTLE, blosc()], outcomes
        )

    def said(frame: bytes, at: int, form: str, value: int) -> bytes:
        new = bytearray(frame)
        struct.pack_into(form, new, at, value)
        return bytes(new)

    yield row("memcpyed and cut short", plain[:40])
    yield row(
        "memcpyed, cut short and its size told so", said(plain[:40], 12, "<I", 40)
    )
    yield row("frame of 15 bytes", good[:15])
    for n in (0, 15, 16, len(good) - 1, len(good) + 1, 2**31 - 1, 2**32 - 1):
        yield row(f"cbytes {n}", said(good, 12, "<I", n))
        yield row(f"memcpyed cbytes {n}", said(plain, 12, "<I", n))
    for n in (0, N - 1, N + 1, 2**31 - 1, 2**32 - 1):
        yield row(f"nbytes {n}", said(good, 4, "<I", n))
    for n in (0, 1, 2**31 - 1, 2**32 - 1):
        yield row(f"block of {n}", said(good, 8, "<I", n), RIGHT)
    for n in (0, 3, 7, 255):
        yield row(f"typesize {n}", said(good, 3, "<B", n), ANY)
    for flags in range(0, 256, 32):
        yield row(f"flags {flags}", said(good, 2, "<B", flags | 1), ANY)
    for n in (0, 1, len(good), 2**31 - 1, 2**32 - 1):
        yield row(f"block start {n}", said(good, 16, "<I", n))
        yield row(f"stream of {n}", said(good, 20, "<I", n))


def all_rows() -> Iterator[Hostile]:
    """Every hostile shard but the bombs."""
    yield from indexes()
    yield from streams()
    yield from remainders()
    yield from checksums()
    yield from blosc_headers()
