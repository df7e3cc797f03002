"""Whole objects from servers without ranges: fetched for a part, within limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from gpushard.errors import StoreError
from gpushard.options import MIB, Options
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.failures import failure
from gpushard.threads.workers import run_side_by_side

# If a server ignores ranges, a larger object is an error and not a surprise download.
MOST_WHOLE_NBYTES = 64 * MIB
# The objects together may take 1 / _SHARE of the memory limit, because nothing else
# counts the bytes that are cut off.
_SHARE = 4
# Seconds after which a waiting thread checks again. An interrupt may keep another
# thread from waking it.
_CHECK_AGAIN_S = 1.0


@dataclass
class RequestGroup:
    """Requests of one read; after one has failed for good, no other one is started.

    Attributes
    ----------
    error
        Error of a request that failed for good; None if none has.
    """

    error: StoreError | None = None

    def fail(self, error: StoreError) -> None:
        """Make the other requests give up."""
        # Without its frames, which refer to this object. A copy has them if some
        # library has told `copyreg` to pickle errors with their tracebacks.
        kept = copy(error).with_traceback(None)
        kept.__cause__ = kept.__context__ = None
        self.error = kept

    def raise_if_failed(self) -> None:
        """Raise the error of another request that failed for good, if there is one."""
        if self.error is not None:
            raise copy(self.error)  # threads extend the traceback of an error


class WholeObjectMemory:
    """Memory for the whole objects that a store fetches, limited at any time.

    Attributes
    ----------
    most_nbytes
        Limit for all objects together, and so also for each of them.
    """

    def __init__(self, options: Options) -> None:
        self.most_nbytes = min(
            MOST_WHOLE_NBYTES, options.resolved().bound_nbytes // _SHARE
        )
        self._changed = threading.Condition()
        self._held: dict[object, int] = {}

    @contextmanager
    def reserved(
        self, nbytes: int, group: RequestGroup | None = None
    ) -> Iterator[bool]:
        """Hold `nbytes` once there is room for them; yields whether there was at once.

        `nbytes` is at most `most_nbytes`. A wait for room ends as soon as a request of
        `group` has failed for good, and raises the error of that request. Otherwise a
        server that fails after a while would fail one request after the other.
        """
        group = group or RequestGroup()
        holder = object()
        try:
            with self._changed:
                had_room = self._has_room(nbytes)
                while not self._has_room(nbytes):
                    self._changed.wait(_CHECK_AGAIN_S)
                    group.raise_if_failed()
                self._held[holder] = nbytes
            yield had_room
        except StoreError as error:  # what may pass is still a `RefusalError` here
            group.fail(error)  # before others are told that there is room
            raise
        finally:
            # First of all, as an interrupt may cut off the rest; and without a lock.
            self._held.pop(holder, None)
            with self._changed:
                self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        return sum([*self._held.values()]) + nbytes <= self.most_nbytes


def read_by_object(
    requests: Sequence[ByteRequest],
    read: Callable[[Sequence[ByteRequest]], list[Fetched | None]],
    n_workers: int,
) -> list[Fetched | None]:
    """Answers of `read`, which takes all requests for a version of an object."""
    positions: dict[tuple[str, Hashable | None], list[int]] = {}
    for i, request in enumerate(requests):
        positions.setdefault((request.key, request.version), []).append(i)
    groups = [[requests[i] for i in at] for at in positions.values()]
    answers_of_groups = run_side_by_side(read, groups, n_workers)
    answers: list[Fetched | None] = [None] * len(requests)
    for at, group_answers in zip(positions.values(), answers_of_groups, strict=True):
        for i, answer in zip(at, group_answers, strict=True):
            answers[i] = answer
    return answers


def answer_from(whole: Fetched | None, request: ByteRequest) -> Fetched | None:
    """Answer to a request, cut from a whole object; the rest is not kept."""
    if whole is None:
        return None
    start, stop = request.within(len(whole.data))
    data = whole.data[start:stop]
    if len(data) < len(whole.data):
        data = data.copy()
    return Fetched(data, whole.object_nbytes, whole.version)


def refuse_large_object(url: str, key: str, nbytes: int, limit_nbytes: int) -> None:
    """Refuse to download a large object when only a part is wanted."""
    if nbytes > limit_nbytes:
        hint = "serve the data from a server that answers range requests"
        if limit_nbytes < MOST_WHOLE_NBYTES:
            hint += ", or raise options.memory_limit"
        raise failure(
            url,
            key,
            "the server does not answer ranges and the object is large",
            expected=f"at most {limit_nbytes} bytes",
            got=f"{nbytes} bytes",
            hint=hint,
        )
