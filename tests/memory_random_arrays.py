"""Arrays of `memory_random`: drawn at random, and put into a directory."""

from __future__ import annotations

import itertools
import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zstandard
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Delta, Shuffle
from zarr.storage import LocalStore

from gpushard.options import MIB
from hostile_shards import GZIP, ZSTD
from memory_arrays import gzip
from memory_sweep import zstd
from spec_shards import index_of, sharding

LIMITS = (16 * MIB, 64 * MIB, 64 * MIB, 256 * MIB)
LEAST_NBYTES = 64 * MIB  # what any read may hold, whatever its limit
STORES = [
    "files",
    "files",
    "files",
    "http",
    "slow http",
    "slow http",
    "slow s3",
    "rangeless",
    "memory",
    "zarr local",
    "fsspec",
    "fsspec memory",
    "fsspec http",
    "obstore",
    "s3",
    "zip",
    "zarr zip",
]
DTYPES = [
    "u1",
    "i2",
    "f4",
    "f8",
    "c16",
    "u1",
    "f4",
    "i8",
    "S1000",
    "U250",
    "T",
    "struct",
]
STRUCT = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "u1")])
_MOST_NBYTES = {16 * MIB: 160 * MIB, 64 * MIB: 192 * MIB, 256 * MIB: 640 * MIB}


def dtype_of(name: str) -> np.dtype[Any]:
    if name == "T":
        return np.dtypes.StringDType()
    return STRUCT if name == "struct" else np.dtype(name)


def draw(seed: int) -> dict[str, Any]:
    """An array at random: everything that `make` needs."""
    rng = np.random.default_rng(seed)
    limit = int(rng.choice(LIMITS))
    name = str(rng.choice(DTYPES))
    item = 64 if name == "T" else dtype_of(name).itemsize
    nbytes = int(2 ** rng.uniform(10, np.log2(min(24 * MIB, limit))))
    if rng.random() < 0.6:  # large ones, which fill the limit
        nbytes = int(rng.uniform(MIB // 2, max(limit, LEAST_NBYTES) / 3.2))
    n_axes = int(rng.integers(1, 4))
    n = max(1, nbytes // item)
    chunk = [1] * n_axes
    for axis in range(n_axes - 1):
        chunk[axis] = int(max(1, n ** rng.uniform(0, 0.7)))
        n = max(1, n // chunk[axis])
    chunk[-1] = n
    rng.shuffle(chunk)
    most = int(_MOST_NBYTES[limit] * rng.uniform(0.6, 1))
    n_chunks = max(2, most // (prod(chunk) * item))
    n_chunks = min(n_chunks, 40_000)
    kind = str(rng.choice(["sharded"] * 4 + ["nested", "wrapped", "objects", "uneven"]))
    if kind in ("objects", "uneven"):
        n_chunks = min(n_chunks, 1500)
    grid = [1] * n_axes  # inner chunks along each axis
    left = n_chunks
    for axis in rng.permutation(n_axes)[: n_axes - 1].tolist():
        grid[axis] = int(max(1, left ** rng.uniform(0, 0.7)))
        left = max(1, left // grid[axis])
    grid[int(np.argmin(grid))] *= left
    per_shard = [1] * n_axes
    if kind in ("sharded", "nested", "wrapped"):
        per_shard = [int(max(1, round(g ** rng.uniform(0.2, 1)))) for g in grid]
    if kind == "wrapped":  # must be decoded whole, so it must fit
        most = min(limit, 64 * MIB) // 8
        while prod(per_shard) * prod(chunk) * item > most and max(per_shard) > 1:
            per_shard[int(np.argmax(per_shard))] //= 2
    shards = [max(1, -(-g // p)) for g, p in zip(grid, per_shard, strict=True)]
    drawn = {
        "seed": seed,
        "limit": limit,
        "dtype": name,
        "chunk": chunk,
        "kind": kind,
        "per_shard": per_shard,
        "shards": shards,
        "codecs": draw_codecs(rng, name, n_axes),
        "frames": int(rng.choice([1, 1, 1, 2, 5])),
        "told": bool(rng.random() < 0.7),
        "missing": float(rng.choice([0, 0, 0.2])),
        "noise": bool(rng.random() < 0.4),
        "store": str(rng.choice(STORES)),
        "threads": int(rng.choice([1, 2, 2, 16])),
        "way": str(rng.choice(["plain", "small", "compiled", "compiled"])),
    }
    if kind == "uneven":
        drawn["lengths"] = draw_lengths(rng, chunk, grid)
    return drawn


def draw_lengths(rng: Any, chunk: list[int], grid: list[int]) -> list[list[int]]:
    """Cells of each axis: a giant one among tiny ones, or two or three lengths."""
    lengths: list[list[int]] = []
    for c, g in zip(chunk, grid, strict=True):
        cells = [int(n) for n in rng.choice([c, max(1, c // 3), max(1, c // 50)], g)]
        if rng.random() < 0.5:
            cells = [max(1, c // 50)] * g
            cells[int(rng.integers(g))] = c
        lengths.append(cells)
    return lengths


def draw_codecs(rng: Any, name: str, n_axes: int) -> dict[str, Any]:
    """Keyword arguments of `zarr.create_array`, as plain data."""
    chain: dict[str, Any] = {"filters": [], "compressors": []}
    if n_axes > 1 and rng.random() < 0.25:
        chain["filters"].append(("transpose", rng.permutation(n_axes).tolist()))
    last = str(
        rng.choice(["none", "zstd", "zstd", "blosc", "blosc", "gzip", "lz4", "two"])
    )
    if name in ("i2", "i8") and rng.random() < 0.4:
        chain["filters"].append(("delta", name))
    if last != "none" and name not in ("T", "struct") and rng.random() < 0.2:
        chain["compressors"].append(("shuffle", dtype_of(name).itemsize))
    if last == "zstd":
        chain["compressors"].append(("zstd", bool(rng.random() < 0.5)))
    if last == "blosc":
        cname = str(rng.choice(["lz4", "lz4hc", "blosclz", "zstd", "zlib"]))
        shuffle = str(rng.choice(["noshuffle", "shuffle", "bitshuffle"]))
        block = int(rng.choice([0, 0, MIB, 4 * MIB, 2**30]))
        chain["compressors"].append(("blosc", [cname, shuffle, block]))
    if last in ("gzip", "lz4"):
        chain["compressors"].append((last, 1))
    if last == "two":
        chain["compressors"] += [("lz4", 1), ("zstd", False)]
    if rng.random() < 0.25:
        chain["compressors"].append(("crc32c", 0))
    return chain


def codec_of(kind: str, value: Any, item: int) -> Any:
    if kind == "blosc":
        cname, shuffle, block = value
        return BloscCodec(
            cname=cname, clevel=1, shuffle=shuffle, blocksize=block, typesize=item
        )
    makers: dict[str, Any] = {
        "transpose": lambda: TransposeCodec(order=value),
        "delta": lambda: Delta(dtype=f"<{value}"),
        "shuffle": lambda: Shuffle(elementsize=value),
        "zstd": lambda: ZstdCodec(level=1, checksum=value),
        "gzip": lambda: GzipCodec(level=1),
        "lz4": lambda: LZ4(acceleration=1),
        "crc32c": Crc32cCodec,
    }
    return makers[kind]()


def values(drawn: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """Elements of an inner chunk."""
    rng = np.random.default_rng(drawn["seed"])
    dtype, n = dtype_of(drawn["dtype"]), prod(shape)
    if drawn["dtype"] == "T":
        longest = 2000 if drawn["noise"] else 100
        words = ["ä" * int(k) for k in rng.integers(0, longest, 64) // 16]
        return np.array([words[i % 64] for i in range(n)], dtype).reshape(shape)
    top = 256 if drawn["noise"] else 16
    if dtype.kind == "U":
        return rng.integers(65, 65 + min(top, 200), (*shape, 250), "u4").view(dtype)[
            ..., 0
        ]
    if dtype.kind == "S":
        return rng.integers(65, 91, (*shape, 1000), "u1").view(dtype)[..., 0]
    data = rng.integers(0, top, n * dtype.itemsize, "u1")
    if dtype.kind in {"f", "c"}:  # without NaN of many kinds
        data = rng.integers(0, top, n * dtype.itemsize // 4, "u4").view("u1")
    return data.view(dtype).reshape(shape)


def stored(
    place: Path, drawn: dict[str, Any], shape: tuple[int, ...]
) -> tuple[bytes, Any]:
    """An inner chunk as zarr-python stores it, and the document of that array."""
    item = 1 if drawn["dtype"] == "T" else dtype_of(drawn["dtype"]).itemsize
    chain = {
        what: [
            codec_of(kind, value, min(item, 255))
            for kind, value in drawn["codecs"][what]
        ]
        for what in ("filters", "compressors")
    }
    shutil.rmtree(place, ignore_errors=True)
    a = zarr.create_array(
        LocalStore(place),
        shape=shape,
        chunks=shape,
        dtype=dtype_of(drawn["dtype"]),
        **chain,
    )
    a[...] = values(drawn, shape)
    key = "/".join(["c", *"0" * len(shape)])
    path = place / key
    if not path.exists():  # nothing but fill values
        a[...] = np.ones(1, "u1").astype(a.dtype) if a.dtype.kind in "iuf" else a[...]
    data = path.read_bytes()
    document = json.loads((place / "zarr.json").read_text())
    shutil.rmtree(place)
    last = drawn["codecs"]["compressors"][-1:]
    if last and last[0][0] == "zstd" and (drawn["frames"] > 1 or not drawn["told"]):
        data = zstd(
            zstandard.ZstdDecompressor().decompress(data),
            n_frames=drawn["frames"],
            told=drawn["told"],
        )
    return data, document


def make(place: Path, drawn: dict[str, Any]) -> list[str]:
    """Put the array into a directory."""
    if "lengths" in drawn:
        make_uneven(place, drawn)
        return ["made"]
    chunk, per, shards = (drawn[k] for k in ("chunk", "per_shard", "shards"))
    data, document = stored(place, drawn, tuple(chunk))
    codecs = document["codecs"]
    cell = [c * p for c, p in zip(chunk, per, strict=True)]
    shape = [c * s for c, s in zip(cell, shards, strict=True)]
    if drawn["kind"] != "objects":
        data, codecs = (
            in_shard(data, prod(per), drawn["missing"]),
            [sharding(chunk, codecs=codecs)],
        )
    if drawn["kind"] == "nested":
        n = 2
        data = in_shard(data, n, 0)
        codecs = [sharding(cell, codecs=codecs)]
        axis = len(cell) - 1
        cell = [*cell[:axis], cell[axis] * n]
        shape = [c * s for c, s in zip(cell, shards, strict=True)]
    if drawn["kind"] == "wrapped":
        around = GZIP if drawn["noise"] else ZSTD
        data = (
            gzip(data)
            if drawn["noise"]
            else zstd(data, n_frames=drawn["frames"], told=drawn["told"])
        )
        codecs = [*codecs, around]
    document |= {"shape": shape, "codecs": codecs}
    document["chunk_grid"]["configuration"]["chunk_shape"] = cell
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(document))
    for at in np.ndindex(*shards):
        write(place, at, data)
    return ["made"]


def make_uneven(place: Path, drawn: dict[str, Any]) -> None:
    lengths = drawn["lengths"]
    known: dict[tuple[int, ...], bytes] = {}
    document: Any = None
    for shape in itertools.product(*(sorted(set(cells)) for cells in lengths)):
        known[shape], document = stored(place, drawn, shape)
    grid = {"kind": "inline", "chunk_shapes": lengths}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
    document["shape"] = [sum(cells) for cells in lengths]
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(document))
    for at in np.ndindex(*map(len, lengths)):
        shape = tuple(cells[i] for cells, i in zip(lengths, at, strict=True))
        write(place, at, known[shape])


def write(place: Path, at: tuple[int, ...], data: bytes) -> None:
    path = place.joinpath("c", *map(str, at))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def in_shard(data: bytes, n: int, missing: float) -> bytes:
    """A shard of one inner chunk over and over; some are missing."""
    stride = max(2, int(1 / missing)) if missing else n + 1
    is_there = [i % stride != 1 for i in range(n)]
    ends = np.cumsum([len(data) if there else 0 for there in is_there])
    absent = (2**64 - 1, 2**64 - 1)
    entries = [
        (int(end) - len(data), len(data)) if there else absent
        for end, there in zip(ends, is_there, strict=True)
    ]
    return data * sum(is_there) + index_of(entries)


def shrunk(drawn: dict[str, Any]) -> dict[str, Any]:
    """A small array of the same kind, to warm up with."""
    small = [min(c, 24) for c in drawn["chunk"]]
    changes = {
        "chunk": small,
        "shards": [2] * len(small),
        "per_shard": [2] * len(small),
    }
    if drawn["kind"] == "objects":
        changes["per_shard"] = [1] * len(small)
    if "lengths" in drawn:
        changes["lengths"] = [[c, max(1, c // 3)] for c in small]
    return drawn | changes
