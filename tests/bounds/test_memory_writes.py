"""A write to a part of a shard holds what it changes, and not the shard."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from gpushard.options import MIB
from hostile_shards import ZSTD
from places import TESTS
from spec_shards import LITTLE, document, index_of, sharding

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux tells the highest memory of a process since a moment",
)

N_CHUNKS, CHUNK_NBYTES = 48, MIB
LARGE = 3 << 30
"""Size of the sparse files that hold nothing but their ends."""
STRATEGIES = {
    "rewrite": "end",
    "append_only": "end",
    "random_write": "start",
    "fixed_order": "end",
}


def put(
    place: Path, meta: Any, nbytes: int, head: bytes = b"", end: bytes = b""
) -> Path:
    """Array of one sparse shard with these bytes at its two ends."""
    (place / "c").mkdir(parents=True)
    (place / "zarr.json").write_text(json.dumps(meta))
    with (place / "c/0").open("wb") as file:
        file.write(head)
        file.truncate(nbytes)
        file.seek(nbytes - len(end))
        file.write(end)
    return place / "c/0"


def index_and_place(location: str, chunk_nbytes: int) -> tuple[bytes, int]:
    """Index of inner chunks one after the other, and where the first begins."""
    first = 16 * N_CHUNKS + 4 if location == "start" else 0
    starts = range(first, first + N_CHUNKS * chunk_nbytes, chunk_nbytes)
    return index_of([(start, chunk_nbytes) for start in starts]), first


def put_large_shards(root: Path, location: str) -> None:
    """Shards of 48 MiB, whole and torn."""
    n = N_CHUNKS * CHUNK_NBYTES
    meta = document((n,), (n,), sharding((CHUNK_NBYTES,), index_location=location))
    index, first = index_and_place(location, CHUNK_NBYTES)
    ends = (index, b"") if first else (b"", index)
    nbytes = n + len(index)
    put(root / "a large shard", meta, nbytes, *ends)
    torn = put(root / "a torn shard", meta, nbytes, bytes(len(ends[0])))
    kept = 4 * CHUNK_NBYTES, 40 * CHUNK_NBYTES, 0 if first else n, len(index)
    with torn.with_name(".0.undo").open("wb") as note:
        note.write(struct.pack("<8s6q", b"gsundo\x01\n", nbytes, 2, *kept))
        note.seek(40 * CHUNK_NBYTES, os.SEEK_CUR)
        note.write(index)


def put_compressed_shard(root: Path, location: str) -> None:
    """A shard of 48 inner chunks of 1 MiB in a few KiB."""
    n = N_CHUNKS * CHUNK_NBYTES
    chunk = zstandard.compress(bytes(CHUNK_NBYTES))
    codecs = [LITTLE, ZSTD]
    inner = sharding((CHUNK_NBYTES,), codecs=codecs, index_location=location)
    index, first = index_and_place(location, len(chunk))
    pieces = [index, chunk * N_CHUNKS] if first else [chunk * N_CHUNKS, index]
    shard = b"".join(pieces)
    meta = document((n,), (n,), inner)
    put(root / "all inner chunks of a shard", meta, len(shard), shard)


def put_hostile_shards(root: Path, location: str) -> None:
    """Objects, entries and notes of 3 GiB where a few KiB belong."""
    inner = {"index_location": location}
    small = document((4096,), (4096,), sharding((1024,), **inner))
    for name, meta in {
        "a large entry": small,
        "a large entry, zstd": document(
            (4096,), (4096,), sharding((1024,), codecs=[LITTLE, ZSTD], **inner)
        ),
        "a large nested shard": document(
            (4096,), (4096,), sharding((1024,), codecs=[sharding((512,))], **inner)
        ),
    }.items():
        index = index_of([(68, LARGE - 200), *[(2**64 - 1,) * 2] * 3])
        ends = (index, b"") if location == "start" else (b"", index)
        put(root / name, meta, LARGE, *ends)
    shard = put(root / "a large note", small, 4096 + 68)
    note = shard.with_name(".0.undo")
    note.write_bytes(struct.pack("<8sqq", b"gsundo\x01\n", 4096 + 68, 2**27))
    os.truncate(note, LARGE)


CAME: dict[str, list[str]] = {
    "a large shard": [],
    "a torn shard": [],
    "all inner chunks of a shard": [],
    "a large entry": ["CorruptShardError"],
    "a large entry, zstd": ["CorruptShardError"],
    "a large nested shard": ["ChecksumError"],
    "a large note": ["CorruptShardError"],
    "warm up": [],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_write_to_a_part_grows_the_process_by_what_it_changes(strategy, tmp_path):
    location = STRATEGIES[strategy]
    put_large_shards(tmp_path, location)
    put_compressed_shard(tmp_path, location)
    put_hostile_shards(tmp_path, location)
    inner = sharding((1024,), codecs=[LITTLE, ZSTD], index_location=location)
    put(tmp_path / "warm up", document((4096,), (4096,), inner), 0)
    (tmp_path / "warm up/c/0").unlink()
    probe = TESTS / "memory_probe.py"
    paths = os.pathsep.join([str(probe.parents[1]), str(probe.parent)])
    told = subprocess.run(
        [sys.executable, str(probe), str(tmp_path), strategy],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    ).stdout
    rows = {row["row"]: row for row in map(json.loads, told.splitlines())}
    came = {name: row["came"] for name, row in rows.items()}
    assert came == CAME
    # An inner chunk as it was, as it becomes and encoded; the rest is Python's.
    too_large = {n: r["grown"] for n, r in rows.items() if r["grown"] > 12 * MIB}
    assert not too_large
    for name in ("a large shard", "a torn shard"):
        elements = np.memmap(tmp_path / name / "c/0", np.uint8, "r")
        assert np.count_nonzero(elements == 7) in (3, 4)  # one may be of the index
        assert not list((tmp_path / name).rglob(".*"))
