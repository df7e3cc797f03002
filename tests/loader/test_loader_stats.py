"""Figures of a loader: how long its consumer waited, and how full its queue was."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpushard import Loader
from gpushard.loader import reading
from gpushard.loader.fields import Field
from gpushard.loader.prefetch import Prefetched, WaitStats
from gpushard.loader.stats import Progress, figures
from gpushard.threads.stop_flag import StopFlag
from loader_data import N, labels
from spec_shards import LITTLE, document, opened

SLOW_S = 0.1


@pytest.mark.parametrize("transform", [None, np.copy])
def test_waiting_for_slow_reads_is_told(transform, monkeypatch):
    plan = Field.read

    def slow(field, origins, memory):
        time.sleep(SLOW_S)
        return plan(field, origins, memory)

    monkeypatch.setattr(Field, "read", slow)
    with Loader(labels(), batch_size=N, transform=transform) as loader:
        list(loader)
        stats = loader.stats()
    # The read may be under way for a while before the loader is asked for its batch.
    assert SLOW_S / 10 < stats["waiting_seconds"] < stats["seconds"]


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_only_a_loader_that_reads_ahead_looks_into_a_queue(
    prefetch_factor, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 1)
    loader = Loader(labels(), batch_size=8, prefetch_factor=prefetch_factor)
    list(loader)
    waits = loader._progress.waits
    assert (waits.n_looks > 0) == (waits.seconds > 0) == (prefetch_factor > 0)
    loader = Loader(
        labels(), batch_size=8, prefetch_factor=prefetch_factor, transform=np.copy
    )
    list(loader)
    n_looks = loader._progress.waits.n_looks
    assert n_looks == (1 + -(-N // 8) if prefetch_factor else 0)  # batches, the end


def test_a_consumer_looks_how_many_items_are_ready():
    waits = WaitStats()
    stage = Prefetched(iter("abc"), 2, StopFlag(), waits)
    stage.start()
    while stage._channel.items.qsize() < 2:
        time.sleep(0.001)
    next(stage)
    assert (waits.n_looks, waits.n_found) == (1, 2)
    stage.close()


@pytest.mark.parametrize(
    ("n_looks", "n_found", "occupancy"),
    [(4, 3, 3 / 8), (1, 3, 1.0)],  # the mark of the end takes no place
)
def test_the_occupancy_of_a_queue_is_the_share_of_its_places_that_were_full(
    n_looks, n_found, occupancy
):
    progress = Progress(waits=WaitStats(n_looks=n_looks, n_found=n_found))
    assert figures(progress, [], depth=2)["queue_occupancy"] == occupancy


def test_figures_of_a_loader_that_was_not_used_are_zero():
    assert set(Loader(labels()).stats().values()) == {0}


def test_time_between_epochs_does_not_count():
    progress = Progress()
    progress.begin()
    progress.end(lambda: progress.begun + 2)
    progress.end()
    assert progress.busy_seconds == pytest.approx(2)
    progress.begin()
    progress.end(lambda: progress.begun + 3)
    assert figures(progress, [], depth=0)["seconds"] == pytest.approx(5)


def test_chunks_of_several_shapes_are_decoded_once_in_order():
    """The first of them has a tenth of the elements of a later one."""
    lengths = [1, 9, 10]
    meta = document((20, 3), (20, 3), LITTLE, dtype="uint8")
    sizes = {"kind": "inline", "chunk_shapes": [lengths, [3]]}
    meta["chunk_grid"] = {"name": "rectilinear", "configuration": sizes}
    chunks = {f"{i}_0": bytes(3 * n) for i, n in enumerate(lengths)}
    with Loader(opened(meta, **chunks), batch_size=5) as loader:
        list(loader)
        assert loader.stats()["read_amplification"] == pytest.approx(1)
