"""Thread pools, and the futures of the tasks that are submitted to them.

`concurrent.futures` does the same with locks that Python code takes and gives back. An
interrupt between two lines of that code leaves a lock taken, and all later reads wait
for it. Here, each step that an interrupt must not divide is one call of C code.
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
from weakref import ref

from gpushard.threads.alone import Alone, is_inside
from gpushard.threads.stop_flag import (
    INTERRUPTS,
    StopFlag,
    enter,
    flag_here,
    leave,
    stop_all,
)

Answer = TypeVar("Answer")
Purpose = Literal["read", "ahead", "store", "rare"]

# When the interpreter ends, requests have so long, and those that a thread then still
# begins a tenth of a second.
_GRACE_S, _LOOK_AGAIN_S = 0.5, 0.1
_MOST_LOOKS = 50  # for a thread to begin


class _Life:
    """Held by nothing but a thread, so that a weak reference to it tells its end."""


class Future(Generic[Answer]):
    """A task that was submitted to a pool, and its result.

    Parameters
    ----------
    task
        What to run.
    stop
        Set to break off the requests that the task waits for.
    """

    __slots__ = ("_answer", "_claims", "_error", "_is_running", "_task", "stop")

    def __init__(self, task: Callable[[], Answer], stop: StopFlag) -> None:
        self._task: Callable[[], Answer] | None = task
        self.stop = stop
        # The first entry decides who has the task; later entries change nothing.
        self._claims: list[Literal["owner", "thread"]] = []
        self._is_running = allocate_lock()
        self._is_running.acquire()
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def cancel(self) -> bool:
        """Take the task back; False if a thread has begun it already."""
        self._claims.append("owner")
        if self._claims[0] == "thread":
            return False
        self._task = None
        return True

    def wait(self) -> None:
        """Wait until the task has ended; it must not have been cancelled."""
        with self._is_running:
            pass

    def raise_error(self) -> None:
        """Raise the error of the task, if it has one, and forget it.

        An error refers to the frames of its task, which hold the task's data.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def result(self) -> Answer:
        """Wait for the task. Return its result (only once), or raise its error."""
        self.wait()
        self.raise_error()
        answer, self._answer = self._answer, None
        return answer  # type: ignore[return-value]  # of a task that has no error

    def run(self, note_end: Callable[[], Any]) -> None:
        """Run the task in the calling thread, unless it was cancelled."""
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
    """Up to `n_most` threads, started when the others are busy."""

    def __init__(self, purpose: Purpose, n_most: int) -> None:
        self._name = f"gpushard-{purpose}"
        self._n_most = n_most
        self._tasks: SimpleQueue[Future[Any] | None] = SimpleQueue()
        self._unended: deque[None] = deque()
        # For each thread a lock that it has as long as it serves, and its life.
        self._serving: list[tuple[threading.Lock, ref[_Life]]] = []
        self._beginning = Alone()
        self._is_over = False

    def submit(self, future: Future[Any]) -> bool:
        """Have a thread run a task; False if the caller should rather run it.

        That is so if all threads are busy and the system gives no more, and after the
        pool has ended.
        """
        if self._is_over:
            return False
        # Counted before it is compared: else two threads that submit at once may both
        # count on the one that is free, and one of their tasks waits.
        self._unended.append(None)
        is_busy = len(self._unended) > len(self._serving)
        if is_busy and not self._beginning.call(self._begin_thread):
            self._unended.pop()
            return False
        self._tasks.put(future)
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
            serving, life = self._serving[-1]
            if life() is not None and not serving.acquire(timeout=left):
                return False
            self._serving.pop()
        return True

    def _begin_thread(self) -> bool:
        """Start one more thread; False if the system gives none.

        True also if there are `n_most` threads already: one of them will be free.
        """
        if len(self._serving) >= self._n_most:
            return True
        serving, until_begun, life = allocate_lock(), allocate_lock(), _Life()
        serving.acquire()
        until_begun.acquire()
        name = f"{self._name}_{len(self._serving)}"
        thread = serving, ref(life)
        try:
            # `threading.Thread` would wait for it, with a lock of the kind above.
            start_new_thread(self._serve, (serving, until_begun, name, life))
        except RuntimeError:  # of the system's limits, or because the interpreter ends
            return False
        del life
        self._serving.append(thread)
        # A thread that finds no memory for its first step ends without a word. One that
        # comes when the interpreter is gone neither begins nor ends.
        for _ in range(_MOST_LOOKS):
            if until_begun.acquire(timeout=_LOOK_AGAIN_S):
                break
            if thread[1]() is None:
                self._serving.remove(thread)
                return False
        return True

    def _serve(
        self,
        serving: threading.Lock,
        until_begun: threading.Lock,
        name: str,
        life: _Life,  # noqa: ARG002 - which ends with this call
    ) -> None:
        threading.current_thread().name = name
        until_begun.release()
        tasks, note_end = self._tasks, self._unended.pop
        while (future := tasks.get()) is not None:
            future.run(note_end)
            del future  # before the wait for the next one
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


def submit_all(
    pool: Pool,
    tasks: Iterable[Callable[[], Answer]],
    stop: Callable[[], object] = lambda: None,
) -> list[Future[Answer]]:
    """Submit tasks to a pool, in order, until it takes no more of them.

    Parameters
    ----------
    stop
        Called after an interrupt, so that tasks that have begun end soon.

    Returns
    -------
    Futures of the first tasks. None while the interpreter ends, and none in the handler
    of a signal, because others may wait for what the handler has stopped. The requests
    of the tasks are broken off together with those of the calling thread.
    """
    if is_inside():
        return []
    flag = flag_here() or StopFlag()
    futures: list[Future[Answer]] = []
    try:
        for task in tasks:
            future = Future(task, flag)
            futures.append(future)
            if not pool.submit(future):
                futures.pop()
                break
        return futures  # an interrupt may come here, too
    except BaseException:  # an interrupt: nobody else knows of them
        try:
            stop()
            break_off(futures)
        finally:
            cancel_or_wait(futures)
        raise


def cancel_or_wait(futures: Sequence[Future[Any]]) -> None:
    """Cancel tasks that no thread has begun, and wait for the others.

    An interrupt does not end the wait, and neither does what else the handler of a
    signal raises: a running task could write to an output that its owner uses again. It
    breaks off the requests of the tasks instead. The last one is raised afterwards.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            for future in [f for f in futures if not f.cancel()]:
                future.wait()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
        try:
            break_off(futures)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # it knows this frame, which knows the tasks


def break_off(futures: Iterable[Future[Any]]) -> None:
    """Break off the requests of tasks, unless the calling thread runs a task itself.

    Then whoever submitted that task says when nobody waits for its result any more.
    """
    if flag_here() is None:
        for future in futures:
            future.stop.set()


def run_in_turn(function: Callable[[], Answer]) -> Answer:
    """Result of `function`, run by the single thread for work that needs much memory.

    A C library keeps memory that a thread has freed, for each thread. If several
    threads did such work, each would keep as much. When this returns or raises,
    `function` is not running.
    """
    futures = submit_all(pool_of("rare", 1), [function])
    try:
        return futures[0].result() if futures else function()
    except INTERRUPTS:
        break_off(futures)
        raise
    finally:
        cancel_or_wait(futures)


def pause_at_end(pause_s: float) -> None:
    """Have the interpreter pause before it ends, once all that runs here has ended.

    For a library whose threads touch Python for a moment after they have answered.
    """
    _pauses.append(pause_s)


def _end_all() -> None:
    """Wait for what runs: it uses memory that goes with the interpreter.

    Nobody waits for its requests, which are broken off. An interrupt ends the wait.
    """
    pid = os.getpid()
    pools = [pool for (of, *_), pool in list(_pools.items()) if of == pid]
    at_s = time.monotonic() + _GRACE_S
    # An error here would be told on stderr, behind that of the interrupt before.
    with suppress(*INTERRUPTS):
        while pools := [pool for pool in pools if not pool.end(at_s)]:
            stop_all()
            at_s = time.monotonic() + _LOOK_AGAIN_S
        time.sleep(max(_pauses, default=0))


_pauses: list[float] = []
atexit.register(_end_all)
