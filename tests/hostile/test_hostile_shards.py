"""Every row of the table of threats, on every way a read takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpushard
from damaged_arrays import WAYS, on_host, opened
from hostile_shards import ELEMENTS, PART, Hostile, N, all_rows
from spec_shards import EMPTY, LITTLE, document, index_of, shard_of, sharding
from zarr_oracle import held

ROWS = list(all_rows())
FIRST = np.frombuffer(ELEMENTS[0], "u1")
REST = np.frombuffer(b"".join(ELEMENTS[1:]), "u1")
BESIDE = np.s_[N : 4 * N]


def objects_of(hostile: Hostile) -> dict[str, bytes]:
    return {
        "zarr.json": json.dumps(hostile.document()).encode(),
        "c/0": hostile.shard,
        "c/1": index_of([(EMPTY, EMPTY)] * 4)
        if hostile.index_codecs is None
        else index_of([(EMPTY, EMPTY)] * 4, checksum=False),
    }


def place_of(hostile: Hostile, place: Path) -> Path:
    for key, data in objects_of(hostile).items():
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(data)
    return place


def outcome(a: gpushard.Array, key) -> str:
    """What a read gives: "right" or "wrong" elements, "error", or a surprise."""
    try:
        got = on_host(a[key])
    except gpushard.CorruptShardError as error:
        told = error.shard_key == "c/0" and str(error).endswith(".")
        return "error" if told else repr(error)
    except Exception as error:  # noqa: BLE001 - what no reader should see
        return repr(error)
    if key == BESIDE:
        return "right" if np.array_equal(got, REST) else "wrong"
    want = FIRST if key is ... else FIRST[key]
    return "right" if np.array_equal(got[: len(want)], want) else "wrong"


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> list[Path]:
    """Where the rows are stored, in turn."""
    root = tmp_path_factory.mktemp("rows")
    return [place_of(hostile, root / f"{k}") for k, hostile in enumerate(ROWS)]


@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_inner_chunk_is_an_error_that_names_its_shard(way, places):
    """And the inner chunks beside it are read, be it before or after."""
    surprises = []
    for k, (hostile, place) in enumerate(zip(ROWS, places, strict=True)):
        a = opened(place, way)
        keys = [np.s_[:N], PART]
        if k % 3 == 0:
            keys.append(...)
        if not hostile.spoils_its_index:
            keys.insert(len(keys) * (k % 2), BESIDE)
        for key in keys:
            came = outcome(a, key)
            is_fine = came == "right" if key == BESIDE else hostile.may_give(came, key)
            if not is_fine:
                surprises.append((hostile.row, key, came))
    assert not surprises


GOOD = shard_of(b"ab", b"cd", b"ef", b"gh")
SHARDED = document((16,), (8,), sharding((2,)))
NESTED = document((16,), (8,), sharding((4,), codecs=[sharding((2,))]))
INNER = shard_of(b"ab", b"cd")
DAMAGED = {
    # The index is whole, and names what the object does not reach.
    "an entry beyond the end": (
        SHARDED,
        b"abcdefgh" + index_of([(0, 2), (2, 2), (4, 2), (500, 2)]),
        (7,),
    ),
    "the first entry beyond the end": (
        SHARDED,
        b"abcdefgh" + index_of([(500, 2), (2, 2), (4, 2), (6, 2)]),
        (4,),
    ),
    "a nested shard beyond the end": (
        NESTED,
        INNER + index_of([(0, len(INNER)), (600, len(INNER))]),
        (6,),
    ),
    # What lies before it would be a good index, of another shard.
    "a nested shard shorter than its index": (
        NESTED,
        INNER + INNER + index_of([(0, len(INNER)), (2 * len(INNER) - 20, 20)]),
        (6,),
    ),
    "a nested index with another checksum": (
        NESTED,
        INNER[:-1] + index_of([(EMPTY, EMPTY), (0, len(INNER) - 1)]),
        (6,),
    ),
    "a short chunk": (document((4,), (2,), LITTLE), b"a", (1,)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DAMAGED)
def test_the_inner_chunk_is_named_though_the_store_tells_no_sizes(name, way):
    written, shard, cell = DAMAGED[name]
    objects = {"zarr.json": json.dumps(written).encode(), "c/1": shard}
    if written is SHARDED:
        objects["c/0"] = GOOD
    a = opened(held(objects), way)
    n = a.shape[0] // 2
    for key in (..., np.s_[n:], np.s_[::-1]):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[key]
        assert (caught.value.shard_key, caught.value.inner_chunk) == ("c/1", cell)
