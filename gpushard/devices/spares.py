"""Lanes or pinned slots that nobody uses -> one at a time, for whoever asks first."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Spares(Generic[Thing]):
    """Things that are handed out one at a time, the longest unused one first.

    An interrupt between the end of a `get` and the name for what it gave loses a thing.
    None is put in its place then, and ends the wait of everyone else: the read that was
    interrupted is over anyway.
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

        Raises `KeyboardInterrupt` if another thread was interrupted and lost one.
        """
        thing = None
        try:
            thing = self._unused.get()
            if thing is None:
                raise KeyboardInterrupt
            yield thing
        finally:
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
