"""A short run of histories, and that they find planted bugs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from fuzz import histories
from fuzz.command import main
from fuzz.history_runs import finding
from gpushard.fused.shares import Shares
from gpushard.memory.known import _MOST_ENTRIES, IndexCache
from gpushard.placing.place import HostSink
from gpushard.placing.scatter import GridTarget
from gpushard.selecting.selection import SliceAxis
from gpushard.transformer.shards import Shards

HAS_LOOPS = find_spec("numba") is not None
needs_loops = pytest.mark.skipif(not HAS_LOOPS, reason="needs the compiled loops")


def test_a_short_run_finds_nothing():
    done = histories.explored(6, seed=1)
    assert done.total() == 6 * histories.N_STEPS
    assert done.keys() == histories.STEPS.keys()


def test_a_history_is_the_same_each_time():
    assert histories.tried(2) == histories.tried(2)
    some = histories.tried(2, steps=[0, 3, 5])
    assert some == [step for step in histories.tried(2) if step[0] in (0, 3, 5)]


# ---- planted bugs


def keeps_inner_chunks_of_any_version(monkeypatch):
    good = IndexCache.put

    def put(self, key, known):
        known.first_key = (1 + sum(key)) * _MOST_ENTRIES
        good(self, key, known)

    monkeypatch.setattr(IndexCache, "put", put)


def leaves_a_missing_inner_chunk_out(monkeypatch):
    good = HostSink.fill
    monkeypatch.setattr(
        HostSink,
        "fill",
        lambda self, job, block, rows: good(self, job, block, rows[1:]),
    )


def turns_a_reversed_axis_around_twice(monkeypatch):
    good = GridTarget.__init__

    def init(self, part, out):
        good(self, part, out)
        axis = part.selection.axes[0] if part.selection.axes else None
        if isinstance(axis, SliceAxis) and axis.out_step < 0:
            self.out = self.out[::-1]

    monkeypatch.setattr(GridTarget, "__init__", init)


def loses_the_first_row_of_a_share(monkeypatch):
    good = Shares.__init__

    def init(self, cuts, most):
        good(self, cuts, most)
        if len(cuts) > 2:
            self.cuts = cuts.copy()
            self.cuts[0] += 1
            self.is_placed[0] = True

    monkeypatch.setattr(Shares, "__init__", init)


def loses_a_chunk_of_a_shard_that_the_transformer_writes_anew(monkeypatch):
    good = Shards._held

    def held(self, shard_keys, changes):
        found = good(self, shard_keys, changes)
        for chunks in filter(None, found.values()):
            chunks.popitem()
        return found

    monkeypatch.setattr(Shards, "_held", held)


PLANTED = (
    (keeps_inner_chunks_of_any_version, (26, 31, 36)),
    (leaves_a_missing_inner_chunk_out, (2, 3, 4)),
    (turns_a_reversed_axis_around_twice, (2, 3, 4)),
    (loses_a_chunk_of_a_shard_that_the_transformer_writes_anew, (13, 48, 62)),
    pytest.param(loses_the_first_row_of_a_share, (29, 45, 86), marks=needs_loops),
)


@pytest.mark.parametrize(("plant", "seeds"), PLANTED)
def test_a_planted_bug_is_found_by_one_of_some_histories(plant, seeds, monkeypatch):
    plant(monkeypatch)
    assert finding(histories.tried, seeds).startswith("history ")


def test_the_command_runs_histories(monkeypatch, capsys):
    command = ["fuzz", "histories", "--runs", "1", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    assert capsys.readouterr().err.startswith("1 histories: {'")
