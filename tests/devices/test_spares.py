"""Lanes and slots are handed out one at a time, and an interrupt ends all waits."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Event

import pytest

from gpushard.devices import spares as spares_module
from gpushard.devices.spares import Spares
from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import StopFlag, enter, leave
from interrupts import is_cut_off

# Python looks for signals at calls and at the ends of loops, not before these.
UNREACHED = ("try:", "self._unused.put(thing)")


class Interrupted(queue.SimpleQueue):
    """Gives one thing to nobody, as an interrupt at the end of `get` does."""

    def get(self, *args, **more):
        super().get(*args, **more)
        raise KeyboardInterrupt

    def get_nowait(self):
        return self.get()


def interrupt_next(spares):
    """Have the next of `spares` be lost; later ones are handed out as ever."""
    usual, losing = spares._unused, Interrupted()
    losing.put(usual.get_nowait())
    losing.put = usual.put
    spares._unused = losing
    return usual


def test_the_one_unused_for_longest_is_handed_out_first():
    spares = Spares("ab")
    with spares.one() as first:
        pass
    with spares.one() as second, spares.one() as third:
        assert (first, second, third) == ("a", "b", "a")


def test_one_that_is_used_is_waited_for():
    spares, is_wanted = Spares("a"), Event()

    def use():
        is_wanted.set()
        with spares.one() as thing:
            return thing

    with ThreadPoolExecutor(1) as pool:
        with spares.one():
            other = pool.submit(use)
            assert is_wanted.wait(5)
            assert not other.done()
        assert other.result(5) == "a"


def test_one_comes_back_from_work_that_fails():
    spares = Spares("a")
    with pytest.raises(ValueError, match="no"), spares.one():
        raise ValueError("no")
    with pytest.raises(ZeroDivisionError):
        spares.use_one(lambda _: 1 / 0)
    with spares.one() as thing:
        assert thing == "a"


def test_use_one_does_not_wait():
    spares, used = Spares("a"), []
    with spares.one():
        spares.use_one(used.append)
    assert used == []
    spares.use_one(used.append)
    assert used == ["a"]


def wait_for_one(spares):
    with spares.one():
        pytest.fail("there is none left")


def ask_for_one(spares):
    spares.use_one(pytest.fail)


@pytest.mark.parametrize("take", [wait_for_one, ask_for_one])
def test_one_lost_to_an_interrupt_ends_the_waits_of_all_others(take):
    spares = Spares("a")
    usual = interrupt_next(spares)
    with pytest.raises(KeyboardInterrupt):
        take(spares)
    spares._unused = usual
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(wait_for_one, spares) for _ in range(2)]
        try:
            for other in others:
                with pytest.raises(KeyboardInterrupt):
                    other.result(5)
        finally:  # if they wait after all, they are not to wait for ever
            spares.put("a")


def test_an_interrupt_at_any_line_loses_nothing():
    def use(spares):
        with spares.one():
            pass

    for n_line in count(1):
        spares = Spares("a")
        using = partial(use, spares)
        was_cut = is_cut_off(using, n_line, ("devices/spares.py",), UNREACHED)
        assert not spares._unused.empty()
        if not was_cut:
            break
    assert n_line > 4


def test_the_wait_for_one_that_was_lost_ends_with_the_read(monkeypatch):
    monkeypatch.setattr(spares_module, "_LOOK_S", 0.01)
    flag = StopFlag()

    spares = Spares()

    def wait():
        enter(flag)
        try:
            wait_for_one(spares)
        finally:
            leave()

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(wait)
        try:
            with pytest.raises(TimeoutError):
                waits.result(0.1)
            flag.set()
            with pytest.raises(DeviceError, match="nobody waits"):
                waits.result(5)
        finally:  # as above
            spares.put("a")


def test_no_wait_of_a_read_that_nobody_waits_for_ends_as_if_interrupted(monkeypatch):
    monkeypatch.setattr(spares_module, "_LOOK_S", 0.01)
    flag, spares = StopFlag(), Spares()
    flag.set()
    enter(flag)
    try:
        for _ in range(2):
            with pytest.raises(DeviceError, match="nobody waits"):
                wait_for_one(spares)
    finally:
        leave()
