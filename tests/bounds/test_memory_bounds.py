"""A hostile file never grows the process by more than the output and the limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpushard.options import DEFAULT, DEFAULT_MEMORY_LIMIT, KIB, MIB
from hostile_shards import GZIP, ZSTD, Hostile, all_rows, bombs
from places import TESTS
from spec_shards import LITTLE, document, sharding

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux tells the highest memory of a process since a moment",
)

LARGE = 3 << 30
"""Size of the sparse files: more than any limit, and no space on the disk."""


def put(place: Path, meta: Any, **objects: Any) -> None:
    """Array of `meta`; an object is bytes, or the size of a sparse file and its end."""
    (place / "c").mkdir(parents=True)
    (place / "zarr.json").write_text(json.dumps(meta))
    for name, data in objects.items():
        path = place / name.replace("_", "/")
        if isinstance(data, bytes):
            path.write_bytes(data)
            continue
        nbytes, end = data
        with path.open("wb") as file:
            file.truncate(nbytes)
            file.seek(nbytes - len(end))
            file.write(end)


def put_large_objects(root: Path) -> None:
    """Objects of 3 GiB where a few KiB belong."""
    sparse = (LARGE, b"")
    for name, codecs in (("raw", []), ("zstd", [ZSTD]), ("gzip", [GZIP])):
        put(
            root / f"large {name} chunk",
            document((64,), (64,), LITTLE, *codecs),
            c_0=sparse,
        )
    around = document((64,), (64,), sharding((8,)), ZSTD)
    put(root / "large codec around a shard", around, c_0=sparse)
    inner = document((64,), (64,), sharding((8,), index_codecs=[LITTLE]))
    put(root / "large shard", inner, c_0=sparse)
    put(root / "large document", inner)
    with (root / "large document" / "zarr.json").open("r+b") as file:
        file.truncate(LARGE)


def put_large_indexes(root: Path) -> None:
    """Indexes as large as they may be, of shards of zeros."""
    n = DEFAULT.max_index_nbytes // 16
    index_only = {"index_codecs": [LITTLE]}
    entries = np.tile(np.array([[7, 1]], "<u8"), (n, 1))
    meta = document((n,), (n,), sharding((1,), **index_only))
    put(root / "one byte for all", meta, c_0=(1 << 26, entries.tobytes()))
    meta = document((3 * n,), (n,), sharding((1,), **index_only))
    shards = {f"c_{i}": (LARGE, b"") for i in range(3)}
    put(root / f"three indexes of {16 * n // MIB} MiB", meta, **shards)


def put_overlapping_ranges(root: Path) -> None:
    """A MiB of which each inner chunk is said to have 128 KiB."""
    index_only = {"index_codecs": [LITTLE]}
    n = 1 << 10
    entries = np.empty((n, 2), "<u8")
    entries[:, 0] = np.arange(n)
    entries[:, 1] = 128 * KIB
    meta = document(
        (n * KIB,), (n * KIB,), sharding((KIB,), codecs=[LITTLE, ZSTD], **index_only)
    )
    put(root / "overlapping ranges", meta, c_0=(1 << 20, entries.tobytes()))


def put_overlapping_nested_shards(root: Path) -> None:
    """More than the memory limit, were the indexes held together."""
    index_only = {"index_codecs": [LITTLE]}
    nested, n = sharding((1,), **index_only), 420
    entries = np.empty((n, 2), "<u8")
    entries[:, 0] = np.arange(n)
    entries[:, 1] = MIB + 64 * KIB
    meta = document(
        (n * 64 * KIB,),
        (n * 64 * KIB,),
        sharding((64 * KIB,), codecs=[nested], **index_only),
    )
    put(root / "overlapping nested shards", meta, c_0=(8 * MIB, entries.tobytes()))


def put_rows(root: Path) -> None:
    """The rows of the table, bombs included."""
    rows: list[Hostile] = [*bombs(32), *all_rows()]
    for k, hostile in enumerate(rows):
        name = f"{k:03} {hostile.row.replace('/', ' ')}"
        put(root / name, hostile.document(), c_0=hostile.shard)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Directory of the arrays that are read in every way."""
    root = tmp_path_factory.mktemp("rows")
    put_rows(root)
    return root


@pytest.fixture(params=["plain", "compiled", "device"])
def way_and_arrays(request, rows, tmp_path):
    root = tmp_path
    shutil.copytree(rows, root, copy_function=os.link, dirs_exist_ok=True)
    if request.param == "plain":  # what lies ahead of decoding is the same for all
        put_large_objects(root)
        put_overlapping_nested_shards(root)
    # An index takes as long to parse on every way, and a device minutes to read what
    # two million entries say.
    if request.param == "compiled":
        put_large_indexes(root)
    if request.param != "device":
        put_overlapping_ranges(root)
    for small in bombs(1):  # libraries that they need are loaded ahead
        put(root / f"warm up {small.row}", small.document(), c_0=small.shard)
    return request.param, root


@pytest.mark.slow
def test_no_hostile_file_grows_the_process_beyond_the_limit(way_and_arrays):
    way, root = way_and_arrays
    probe = TESTS / "memory_probe.py"
    paths = os.pathsep.join([str(probe.parents[1]), str(probe.parent)])
    environment = {**os.environ, "PYTHONPATH": paths}
    run = partial(
        subprocess.run, capture_output=True, text=True, check=True, env=environment
    )
    told = run([sys.executable, str(probe), str(root), way]).stdout
    rows = [json.loads(line) for line in told.splitlines()]
    assert len(rows) > 130
    came = {tuple(r["came"]) for r in rows if "bomb" in r["row"]}
    assert came == {("CorruptShardError",)}
    grown = {r["row"]: r["grown"] for r in rows}
    too_large = {row: n for row, n in grown.items() if n > DEFAULT_MEMORY_LIMIT}
    assert not too_large
    bombs_grown = {row: n for row, n in grown.items() if "bomb" in row}
    assert max(bombs_grown.values()) < 16 * MIB, bombs_grown
