"""A mix whose loaders fail ends, and leaves no thread."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader, Mix, OptionError
from gpushard.loader import reading
from loader_data import stored
from test_loader_failures import wait_for_no_threads

FEW = np.arange(40, dtype="i4")
MANY = np.arange(1000, 1400, dtype="i4")


def many():
    return Loader(stored(MANY, (50,)), batch_size=4)


def mix_beside_damage(folder, n_damaged):
    """Mix that repeats `few`, of whose five inner chunks the first are damaged."""
    z = zarr.create_array(folder, shape=FEW.shape, chunks=(8,), dtype="i4")
    z[...] = FEW
    for k in range(n_damaged):
        (folder / f"c/{k}").write_bytes(b"no zstd")
    array, options = gpushard.open_array(folder), {"batch_size": 4, "on_error": "skip"}
    loaders = {"few": Loader(array, **options), "many": many()}
    return Mix(loaders, weights=[1, 1], stop="restart", return_source=True)


def test_a_loader_repeats_what_damage_leaves_of_it(tmp_path):
    mixed = mix_beside_damage(tmp_path, 4)
    rounds = [batch.tolist() for batch, source in mixed if source == "few"]
    assert len(rounds) > 50
    assert rounds[:4] == [[32, 33, 34, 35], [36, 37, 38, 39]] * 2


def test_a_loader_of_which_damage_leaves_nothing_does_not_keep_a_mix(tmp_path):
    mixed = mix_beside_damage(tmp_path, 5)
    with pytest.raises(OptionError, match=r"loader few .* could be read: .*'skip'"):
        list(mixed)
    assert mixed.stats()["samples_skipped"] == 2 * len(FEW)


def test_an_error_that_is_kept_keeps_no_threads(monkeypatch):
    def transform(batch):
        raise KeyError("mine")

    monkeypatch.setattr(reading, "LOAD_NBYTES", 16)  # so that many reads are left
    failing = Loader(stored(FEW, (8,)), transform=transform)
    mixed = Mix({"many": many(), "few": failing}, weights={"many": 9, "few": 1})
    with pytest.raises(KeyError) as raised:
        list(mixed)
    wait_for_no_threads()
    assert raised.value.args == ("mine",)
    assert raised.value.__notes__[-1] == "in loader few of a mix"


def test_an_error_of_a_read_names_its_samples_and_their_loader(tmp_path):
    z = zarr.create_array(tmp_path, shape=FEW.shape, chunks=(8,), dtype="i4")
    z[...] = FEW
    (tmp_path / "c/0").write_bytes(b"no zstd")
    damaged = Loader(gpushard.open_array(tmp_path), batch_size=4)
    with (
        Mix([many(), damaged]) as mixed,
        pytest.raises(gpushard.CorruptShardError) as raised,
    ):
        list(mixed)
    samples, loader = raised.value.__notes__
    assert samples.startswith("while a loader read samples 0, 1, 2, 3")
    assert loader == "in loader 1 of a mix"
