"""What was lately spent on inner chunks: it adds up, and is forgotten."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushard.memory.misses import Misses

LISTS = st.lists(st.integers(0, 40), max_size=12)


@given(st.lists(LISTS, max_size=8), st.integers(41, 90))
def test_what_was_spent_adds_up_for_one_key_as_for_many(lists, n_places):
    one, many, spent = Misses(n_places), Misses(n_places), dict.fromkeys(range(41), 0)
    for keys in lists:
        for key in set(keys):
            spent[key] += 3
            assert one.add(key, 3) == spent[key]
        total = many.add_all(np.array(keys, np.int64), 3)
        assert total.tolist() == [spent[key] for key in keys]


def test_of_many_keys_only_the_latest_are_remembered():
    missed = Misses(20)
    missed.add_all(np.arange(300, 1300), 1)
    assert len(missed) == 21
    assert missed.add_all(np.arange(1279, 1300), 1).tolist() == [2] * 21
    assert missed.add(1278, 1) == 1


def test_keys_that_are_a_power_of_two_apart_do_not_displace_one_another():
    missed = Misses(64)
    column = np.arange(32) << 10
    missed.add_all(column, 1)
    assert (missed.add_all(column, 1) == 2).all()


def test_on_what_cannot_be_kept_nothing_is_spent():
    missed = Misses(20)
    keys = np.array([-5, 3, -5, -(1 << 62) + 3, 0])
    assert missed.add_all(keys, 9).tolist() == [0, 9, 0, 0, 9]
    assert len(missed) == 2
    assert missed.add_all(np.array([-1]), 9).tolist() == [0]
    assert len(missed) == 2


def test_fewer_are_remembered_of_keys_that_stand_for_several():
    missed = Misses(20)
    for key in range(6):
        missed.add(key, 1, 4)
    assert [missed.add(key, 1, 4) for key in (5, 4, 3, 2, 0)] == [2, 2, 2, 2, 1]
