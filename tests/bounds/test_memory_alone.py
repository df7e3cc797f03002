"""One large inner chunk never grows the process by more than the limit.

``GPUSHARD_BOMB_MIB=2047`` has them as large as they may be.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numcodecs.blosc
import numpy as np
import pytest
import zstandard

from array_strategies import codec
from asked_store import put
from bounded_reads import KEYS
from gpushard.options import DEFAULT, LEAST_MEMORY_NBYTES, MIB
from hostile_shards import GZIP, ZSTD
from places import TESTS
from spec_shards import LITTLE, document, sharding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.access("/proc/self/clear_refs", os.W_OK),
        reason="only Linux tells the highest memory of a process since a moment",
    ),
]

N = int(os.environ.get("GPUSHARD_BOMB_MIB", "80")) * MIB
INDEXED = {"index_codecs": [LITTLE]}
TEXT = {"data_type": "string", "fill_value": ""}


BLOSC = codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle", blocksize=0)


def streams(n: int) -> Iterator[tuple[str, Any, bytes]]:
    """Name, codec and bytes of inner chunks of `n` zeros, and of noise."""
    zeros = bytes(n)
    zipped = gzip.compress(zeros, 1)
    packer = zstandard.ZstdCompressor(level=1)
    yield "zstd", [ZSTD], packer.compress(zeros)
    frames = packer.compress(zeros[: n // 3]) + packer.compress(zeros[n // 3 :])
    yield "zstd in frames", [ZSTD], frames
    untold = zstandard.ZstdCompressor(level=1, write_content_size=False)
    yield "zstd untold", [ZSTD], untold.compress(zeros)
    yield "gzip", [GZIP], zipped
    yield (
        "gzip in members",
        [GZIP],
        gzip.compress(zeros[: n // 3], 1) + gzip.compress(zeros[n // 3 :], 1),
    )
    yield "blosc", [BLOSC], numcodecs.blosc.compress(zeros, b"lz4", 5, 0)
    blocks = numcodecs.blosc.compress(zeros, b"zstd", 1, 1, 64 * MIB)
    yield "blosc in large blocks", [BLOSC], blocks
    yield "bz2", [codec("numcodecs.bz2", level=1)], bz2.compress(zeros, 1)
    yield "lzma", [codec("numcodecs.lzma")], lzma.compress(zeros, preset=0)
    yield "twice", [GZIP, ZSTD], packer.compress(zipped)
    yield "delta", [ZSTD], packer.compress(zeros)
    noise = np.random.default_rng(1).integers(0, 256, n // 3, "u1").tobytes()
    yield "noise", [ZSTD], packer.compress(noise + zeros[n // 3 :])


def put_all(root: Path, n: int) -> None:
    """An array a case, of one inner chunk of `n` bytes each."""
    for name, codecs, data in streams(n):
        meta = document((n,), (n,), LITTLE, *codecs)
        shard = sharding((n,), codecs=meta["codecs"], **INDEXED)
        if name == "delta":
            delta = codec("numcodecs.delta", dtype="|u1")
            meta["codecs"].insert(0, delta)
        put(root / name, meta, c_0=data)
        index = np.array([0, len(data)], "<u8").tobytes()
        put(root / f"{name}, a shard", document((n,), (n,), shard), c_0=data + index)
        if name == "zstd":
            outer = sharding((n,), codecs=[shard], **INDEXED)
            index += np.array([0, len(data) + 16], "<u8").tobytes()
            put(root / "nested", document((n,), (n,), outer), c_0=data + index)
            half = (n // 2).to_bytes(4, "little") + bytes(n // 2)
            text = (2).to_bytes(4, "little") + half + half
            meta = document((2,), (2,), codec("vlen-utf8"), ZSTD) | TEXT
            put(root / "text", meta, c_0=zstandard.compress(text, 1))
    quarter = sharding((n // 4,), **INDEXED)
    entries = np.array([[k * (n // 4), n // 4] for k in range(4)], "<u8").tobytes()
    wrapped = gzip.compress(bytes(n) + entries, 1)
    put(root / "wrapped", document((n,), (n,), quarter, GZIP), c_0=wrapped)
    put(root / "warm up", document((64,), (64,), LITTLE, ZSTD))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    put_all(root, N)
    return root


@pytest.fixture(scope="module")
def fitting(tmp_path_factory):
    root = tmp_path_factory.mktemp("fitting")
    put_all(root, 24 * MIB)
    return root


def grown(
    root: Path, way: str, limit: int | None, keys: Iterable[str] = KEYS
) -> list[dict[str, Any]]:
    """What became of each read, and by how much the process grew."""
    script = TESTS / "bounded_reads.py"
    paths = os.pathsep.join([str(script.parents[1]), str(script.parent)])
    told = subprocess.run(
        [sys.executable, str(script), str(root), way, str(limit), *keys],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    ).stdout
    return [json.loads(line) for line in told.splitlines()]


@pytest.mark.parametrize("way", ["plain", "small", "compiled"])
def test_an_inner_chunk_that_does_not_fit_is_refused_and_not_held(large, way):
    rows = grown(large, way, 1)
    assert len(rows) > 70
    refused = {r["case"] for r in rows if "raise options.memory_limit" in r["came"]}
    assert {r["case"] for r in rows} - refused == {"warm up"}
    # Nothing is wanted of the text, and of a large Blosc frame a few blocks.
    read = {(r["case"], r["key"]) for r in rows if r["came"] == "read"}
    assert read <= {("text", "few"), ("blosc", "few"), *(("warm up", k) for k in KEYS)}
    assert max(r["grown"] for r in rows) <= LEAST_MEMORY_NBYTES


@pytest.mark.parametrize(
    ("way", "keys"),
    [("plain", ["all", "few"]), ("small", ["all", "few"]), ("compiled", ["all"])],
)
def test_an_inner_chunk_that_fits_is_read_within_the_limit(fitting, way, keys):
    rows = grown(fitting, way, LEAST_MEMORY_NBYTES, keys)
    read = {row["case"] for row in rows if row["came"] == "read"}
    assert {"zstd", "gzip", "blosc", "bz2", "noise", "nested", "wrapped"} <= read
    assert max(row["grown"] for row in rows) <= LEAST_MEMORY_NBYTES


def test_left_open_an_inner_chunk_is_held_to_its_part_of_the_memory(large, tmp_path):
    for place in large.iterdir():
        if not place.name.endswith(", a shard"):
            (tmp_path / place.name).symlink_to(place)
    rows = grown(tmp_path, "plain", None, ["all"])
    assert any(row["came"] == "read" for row in rows)
    alone_nbytes = DEFAULT.resolved().alone_nbytes
    assert max(row["grown"] for row in rows) <= alone_nbytes
