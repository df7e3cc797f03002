"""Passes over epochs: reading ahead, into the next epoch if wanted; ending early."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from gpushard.loader.batches import Batch, cut_batches
from gpushard.loader.order import Order
from gpushard.loader.places import Place
from gpushard.loader.prefetch import Prefetched, WaitStats
from gpushard.loader.reading import PlannedLoad, Reader
from gpushard.loader.settings import Settings
from gpushard.loader.shares import Share
from gpushard.loader.state import Standing
from gpushard.loader.stats import Progress
from gpushard.stop_flag import StopFlag

# Longest waits for a thread to end, in seconds. A thread ends after its current task: a
# batch of requests, or compiling the loops. An interrupt does not wait for the latter.
_LONGEST_JOIN, _INTERRUPTED_JOIN = 10.0, 0.5


class Course:
    """An epoch from a step on, and the next epochs, in batches; threads read ahead.

    The threads read on into as many epochs as the settings say, and hold no more loads
    across the border of two epochs than within one.

    Parameters
    ----------
    settings, place
        Those of the loader, and its memory.
    standing
        The epoch, and its first step.
    progress
        Counts failures, and how the consumer waits.

    Attributes
    ----------
    stages
        The threads.
    """

    def __init__(
        self, settings: Settings, place: Place, standing: Standing, progress: Progress
    ) -> None:
        self._settings = settings
        self._epoch = standing.epoch
        self._is_at_end = False  # of the epoch, whose last load was taken
        self._pid = os.getpid()
        self._stop = StopFlag()
        self.stages: list[Prefetched[Any]] = []
        order = settings.shuffling.order(standing.epoch)
        share = settings.share(order.n)
        self._n_steps = share.n_steps
        reader = Reader(
            settings.fields,
            settings.origins,
            settings.fields[0].axis("chunk"),
            place,
            settings.on_error,
            self._stop,
            progress.incidents,
            place.n_behind if settings.n_ahead else 0,
        )
        plans = _plans(reader, settings, standing, order, share)
        n_plans = place.n_planned if settings.n_ahead else 0
        loads = reader.loads(self._ahead(plans, n_plans, WaitStats()))
        waits = WaitStats() if settings.n_finished_ahead else progress.waits
        cut = cut_batches(loads, share, standing.step)
        self._cut = self._ahead(cut, settings.n_ahead, waits)

    def _ahead(
        self, items: Iterator[Any], depth: int, waits: WaitStats
    ) -> Iterator[Any]:
        """The same items, up to `depth` of them made ahead by a thread."""
        if not depth:
            return items
        self.stages.append(Prefetched(items, depth, self._stop, waits))
        return self.stages[-1]

    def begin(self) -> None:
        """Begin the first epoch, or else the next one."""
        if self._is_at_end:
            self._epoch += 1
            self._is_at_end = False
            return
        for stage in self.stages:
            stage.start()

    def loads(self) -> Iterator[Iterator[Batch]]:
        """Batches of the epoch that was begun last, those of a load together."""
        is_last = False
        # Asked after the next epoch was begun, this is still about the old one.
        while not is_last:
            batches, is_last = next(self._cut, (None, True))
            if batches is None:  # closed, or there was no load to begin with
                return
            self._is_at_end = is_last
            # Keeping them would keep the load while waiting for the next one.
            handed = [batches]
            del batches
            yield handed.pop()

    def behind(self, standing: Standing) -> Standing:
        """Where the epoch after a standing begins, or its own if it is not over."""
        return standing.again(lambda: self._n_steps)

    def leads_on_to(self, standing: Standing) -> bool:
        """Whether the next load is one that was read ahead for this place."""
        return (
            self._is_at_end
            and not self._stop.is_set()
            and standing == Standing(self._epoch + 1, 0)
            and self._settings.reads_on_into(self._epoch + 1)
            and self._pid == os.getpid()
        )

    def close(self) -> None:
        """Tell the threads to end after their current task."""
        self._stop.set()
        for stage in self.stages:
            stage.close()
        self._cut = iter(())  # without a thread, it may have loads


def _plans(
    reader: Reader, settings: Settings, standing: Standing, order: Order, share: Share
) -> Iterator[PlannedLoad]:
    """Reads of an epoch from a step on, and of the epochs that are read on into."""
    start = share.turns(standing.step)[0]
    yield from reader.plans(order, share, start)
    epoch = standing.epoch + 1
    # An epoch without a load would end where the next one does.
    while start < share.n_turns and settings.reads_on_into(epoch):
        order = settings.shuffling.order(epoch)
        yield from reader.plans(order, share, 0, is_awaited=False)
        epoch += 1


class Pass:
    """One pass over an epoch of a course, with a thread that finishes batches."""

    def __init__(self, course: Course) -> None:
        self._course: Course | None = course
        self._stages: list[Prefetched[Any]] = []

    def batches(
        self, finish: Callable[[Batch], tuple[Batch, Any]], depth: int, waits: WaitStats
    ) -> Iterator[tuple[Batch, Any]]:
        """Batches, each with the result of `finish`.

        Parameters
        ----------
        finish
            Makes the value that is handed out.
        depth
            Number of batches to finish ahead; 0 does it on demand.
        waits
            Counts how the consumer waits, if batches are finished ahead.
        """
        course = self._course
        if course is None:  # another thread closed it
            return iter(())
        course.begin()
        finished = map(finish, chain.from_iterable(course.loads()))
        if not depth:
            return finished
        stage = Prefetched(finished, depth, StopFlag(), waits)
        # Listed before its thread runs, as an interrupt may come at any moment.
        self._stages.append(stage)
        stage.start()
        return stage

    def leads_on(self, standing: Standing) -> bool:
        """Whether the epoch is over there, and the next one was read ahead."""
        course = self._course
        return course is not None and course.leads_on_to(course.behind(standing))

    def rest(self, standing: Standing) -> Course | None:
        """The course, if it leads on from there; the pass does not end it then."""
        if not self.leads_on(standing):
            return None
        course, self._course = self._course, None
        return course

    def close(self, *, joins: bool = False) -> None:
        """End the threads of the pass; see `end`."""
        end(self._course, self._stages, joins=joins)


def end(
    course: Course | None, stages: Sequence[Prefetched[Any]] = (), *, joins: bool
) -> None:
    """End the threads of a course and others; with `joins`, wait until they have ended.

    During an interrupt, also in a ``with`` block, the wait is short. A thread in a long
    task then ends after that task, or together with the interpreter.
    """
    ended = [*stages]
    if course is not None:
        course.close()
        ended += course.stages
    for stage in stages:
        stage.close()
    if joins:
        is_interrupted = isinstance(sys.exception(), KeyboardInterrupt | SystemExit)
        longest = _INTERRUPTED_JOIN if is_interrupted else _LONGEST_JOIN
        deadline = time.monotonic() + longest
        for stage in ended:
            stage.join(max(deadline - time.monotonic(), 0))
