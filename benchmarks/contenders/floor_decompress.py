"""Ceiling: every inner chunk decompressed into hot scratch, and nothing else.

From one thread per CPU; zstd in calls of many inner chunks, the other codecs in one
call each, as their libraries have no others. Only full reads have it: for the others
there is no agreement on how much has to be decompressed. Its answer is no array.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cramjam
import numcodecs.blosc
import numcodecs.lz4
import numpy as np
import zstandard
from crc32c import crc32c
from numpy.typing import NDArray

from gpushard.machine import usable_cpu_count

Decode = Callable[[list[memoryview]], object]
# Enough that calls weigh little, little enough that scratch stays in a cache.
_TASK_NBYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Handle:
    """Stored inner chunks in memory, and what decodes one into scratch."""

    chunks: list[memoryview]
    per_task: int
    decoder: Callable[[], Decode]
    pool: ThreadPoolExecutor
    kept: threading.local


def versions() -> dict[str, str]:
    """Versions of what this contender measures."""
    names = ("zstandard", "cramjam", "numcodecs", "crc32c")
    return {name: version(name) for name in names}


def open_array(path: Path) -> Handle:
    """Handle that the reads take."""
    document = json.loads((path / "zarr.json").read_bytes())
    chunk_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = document["codecs"]
    objects = sorted(p for p in (path / "c").rglob("*") if p.is_file())
    stored = (each.read_bytes() for each in objects)
    if codecs[0]["name"] == "sharding_indexed":
        sharding = codecs[0]["configuration"]
        codecs, inner_shape = sharding["codecs"], sharding["chunk_shape"]
        n_inner = int(np.prod(chunk_shape)) // int(np.prod(inner_shape))
        chunks = [chunk for shard in stored for chunk in _chunks(shard, n_inner)]
    else:
        inner_shape, chunks = chunk_shape, list(map(memoryview, stored))
    itemsize = np.dtype(document["data_type"]).itemsize
    inner_nbytes = int(np.prod(inner_shape)) * itemsize
    names = [codec["name"] for codec in codecs[1:]]
    return Handle(
        chunks,
        max(1, _TASK_NBYTES // inner_nbytes),
        _decoder(names, inner_nbytes),
        ThreadPoolExecutor(usable_cpu_count()),
        threading.local(),
    )


def _chunks(shard: bytes, n_inner: int) -> list[memoryview]:
    """Inner chunks of a shard whose index is at its end, behind it a crc32c."""
    index = np.frombuffer(shard[-16 * n_inner - 4 : -4], "<u8").reshape(-1, 2).tolist()
    view = memoryview(shard)
    return [view[offset : offset + nbytes] for offset, nbytes in index]


def _decoder(names: list[str], inner_nbytes: int) -> Callable[[], Decode]:
    """What makes a decoder for one thread, of a chain with these codecs."""
    if "crc32c" in names:
        plain = _decoder([n for n in names if n != "crc32c"], inner_nbytes)
        return lambda: _with_crc32c(plain())
    if names == ["zstd"]:
        return lambda: _zstd(inner_nbytes)
    into = {
        "": _copy,
        "blosc": numcodecs.blosc.decompress,
        "gzip": cramjam.gzip.decompress_into,
        "numcodecs.lz4": numcodecs.lz4.decompress,
    }[names[0] if names else ""]
    return lambda: _each(into, inner_nbytes)


def _copy(stored: memoryview, scratch: NDArray[np.uint8]) -> None:
    scratch[:] = stored


def _zstd(inner_nbytes: int) -> Decode:
    context = zstandard.ZstdDecompressor()

    def decode(chunks: list[Any]) -> object:  # its stubs know no memoryview[int]
        sizes = np.full(len(chunks), inner_nbytes, "<u8").tobytes()
        return context.multi_decompress_to_buffer(
            chunks, decompressed_sizes=sizes, threads=1
        )

    return decode


def _each(into: Callable[..., object], inner_nbytes: int) -> Decode:
    """Decoder that makes one call per inner chunk, always into the same memory."""
    scratch = np.empty(inner_nbytes, np.uint8)

    def decode(chunks: list[memoryview]) -> None:
        for stored in chunks:
            into(stored, scratch)

    return decode


def _with_crc32c(decode: Decode) -> Decode:
    def checked(chunks: list[memoryview]) -> object:
        for stored in chunks:
            if crc32c(stored[:-4]) != int.from_bytes(stored[-4:], "little"):
                raise ValueError("crc32c mismatch in generated data")
        return decode([stored[:-4] for stored in chunks])

    return checked


def read_box(handle: Handle, key: tuple[Any, ...]) -> None:
    """Nothing: what is decoded stays in scratch."""
    if any(part != slice(None) for part in key):
        raise NotImplementedError("there is no such floor but for full reads")
    starts = range(0, len(handle.chunks), handle.per_task)
    list(handle.pool.map(partial(_decode_some, handle), starts))


def _decode_some(handle: Handle, start: int) -> None:
    """Decode the inner chunks of one task with what this thread keeps."""
    kept = handle.kept
    if not hasattr(kept, "decode"):
        kept.decode = handle.decoder()
    kept.decode(handle.chunks[start : start + handle.per_task])


def read_rows(handle: Handle, rows: NDArray[np.int64]) -> None:
    """Not there for this contender."""
    raise NotImplementedError("there is no such floor but for full reads")
