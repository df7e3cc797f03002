"""Files that have just changed: their next version may have the same times and size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gpushard
from gpushard import Options
from gpushard.fused import choice
from gpushard.stores.local import handles
from gpushard.stores.local import store as local
from spec_shards import LITTLE, document, index_of, sharding

WAYS = {
    "small": Options(small_read_chunks=1000, compile_nbytes=2**62),
    "short": Options(small_read_chunks=1, compile_nbytes=0),
    "plain": Options(small_read_chunks=0, compile_nbytes=2**62),
    "fused": Options(small_read_chunks=0, compile_nbytes=0),
}
CACHED = {"chunk_cache_nbytes": 1 << 20}
PACKED = [LITTLE, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
# Zstandard frames of one raw block of four bytes each (RFC 8878, 3.1.1).
FRAMES = [b"\x28\xb5\x2f\xfd\x20\x04\x21\x00\x00" + bytes([k] * 4) for k in (1, 2)]


def shard_of(*order: int) -> bytes:
    """Two inner chunks, which the index lists in some order."""
    (n,) = {len(frame) for frame in FRAMES}
    return b"".join(FRAMES) + index_of([(k * n, n) for k in order])


OLD, NEW = shard_of(0, 1), shard_of(1, 0)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    choice._load()
    meta = document((8,), (8,), sharding((4,), codecs=PACKED))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").write_bytes(OLD)
    return tmp_path / "c/0"


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def values(a: gpushard.Array) -> list[int]:
    return a[...].tolist()[::4]


def ticking_at(began: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time now, of which file systems know the tick that began at `began` ns."""

    def file_version(status: os.stat_result) -> Any:
        return status.st_dev, status.st_ino, status.st_size, began, began

    now = [5_000_000]
    for module in (handles, local):
        monkeypatch.setattr(module, "file_version", file_version)
    monkeypatch.setattr(handles, "time_ns", lambda: now[0])
    return now


@pytest.fixture
def clock(shard: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of a clock that ticks many times a second."""
    return ticking_at(-1, monkeypatch)


@pytest.mark.parametrize("more", [{}, CACHED], ids=["indexes", "inner chunks"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_overwritten_in_place_within_the_tick_that_it_was_read_in_is_read_anew(
    way, more, shard, clock
):
    a = gpushard.open_array(
        shard.parent.parent, device="cpu", options=WAYS[way].but(**more)
    )
    assert values(a) == [1, 2]
    overwrite(shard, NEW)
    clock[0] = 50_000_000
    assert values(a) == [2, 1]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_whose_time_is_a_whole_second_settles_after_two(way, shard, monkeypatch):
    """So long, a file system may go on noting this second (FAT: even ones)."""
    clock = ticking_at(0, monkeypatch)
    a = gpushard.open_array(shard.parent.parent, device="cpu", options=WAYS[way])
    clock[0] = 2_010_000_000
    assert values(a) == [1, 2]
    overwrite(shard, NEW)
    assert values(a) == [2, 1]
    clock[0] = 2_020_000_000
    assert values(a) == [2, 1]
    known: Any = a.source.indexes.get((0,))
    assert type(known.version) is tuple


def test_a_file_that_settles_while_its_index_is_read_is_read_again(
    shard, clock, monkeypatch
):
    """What counts is the time before the bytes are read."""
    a = gpushard.open_array(shard.parent.parent, device="cpu", options=WAYS["plain"])
    preadv = os.preadv

    def read_slowly(*arguments: Any) -> int:
        clock[0] = 50_000_000
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", read_slowly)
    assert values(a) == [1, 2]
    assert a.explain().n_index_requests == 1
    assert a.explain().n_index_requests == 0


@pytest.mark.parametrize("way", ["plain", "fused"])
def test_the_index_of_a_settled_file_is_read_once(way, shard, clock):
    a = gpushard.open_array(shard.parent.parent, device="cpu", options=WAYS[way])
    assert [a.explain().n_index_requests for _ in range(2)] == [1, 1]
    clock[0] = 20_000_000
    assert [a.explain().n_index_requests for _ in range(3)] == [1, 0, 0]


def test_the_indexes_of_nested_shards_are_read_anew_too(tmp_path, clock):
    inner = sharding((4,), codecs=PACKED)
    meta = document((8,), (8,), sharding((8,), codecs=[inner]))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    path, tail = tmp_path / "c/0", index_of([(0, len(OLD))])
    path.write_bytes(OLD + tail)
    for options in (WAYS["small"], WAYS["plain"]):
        overwrite(path, OLD)
        clock[0] = 5_000_000
        a = gpushard.open_array(tmp_path, device="cpu", options=options)
        assert values(a) == [1, 2]
        overwrite(path, NEW)
        clock[0] = 50_000_000
        assert values(a) == [2, 1]
