"""An iterable that is run ahead of its consumer, by a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import ref

from gpushard.errors import UnsupportedError

Item = TypeVar("Item")

# As good as no bound: each takes an entry of a queue.
_MOST_AHEAD = 1 << 16
# Seconds after which a thread that waits for room looks whether anybody wants it: an
# interrupt may keep its consumer from telling.
_LOOK_AGAIN_S = 1.0


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


@dataclass(frozen=True, slots=True)
class _End:
    """What comes after the last item."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Line(Generic[Item]):
    """What the thread and the consumer share; holds no reference to the consumer.

    These queues take no lock that an interrupt of the consumer could leave taken.

    Attributes
    ----------
    stop
        Set when the thread is to end.
    items
        What was made, and at last an `_End`.
    room
        One entry for each item that may be made.
    """

    stop: threading.Event
    items: SimpleQueue[Item | _End] = field(default_factory=lambda: SimpleQueue())
    room: SimpleQueue[None] = field(default_factory=lambda: SimpleQueue())

    def end(self) -> None:
        """Let nobody wait: neither the thread for room nor the consumer for items."""
        self.stop.set()
        self.room.put(None)
        self.clear()
        self.items.put(_End())

    def clear(self) -> None:
        """Let go of the items."""
        try:
            while True:
                self.items.get_nowait()
        except Empty:
            return


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

    # Of one that an interrupt kept from being made.
    _pid, _is_closed = -1, False

    def __init__(
        self, items: Iterator[Item], depth: int, stop: threading.Event, waits: Waits
    ) -> None:
        self._line: _Line[Item] = _Line(stop)
        for _ in range(min(depth, _MOST_AHEAD)):
            self._line.room.put(None)
        self._waits = waits
        self._is_ended = self._is_closed = False
        self._thread = threading.Thread(
            target=_run,
            args=(items, self._line, ref(self)),
            name="gpushard-loader",
            daemon=True,
        )
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to make items."""
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if os.getpid() != self._pid:
            raise UnsupportedError(
                "an iteration of a loader does not go on in a forked process",
                hint="call iter(loader) in the process that takes the batches",
            )
        if self._is_ended:
            raise StopIteration
        line, begin = self._line, time.perf_counter()
        self._waits.n_looks += 1
        self._waits.n_found += line.items.qsize()
        item = line.items.get()
        self._waits.seconds += time.perf_counter() - begin
        if not (isinstance(item, _End) or line.stop.is_set()):
            line.room.put(None)
            return item
        self._is_ended = True
        if isinstance(item, _End) and item.error is not None:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """Let the thread end; it is over when what it is at is."""
        # In a forked process there is no thread, and who knows what it was at.
        if os.getpid() == self._pid:
            self._line.end()
            self._is_closed = True

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self._thread.join(timeout)

    def __del__(self) -> None:
        # An interrupt that comes here is lost: as little as can be is done.
        if not self._is_closed and os.getpid() == self._pid:
            self._line.end()


def _run(
    items: Iterator[Any], line: _Line[Any], consumer: ref[Prefetched[Any]]
) -> None:
    end = _End()
    try:
        while _has_room(line, consumer):
            item = next(items, line)
            if item is line:
                break
            line.items.put(item)
            del item
        close = getattr(items, "close", None)
        if close is not None:
            close()
    except Stopped:
        pass
    except BaseException as raised:  # noqa: BLE001 - raised again by the consumer
        end = _End(raised)
    if line.stop.is_set():
        line.clear()
    line.items.put(end)


def _has_room(line: _Line[Any], consumer: ref[Prefetched[Any]]) -> bool:
    """Wait until there is room for an item; whether one is still wanted."""
    while not line.stop.is_set() and consumer() is not None:
        with suppress(Empty):
            line.room.get(timeout=_LOOK_AGAIN_S)
            return not line.stop.is_set()
    return False
