"""Damage keeps no output: the frames of its error do not."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from damaged_arrays import WAYS, opened
from gpushard.errors import CorruptShardError
from spec_shards import document
from test_damage_callables import DAMAGED, GOOD, N
from zarr_oracle import held

N_SHARDS = 40
ON_HOST = [way for way in WAYS if way != "device"]


def read(damage: str, way: str, errors: Any) -> weakref.ref[np.ndarray]:
    """The output of a read that meets damage early, as far as it is still there."""
    codecs, shard = DAMAGED[damage]
    meta = document((2 * N * N_SHARDS,), (2 * N,), *codecs, fill_value=9)
    objects = {f"c/{i}": GOOD for i in range(N_SHARDS) if damage != "object"}
    objects |= {"zarr.json": json.dumps(meta).encode(), "c/1": shard}
    a = opened(held(objects), way, threads=2)
    out = np.empty(a.shape, a.dtype)
    with suppress(CorruptShardError):
        a.read(..., out=out, errors=errors)
    return weakref.ref(out)


def assert_goes(leave: Callable[[], weakref.ref[Any]]) -> None:
    """Nothing is left of what `leave` returns a reference to."""
    gc.collect()
    gc.disable()
    try:
        left = leave()
        for _ in range(200):  # a thread of the pool may not have let go yet
            if left() is None:
                break
            time.sleep(0.005)
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::gpushard.errors.DamageWarning")
@pytest.mark.parametrize("errors", ["raise", "fill", "call"])
@pytest.mark.parametrize("way", ON_HOST)
@pytest.mark.parametrize("damage", DAMAGED)
def test_an_output_goes_without_a_collection_if_a_read_meets_damage(
    damage, way, errors
):
    reported: list[CorruptShardError] = []
    how = reported.append if errors == "call" else errors
    assert_goes(partial(read, damage, way, how))
    assert bool(reported) == (errors == "call")
