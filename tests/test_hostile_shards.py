"""Every row of the table of threats, on every way a read takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpushard
from damaged_arrays import WAYS, on_host, opened
from hostile_shards import ELEMENTS, Hostile, N, all_rows
from spec_shards import EMPTY, index_of

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
        for key in (np.s_[:N], np.s_[5:9], ...):
            came = outcome(a, key)
            if came not in ("error", *hostile.outcomes):
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
