"""A short run of histories on a device, and that they find planted bugs."""

from __future__ import annotations

import sys

import pytest

from fuzz import histories
from fuzz.command import main
from fuzz.device_histories import STEPS, DeviceHistory
from gpushard.device_reading.payload.ring import Slot
from gpushard.device_reading.sink import DeviceSink
from gpushard.fetching import fetch
from gpushard.loader.device_memory import _Lease


def test_a_short_run_finds_nothing():
    done = histories.explored(2, seed=3, kind=DeviceHistory)
    assert done.total() == 2 * histories.N_STEPS
    assert done.keys() <= STEPS.keys()


# ---- planted bugs


def reuses_slots_before_they_are_copied(monkeypatch):
    monkeypatch.setattr(Slot, "_wait_for", lambda self, copied: None)


def leaves_a_missing_inner_chunk_out(monkeypatch):
    good = DeviceSink.fill
    monkeypatch.setattr(
        DeviceSink,
        "fill",
        lambda self, job, block, rows: good(self, job, block, rows[1:]),
    )


def keeps_indexes_of_any_version(monkeypatch):
    monkeypatch.setattr(
        fetch, "known_index", lambda source, at, key: source.indexes.get(at)
    )


def writes_before_the_work_of_users(monkeypatch):
    good = DeviceSink._upload_tables
    monkeypatch.setattr(
        DeviceSink, "_upload_tables", lambda self, targets, _: good(self, targets, ())
    )


def forgets_who_uses_memory(monkeypatch):
    monkeypatch.setattr(_Lease, "note_use", lambda self: None)


PLANTED = (
    (reuses_slots_before_they_are_copied, (1, 18, 9)),
    (leaves_a_missing_inner_chunk_out, (4, 6, 9)),
    (keeps_indexes_of_any_version, (10, 7, 27)),
    (writes_before_the_work_of_users, (9, 10, 13)),
    (forgets_who_uses_memory, (14, 19)),
)


@pytest.mark.parametrize(("plant", "seeds"), PLANTED)
def test_a_planted_bug_is_found_by_one_of_some_histories(plant, seeds, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        [histories.tried(seed, kind=DeviceHistory) for seed in seeds]


def test_the_command_runs_histories_on_a_device(monkeypatch, capsys):
    command = ["fuzz", "device_histories", "--runs", "1", "--seed", "7"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    assert capsys.readouterr().err.startswith("1 histories: {'")
