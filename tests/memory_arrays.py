"""Arrays that `memory_doors` reads: valid ones, and hostile ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs.blosc
import numpy as np
import zstandard

from array_strategies import codec
from asked_store import put
from gpushard.options import KIB, MIB
from hostile_shards import GZIP, ZSTD
from spec_shards import LITTLE, document, sharding

BLOSC = codec(
    "blosc", cname="lz4", clevel=1, shuffle="shuffle", typesize=1, blocksize=0
)
INDEXED = {"index_codecs": [LITTLE]}
TOTAL = 96 * MIB

Put = Callable[[Path], int]
"""Makes an array in a directory; gives its length."""


def some(n: int) -> bytes:
    """What compresses to about half."""
    return np.random.default_rng(n).integers(0, 16, n, "u1").tobytes()


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def blosc(data: bytes) -> bytes:
    return numcodecs.blosc.compress(data, b"lz4", 1, 1)


def entries_of(sizes: list[int], start: int = 0) -> bytes:
    """Entries of an index, of inner chunks one behind the other."""
    ends = np.cumsum(sizes) + start
    return np.stack([ends - sizes, sizes], 1).astype("<u8").tobytes()


def described(place: Path, length: int, cell: int, *codecs: Any) -> int:
    """Put the document of an array of `length` bytes in cells; gives its length."""
    put(place, document((length,), (cell,), *codecs))
    (place / "c").mkdir()
    return length


def chunks_of(
    n: int,
    codecs: list[Any],
    encode: Callable[[bytes], bytes],
    n_shards: int = 1,
    total: int = TOTAL,
    least: int = 3,
) -> Put:
    """Inner chunks of `n` bytes, `total` of them, in some shards."""

    def make(place: Path) -> int:
        data = encode(some(n))
        k = max(least, -(-total // (n * n_shards)))
        shard = sharding((n,), codecs=[LITTLE, *codecs], **INDEXED)
        length = described(place, n_shards * k * n, k * n, shard)
        for s in range(n_shards):
            with (place / "c" / str(s)).open("wb") as file:
                for _ in range(k):
                    file.write(data)
                file.write(entries_of([len(data)] * k))
        return length

    return make


def objects_of(n: int, codecs: list[Any], encode: Callable[[bytes], bytes]) -> Put:
    """Chunks of `n` bytes, an object each."""

    def make(place: Path) -> int:
        data = encode(some(n))
        k = max(3, -(-TOTAL // n))
        length = described(place, k * n, n, LITTLE, *codecs)
        for i in range(k):
            (place / "c" / str(i)).write_bytes(data)
        return length

    return make


def of_lengths(lengths: list[int], *codecs: Any, inner: int = 0) -> Put:
    """Objects of several lengths; of inner chunks of `inner` bytes, or of one each."""

    def make(place: Path) -> int:
        within = sharding((inner,), codecs=[LITTLE, *codecs], **INDEXED)
        chain = [within] if inner else [LITTLE, *codecs]
        meta = document((sum(lengths),), (1,), *chain)
        grid = {"kind": "inline", "chunk_shapes": [lengths]}
        meta["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
        put(place, meta)
        (place / "c").mkdir()
        for i, n in enumerate(lengths):
            data = zstd(some(inner or n))
            k = n // inner if inner else 1
            index = entries_of([len(data)] * k) if inner else b""
            (place / "c" / str(i)).write_bytes(data * k + index)
        return sum(lengths)

    return make


def wrapped(n: int, k: int) -> Put:
    """`k` shards of `n` bytes in 16 inner chunks, gzip around each shard."""

    def make(place: Path) -> int:
        inner = n // 16
        shard = gzip(some(n) + entries_of([inner] * 16))
        meta = document((k * n,), (n,), sharding((inner,), **INDEXED), GZIP)
        put(place, meta, **{f"c_{i}": shard for i in range(k)})
        return k * n

    return make


def nested(n: int, per_shard: int, n_shards: int = 1) -> Put:
    """Nested shards of `n` bytes, 8 inner chunks each, and an index behind these."""

    def make(place: Path) -> int:
        one = some(n) + entries_of([n // 8] * 8)
        inner = sharding((n // 8,), **INDEXED)
        outer = sharding((n,), codecs=[inner], **INDEXED)
        length = described(place, n_shards * per_shard * n, per_shard * n, outer)
        for s in range(n_shards):
            with (place / "c" / str(s)).open("wb") as file:
                for _ in range(per_shard):
                    file.write(one)
                file.write(entries_of([len(one)] * per_shard))
        return length

    return make


def shared(n: int, per_shard: int, n_shards: int, codecs: list[Any]) -> Put:
    """Very many inner chunks of `n` bytes, all of them in the same bytes."""

    def make(place: Path) -> int:
        data = zstd(some(n)) if codecs else some(n)
        shard = sharding((n,), codecs=[LITTLE, *codecs], **INDEXED)
        length = described(place, n_shards * per_shard * n, per_shard * n, shard)
        entries = np.tile(np.array([[0, len(data)]], "<u8"), (per_shard, 1))
        for s in range(n_shards):
            (place / "c" / str(s)).write_bytes(data + entries.tobytes())
        return length

    return make


def claiming(n: int, claimed: int, k: int, n_objects: int = 1) -> Put:
    """Entries that claim more bytes than a compressor makes, in sparse files."""

    def make(place: Path) -> int:
        shard = sharding((n,), codecs=[LITTLE, ZSTD], **INDEXED)
        length = described(place, n_objects * k * n, k * n, shard)
        data = zstd(some(n))
        # The first is honest, so that the array is not refused as a whole.
        starts = [0, *[(2 * n + MIB) * (i + 1) for i in range(k - 1)]]
        sizes = [len(data), *[claimed] * (k - 1)]
        entries = np.stack([starts, sizes], 1).astype("<u8").tobytes()
        for s in range(n_objects):
            with (place / "c" / str(s)).open("wb") as file:
                file.write(data)
                file.truncate((2 * n + MIB) * (k + 1))
                file.seek(0, 2)
                file.write(entries)
        return length

    return make


def sparse(n: int, nbytes: int, k: int, *codecs: Any, is_sharded: bool) -> Put:
    """Objects of `nbytes` of zeros where shards, or chunks, of `n` bytes belong."""

    def make(place: Path) -> int:
        inner = sharding((n // 16,), codecs=[LITTLE, ZSTD], **INDEXED)
        chain = [inner, *codecs] if is_sharded else [LITTLE, *codecs]
        length = described(place, k * n, n, *chain)
        for i in range(k):
            with (place / "c" / str(i)).open("wb") as file:
                file.truncate(nbytes)
        return length

    return make


VALID: dict[str, Put] = {
    "plain 11 MiB": chunks_of(11 * MIB, [], bytes),
    "plain 4 KiB": chunks_of(4 * KIB, [], bytes, 4),
    "zstd 1 MiB": chunks_of(MIB, [ZSTD], zstd),
    "zstd 8 MiB": chunks_of(8 * MIB, [ZSTD], zstd),
    "zstd 29 MiB": chunks_of(29 * MIB, [ZSTD], zstd),
    "zstd 4 KiB": chunks_of(4 * KIB, [ZSTD], zstd, 4),
    "gzip 1 MiB": chunks_of(MIB, [GZIP], gzip),
    "objects, zstd 8 MiB": objects_of(8 * MIB, [ZSTD], zstd),
    "objects, plain 8 MiB": objects_of(8 * MIB, [], bytes),
    "wrapped 8 MiB": wrapped(8 * MIB, 12),
    "wrapped 16 MiB": wrapped(16 * MIB, 6),
    "nested 48 KiB": nested(48 * KIB, 4096),
    "nested 1 MiB": nested(MIB, 48, 2),
    "shards of 48 MiB": chunks_of(MIB, [ZSTD], zstd, 2),
    "a million of 64 B": shared(64, 1 << 20, 1, [ZSTD]),
    "64 indexes of 1 MiB": shared(16, 1 << 16, 64, []),
    "rectilinear objects": of_lengths([n * MIB for n in (4, 12, 8) * 4], ZSTD),
    "rectilinear shards": of_lengths(
        [n * MIB for n in (4, 12, 8) * 4], ZSTD, inner=MIB
    ),
}
HOSTILE: dict[str, Put] = {
    "claims 2 times": claiming(14 * MIB, 28 * MIB, 6),
    "claims 2 times, small": claiming(4 * MIB, 8 * MIB, 24),
    "objects of 120 MiB": sparse(48 * MIB, 120 * MIB, 4, is_sharded=True),
    "plain chunks of 23 MiB": sparse(24 * MIB, 23 * MIB, 12, is_sharded=False),
    "chunks of 59 MiB": sparse(29 * MIB, 59 * MIB, 8, ZSTD, is_sharded=False),
    "chunks of 17 MiB": sparse(8 * MIB, 17 * MIB, 12, ZSTD, is_sharded=False),
    "wrapped, of 40 MiB": sparse(8 * MIB, 40 * MIB, 12, GZIP, is_sharded=True),
}
ARRAYS = VALID | HOSTILE
LARGE: dict[str, Put] = {
    "zstd 100 MiB": chunks_of(100 * MIB, [ZSTD], zstd),
    "zstd 400 MiB": chunks_of(400 * MIB, [ZSTD], zstd, least=2),
    "gzip 200 MiB": chunks_of(200 * MIB, [GZIP], gzip, least=2),
    "blosc 300 MiB": chunks_of(300 * MIB, [BLOSC], blosc, least=2),
    "plain 400 MiB": chunks_of(400 * MIB, [], bytes, least=2),
}
