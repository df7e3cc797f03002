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
    want = FIRST if key is ... else FIRST[key]
    return "right" if np.array_equal(got[: len(want)], want) else "wrong"


@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_inner_chunk_is_an_error_that_names_its_shard(way, tmp_path):
    surprises = []
    for k, hostile in enumerate(ROWS):
        a = opened(place_of(hostile, tmp_path / f"{k}"), way)
        # With the others beside it, every third one.
        for key in (np.s_[:N], PART, ...)[: 2 + (k % 3 == 0)]:
            came = outcome(a, key)
            if not hostile.may_give(came, key):
                surprises.append((hostile.row, key, came))
    assert not surprises


@pytest.mark.parametrize("way", WAYS)
def test_the_inner_chunks_beside_a_hostile_one_are_read(way, tmp_path):
    surprises = []
    rows = [
        h for h in ROWS if "shard of" not in h.row and "index checksum" not in h.row
    ]
    for k, hostile in enumerate(rows):
        if hostile.row == "flipped bit in the index":
            continue
        a = opened(place_of(hostile, tmp_path / f"{k}"), way)
        got = on_host(a[N : 4 * N])
        if not np.array_equal(got, REST):
            surprises.append(hostile.row)
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
