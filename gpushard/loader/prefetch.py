"""An iterator -> the same items, made ahead of their consumer by a thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import finalize, ref

from gpushard.errors import UnsupportedError
from gpushard.threads.stop_flag import INTERRUPTS, StopFlag, enter, leave

Item = TypeVar("Item")

# As good as no limit; each item ahead takes an entry of a queue.
_MOST_AHEAD = 1 << 16
# Seconds after which a waiting thread checks whether its consumer still exists. An
# interrupt may keep the consumer from ending the thread.
_LOOK_AGAIN_S = 1.0
# Longest wait for a thread to begin, in seconds: no system takes as long, but a thread
# that finds no memory for its first step ends without a word.
_LONGEST_START_S = 10.0
# Longest wait at the end of the interpreter, in seconds: longer than a store waits for
# a silent server (15 s), and no hang where a transform waits for something.
_LONGEST_AT_EXIT_S = 20.0


@dataclass
class WaitStats:
    """How long a consumer waited, and how full it found its queue.

    Attributes
    ----------
    seconds
        Time that the consumer waited.
    n_looks, n_found
        How often the consumer looked, and the sum of the items that it found.
    """

    seconds: float = 0.0
    n_looks: int = 0
    n_found: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    """Last entry of a queue, after all items."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Channel(Generic[Item]):
    """Queues between the thread and its consumer; holds no reference to the consumer.

    An interrupt of the consumer cannot leave a lock of these queues taken.

    Attributes
    ----------
    stop
        Set to end the thread.
    items
        Items that were made, and an `_End` after the last one.
    permits
        One entry for each item that the thread may make.
    """

    stop: StopFlag
    items: SimpleQueue[Item | _End] = field(default_factory=lambda: SimpleQueue())
    permits: SimpleQueue[None] = field(default_factory=lambda: SimpleQueue())

    def end(self) -> None:
        """Wake both sides: the thread that waits for a permit, and the consumer."""
        self.stop.set()
        self.permits.put(None)
        self.clear()
        self.items.put(_End())

    def clear(self) -> None:
        """Drop all items."""
        try:
            while True:
                self.items.get_nowait()
        except Empty:
            return


class _Begun(threading.Event):
    """Set by a thread when it begins; who starts the thread does not wait for ever."""

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event`; raises `RuntimeError` if the thread does not begin."""
        if super().wait(_LONGEST_START_S if timeout is None else timeout):
            return True
        raise RuntimeError("its thread does not begin, perhaps for want of memory")


class _Stage(threading.Thread):
    """Thread that makes the items of a `Prefetched`."""

    def __init__(
        self,
        items: Iterator[Any],
        channel: _Channel[Any],
        consumer: ref[Prefetched[Any]],
        owner: object,
    ) -> None:
        super().__init__(
            target=_run,
            args=(items, channel, consumer),
            name="gpushard-loader",
            daemon=True,
        )
        self._started = _Begun()  # which `start` waits for
        self.channel = channel
        self.owner = owner


class Prefetched(Generic[Item]):
    """Items of an iterator, of which a thread makes up to `depth` ahead.

    The thread ends with the iterator, after the first error, when this object is closed
    or dropped, or when the interpreter ends, which waits for its current task.

    Parameters
    ----------
    items
        The iterator. The thread runs it and closes it.
    depth
        Largest number of items that are made, or being made, and not yet taken.
    stop
        Set to end the thread; long tasks check it, and requests are broken off.
    waits
        Counts how the consumer waits.
    owner
        Names the thread for `end_all_of`.
    n_later
        Number of items more that are made ahead once the second one was taken: while
        the first one is waited for, no others are to be in its way.
    """

    def __init__(
        self,
        items: Iterator[Item],
        depth: int,
        stop: StopFlag,
        waits: WaitStats,
        owner: object = None,
        n_later: int = 0,
    ) -> None:
        self._channel: _Channel[Item] = _Channel(stop)
        for _ in range(min(depth, _MOST_AHEAD)):
            self._channel.permits.put(None)
        self._waits = waits
        # Permits that are given with an item, for the first ones that are taken.
        self._permits = [1 + n_later, 1]
        self._is_ended = False
        self._thread = _Stage(items, self._channel, ref(self), owner)
        self._pid = os.getpid()
        # It runs once: a generator that is dropped with the last modules finds nothing
        # left to do, and nothing of this module any more.
        self._end = finalize(self, _end_here, self._channel, self._pid)

    def start(self) -> None:
        """Start the thread.

        Raises `UnsupportedError` if the system starts no more threads.
        """
        try:
            self._thread.start()
        except RuntimeError as error:  # of its limits, or the interpreter ends
            if self._thread.ident is not None:
                raise
            self.close()  # it may begin yet
            raise UnsupportedError(
                f"a loader cannot read ahead: {error}",
                hint="raise the limit of threads (ulimit -u), or read in the calling"
                " thread with prefetch_factor=0",
            ) from error

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if os.getpid() != self._pid:
            raise UnsupportedError(
                "an iteration of a loader cannot go on in a forked process",
                hint="call iter(loader) in the process that takes the batches",
            )
        if self._is_ended:
            raise StopIteration
        channel, begin = self._channel, time.perf_counter()
        self._waits.n_looks += 1
        self._waits.n_found += channel.items.qsize()
        item = _next_item(channel, self._thread)
        self._waits.seconds += time.perf_counter() - begin
        if not (isinstance(item, _End) or channel.stop.is_set()):
            for _ in range(self._permits.pop() if self._permits else 1):
                channel.permits.put(None)
            return item
        self._is_ended = True
        if isinstance(item, _End) and item.error is not None:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """Tell the thread to end; it ends after its current task."""
        self._end()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most `timeout` seconds.

        A transform may close its loader: its thread ends after it, and is not awaited.
        """
        thread = self._thread
        is_other = thread is not threading.current_thread()
        if is_other and os.getpid() == self._pid and thread.is_alive():
            thread.join(timeout)


def _end_here(channel: _Channel[Any], pid: int) -> None:
    # A forked process has no such thread, and its queues may be in any state.
    if os.getpid() == pid:
        channel.end()


def _run(
    items: Iterator[Any], channel: _Channel[Any], consumer: ref[Prefetched[Any]]
) -> None:
    end = _End()
    enter(channel.stop)
    try:
        while _got_permit(channel, consumer):
            item = next(items, channel)
            if item is channel:
                break
            channel.items.put(item)
            del item
        close = getattr(items, "close", None)
        if close is not None:
            close()
    except BaseException as raised:  # noqa: BLE001 - raised again by the consumer
        end = _End(raised)
    leave()
    if channel.stop.is_set():
        channel.clear()
    channel.items.put(end)


def _next_item(channel: _Channel[Item], thread: threading.Thread) -> Item | _End:
    """Wait for the next item; an end if the channel was ended, or the thread has.

    An interrupt may come between the steps of `_Channel.end`. So the flag is checked
    even if no `_End` arrives. Nor does one where there was no memory to make it.
    """
    try:
        while True:
            # Asked first: what the thread made before it ended is there afterwards.
            is_over = not thread.is_alive()
            with suppress(Empty):
                return channel.items.get(timeout=0 if is_over else _LOOK_AGAIN_S)
            if channel.stop.is_set():
                return _End()
            if is_over:
                return _End(MemoryError("the thread of a loader found no memory"))
    except BaseException as interrupt:
        # That nothing was there yet, which it may have come upon, is no part of it.
        if isinstance(interrupt.__context__, Empty):
            interrupt.__context__ = interrupt.__context__.__context__
        raise


def _got_permit(channel: _Channel[Any], consumer: ref[Prefetched[Any]]) -> bool:
    """Wait for a permit to make an item; False if no item is wanted any more."""
    while not channel.stop.is_set() and consumer() is not None:
        with suppress(Empty):
            channel.permits.get(timeout=_LOOK_AGAIN_S)
            return not channel.stop.is_set()
    return False


def end_all_of(owner: object, longest_s: float) -> None:
    """End all threads of `owner`, and wait for them, at most `longest_s` seconds.

    The threads are asked for, and not remembered: an interrupt could come between the
    start or the end of one and a note of it. A thread that calls this is not awaited.
    """
    _end_stages([one for one in _running() if one.owner is owner], longest_s)


def _running() -> list[_Stage]:
    """All threads that have begun, but the current one."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    stages = [one for one in others if isinstance(one, _Stage)]
    return [one for one in stages if one.ident is not None]


def _end_stages(stages: list[_Stage], longest_s: float) -> None:
    deadline = time.monotonic() + longest_s
    for stage in stages:
        stage.channel.end()
    for stage in stages:
        stage.join(max(deadline - time.monotonic(), 0))


def _end_all() -> None:
    """End all threads, and wait for them; an interrupt ends the wait.

    The interpreter would end a thread as soon as it comes back from another library,
    such as torch in a transform. If that is in C++, it aborts the process instead.
    """
    with suppress(*INTERRUPTS):
        _end_stages(_running(), _LONGEST_AT_EXIT_S)


atexit.register(_end_all)
