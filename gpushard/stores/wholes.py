"""Objects of servers without ranges: fetched whole for a part, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from gpushard.errors import StoreError
from gpushard.options import MIB, Options
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.failures import passing_status
from gpushard.workers import run_side_by_side

# Where ranges are ignored, larger objects are an error, not a surprise download.
MOST_WHOLE_NBYTES = 64 * MIB
# Of the memory limit, what they take together: nobody else counts what is cut off.
_SHARE = 4
# Seconds after which who waits looks again: an interrupt may keep others from telling.
_LOOK_AGAIN_S = 1.0


@dataclass
class Together:
    """Requests that are made for one read: once one has failed, no other is begun.

    Attributes
    ----------
    error
        What one of them failed with for good.
    """

    error: StoreError | None = None

    def fail(self, error: StoreError) -> None:
        """Let the others give up, unless `error` may pass: then it is asked again."""
        if passing_status(error) is None:
            self.error = copy(error)  # without its frames, which know this object

    def go_on(self) -> None:
        """Give up with what another one has failed with, if one has.

        Raises
        ------
        StoreError
            One of its own for each caller: threads extend the traceback they raise.
        """
        if self.error is not None:
            raise copy(self.error)


class Wholes:
    """What the objects take that a store fetches whole, at a time.

    Parameters
    ----------
    options
        `memory_limit` bounds it.

    Attributes
    ----------
    most_nbytes
        What they may take together, and so the largest of them.
    """

    def __init__(self, options: Options) -> None:
        self.most_nbytes = min(
            MOST_WHOLE_NBYTES, options.resolved().bound_nbytes // _SHARE
        )
        self._changed = threading.Condition()
        self._held: dict[object, int] = {}

    @contextmanager
    def taken(self, nbytes: int, group: Together | None = None) -> Iterator[bool]:
        """Hold so much, as soon as there is room for it; gives whether there was.

        `nbytes` is `most_nbytes` at the most. Who waits for room gives up as soon as
        one of its `group` has failed for good: a server that fails in time would do so
        one request after the other.

        Raises
        ------
        StoreError
            What that failed with.
        """
        group = group or Together()
        holder = object()
        try:
            with self._changed:
                had_room = self._has_room(nbytes)
                while not self._has_room(nbytes):
                    self._changed.wait(_LOOK_AGAIN_S)
                    group.go_on()
                self._held[holder] = nbytes
            yield had_room
        except StoreError as error:
            group.fail(error)  # before others are told that there is room
            raise
        finally:
            # Before anything that an interrupt can cut off, and without a lock.
            self._held.pop(holder, None)
            with self._changed:
                self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        return sum([*self._held.values()]) + nbytes <= self.most_nbytes


def read_together(
    requests: Sequence[ByteRequest],
    read: Callable[[Sequence[ByteRequest]], list[Fetched | None]],
    n_workers: int,
) -> list[Fetched | None]:
    """Answers of `read`, which is given those for one version of an object together."""
    wanted: dict[tuple[str, Hashable | None], list[int]] = {}
    for i, request in enumerate(requests):
        wanted.setdefault((request.key, request.version), []).append(i)
    of_each = [[requests[i] for i in at] for at in wanted.values()]
    answered = run_side_by_side(read, of_each, n_workers)
    found: list[Fetched | None] = [None] * len(requests)
    for at, answers in zip(wanted.values(), answered, strict=True):
        for i, answer in zip(at, answers, strict=True):
            found[i] = answer
    return found


def cut_out(whole: Fetched | None, request: ByteRequest) -> Fetched | None:
    """What a request asks for, without the rest of the object."""
    if whole is None:
        return None
    start, stop = request.within(len(whole.data))
    data = whole.data[start:stop]
    if len(data) < len(whole.data):
        data = data.copy()
    return Fetched(data, whole.object_nbytes, whole.version)
