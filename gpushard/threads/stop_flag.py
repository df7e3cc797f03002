"""A flag that one thread sets to end others, and the requests that it breaks off.

The lock of a `threading.Event` is taken in lines of Python. An interrupt of `set` may
leave it taken, and then the next call, of the same thread, never returns.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeVar

_T = TypeVar("_T")

# What ends a program: Ctrl-C, and what handlers of other signals raise to leave.
INTERRUPTS = (KeyboardInterrupt, SystemExit)


def to_the_end(call: Callable[[], object]) -> None:
    """Call `call`, again after each interrupt, until it returns.

    The last interrupt is raised afterwards.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            call()
            break
        except INTERRUPTS as error:
            interrupt = error
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # it knows this frame, which knows what was called


class Request(Protocol):
    """What waits for a server."""

    def break_off(self) -> None:
        """Have the thread that waits get an error at once; others call this.

        After an interrupt they may call it twice.
        """
        ...


class StopFlag:
    """Set once, and from then on; any thread may ask for it or wait for it."""

    __slots__ = ("_is_set", "_pid", "_under_way", "_until_set")

    def __init__(self) -> None:
        self._is_set = False
        self._until_set = allocate_lock()  # taken until it is set
        self._until_set.acquire()
        # The first entry decides who has a request; later entries change nothing.
        self._under_way: dict[Request, list[Literal["set", "end"]]] = {}
        self._pid = os.getpid()

    def set(self) -> None:
        """Set it, and break off the requests under way.

        An interrupt does not end this: who sets the flag waits next for those requests.
        The last interrupt is raised afterwards.
        """
        to_the_end(self._set)

    def _set(self) -> None:
        self._is_set = True
        self._pass_on()
        # A forked process shares the connections of its parent, which goes on.
        if os.getpid() != self._pid:
            return
        for request, claims in self._under_way.copy().items():
            claims.append("set")
            if claims[0] == "set":
                request.break_off()
                # Only now: an interrupt before would leave it waiting for its server.
                self._under_way.pop(request, None)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long; returns whether it is."""
        if self._until_set.acquire(timeout=seconds):
            self._pass_on()
        return self._is_set

    def begin(self, request: Request) -> bool:
        """Break off a request once the flag is set; returns whether it is not yet."""
        self._under_way[request] = []
        return not self._is_set  # asked last: `set` may have missed the request

    def end(self, request: Request) -> bool:
        """Forget a request; returns whether it was not broken off, nor will be."""
        claims = self._under_way.pop(request, None)
        if claims is None:
            return False
        claims.append("end")
        return claims[0] == "end"

    def _pass_on(self) -> None:
        """Let the next one through who waits."""
        with suppress(RuntimeError):  # nobody has it: set before, or passed on
            self._until_set.release()


# Of threads of ours that work for others. A `threading.local` would not tell all flags.
_flags: dict[int, StopFlag] = {}


def enter(flag: StopFlag) -> None:
    """Have the calling thread work until `leave` for those who may set `flag`."""
    _flags[get_ident()] = flag


def leave() -> None:
    """Have the calling thread work for nobody; see `enter`."""
    _flags.pop(get_ident(), None)


def call_for(flag: StopFlag, do: Callable[[], _T]) -> _T:
    """Result of `do`, called by this thread for those who may set `flag`."""
    enter(flag)
    try:
        return do()
    finally:
        leave()


def flag_here() -> StopFlag | None:
    """What ends the work of the calling thread; None if only interrupts do."""
    return _flags.get(get_ident())


def is_stopped() -> bool:
    """Whether nobody waits any more for what the calling thread does."""
    flag = _flags.get(get_ident())
    return flag is not None and flag.is_set()


def stop_all() -> None:
    """Set the flags of all threads that work for others."""
    for flag in [*_flags.values()]:
        flag.set()


if hasattr(os, "register_at_fork"):
    # Its threads are other ones, and may have the numbers of those of its parent.
    os.register_at_fork(after_in_child=_flags.clear)
