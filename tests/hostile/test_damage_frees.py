"""Damage keeps no output: neither an error's frames do, nor work that is left over."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from damaged_arrays import WAYS, opened
from gpushard.errors import CorruptShardError
from gpushard.threads.work_queue import Task
from gpushard.threads.workers import run_tasks
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


class _Output:
    """What tasks write to."""


def test_work_that_an_error_leaves_over_goes_without_a_collection():
    def fails() -> None:
        raise CorruptShardError("damaged")

    def use(_: _Output) -> None: ...

    def work(out: _Output) -> Iterator[Task]:
        yield from [fails] * 3
        while True:
            yield partial(use, out)

    def run() -> weakref.ref[_Output]:
        out = _Output()
        with pytest.raises(CorruptShardError):
            run_tasks(work(out), 2)
        return weakref.ref(out)

    assert_goes(run)
