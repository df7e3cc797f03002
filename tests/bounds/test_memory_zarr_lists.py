"""Long lists that zarr hands on cut by chunk are read within the memory limit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.integrations.zarr import batch, lists, pipeline
from gpushard.options import KIB, MIB
from listings import crossed

OURS = {
    "codec_pipeline.path": "gpushard.GpushardCodecPipeline",
    "gpushard.strict": True,
}
SIDE = 640
N = SIDE * SIDE
LIMIT = 8 * MIB
VALUES = (np.arange(N) % 251).astype("u1")
RNG = np.random.default_rng(3)
MASK = RNG.random(N) < 0.9
# Of an array in a row, of one in chunks without shards, and of a square one.
KEYS: dict[str, tuple[str, str, Any]] = {
    "mask": ("row", "oindex", MASK),
    "ascending": ("row", "vindex", np.flatnonzero(MASK)),
    "in any order": ("row", "vindex", RNG.integers(0, N, N)),
    "in any order along an axis": ("row", "oindex", RNG.integers(0, N, N)),
    "unsharded": ("chunks", "vindex", RNG.integers(0, N, N)),
    "points": ("square", "vindex", tuple(RNG.integers(0, SIDE, (2, N)))),
    "mask of all axes": ("square", "vindex", MASK.reshape(SIDE, SIDE)),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("zarr")
    for name, shape, cut in (
        ("row", (N,), {"shards": (N // 8,), "chunks": (5 * KIB,)}),
        ("chunks", (N,), {"chunks": (N // 16,)}),
        ("square", (SIDE, SIDE), {"shards": (320, 320), "chunks": (64, 64)}),
    ):
        made = zarr.create_array(
            place / name, shape=shape, dtype="u1", compressors=None, **cut
        )
        made[...] = VALUES.reshape(shape)
    return place


def read(place: Any, kind: str, key: Any) -> Any:
    with zarr.config.set({**OURS, "gpushard.memory_limit": LIMIT}):
        return getattr(zarr.open_array(place, mode="r"), kind)[key]


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """What the pipeline's reads take beside what zarr holds."""
    nbytes: list[int] = []
    real = pipeline.read_batch

    def traced(*arguments: Any) -> Any:
        tracemalloc.start()
        try:
            found = real(*arguments)
            nbytes.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        return found

    monkeypatch.setattr(pipeline, "read_batch", traced)
    return nbytes


@pytest.mark.parametrize("key", KEYS)
def test_long_lists_that_zarr_cuts_stay_within_the_memory_limit(key, root, taken):
    name, kind, chosen = KEYS[key]
    values = VALUES.reshape(SIDE, SIDE) if name == "square" else VALUES
    read(root / name, kind, (0,) * values.ndim)  # what is loaded once
    taken.clear()
    np.testing.assert_array_equal(read(root / name, kind, chosen), values[chosen])
    assert taken
    assert max(taken) < LIMIT


@pytest.mark.parametrize("kind", ["oindex", "vindex"])
@pytest.mark.parametrize("n_block", [1, 5, 64])
def test_blocks_of_what_zarr_lists_give_all_of_it(kind, n_block, tmp_path, monkeypatch):
    values = np.arange(40 * 30, dtype="i4").reshape(40, 30)
    made = zarr.create_array(
        tmp_path, shape=values.shape, dtype="i4", shards=(20, 20), chunks=(5, 5)
    )
    made[...] = values
    monkeypatch.setattr(batch, "KEPT_ELEMENTS", 3)
    monkeypatch.setattr(lists, "BLOCK_ELEMENTS", n_block)
    rng = np.random.default_rng(n_block)
    rows, columns = rng.integers(0, 40, 50), rng.integers(0, 30, 50)
    keys: list[Any] = [(rows, columns), (np.sort(rows), columns)]
    if kind == "oindex":
        mask, few = rng.random(40) < 0.5, rng.random(30) < 0.2
        keys += [(mask, slice(3, 22)), (mask, few), (slice(None, None, 3), columns)]
        keys += [(mask, 7), (5, columns), (rows[:4], few)]
    for key in keys:
        with zarr.config.set({"codec_pipeline.path": OURS["codec_pipeline.path"]}):
            ours = getattr(zarr.open_array(tmp_path, mode="r"), kind)[key]
        want = crossed(key, values) if kind == "oindex" else values[key]
        np.testing.assert_array_equal(ours, want, err_msg=str(key))


@pytest.mark.parametrize("n_kept", [3, 100])
def test_lists_reach_beyond_the_old_end_of_a_resized_array(
    n_kept, tmp_path, monkeypatch
):
    monkeypatch.setattr(batch, "KEPT_ELEMENTS", n_kept)
    monkeypatch.setattr(lists, "BLOCK_ELEMENTS", 3)
    values = np.arange(70 * 80, dtype="i4").reshape(70, 80)
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(0, 70, 90), rng.integers(0, 80, 90)
    with zarr.config.set(OURS):
        made = {"dtype": "i4", "shards": (20, 20), "chunks": (5, 5)}
        a = zarr.create_array(tmp_path, shape=(40, 30), **made)
        a.resize(values.shape)
        a[...] = values
        for n in range(0, 90, 9):
            key = rows[n : n + 9], columns[n : n + 9]
            np.testing.assert_array_equal(a.vindex[key], values[key])
            np.testing.assert_array_equal(a.oindex[key], values[np.ix_(*key)])


def test_a_mask_that_is_changed_while_it_is_read_is_an_error():
    mask = np.ones(10, bool)
    taken = lists.ChunkLists([lists.Taken((0,), (mask,), range(10))])
    assert taken.overlaps(mask)
    assert not taken.overlaps(np.empty(3))
    mask[3] = False
    with pytest.raises(gpushard.SelectionError, match="changed"):
        taken.block(0)
