"""Threads of this process, and tasks that they begin as far as they can.

`concurrent.futures` does the same with locks that Python code takes and gives back. An
interrupt between two lines of that code leaves one taken, and all later reads wait for
it. What is done here between two steps of a calling thread is done in C, or not at all.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeVar

from gpushard.alone import Alone, is_inside
from gpushard.stop_flag import StopFlag, enter, flag_here, leave, stop_all

Answer = TypeVar("Answer")
Purpose = Literal["read", "store", "rare"]

# When the interpreter ends, requests have so long, and those that a thread then still
# begins a tenth of a second.
_GRACE_S, _LOOK_AGAIN_S = 0.5, 0.1


class Handed(Generic[Answer]):
    """A task that was handed to another thread, and what becomes of it.

    Parameters
    ----------
    stop
        Set to break off the requests that the task waits for.
    """

    __slots__ = ("_answer", "_claims", "_error", "_is_running", "_task", "stop")

    def __init__(self, task: Callable[[], Answer], stop: StopFlag) -> None:
        self._task: Callable[[], Answer] | None = task
        self.stop = stop
        # Who comes first has the task; to come again changes nothing.
        self._claims: list[Literal["owner", "thread"]] = []
        self._is_running = allocate_lock()
        self._is_running.acquire()
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def take_back(self) -> bool:
        """Whether no thread has begun the task; then none will."""
        self._claims.append("owner")
        if self._claims[0] == "thread":
            return False
        self._task = None
        return True

    def wait(self) -> None:
        """Wait until the task, which was not taken back, has ended."""
        with self._is_running:
            pass

    def raise_error(self) -> None:
        """Raise the error of the task, if it has one, which is then forgotten.

        An error refers to the frames of its task, and they to what the task was about.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def result(self) -> Answer:
        """Wait for the task; what it returned, once, or raises what it raised."""
        self.wait()
        self.raise_error()
        answer, self._answer = self._answer, None
        return answer  # type: ignore[return-value]  # of a task that has no error

    def run(self, note_end: Callable[[], Any]) -> None:
        """Do the task in the calling thread, if nobody else has it."""
        self._claims.append("thread")
        task, is_running = self._task, self._is_running
        if self._claims[0] == "owner" or task is None:
            note_end()
            return
        self._task = None
        enter(self.stop)
        try:
            self._answer = task()
        except BaseException as error:  # noqa: BLE001 - raised by `raise_error`
            self._error = error
            del self  # the error knows this frame
        finally:
            del task
            leave()
            note_end()
            is_running.release()


class Pool:
    """Up to `n_most` threads, which are begun when the others are busy."""

    def __init__(self, purpose: Purpose, n_most: int) -> None:
        self._name = f"gpushard-{purpose}"
        self._n_most = n_most
        self._tasks: SimpleQueue[Handed[Any] | None] = SimpleQueue()
        self._unended: deque[None] = deque()
        # For each thread a lock that it has as long as it serves.
        self._serving: list[threading.Lock] = []
        self._beginning = Alone()
        self._is_over = False

    def take(self, handed: Handed[Any]) -> bool:
        """Whether a thread will run a task, unless it is taken back before.

        If more threads are needed and there are none to be had, the caller does better
        to run it, and False is returned.
        """
        if self._is_over:
            return False
        is_busy = len(self._unended) >= len(self._serving)
        if is_busy and not self._beginning.call(self._begin_thread):
            return False
        self._unended.append(None)
        self._tasks.put(handed)
        return True

    def end(self, at_s: float | None = None) -> bool:
        """Take no more tasks, and wait for those that were taken.

        Returns whether they have ended at `at_s`, by the monotonic clock.
        """
        self._is_over = True
        for _ in self._serving:
            self._tasks.put(None)
        while self._serving:
            left = -1 if at_s is None else max(at_s - time.monotonic(), 0)
            if not self._serving[-1].acquire(timeout=left):
                return False
            self._serving.pop()
        return True

    def _begin_thread(self) -> bool:
        """Whether there is one thread more, or are as many as there may be."""
        if len(self._serving) >= self._n_most:
            return True
        serving = allocate_lock()
        serving.acquire()
        try:
            # `threading.Thread` would wait for it, with a lock of the kind above.
            start_new_thread(
                self._serve, (serving, f"{self._name}_{len(self._serving)}")
            )
        except RuntimeError:  # of the system's limits, or because the interpreter ends
            return False
        self._serving.append(serving)
        return True

    def _serve(self, serving: threading.Lock, name: str) -> None:
        threading.current_thread().name = name
        tasks, note_end = self._tasks, self._unended.pop
        while (handed := tasks.get()) is not None:
            handed.run(note_end)
            del handed  # before the wait for the next one
        serving.release()


_pools: dict[tuple[int, Purpose, int], Pool] = {}


def pool_of(purpose: Purpose, n_workers: int) -> Pool:
    """Thread pool of this process; a fork has none of its parent's threads."""
    identity = (os.getpid(), purpose, n_workers)
    pool = _pools.get(identity)
    if pool is None:
        # Two threads may both get here; the pool that is dropped has no thread yet.
        pool = _pools.setdefault(identity, Pool(purpose, n_workers))
    return pool


def begun(
    pool: Pool,
    tasks: Iterable[Callable[[], Answer]],
    stop: Callable[[], object] = lambda: None,
) -> list[Handed[Answer]]:
    """Tasks that threads begin: the first ones, as many as there are threads for.

    None are while the interpreter ends, nor in the handler of a signal, if others may
    wait for what it has stopped. After an interrupt, `stop` has those end soon that
    have begun. What they wait for is broken off with what the calling thread does.
    """
    if is_inside():
        return []
    flag = flag_here() or StopFlag()
    all_handed: list[Handed[Answer]] = []
    try:
        for task in tasks:
            handed = Handed(task, flag)
            all_handed.append(handed)
            if not pool.take(handed):
                all_handed.pop()
                break
        return all_handed  # an interrupt may come here, too
    except BaseException:  # an interrupt: nobody else knows of them
        try:
            stop()
            break_off(all_handed)
        finally:
            end(all_handed)
        raise


def end(all_handed: Sequence[Handed[Any]]) -> None:
    """Take tasks back that no thread has begun, and wait for the others.

    Interrupts do not end the wait, but the requests of the others; the last one is
    raised afterwards. Otherwise a running task could write to an output that its owner
    uses again.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            for handed in [handed for handed in all_handed if not handed.take_back()]:
                handed.wait()
            break
        except KeyboardInterrupt as error:
            interrupt = error
        try:
            break_off(all_handed)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def break_off(all_handed: Iterable[Handed[Any]]) -> None:
    """Break off the requests of tasks, unless the calling thread works for others.

    Those others say when nobody waits for its work any more.
    """
    if flag_here() is None:
        for handed in all_handed:
            handed.stop.set()


def run_in_turn(function: Callable[[], Answer]) -> Answer:
    """Result of `function`, run by the single thread for work that needs much memory.

    A C library keeps memory that a thread has freed, for each thread. If several
    threads did such work, each would keep as much. When this returns or raises,
    `function` is not running.
    """
    there = begun(pool_of("rare", 1), [function])
    try:
        return there[0].result() if there else function()
    except KeyboardInterrupt:
        break_off(there)
        raise
    finally:
        end(there)


def to_the_end(wait: Callable[[], object]) -> None:
    """Call `wait`, again after each interrupt, until it returns.

    The last interrupt is raised afterwards.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            wait()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _end_all() -> None:
    """Wait for what runs: it uses memory that goes with the interpreter.

    Nobody waits for its requests, which are broken off. An interrupt ends the wait.
    """
    pid = os.getpid()
    pools = [pool for (of, *_), pool in list(_pools.items()) if of == pid]
    at_s = time.monotonic() + _GRACE_S
    # An error here would be told on stderr, behind that of the interrupt before.
    with suppress(KeyboardInterrupt):
        while pools := [pool for pool in pools if not pool.end(at_s)]:
            stop_all()
            at_s = time.monotonic() + _LOOK_AGAIN_S


atexit.register(_end_all)
