"""Tasks run in parallel, a bounded number at a time.

Reads and decoders release the GIL, so threads are enough. Tasks may read from stores,
which have their own threads, so no thread ever waits for its own pool.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from typing import TypeVar

from gpushard.pools import Handed, begun, break_off, end, pool_of

Task = Callable[[], None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Opener:
    """Work in two steps: one fetch, and several tasks that use its result.

    Attributes
    ----------
    begin
        The first step; returns the tasks of the second.
    nbytes
        Memory that is held from the first step until all tasks have run.
    """

    begin: Callable[[], Sequence[Task]]
    nbytes: int


Work = Task | Opener


def run_tasks(
    tasks: Iterable[Work], n_workers: int, most_nbytes: int | None = None
) -> None:
    """Run all tasks; after an error, start no more, wait, and raise the earliest error.

    The calling thread works too, and runs a single task alone. When the function
    returns or raises, no task is running, so nothing writes to the output any more.
    Tasks are drawn from the iterable only as workers become free. The tasks of an
    `Opener` run before new work is drawn.

    Parameters
    ----------
    most_nbytes
        Memory that openers may hold together; a single one may hold more.
    """
    if n_workers <= 1:
        for work in tasks:
            _run_here(work)
            del work  # what it fetched is let go of before the next one fetches
        return
    helpers: list[Handed[None]] = []

    def hire(line: _Line) -> None:
        helpers.extend(_helpers(line, n_workers))

    _work_off(_Line(tasks, most_nbytes, hire), helpers)


class Begun:
    """Tasks that all workers except the calling thread begin as they become free.

    Parameters
    ----------
    tasks, n_workers
        As `run_tasks` takes them; at least two workers.
    """

    def __init__(self, tasks: Iterable[Work], n_workers: int) -> None:
        line = _Line(tasks, None, lambda _: None)
        self._begun = [(line, _helpers(line, n_workers))]

    def finish(self) -> None:
        """Work in the calling thread too, and return or raise as `run_tasks` does."""
        # Tasks left over after an error would keep their output alive, so they are
        # dropped.
        _work_off(*self._begun.pop())

    def end(self) -> None:
        """Start no more tasks; afterwards none runs, except inside `finish`."""
        for line, helpers in self._begun:
            line.close()
            end(helpers)


def _helpers(line: _Line, n_workers: int) -> list[Handed[None]]:
    """All workers at a line except the calling thread."""
    tasks = [line.work_off] * (n_workers - 1)
    return begun(pool_of("read", n_workers - 1), tasks, line.close)


def _work_off(line: _Line, helpers: Sequence[Handed[None]]) -> None:
    """Work at a line until it ends, wait for others, and raise the earliest error."""
    try:
        try:
            line.work_off()
        finally:
            line.close()
    except Exception:
        raise
    except BaseException:  # an interrupt: nobody waits for what the others do
        break_off(helpers)
        raise
    finally:
        end(helpers)
    line.raise_earliest()
    for helper in helpers:
        # What no worker catches, such as SystemExit, must not look like success.
        helper.raise_error()


def _run_here(work: Work) -> None:
    for task in work.begin() if isinstance(work, Opener) else (work,):
        task()


@dataclass(slots=True)
class _Open:
    """Work that was drawn and is not finished: its number, memory, and tasks to run.

    Attributes
    ----------
    gives
        Whether this work may still add tasks.
    """

    number: int
    nbytes: int
    gives: bool
    n_left: int = 1


class _Line:
    """A queue of work, from which several workers draw.

    Parameters
    ----------
    works
        The work; one worker at a time draws from it.
    most_nbytes
        As for `run_tasks`.
    hire
        Called once with the line, when there is more work than one worker can do. It
        must not hold the line: with work that an error has left over, that would stay
        until a collection.
    """

    def __init__(
        self,
        works: Iterable[Work],
        most_nbytes: int | None,
        hire: Callable[[_Line], None],
    ) -> None:
        self._works = iter(works)
        self._most_nbytes = most_nbytes
        self._hire = hire
        self._is_hired = False
        # A `Condition` does the same in lines of Python; an interrupt of one of them
        # would leave its lock taken. The handler of a signal may close the line that it
        # has stopped.
        self._lock = threading.RLock()
        self._waiting: list[SimpleQueue[None]] = []
        self._ready: deque[tuple[Task, _Open]] = deque()
        self._ahead: deque[Work] = deque()
        self._is_drawing = False
        self._is_drawn = False
        self._n_taken = 0
        # Openers that may still add tasks, and hold memory for them.
        self._n_giving = 0
        self._held_nbytes = 0
        self._is_closed = False
        self._errors: list[tuple[int, BaseException]] = []

    def work_off(self) -> None:
        """Run one task after the other until none is left, or one has failed."""
        try:
            while (taken := self._take()) is not None:
                opened = taken[1]
                is_done = self._run(*taken)
                del taken  # frees its memory before others learn that it is finished
                if is_done:
                    self._close(opened)
        finally:
            # Nothing is left to draw; or an exit, and nobody must wait for its work.
            self.close()

    def close(self) -> None:
        """Stop drawing tasks."""
        with self._lock:
            self._is_closed = True
            self._tell_all()

    def raise_earliest(self) -> None:
        """Raise the error of the earliest task that failed, if any did."""
        errors, self._errors = self._errors, []
        if errors:
            try:
                raise min(errors, key=itemgetter(0))[1]
            finally:
                del errors  # they know this frame

    def _run(self, work: Work, opened: _Open) -> bool:
        """Run a task or open an opener; returns whether the work is done by that."""
        try:
            if not isinstance(work, Opener):
                work()
                return True
            given = work.begin()
            if given:
                self._add(given, opened)
            return not given
        except Exception as error:  # noqa: BLE001 - raised by `raise_earliest`
            self._fail(opened.number, error)
            return False

    def _take(self) -> tuple[Work, _Open] | None:
        """The next work; None if nothing is left and nothing can be added."""
        while True:
            with self._lock:
                if self._is_closed:
                    return None
                if self._ready:
                    return self._ready.popleft()
                if self._ahead and self._fits(self._ahead[0]):
                    return self._open(self._ahead.popleft())
                if self._is_over:
                    return None
                news: SimpleQueue[None] | None = None
                if self._ahead or self._is_drawn or self._is_drawing:
                    self._waiting.append(news := SimpleQueue())
                else:
                    self._is_drawing = True
            if news is None:
                self._draw()
            else:
                news.get()

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to take, even if others still run tasks."""
        is_drawn = self._is_drawn and not self._is_drawing
        return is_drawn and not self._ahead and not self._n_giving

    def _draw(self) -> None:
        """Draw one piece of work; at first two, to see whether there are several.

        The lock is not held, because drawing may read indexes while others work.
        """
        drawn: list[Work] = []
        try:
            for work in self._works:
                drawn.append(work)
                if self._n_taken or len(drawn) == 2:
                    break
            else:
                self._is_drawn = True
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(self._n_taken + len(drawn), error)
        with self._lock:
            self._ahead.extend(drawn)
            self._is_drawing = False
        self._grown(len(drawn))

    def _fits(self, work: Work) -> bool:
        """Whether the memory of a work fits beside the memory that others hold."""
        if not isinstance(work, Opener) or self._most_nbytes is None:
            return True
        return not self._held_nbytes or (
            self._held_nbytes + work.nbytes <= self._most_nbytes
        )

    def _open(self, work: Work) -> tuple[Work, _Open]:
        nbytes = work.nbytes if isinstance(work, Opener) else 0
        opened = _Open(self._n_taken, nbytes, isinstance(work, Opener))
        self._n_taken += 1
        self._n_giving += opened.gives
        self._held_nbytes += nbytes
        return work, opened

    def _add(self, tasks: Sequence[Task], opened: _Open) -> None:
        """Put the tasks of an opener before other work."""
        with self._lock:
            opened.n_left = len(tasks)
            self._ready.extend((task, opened) for task in tasks)
        self._grown(len(tasks))

    def _tell_all(self) -> None:
        """Let all look again who wait; the lock is held.

        In this order: after an interrupt they are told again, by `close`.
        """
        for news in self._waiting:
            news.put(None)
        self._waiting.clear()

    def _grown(self, n: int) -> None:
        """Notify others that there is more to do; the lock is not held.

        If it were, an interrupted hire would wait for a helper who waits for the lock.
        """
        with self._lock:
            hires = n > 1 and not self._is_hired
            self._is_hired |= hires
            self._tell_all()
        if hires:
            self._hire(self)

    def _close(self, opened: _Open) -> None:
        with self._lock:
            opened.n_left -= 1
            if not opened.n_left:
                self._n_giving -= opened.gives
                self._held_nbytes -= opened.nbytes
                self._tell_all()

    def _fail(self, number: int, error: BaseException) -> None:
        with self._lock:
            self._errors.append((number, error))
            self._is_closed = True
            self._tell_all()


def run_side_by_side(
    function: Callable[[Item], Answer], items: Sequence[Item], n_workers: int
) -> list[Answer]:
    """Results of `function` for each item, in order; raises an error of any of them.

    Each worker takes every n-th item in one task, because a future per item would cost
    more than reading a few KiB from the page cache. Once an item has failed, or the
    wait was interrupted, no other item is begun. When the function returns or raises,
    no task is running.
    """
    n_tasks = min(n_workers, len(items))
    if n_tasks <= 1:
        return [function(item) for item in items]
    is_over = threading.Event()
    tasks = [
        partial(_run_all, function, items[first::n_tasks], is_over)
        for first in range(n_tasks)
    ]
    there = begun(pool_of("store", n_workers), tasks, is_over.set)
    try:
        here = [task() for task in tasks[len(there) :]]
        shares = [
            # Its thread may still be busy with what others have handed to it.
            task() if handed.take_back() else handed.result()
            for handed, task in zip(there, tasks, strict=False)
        ]
        shares += here
    except Exception:
        raise
    except BaseException:  # as above
        break_off(there)
        raise
    finally:
        try:
            is_over.set()
        finally:
            end(there)
    return [shares[i % n_tasks][i // n_tasks] for i in range(len(items))]


def _run_all(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    is_over: threading.Event,
) -> list[Answer]:
    """Answers for items, one after the other; none for those left when it is over."""
    answers: list[Answer] = []
    try:
        for item in items:
            if is_over.is_set():
                break
            answers.append(function(item))
    except BaseException:
        is_over.set()
        answers.clear()  # the error knows this frame
        raise
    return answers
