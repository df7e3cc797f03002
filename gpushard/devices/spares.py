"""Lanes or pinned slots that nobody uses -> one at a time, for whoever asks first."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from gpushard.errors import DeviceError
from gpushard.threads.stop_flag import is_stopped

Thing = TypeVar("Thing")

# After this wait a thread checks whether anybody still waits for the read.
_LOOK_S = 0.1


class Spares(Generic[Thing]):
    """Things that are handed out one at a time, the longest unused one first.

    An interrupt just after `get` has returned, before the result has a name, loses a
    thing. None is put in its place then, which ends the wait of everyone else: the read
    that was interrupted is over anyway. An interrupt just as a context ends loses a
    thing as long as the error refers to it; others then wait until the read ends.
    """

    def __init__(self, things: Iterable[Thing] = ()) -> None:
        self._unused: queue.SimpleQueue[Thing | None] = queue.SimpleQueue()
        for thing in things:
            self.put(thing)

    def put(self, thing: Thing) -> None:
        """Have one more to hand out."""
        self._unused.put(thing)

    @contextmanager
    def one(self) -> Iterator[Thing]:
        """Wait for one that nobody uses; it is handed back when the context ends.

        Raises `KeyboardInterrupt` if another thread was interrupted and lost one, and
        as `refuse_stopped`.
        """
        thing = None
        try:
            while True:
                try:
                    thing = self._unused.get(timeout=_LOOK_S)
                    break
                except queue.Empty:
                    refuse_stopped()
            if thing is None:
                refuse_stopped()  # whose wait has ended so has put None, too
                raise KeyboardInterrupt
            yield thing
        finally:
            # One call of C, as an interrupt before it would lose the thing.
            self._unused.put(thing)

    def use_one(self, use: Callable[[Thing], object]) -> None:
        """Call `use` with one that nobody uses; do nothing if all are in use."""
        try:
            thing = self._unused.get_nowait()
        except queue.Empty:
            return
        except BaseException:
            self._unused.put(None)
            raise
        try:
            if thing is not None:
                use(thing)
        finally:
            self._unused.put(thing)


def refuse_stopped() -> None:
    """Raise `DeviceError` if nobody waits for what the calling thread reads."""
    if is_stopped():
        raise DeviceError("nobody waits for the read any more")
