"""Arrays of one inner chunk, and limits that it can meet however small it is."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from asked_store import put
from gpushard import options, pages
from gpushard.memory import chunk_room
from gpushard.options import KIB
from spec_shards import LITTLE, document, sharding

if TYPE_CHECKING:
    import pytest

N = 8 * KIB


def let_little_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small arrays meet what large ones do."""
    monkeypatch.setattr(options, "LEAST_MEMORY_NBYTES", 1)
    monkeypatch.setattr(chunk_room, "_FIXED_NBYTES", 0)
    monkeypatch.setattr(chunk_room, "_CONTEXTS_NBYTES", 0)
    monkeypatch.setattr(chunk_room, "_WATCHED_NBYTES", 0)


def trace_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tracemalloc see all memory: it knows nothing of pages of their own."""
    monkeypatch.setattr(pages, "PAGED_NBYTES", 1 << 62)


def zstd(data: bytes, *, has_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=has_size).compress(data)


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def put_chunk(place: Path, codecs: Any, data: bytes, *, is_sharded: bool) -> Path:
    if not is_sharded:
        return put(place, document((N,), (N,), LITTLE, *codecs), c_0=data)
    shard = sharding((N,), codecs=[LITTLE, *codecs], index_codecs=[LITTLE])
    index = np.array([0, len(data)], "<u8").tobytes()
    return put(place, document((N,), (N,), shard), c_0=data + index)
