"""A short run of histories of a group, and that they find planted bugs."""

from __future__ import annotations

import sys

import pytest

from fuzz import group_histories
from fuzz.command import main
from fuzz.history_runs import finding
from gpushard.concatenation import ConcatArray
from gpushard.group import Group
from gpushard.memory.known import _MOST_ENTRIES, IndexCache


def test_a_short_run_finds_nothing():
    done = group_histories.explored(2, seed=1)
    assert done.total() == 2 * group_histories.N_STEPS
    assert done.keys() <= {step.__name__ for step in group_histories.STEPS}


def test_a_history_is_the_same_each_time():
    some = group_histories.tried(2, steps=[0, 3, 5])
    assert some == [step for step in group_histories.tried(2) if step[0] in (0, 3, 5)]


# ---- planted bugs


def opens_an_array_as_it_was_at_first(monkeypatch):
    good = Group._found
    kept = {}

    def found(self, name):
        key = id(self.store), self._join(name)
        kept[key] = self.store, kept[key][1] if key in kept else good(self, name)
        return kept[key][1]

    monkeypatch.setattr(Group, "_found", found)


def leaves_the_last_joined_array_out(monkeypatch):
    good = ConcatArray._into

    def into(self, *how):
        reads = list(good(self, *how))
        return iter(reads[:-1] if len(reads) > 1 else reads)

    monkeypatch.setattr(ConcatArray, "_into", into)


def keeps_inner_chunks_of_any_version(monkeypatch):
    good = IndexCache.put

    def put(self, key, known):
        known.first_key = (1 + sum(key)) * _MOST_ENTRIES
        good(self, key, known)

    monkeypatch.setattr(IndexCache, "put", put)


PLANTED = (
    (opens_an_array_as_it_was_at_first, (1, 2)),
    (leaves_the_last_joined_array_out, (1, 2)),
    (keeps_inner_chunks_of_any_version, (2, 9, 12)),
)


@pytest.mark.parametrize(("plant", "seeds"), PLANTED)
def test_a_planted_bug_is_found_by_one_of_some_histories(plant, seeds, monkeypatch):
    plant(monkeypatch)
    assert finding(group_histories.tried, seeds).startswith("group history ")


def test_the_command_runs_histories_of_groups(monkeypatch, capsys):
    command = ["fuzz", "groups", "--runs", "1", "--seed", "11"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    assert capsys.readouterr().err.startswith("1 histories: {'")
