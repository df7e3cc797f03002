"""An iterable that is run ahead of its consumer, by a thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpushard.errors import UnsupportedError

Item = TypeVar("Item")


class Stopped(Exception):  # noqa: N818 - it is no error
    """Nobody waits for what is read any more; never reaches a user."""


@dataclass
class Waits:
    """How a consumer found its queue.

    Attributes
    ----------
    seconds
        Time it waited.
    n_looks, n_found
        How often it looked, and how many items lay there then, in sum.
    """

    seconds: float = 0.0
    n_looks: int = 0
    n_found: int = 0


@dataclass
class _Line(Generic[Item]):
    """What the thread and the consumer share; holds no reference to the consumer."""

    depth: int
    stop: threading.Event
    items: deque[Item] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)
    is_ended: bool = False
    error: BaseException | None = None


class Prefetched(Generic[Item]):
    """Items of an iterator, up to `depth` of them made ahead.

    The thread ends with the iterator, with the first error, and when this is closed or
    forgotten; the interpreter does not wait for it.

    Parameters
    ----------
    items
        Runs in the thread, and is closed by it.
    depth
        Items made and not yet taken, the one being made included.
    stop
        Set when the thread is to end: what takes long looks at it.
    waits
        Where to count waiting.
    """

    def __init__(
        self, items: Iterator[Item], depth: int, stop: threading.Event, waits: Waits
    ) -> None:
        self._line: _Line[Item] = _Line(depth, stop)
        self._waits = waits
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=_run, args=(items, self._line), name="gpushard-loader", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if os.getpid() != self._pid:
            raise UnsupportedError(
                "an iteration of a loader does not go on in a forked process",
                hint="call iter(loader) in the process that takes the batches",
            )
        line, begin = self._line, time.perf_counter()
        with line.changed:
            self._waits.n_looks += 1
            self._waits.n_found += len(line.items)
            while not (line.items or line.is_ended):
                line.changed.wait()
            self._waits.seconds += time.perf_counter() - begin
            if line.items:
                item = line.items.popleft()
                line.changed.notify_all()
                return item
        if not line.stop.is_set():
            # It ended by itself and only has to return: none is left for the end of the
            # interpreter, which a thread in another library's code may not survive.
            self._thread.join()
        if line.error is not None:
            error, line.error = line.error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """Let the thread end; it is over when what it is at is."""
        # In a forked process there is no thread, and who knows who holds the locks.
        if os.getpid() != self._pid:
            return
        line = self._line
        line.stop.set()
        with line.changed:
            line.is_ended = True
            line.items.clear()
            line.changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if os.getpid() == self._pid:
            self._thread.join(timeout)

    def __del__(self) -> None:
        # Not `close`: the collector may run this while the lock is held.
        if os.getpid() == self._pid:
            self._line.stop.set()


def _run(items: Iterator[Item], line: _Line[Item]) -> None:
    error: BaseException | None = None
    try:
        while _has_room(line):
            item = next(items, line)
            if item is line:
                break
            with line.changed:
                if not line.is_ended:
                    line.items.append(item)  # type: ignore[arg-type]
                line.changed.notify_all()
            del item
        close = getattr(items, "close", None)
        if close is not None:
            close()
    except BaseException as raised:  # noqa: BLE001 - raised again by the consumer
        error = None if isinstance(raised, Stopped) else raised
    with line.changed:
        line.error, line.is_ended = error, True
        line.changed.notify_all()


def _has_room(line: _Line[Item]) -> bool:
    """Wait until there is room for an item; whether one is still wanted."""
    with line.changed:
        while len(line.items) >= line.depth and not line.stop.is_set():
            # A forgotten consumer cannot notify: it sets the event and is gone.
            line.changed.wait(1.0)
    return not line.stop.is_set()
