"""Limits above what any host has: what is missing is filled, the rest is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from zarr.storage import FsspecStore

from asked_store import put
from damaged_arrays import opened
from gpushard.cli import app
from gpushard.errors import CorruptShardError, HostMemoryError, LimitError
from gpushard.inspection.verify import verify_array
from hostile_shards import GZIP, ZSTD
from spec_shards import LITTLE, document, sharding

# More than the addresses that a process has.
N, MOST = 1 << 56, 1 << 60
LIMITS = dict.fromkeys(
    (
        *("memory_limit", "max_chunk_nbytes", "max_index_nbytes", "batch_nbytes"),
        *("whole_object_max_nbytes", "index_cache_nbytes", "chunk_cache_nbytes"),
    ),
    MOST,
)
INDEXED: dict[str, Any] = {"index_codecs": [LITTLE]}
ARRAYS: dict[str, list[Any]] = {
    "plain": [LITTLE],
    "zstd": [LITTLE, ZSTD],
    "plain shard": [sharding((N,), **INDEXED)],
    "shard": [sharding((N // 16,), codecs=[LITTLE, ZSTD], **INDEXED)],
    "index": [sharding((8,), codecs=[LITTLE, ZSTD], **INDEXED)],
    "nested": [
        sharding(
            (N // 16,),
            codecs=[sharding((8,), codecs=[LITTLE, ZSTD], **INDEXED)],
            **INDEXED,
        )
    ],
    "wrapped": [sharding((N,), **INDEXED), GZIP],
}
KEYS: list[Any] = [slice(5, 9), [0, N - 1], slice(None, None, N // 3)]
WAYS = ["plain", "small", "compiled"]


def stored(place: Any, name: str, data: bytes | None = None) -> Any:
    meta = document((N,), (N,), *ARRAYS[name], fill_value=7)
    return put(place, meta, **({} if data is None else {"c_0": data}))


@pytest.mark.parametrize("way", [*WAYS, "fsspec"])
@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_shard_is_filled_whatever_its_size(tmp_path, name, way):
    place = stored(tmp_path, name)
    if way == "fsspec":
        place, way = FsspecStore.from_url(f"file://{place}", read_only=True), "plain"
    a = opened(place, way, **LIMITS)
    for key in KEYS:
        assert np.unique(a[key]).tolist() == [7]
    assert verify_array(a.source, decodes=True).counts["n_missing_shards"] == 1


@pytest.mark.parametrize("way", [*WAYS, "fsspec"])
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("is_claiming", [False, True])
def test_a_hostile_shard_is_an_error_of_the_tree(tmp_path, name, way, is_claiming):
    data = bytes(64)
    if is_claiming:
        data += np.array([[0, N // 2]] * 16, "<u8").tobytes()
    place = stored(tmp_path, name, data)
    if way == "fsspec":
        place, way = FsspecStore.from_url(f"file://{place}", read_only=True), "plain"
    a = opened(place, way, **LIMITS)
    for key in KEYS:
        with pytest.raises((CorruptShardError, HostMemoryError)):
            a[key]
    with suppress(HostMemoryError, LimitError):
        assert verify_array(a.source, decodes=True).findings


@pytest.mark.parametrize("name", ARRAYS)
def test_the_command_tells_of_an_array_that_does_not_fit_any_host(
    tmp_path, name, capsys
):
    place = stored(tmp_path, name, bytes(64))
    limits = [f"--limit={name}={n}" for name, n in LIMITS.items()]
    status = app(
        ["verify", str(place), "--decode", "--json", *limits], standalone_mode=False
    )
    assert status in (1, 2)
    assert json.loads(capsys.readouterr().out)
