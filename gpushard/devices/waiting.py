"""Waits for a GPU that have a time limit and can be interrupted.

The driver's own waits have neither, and a damaged stream may keep a decoder busy for
ever (docs/damaged.md). So a wait here polls: it asks the driver whether something is
done, and sleeps in between.
"""

from __future__ import annotations

import logging
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from gpushard.devices.base import Stream
from gpushard.devices.cuda_copies import QueryCalls
from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import StopFlag, call_for

Answer = TypeVar("Answer")
_log = logging.getLogger("gpushard.devices")

POLLS = True
"""Whether waits ask the driver and sleep; if not, they spin in it, without a limit.

It is here for comparisons on a GPU.
"""

NOT_READY = 600
"""What the driver answers while something is under way, and so does the runtime."""

# The first sleeps are short, as a batch takes milliseconds. Each is longer by a 64th:
# a wait ends late by a 64th of its time, and by what the system adds to a sleep.
LEAST_SLEEP_NS, MOST_SLEEP_NS = 20_000, 200_000
GROWTH_BITS = 6
# After this many sleeps, of 60 ms at most in all, the wait returns to Python, where an
# interrupt is raised and the time limit is checked.
N_SLEEPS = 200
_TURN_S = 0.05
# A batch takes milliseconds. What the caller has queued before may take longer.
_LONG_S = 60.0


class RecordedEvent(NamedTuple):
    """An event of CuPy, and the stream that it was recorded on."""

    event: Any
    stream: Stream


class Query(NamedTuple):
    """How to ask whether a stream or an event is done.

    Attributes
    ----------
    ask
        Returns the status: 0 if it is done, `NOT_READY`, or an error.
    function, handle
        Address of the driver's function that does the same, 0 if it is not known; and
        what it takes.
    """

    ask: Callable[[], int]
    function: int
    handle: int


class PollLoop(Protocol):
    """Compiled code that asks without the interpreter, as `_polled` does."""

    def __call__(
        self,
        asked: tuple[int, int, int],
        sleeps: tuple[int, int, int, int],
        in_context: tuple[int, int, int],
        /,
    ) -> int:
        """Status once it is not the one that is waited through, or after all sleeps.

        Parameters
        ----------
        asked
            Address of the driver's function, what it takes, and the status meanwhile.
        sleeps
            Their number, the first and the longest in ns, and `GROWTH_BITS`.
        in_context
            What switches to the context of the device, as in `QueryCalls`.
        """
        ...


_loops: list[PollLoop] = []


def poll_by(loop: PollLoop) -> None:
    """Have `loop` ask from now on, in all waits of the process."""
    _loops[:] = [loop]


def _polled(query: Query, sleep_ns: int) -> int:
    """Status once something is done, or `NOT_READY` after `N_SLEEPS` sleeps."""
    status = query.ask()
    for _ in range(N_SLEEPS):
        if status != NOT_READY:
            break
        time.sleep(sleep_ns * 1e-9)
        sleep_ns = min(sleep_ns + (sleep_ns >> GROWTH_BITS), MOST_SLEEP_NS)
        status = query.ask()
    return status


@dataclass(slots=True)
class _WaitLimit:
    """The time limit of the waits for one stream.

    Attributes
    ----------
    limit_s
        The limit; None: there is none.
    is_done
        How to ask whether the stream is done.
    entries
        What the caller had queued before, as far as it is not known to be done. Its
        time does not count.
    began_at_s
        When the wait began that has not ended. A wait that goes on after an interrupt
        has the same beginning.
    """

    limit_s: float | None
    is_done: Query | None
    entries: Sequence[Query]
    began_at_s: float | None = None


class Waits:
    """All waits for one device.

    The device is the current one in each call.

    Parameters
    ----------
    runtime
        CuPy's module of that name.
    calls
        The driver's functions for compiled code.
    label
        Name of the device.
    check
        Raises `DeviceError` once the device is broken.
    give_up
        Called with what the device is broken of, if work does not end.
    """

    def __init__(
        self,
        runtime: Any,
        calls: QueryCalls,
        label: str,
        check: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._label = label
        self._check = check
        self._give_up = give_up
        self._limits: dict[Stream, _WaitLimit] = {}
        self._has_warned = False

    def limit(
        self, stream: Stream, limit_s: float | None, entries: Sequence[Any]
    ) -> None:
        """Limit waits for a stream; the time begins once `entries` are done."""
        asked = [self._query_of_event(entry) for entry in entries]
        self._limits[stream] = _WaitLimit(limit_s, self._query_of_stream(stream), asked)

    def forget(self, stream: Stream) -> None:
        """Have no limit for a stream any more."""
        self._limits.pop(stream, None)

    def wait(self, recorded: Any) -> None:
        """Wait until a `RecordedEvent` is done.

        Raises `DeviceError` if the device is given up, here or by another thread, and
        the runtime's errors.
        """
        if POLLS:
            self._wait_in_order(self._query_of_event(recorded), recorded.stream)
        else:
            recorded.event.synchronize()

    def wait_for(self, stream: Stream) -> None:
        """Wait until all work on a stream is done; raises as `wait`."""
        if POLLS:
            self._wait_in_order(self._query_of_stream(stream), stream)
        else:
            self._runtime.streamSynchronize(stream)

    def _query_of_stream(self, stream: Stream) -> Query:
        ask = partial(self._runtime.streamQuery, stream)
        return Query(ask, self._calls.stream, stream)

    def _query_of_event(self, recorded: RecordedEvent) -> Query:
        handle = int(recorded.event.ptr)

        def ask() -> int:
            return self._runtime.eventQuery(int(recorded.event.ptr))  # keeps it alive

        return Query(ask, self._calls.event, handle)

    def _wait_in_order(self, query: Query, stream: Stream) -> None:
        """Wait for the entries of a stream, without a limit, and then for the query."""
        limit = self._limits.get(stream) or _WaitLimit(None, None, ())
        for entry in limit.entries:
            self._wait_until_done(entry, _WaitLimit(None, None, ()))
        limit.entries = ()
        self._wait_until_done(query, limit)

    def _wait_until_done(self, query: Query, limit: _WaitLimit) -> None:
        sleep_ns = LEAST_SLEEP_NS
        while (status := self._poll_a_while(query, sleep_ns)) == NOT_READY:
            self._check_limit(limit)
            sleep_ns = MOST_SLEEP_NS
        limit.began_at_s = None
        if status:
            raise self._runtime.CUDARuntimeError(status)

    def _poll_a_while(self, query: Query, sleep_ns: int) -> int:
        """Status once something is done, or `NOT_READY` after `_TURN_S`, roughly."""
        status = query.ask()  # without giving the interpreter to others
        if status != NOT_READY:
            return status
        if query.function and _loops:
            asked = query.function, query.handle, NOT_READY
            sleeps = N_SLEEPS, sleep_ns, MOST_SLEEP_NS, GROWTH_BITS
            return _loops[0](asked, sleeps, self._calls.in_context)
        return _polled(query, sleep_ns)

    def _check_limit(self, limit: _WaitLimit) -> None:
        """Raise if the time of a wait is over, or another thread gave the device up."""
        self._check()
        if limit.began_at_s is None:
            limit.began_at_s = monotonic() - _TURN_S
        waited_s = monotonic() - limit.began_at_s
        if limit.limit_s is not None and waited_s >= limit.limit_s:
            raise self._give_up_after(limit.limit_s)
        if waited_s >= _LONG_S and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s has not ended for %.0f seconds what it was given. A damaged stream "
                "that no checksum covers may keep its decoder busy for ever; then "
                "the process has to be killed, and the array read with "
                "placement='host' instead",
                self._label,
                _LONG_S,
            )

    def _give_up_after(self, limit_s: float) -> DeviceError:
        """Give the device up; returns the error to raise."""
        self._give_up(f"work that had not ended after {limit_s:g} seconds")
        return DeviceError(
            f"{self._label} has not ended for {limit_s:g} seconds what it was given, as"
            " a damaged stream may keep its decoder busy for ever",
            hint="start a new process, and read with placement='host' or what has "
            "crc32c behind its compressor, or raise the option device_patience_s",
        )

    def beside(self, call: Callable[[], Answer]) -> Answer:
        """Result of a call in which the driver may wait for all work, without a limit.

        While work with a limit is under way, another thread makes the call. If the work
        exceeds its limit, that thread is left behind. Raises as `wait`, and what `call`
        raises.
        """
        if not self._running_limits_s():
            return call()
        answers: list[Answer] = []
        errors: list[BaseException] = []
        is_running = allocate_lock()
        is_running.acquire()

        def run() -> None:
            try:
                answers.append(call_for(StopFlag(), call))  # a thread of ours
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            finally:
                is_running.release()

        try:
            start_new_thread(run, ())
        except RuntimeError:  # of the system's limits
            return call()
        limit = _WaitLimit(None, None, ())
        while not is_running.acquire(timeout=_TURN_S):
            limits = self._running_limits_s()
            limit.limit_s = min(limits, default=None)
            if not limits:
                limit.began_at_s = None
            self._check_limit(limit)
        if errors:
            raise errors.pop()
        return answers.pop()

    def _running_limits_s(self) -> list[float]:
        """Limits in seconds of the work that is under way, and whose time runs."""
        return [
            limit.limit_s
            for limit in list(self._limits.values())
            if limit.limit_s is not None
            and limit.is_done is not None
            and limit.is_done.ask() == NOT_READY
            and all(entry.ask() != NOT_READY for entry in limit.entries)
        ]
