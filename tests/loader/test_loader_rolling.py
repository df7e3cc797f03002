"""A loader keeps the window of its rolling array, and tells what is gone of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gpushard
from gpushard import Loader, OptionError, Ragged
from gpushard.errors import WindowMovedError
from gpushard.loader import reading
from gpushard.rolling import RollingArray
from loader_data import IMAGES

HELD = 96
"""Samples of the window: eight shards."""

OPTIONS = {"batch_size": 8, "prefetch_factor": 0, "return_index": True}


@pytest.fixture
def rolling(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    options = {"dtype": "u2", "chunks": (4, 2, 3), "shards": (12, 2, 3)}
    array = RollingArray.create(tmp_path / "live", shape=(0, 2, 3), **options)
    array.append(IMAGES[:HELD])
    return array


def opened(rolling, tmp_path):
    return gpushard.open_array(tmp_path / "live")


def test_an_epoch_keeps_its_window_while_the_array_grows(rolling, tmp_path):
    loader = Loader(opened(rolling, tmp_path), **OPTIONS)
    for step, (batch, index) in enumerate(loader):
        assert np.array_equal(batch, IMAGES[index])
        if step == 2:
            rolling.append(IMAGES[:24] + 1000)
    assert step == HELD // 8 - 1
    assert len(loader) == HELD // 8


@pytest.mark.parametrize("wrapped", [False, True], ids=["rows", "ragged"])
def test_a_pickled_loader_keeps_its_window_while_the_array_grows(rolling, wrapped):
    arrays = Ragged(rolling, np.arange(0, HELD + 1, 2)) if wrapped else rolling
    loader = Loader(arrays, **OPTIONS)
    rolling.append(IMAGES[:24] + 1000)
    again = pickle.loads(pickle.dumps(loader))
    assert len(again) == len(loader) == (HELD // 8 if not wrapped else HELD // 16)
    assert again.state_dict() == loader.state_dict()


def test_samples_that_rolled_off_in_mid_epoch_are_an_error_at_once(rolling, tmp_path):
    loader, seen = Loader(opened(rolling, tmp_path), **OPTIONS), []

    def epoch():
        for batch, index in loader:
            assert np.array_equal(batch, IMAGES[index])
            seen.extend(index.tolist())
            rolling.roll(IMAGES[:48] + 1000)

    with pytest.raises(WindowMovedError, match="rolled past") as caught:
        epoch()
    assert seen == list(range(8))
    assert caught.value.shard_key == "c/0/0/0"
    assert "while a loader read samples 8, 9" in caught.value.__notes__[0]
    assert loader.stats()["reads_retried"] == 0


def test_samples_that_rolled_off_can_be_left_out(rolling, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_PAUSES", (20.0,))  # nothing waits for them
    options = OPTIONS | {"shuffle": True, "on_error": "skip"}
    loader, seen = Loader(opened(rolling, tmp_path), **options), []
    for batch, index in loader:
        assert np.array_equal(batch, IMAGES[index])
        seen += index.tolist()
        if len(seen) == 8:
            rolling.roll(IMAGES[:24] + 1000)
    assert sorted(seen) == sorted({*range(24, HELD), *seen[:8]})
    assert loader.stats()["samples_skipped"] == HELD - len(seen)


def test_a_state_of_before_the_array_rolled_is_refused(rolling, tmp_path):
    before = opened(rolling, tmp_path)
    loader = Loader(before, **OPTIONS)
    next(iter(loader))
    state = loader.state_dict()
    rolling.roll(IMAGES[:24] + 1000)
    with pytest.raises(OptionError, match="arrays array"):
        Loader(opened(rolling, tmp_path), **OPTIONS).load_state_dict(state)
    # What was opened before and not refreshed has the window that it had.
    Loader(before, **OPTIONS).load_state_dict(state)


def test_ragged_values_that_rolled_are_another_array(rolling, tmp_path):
    offsets = np.arange(0, HELD + 1, 4)
    loader = Loader(Ragged(opened(rolling, tmp_path), offsets))
    state = loader.state_dict()
    loader.load_state_dict(state)
    rolling.roll(IMAGES[:24] + 1000)
    moved = Loader(Ragged(opened(rolling, tmp_path), offsets))
    with pytest.raises(OptionError, match="arrays array"):
        moved.load_state_dict(state)
