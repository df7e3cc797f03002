"""A mix draws loaders by weight, the same on all ranks, and resumes."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import gpushard
from gpushard import Loader, Mix, OptionError
from gpushard.loader import mix as mixes
from loader_data import stored

FEW = np.arange(40, dtype="i4")
MANY = np.arange(1000, 1400, dtype="i4")


def few(**options):
    return Loader(stored(FEW, (8,)), **{"batch_size": 4, "shuffle": True} | options)


def many(**options):
    return Loader(stored(MANY, (50,)), **{"batch_size": 4, "shuffle": True} | options)


def mix(stop="first", **options):
    loaders = {"few": few(), "many": many()}
    return Mix(loaders, **{"stop": stop, "return_source": True} | options)


def told(mixed):
    return [(source, batch.tolist()) for batch, source in mixed]


def told_one_by_one(mixed):
    return ((source, batch.tolist()) for batch, source in mixed)


def test_batches_of_each_loader_come_in_its_own_order():
    got = told(mix("all"))
    assert [b for s, b in got if s == "few"] == [b.tolist() for b in few()]
    assert [b for s, b in got if s == "many"] == [b.tolist() for b in many()]


def test_loaders_are_drawn_by_their_weight():
    loaders = [few(num_samples=4_000, replacement=True, shuffle=False) for _ in "abc"]
    mixed = Mix(loaders, weights=[1, 2, 5], stop="first", return_source=True)
    sources = [source for _, source in mixed]
    shares = np.bincount(sources) / len(sources)
    assert np.allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.02)


def test_without_weights_loaders_are_drawn_by_their_length():
    assert "few: 9%, many: 91%" in repr(mix())


@pytest.mark.parametrize("stop", ["first", "all", "restart"])
@pytest.mark.parametrize("weights", [None, {"few": 3, "many": 1}, [1, 30]])
def test_an_epoch_has_as_many_batches_as_its_length(stop, weights):
    mixed = mix(stop, weights=weights)
    for epoch in range(3):
        n = len(mixed)
        assert mixed.epoch == epoch
        assert len(told(mixed)) == n


def test_an_epoch_ends_when_one_loader_does():
    got = told(mix("first", weights=[3, 1]))
    n_few = sum(source == "few" for source, _ in got)
    n_many = sum(source == "many" for source, _ in got)
    assert n_few == 10
    assert n_many < 100


def test_an_epoch_ends_when_all_loaders_have():
    got = told(mix("all", weights=[3, 1]))
    values = [value for _, batch in got for value in batch]
    assert sorted(values) == [*FEW.tolist(), *MANY.tolist()]


def test_a_loader_that_ends_first_begins_its_next_epoch():
    got = told(mix("restart", weights=[1, 1]))
    values = [value for source, batch in got for value in batch if source == "many"]
    assert sorted(values) == MANY.tolist()
    rounds = [b for s, b in got if s == "few"]
    assert len(rounds) > 20
    first, second = rounds[:10], rounds[10:20]
    assert sorted(np.ravel(first)) == sorted(np.ravel(second)) == FEW.tolist()
    assert first != second


def test_epochs_and_seeds_draw_differently_and_can_be_repeated():
    mixed = mix()
    first, second = told(mixed), told(mixed)
    assert first != second
    mixed.set_epoch(0)
    assert told(mixed) == first
    sources = [source for source, _ in first]
    assert [source for source, _ in told(mix(seed=1))] != sources
    mixed.set_epoch(1)
    next(iter(mixed))  # broken off: the next iteration begins the epoch again
    assert told(mixed) == second


@pytest.mark.parametrize("stop", ["first", "all", "restart"])
@pytest.mark.parametrize("n_before", [0, 3, 11, 40])
def test_a_mix_resumes_with_the_very_next_batch(stop, n_before):
    whole = mix(stop, weights=[1, 1])
    first, second = told(whole), told(whole)
    stopped = mix(stop, weights=[1, 1])
    n_before = min(n_before, len(first) - 1)
    batches = iter(stopped)
    for _ in range(n_before):
        next(batches)
    saved = json.dumps(stopped.state_dict())
    assert len(saved) < 2000
    stopped.close()
    resumed = mix(stop, weights=[1, 1])
    resumed.load_state_dict(json.loads(saved))
    assert told(resumed) == first[n_before:]
    assert told(resumed) == second


@pytest.mark.parametrize("stop", ["first", "all", "restart"])
@pytest.mark.parametrize("move", [list, lambda mixed: mixed.set_epoch(1)])
def test_a_state_from_between_two_epochs_resumes_the_next_one(stop, move):
    whole, stopped = mix(stop, weights=[1, 1]), mix(stop, weights=[1, 1])
    told(whole)
    move(stopped)
    resumed = mix(stop, weights=[1, 1])
    resumed.load_state_dict(stopped.state_dict())
    assert told(resumed) == told(whole)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_new_iteration_begins_all_loaders_again_also_those_not_drawn_yet(is_resumed):
    first, begun = told(mix("all")), mix("all")
    for _ in zip(range(30), begun, strict=False):
        pass
    if is_resumed:
        state, begun = begun.state_dict(), mix("all")
        begun.load_state_dict(state)
        next(iter(begun))
    next(iter(begun))
    saved = begun.state_dict()
    assert told(begun) == first
    begun.load_state_dict(saved)
    assert told(begun) == first[1:]


def test_an_epoch_that_would_hardly_end_has_no_length():
    rare = {"few": 1e-12, "many": 1}
    never = mix("restart", weights=rare)
    with pytest.raises(OptionError, match="loader few of a mix is drawn too rarely"):
        len(never)
    assert next(iter(never))[1] == "many"
    assert len(mix("first", weights=rare)) == len(many())  # the other one ends it
    assert len(mix("all", weights=rare)) == len(few()) + len(many())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "seed"),
        ({"stop": "all"}, "stop"),
        ({"weights": [1, 2]}, "weights"),
    ],
)
def test_the_state_of_another_mix_is_refused(other, said):
    with pytest.raises(OptionError, match=f"differs in {said}"):
        mix(**other).load_state_dict(mix().state_dict())
    with pytest.raises(OptionError, match="as many loaders"):
        mix().load_state_dict(mix().state_dict() | {"states": []})


@pytest.mark.parametrize("stop", ["first", "all", "restart"])
def test_every_state_of_an_epoch_is_taken_and_goes_on(stop):
    stopped, resumed = mix(stop, weights=[5, 1]), mix(stop, weights=[5, 1])
    states, batches = [stopped.state_dict()], []
    for batch in told_one_by_one(stopped):
        batches.append(batch)
        states.append(stopped.state_dict())
    # Each third one: among them are states within a round and at its ends.
    for state, batch in [*zip(states, batches, strict=False)][::3]:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert next(told_one_by_one(resumed)) == batch


@pytest.mark.parametrize(
    ("stop", "change", "expected", "got"),
    [
        ("first", {"step": 10**30}, "a whole number from 0 to", "1" + 30 * "0"),
        ("restart", {"step": 999}, "a whole number from 0 to", "999"),
        ("first", {"rounds": [1, 0]}, "a whole number from 0 to 0", "1"),
        ("all", {"rounds": [2, 0]}, "a whole number from 0 to 1", "2"),
        ("restart", {"rounds": [7, 0]}, "a whole number from 0 to 6", "7"),
        ("all", {"rounds": [-1, 0]}, "a whole number from 0 to 1", "-1"),
        ("all", {"rounds": [True, 0]}, "a whole number from 0 to 1", "True"),
        ("all", {"rounds": [1.0, 0]}, "a whole number from 0 to 1", "1.0"),
        ("all", {"rounds": [0, 0, 0]}, "a list of 2", "a list of 3"),
        ("all", {"states": None}, "a list of 2", "None"),
        ("all", {"epoch": 3}, 3, 0),
        ("all", {"rounds": [1, 0]}, 1, 0),
        ("restart", {"rounds": [1, 0]}, 1_000_000, 0),
    ],
)
def test_a_state_of_impossible_counts_is_refused_and_changes_nothing(
    stop, change, expected, got
):
    stopped, other = mix(stop, weights=[1, 1]), mix(stop, weights=[1, 1])
    for _ in zip(range(6), stopped, strict=False):
        pass
    before = other.state_dict()
    with pytest.raises(OptionError) as refused:
        other.load_state_dict(stopped.state_dict() | change)
    assert str(expected) in str(refused.value.expected)
    assert str(refused.value.got) == str(got)
    assert refused.value.hint
    assert other.state_dict() == before


@pytest.mark.parametrize("spoiled", ["loader", "rounds"])
def test_a_mix_whose_state_is_refused_is_where_it_was(spoiled):
    stopped, other = mix("all", weights=[1, 1]), mix("all", weights=[1, 1])
    for _ in zip(range(6), stopped, strict=False):
        pass
    state = stopped.state_dict()
    if spoiled == "loader":
        state["states"][1] |= {"global_batch": 5}
    else:
        state["rounds"] = [0, "many"]
    with pytest.raises(OptionError, match=r"global_batch|rounds"):
        other.load_state_dict(state)
    assert told(other) == told(mix("all", weights=[1, 1]))


@pytest.mark.parametrize("stop", ["first", "all", "restart"])
def test_the_length_is_that_of_the_epoch_wherever_loaders_stand(stop):
    def changing():
        varied = few(shuffle=False, sampler=lambda epoch: range(40 - 8 * (epoch % 4)))
        return Mix([varied, many()], weights=[1, 1], stop=stop)

    lengths = []
    for epoch in range(3):
        mixed = changing()
        mixed.set_epoch(epoch)
        lengths.append(len(mixed))
        assert {len(mixed) for _ in mixed} == {lengths[-1]}
    assert lengths == [len([*mixed]) for mixed in [changing()] for _ in range(3)]


@pytest.mark.parametrize("stop", ["first", "restart"])
def test_the_length_is_the_same_if_few_draws_are_looked_at_together(stop, monkeypatch):
    wanted = len(mix(stop))
    monkeypatch.setattr(mixes, "_N_DRAWS", 3)
    assert len(mix(stop)) == wanted


def test_a_mix_with_an_empty_loader_is_as_long_as_its_draws():
    mixed = Mix([few(), few(num_samples=0)], weights=[9, 1], stop="first", seed=2)
    assert len(mixed) == len(list(mixed)) > 0


def test_epochs_draw_loaders_differently():
    mixed = mix("all", weights=[1, 1])
    first, second = ([source for source, _ in told(mixed)] for _ in range(2))
    assert first != second


def test_moving_a_mix_ends_the_iteration_that_runs():
    moved, batches = mix(), None
    state = moved.state_dict()
    for move in (lambda: moved.set_epoch(3), lambda: moved.load_state_dict(state)):
        batches = iter(moved)
        next(batches)
        move()
        with pytest.raises(OptionError, match="moved"):
            next(batches)
    assert moved.epoch == 0
    assert told(moved) == told(mix())


@pytest.mark.parametrize("way", ["iterated", "closed", "moved", "resumed"])
def test_an_iteration_begins_with_its_first_batch(way):
    """Whatever happens between `iter` and the first `next` does not disturb it."""
    whole, resumable, moved = mix("all"), mix("all"), mix("all")
    first, second = told(whole), told(whole)
    next(iter(resumable))
    early, expected = iter(moved), first
    if way == "iterated":
        next(iter(moved))
    elif way == "closed":
        moved.close()
    elif way == "moved":
        moved.set_epoch(1)
        expected = second
    else:
        moved.load_state_dict(resumable.state_dict())
        expected = first[1:]
    assert told(early) == expected


def test_all_ranks_draw_the_same_and_share_each_epoch():
    def of_rank(rank):
        ranks = {"rank": rank, "world_size": 2, "batch_size": 2}
        mixed = Mix([few(**ranks), many(**ranks)], stop="all", return_source=True)
        return told(mixed)

    first, second = of_rank(0), of_rank(1)
    assert [source for source, _ in first] == [source for source, _ in second]
    values = [v for rank in (first, second) for _, batch in rank for v in batch]
    assert sorted(values) == [*FEW.tolist(), *MANY.tolist()]
    ranks = {"rank": 0, "world_size": 2, "uneven": "allow"}
    with pytest.raises(OptionError, match="same number of steps"):
        Mix([few(**ranks)])


def test_a_closed_mix_has_no_threads_and_says_so():
    mixed = mix()
    batches = iter(mixed)
    next(batches)
    with mixed:
        pass
    assert not [t for t in threading.enumerate() if t.name == "gpushard-loader"]
    with pytest.raises(OptionError, match="closed"):
        next(batches)


def test_figures_are_those_of_all_loaders_and_of_each():
    with mix("all") as mixed:
        n = len(told(mixed))
        figures = mixed.stats()
    assert figures["batches"] == n == 110
    assert figures["samples"] == 440
    assert figures["loaders"]["few"]["batches"] == 10


@pytest.mark.parametrize(
    ("loaders", "options", "said"),
    [
        ([], {}, "at least one"),
        (["x"], {}, "only loaders"),
        (None, {"weights": [1]}, "one positive number"),
        (None, {"weights": [1, 0]}, "one positive number"),
        (None, {"weights": ["a", "b"]}, "must be numbers"),
        (None, {"weights": {"other": 1}}, "must name the loaders"),
        (None, {"stop": "never"}, "stop="),
        (None, {"seed": -1}, "seed="),
        (None, {"weights": [1e308, 1e308]}, "sum of weights"),
        (None, {"return_source": "no"}, "return_source= must be True or False"),
        ({"none": few(sampler=[], shuffle=False)}, {}, "loader none of a mix has no"),
    ],
)
def test_what_is_no_mix_is_refused(loaders, options, said):
    given = {"few": few(), "many": many()} if loaders is None else loaders
    with pytest.raises(gpushard.OptionError, match=said):
        Mix(given, **options)


def test_a_loader_is_in_a_mix_once():
    twice = few()
    with pytest.raises(gpushard.OptionError, match="in the mix twice"):
        Mix([twice, many(), twice])
