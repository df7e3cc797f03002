"""Hostile shards and cancelled requests at doors other than a plain read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

import gpushard
from asked_store import put
from gpushard.inspection.verify import verify_array
from hostile_shards import Hostile, all_rows, bombs

ROWS = [*bombs(2), *all_rows()]


def opened(hostile: Hostile, place: Path) -> gpushard.Array:
    """Array of the hostile shard, and of nothing after it."""
    return gpushard.open_array(
        put(place, hostile.document(), c_0=hostile.shard), device="cpu"
    )


def outcome(door: Callable[[], Any]) -> Any:
    """What comes out: elements, or the error of gpushard's tree."""
    try:
        return door()
    except gpushard.GpushardError as error:
        return error


def test_what_cannot_be_read_is_never_verified_as_whole(tmp_path):
    """Inner chunks in no bytes, of a codec that makes some, were."""
    surprises = []
    for k, hostile in enumerate(ROWS):
        a = opened(hostile, tmp_path / f"{k}")
        is_read = not isinstance(outcome(lambda a=a: a[...]), gpushard.GpushardError)
        result = verify_array(a.source, decodes=True)
        if (result.status == "whole") is not is_read:
            surprises.append((hostile.row, result.status))
    assert not surprises


def of_loader(a: gpushard.Array) -> Any:
    with gpushard.Loader(a, batch_size=1000, shuffle=False, drop_last=False) as batches:
        return np.concatenate(list(batches))


def of_zarr(a: gpushard.Array) -> Any:
    with zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}):
        return zarr.open_array(a.source.store.root, mode="r")[...]


def of_conversion(a: gpushard.Array) -> Any:
    place = Path(a.source.store.root)
    gpushard.convert(place, place.with_suffix(".converted"))
    return gpushard.open_array(place.with_suffix(".converted"), device="cpu")[...]


DOORS = {
    "concat": lambda a: gpushard.concat([a, a])[: len(a)],
    "loader": of_loader,
    "zarr": of_zarr,
    "conversion": of_conversion,
}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_what_a_read_gives_or_its_error(door, tmp_path):
    surprises = []
    for k, hostile in enumerate(ROWS[::6]):
        a = opened(hostile, tmp_path / f"{k}")
        want = outcome(lambda a=a: a[...])
        got = outcome(lambda a=a: DOORS[door](a))
        if isinstance(want, gpushard.GpushardError):
            is_same = type(got) is type(want)
        else:
            is_same = np.array_equal(got, want)
        if not is_same:
            surprises.append((hostile.row, want, got))
    assert not surprises


class GivesUp(WrapperStore[Any]):
    """A store whose requests for shards are cancelled, as by an end of its own."""

    async def get(self, key: str, *given: Any, **named: Any) -> Any:
        if "/c/" in f"/{key}":
            raise asyncio.CancelledError
        return await super().get(key, *given, **named)


@pytest.mark.parametrize("door", ["read", "zarr", "verify"])
def test_a_request_that_the_store_cancels_is_an_error_of_the_tree(door):
    store = MemoryStore()
    made = zarr.create_array(store, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
    made[...] = 1
    a = gpushard.open_array(GivesUp(store), device="cpu")
    if door == "verify":
        assert verify_array(a.source, decodes=True).status == "unverified"
        return
    read = {
        "read": lambda: a[...],
        "zarr": lambda: zarr.open_array(GivesUp(store), mode="r+")[...],
    }[door]
    ours = {"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}
    with zarr.config.set(ours), pytest.raises(gpushard.StoreError, match="cancelled"):
        read()
