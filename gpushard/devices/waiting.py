"""Waits for a GPU that end, although its work may not.

The driver's own waits have no limit in time and cannot be interrupted, and a damaged
stream may keep a decoder busy for ever (docs/damaged.md). So the driver is only asked
whether something is done, again and again, and the thread sleeps in between.
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
# So many of the longest sleeps take less than 60 ms. Then the interpreter has its turn,
# so that an interrupt is heard.
N_SLEEPS = 200
_TURN_S = 0.05
# A batch takes milliseconds. What the caller has queued before may take longer.
_LONG_S = 60.0


class Mark(NamedTuple):
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
    """Compiled code that asks without the interpreter, as `polled` does."""

    def __call__(
        self,
        function: int,
        handle: int,
        sleep_ns: int,
        in_context: tuple[int, int, int],
        /,
    ) -> int:
        """Status; `in_context` has what switches to the context of the device."""
        ...


_loops: list[PollLoop] = []


def poll_by(loop: PollLoop) -> None:
    """Have `loop` ask from now on, in all waits of the process."""
    _loops[:] = [loop]


def polled(query: Query, sleep_ns: int) -> int:
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
class _Bound:
    """The limit for the waits for a stream.

    Attributes
    ----------
    is_done
        How to ask whether the stream is done.
    entries
        What the caller had queued before, as far as it is not known to be done.
    since
        When the wait began that has not ended; an interrupt does not end it.
    """

    limit_s: float | None
    is_done: Query | None
    entries: Sequence[Query]
    since: float | None = None


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
        self._bounds: dict[Stream, _Bound] = {}
        self._is_told = False

    def limit(
        self, stream: Stream, limit_s: float | None, entries: Sequence[Any]
    ) -> None:
        """Limit waits for a stream; the time begins once `entries` are done."""
        asked = [self._of_event(entry) for entry in entries]
        self._bounds[stream] = _Bound(limit_s, self._of_stream(stream), asked)

    def forget(self, stream: Stream) -> None:
        """Have no limit for a stream any more."""
        self._bounds.pop(stream, None)

    def wait(self, mark: Any) -> None:
        """Wait until a `Mark` is done.

        Raises `DeviceError` if the device is given up, here or by another thread, and
        the runtime's errors.
        """
        if POLLS:
            self._end(self._of_event(mark), mark.stream)
        else:
            mark.event.synchronize()

    def wait_for(self, stream: Stream) -> None:
        """Wait until all work on a stream is done; raises as `wait`."""
        if POLLS:
            self._end(self._of_stream(stream), stream)
        else:
            self._runtime.streamSynchronize(stream)

    def _of_stream(self, stream: Stream) -> Query:
        ask = partial(self._runtime.streamQuery, stream)
        return Query(ask, self._calls.stream, stream)

    def _of_event(self, mark: Mark) -> Query:
        handle = int(mark.event.ptr)

        def ask() -> int:
            return self._runtime.eventQuery(int(mark.event.ptr))  # keeps it alive

        return Query(ask, self._calls.event, handle)

    def _end(self, query: Query, stream: Stream) -> None:
        bound = self._bounds.get(stream) or _Bound(None, None, ())
        for entry in bound.entries:
            self._until(entry, _Bound(None, None, ()))
        bound.entries = ()
        self._until(query, bound)

    def _until(self, query: Query, bound: _Bound) -> None:
        sleep_ns = LEAST_SLEEP_NS
        while (status := self._turn(query, sleep_ns)) == NOT_READY:
            self._look(bound)
            sleep_ns = MOST_SLEEP_NS
        bound.since = None
        if status:
            raise self._runtime.CUDARuntimeError(status)

    def _turn(self, query: Query, sleep_ns: int) -> int:
        status = query.ask()  # without giving the interpreter to others
        if status != NOT_READY:
            return status
        if query.function and _loops:
            in_context = self._calls.in_context
            return _loops[0](query.function, query.handle, sleep_ns, in_context)
        return polled(query, sleep_ns)

    def _look(self, bound: _Bound) -> None:
        """Raise if the time of a wait is over, or another thread gave the device up."""
        self._check()
        if bound.since is None:
            bound.since = monotonic() - _TURN_S
        waited_s = monotonic() - bound.since
        if bound.limit_s is not None and waited_s >= bound.limit_s:
            raise self._given_up(bound.limit_s)
        if waited_s >= _LONG_S and not self._is_told:
            self._is_told = True
            _log.warning(
                "%s has not ended for %.0f seconds what it was given. A damaged stream "
                "that no checksum covers may keep its decoder busy for ever; then "
                "the process has to be killed, and the array read with "
                "placement='host' instead",
                self._label,
                _LONG_S,
            )

    def _given_up(self, limit_s: float) -> DeviceError:
        self._give_up(f"work that had not ended after {limit_s:g} seconds")
        return DeviceError(
            f"{self._label} has not ended for {limit_s:g} seconds what it was given, as"
            " a damaged stream may keep its decoder busy for ever",
            hint="start a new process, and read with placement='host' or what has "
            "crc32c behind its compressor, or raise the option device_patience_s",
        )

    def beside(self, call: Callable[[], Answer]) -> Answer:
        """What `call` gives, in which the driver may wait for all work, without an end.

        While work with a limit is under way, a thread makes the call, which is left
        alone if that work does not end. Raises as `wait`, and what `call` raises.
        """
        if not self._runs():
            return call()
        answers: list[Answer] = []
        errors: list[BaseException] = []
        is_running = allocate_lock()
        is_running.acquire()

        def run() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            finally:
                is_running.release()

        try:
            start_new_thread(run, ())
        except RuntimeError:  # of the system's limits
            return call()
        waited = _Bound(None, None, ())
        while not is_running.acquire(timeout=_TURN_S):
            limits = self._runs()
            waited.limit_s = min(limits, default=None)
            if not limits:
                waited.since = None
            self._look(waited)
        if errors:
            raise errors.pop()
        return answers.pop()

    def _runs(self) -> list[float]:
        """Limits in seconds of the work that is under way, and whose time runs."""
        return [
            bound.limit_s
            for bound in list(self._bounds.values())
            if bound.limit_s is not None
            and bound.is_done is not None
            and bound.is_done.ask() == NOT_READY
            and all(entry.ask() != NOT_READY for entry in bound.entries)
        ]
