"""A queue of work, from which several workers draw tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from queue import SimpleQueue

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Spawner:
    """Work in two steps: one fetch, and several tasks that use its result.

    Attributes
    ----------
    spawn
        The first step; returns the tasks of the second.
    nbytes
        Memory that is held from the first step until all tasks have run.
    """

    spawn: Callable[[], Sequence[Task]]
    nbytes: int


Work = Task | Spawner


@dataclass(slots=True)
class _Entry:
    """Work that was drawn from the iterable and is not finished.

    Attributes
    ----------
    number
        Its place in the iterable.
    nbytes
        Memory that it holds.
    is_spawner
        Whether it is a `Spawner`.
    n_left
        Number of its tasks that are not finished.
    """

    number: int
    nbytes: int
    is_spawner: bool
    n_left: int = 1


class WorkQueue:
    """A queue of work, from which several workers draw.

    Parameters
    ----------
    works
        The work; one worker at a time draws from it.
    most_nbytes
        Memory that spawners may hold together; a single one may hold more.
    hire
        Called once with the queue, when there is more work than one worker can do. It
        must not refer to the queue: in a reference cycle, work that an error has left
        over would stay until a garbage collection.
    """

    def __init__(
        self,
        works: Iterable[Work],
        most_nbytes: int | None,
        hire: Callable[[WorkQueue], None],
    ) -> None:
        self._works = iter(works)
        self._most_nbytes = most_nbytes
        self._hire = hire
        self._is_hired = False
        # A `Condition` does the same in lines of Python; an interrupt of one of them
        # would leave its lock taken. It can be taken twice, because the handler of a
        # signal may close the queue that it has stopped.
        self._lock = threading.RLock()
        self._sleepers: list[SimpleQueue[None]] = []
        self._ready: deque[tuple[Task, _Entry]] = deque()
        # Drawn, but not begun: it waits for a worker, or for memory.
        self._ahead: deque[Work] = deque()
        self._is_drawing = False
        self._is_exhausted = False
        self._n_taken = 0
        # Spawners that are not finished: they may still add tasks.
        self._n_spawning = 0
        self._held_nbytes = 0
        self._is_closed = False
        self._errors: list[tuple[int, BaseException]] = []

    def work_off(self) -> None:
        """Run one task after the other until none is left, or one has failed."""
        try:
            while (taken := self._take()) is not None:
                entry = taken[1]
                is_done = self._run(*taken)
                del taken  # frees its memory before others learn that it is finished
                if is_done:
                    self._finish_one(entry)
        finally:
            # Nothing is left to draw; or an exit, and nobody must wait for its work.
            self.close()

    def close(self) -> None:
        """Stop drawing tasks."""
        with self._lock:
            self._is_closed = True
            self._wake_all()

    def raise_earliest(self) -> None:
        """Raise the error of the earliest task that failed, if any did."""
        errors, self._errors = self._errors, []
        if errors:
            try:
                raise min(errors, key=itemgetter(0))[1]
            finally:
                del errors  # they know this frame

    def _run(self, work: Work, entry: _Entry) -> bool:
        """Run a task, or the first step of a spawner; return whether it is finished."""
        try:
            if not isinstance(work, Spawner):
                work()
                return True
            given = work.spawn()
            if given:
                self._enqueue(given, entry)
            return not given
        except Exception as error:  # noqa: BLE001 - raised by `raise_earliest`
            self._fail(entry.number, error)
            return False

    def _take(self) -> tuple[Work, _Entry] | None:
        """The next work; None if nothing is left and nothing can be added."""
        while True:
            with self._lock:
                if self._is_closed:
                    return None
                if self._ready:
                    return self._ready.popleft()
                if self._ahead and self._fits(self._ahead[0]):
                    return self._enter(self._ahead.popleft())
                if self._is_over:
                    return None
                wakeup: SimpleQueue[None] | None = None
                if self._ahead or self._is_exhausted or self._is_drawing:
                    self._sleepers.append(wakeup := SimpleQueue())
                else:
                    self._is_drawing = True
            if wakeup is None:
                self._draw()
            else:
                wakeup.get()

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to take, even if others still run tasks."""
        is_drawn = self._is_exhausted and not self._is_drawing
        return is_drawn and not self._ahead and not self._n_spawning

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
                self._is_exhausted = True
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(self._n_taken + len(drawn), error)
        with self._lock:
            self._ahead.extend(drawn)
            self._is_drawing = False
        self._announce_more(len(drawn))

    def _fits(self, work: Work) -> bool:
        """Whether the memory of a work fits beside the memory that others hold."""
        if not isinstance(work, Spawner) or self._most_nbytes is None:
            return True
        return not self._held_nbytes or (
            self._held_nbytes + work.nbytes <= self._most_nbytes
        )

    def _enter(self, work: Work) -> tuple[Work, _Entry]:
        nbytes = work.nbytes if isinstance(work, Spawner) else 0
        entry = _Entry(self._n_taken, nbytes, isinstance(work, Spawner))
        self._n_taken += 1
        self._n_spawning += entry.is_spawner
        self._held_nbytes += nbytes
        return work, entry

    def _enqueue(self, tasks: Sequence[Task], entry: _Entry) -> None:
        """Put the tasks of a spawner before other work."""
        with self._lock:
            entry.n_left = len(tasks)
            self._ready.extend((task, entry) for task in tasks)
        self._announce_more(len(tasks))

    def _wake_all(self) -> None:
        """Have all workers that wait look again; the lock is held.

        They are woken before they are forgotten: if an interrupt comes in between,
        `close` wakes them again.
        """
        for wakeup in self._sleepers:
            wakeup.put(None)
        self._sleepers.clear()

    def _announce_more(self, n: int) -> None:
        """Tell others that there is more to do; the lock is not held.

        If it were, an interrupted `hire` would wait for a helper that waits for the
        lock.
        """
        with self._lock:
            hires = n > 1 and not self._is_hired
            self._is_hired |= hires
            self._wake_all()
        if hires:
            self._hire(self)

    def _finish_one(self, entry: _Entry) -> None:
        with self._lock:
            entry.n_left -= 1
            if not entry.n_left:
                self._n_spawning -= entry.is_spawner
                self._held_nbytes -= entry.nbytes
                self._wake_all()

    def _fail(self, number: int, error: BaseException) -> None:
        with self._lock:
            self._errors.append((number, error))
            self._is_closed = True
            self._wake_all()
