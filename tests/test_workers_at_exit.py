"""Work at the end of a process, when its pools begin no more threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpushard.workers import Begun, run_in_turn, run_side_by_side, run_tasks


@pytest.fixture(params=[0, 1])
def refused(request, monkeypatch) -> None:
    """Pools take so many tasks, and no more, as when the interpreter ends."""
    left, submit = [request.param], ThreadPoolExecutor.submit

    def submit_if_any(*given):
        if not left[0]:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        left[0] -= 1
        return submit(*given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_if_any)


@pytest.mark.usefixtures("refused")
def test_the_calling_thread_does_what_no_other_can():
    done: list[int] = []
    tasks = [lambda k=k: done.append(k) for k in range(9)]
    run_tasks(tasks, 4)
    Begun(tasks, 4).finish()
    assert sorted(done) == sorted([*range(9)] * 2)


@pytest.mark.usefixtures("refused")
def test_items_of_a_store_are_read_in_the_calling_thread():
    assert run_side_by_side(lambda k: -k, range(9), 4) == [-k for k in range(9)]


@pytest.mark.usefixtures("refused")
def test_work_that_takes_turns_is_done_once():
    seen: list[threading.Thread] = []
    for _ in range(2):
        run_in_turn(lambda: seen.append(threading.current_thread()))
    assert len(seen) == 2
    assert seen[1] is threading.current_thread()
