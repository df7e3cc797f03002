"""Passes over epochs: reading ahead, into the next epoch if wanted; ending early."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import ref

from gpushard.loader.batches import Batch, batches_by_load
from gpushard.loader.loads import PlannedLoad
from gpushard.loader.order import Order
from gpushard.loader.places import Place
from gpushard.loader.prefetch import Prefetched, WaitStats, end_all_of
from gpushard.loader.reading import Reader
from gpushard.loader.settings import Settings
from gpushard.loader.shares import Share
from gpushard.loader.state import Standing
from gpushard.loader.stats import Progress
from gpushard.threads.stop_flag import StopFlag

# Longest waits for a thread to end, in seconds. A thread ends after its current task: a
# batch of requests, or compiling the loops. An interrupt does not wait for the latter.
_LONGEST_JOIN, _INTERRUPTED_JOIN = 10.0, 0.5


class Epochs:
    """Batches of an epoch from a step on, and of the next epochs; threads read ahead.

    The threads read on into as many epochs as the settings say. They hold no more loads
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
    owner
        Names the threads of the loader.
    """

    def __init__(
        self, settings: Settings, place: Place, standing: Standing, progress: Progress
    ) -> None:
        # What threads have in hand is never dropped before they end. So they have no
        # function of the caller's, which may lead to the iteration: no transform, and
        # no sampler, with which nothing is read on.
        reads_on = settings.reads_on_into(standing.epoch + 1)
        self._later = replace(settings, transform=None) if reads_on else None
        self._epoch = standing.epoch
        # Whether the last load of the current epoch was taken.
        self._is_at_end = False
        self._pid = os.getpid()
        self._stop = StopFlag()
        self.stages: list[Prefetched[Any]] = []
        self.owner = progress
        order = settings.shuffling.order(standing.epoch)
        share = settings.share(order.n)
        self._n_steps = share.n_steps
        n_plans, n_asked = place.n_planned if settings.n_ahead else 0, settings.n_asked
        reader = Reader(
            fields=settings.fields,
            origins=settings.origins,
            axis=settings.fields[0].axis("chunk"),
            place=place,
            on_error=settings.on_error,
            stop=self._stop,
            incidents=progress.incidents,
            n_under_way=place.n_under_way if settings.n_ahead else 0,
            n_asked=n_asked,
        )
        plans = _plans(reader, self._later, standing, order, share)
        n_later = max(n_asked - n_plans, 0)
        planned = self._ahead(plans, n_plans, WaitStats(), n_later)
        loads = reader.loads(planned)
        waits = WaitStats() if settings.n_finished_ahead else progress.waits
        cut = batches_by_load(loads, share, standing.step)
        self._cut = self._ahead(cut, settings.n_read_ahead, waits)

    def _ahead(
        self, items: Iterator[Any], depth: int, waits: WaitStats, n_later: int = 0
    ) -> Iterator[Any]:
        """The same items, up to `depth` of them made ahead by a thread."""
        if not depth:
            return items
        stop, owner = self._stop, self.owner
        self.stages.append(Prefetched(items, depth, stop, waits, owner, n_later))
        return self.stages[-1]

    def begin_epoch(self) -> None:
        """Begin the first epoch; called again, the next one."""
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

    def start_after(self, standing: Standing) -> Standing:
        """Start of the epoch at `standing`, or of the next one if that one is over."""
        return standing.restarted(lambda: self._n_steps)

    def continues_at(self, standing: Standing) -> bool:
        """Whether the next load was read ahead for the epoch that begins there."""
        return (
            self._is_at_end
            and not self._stop.is_set()
            and standing == Standing(self._epoch + 1, 0)
            and self._later is not None
            and self._later.reads_on_into(self._epoch + 1)
            and self._pid == os.getpid()
        )

    def close(self) -> None:
        """Tell the threads to end after their current task."""
        self._stop.set()
        for stage in self.stages:
            stage.close()
        self._cut = iter(())  # without a thread, it may have loads


def _plans(
    reader: Reader,
    later: Settings | None,
    standing: Standing,
    order: Order,
    share: Share,
) -> Iterator[PlannedLoad]:
    """Reads of an epoch from a step on, and of the epochs that are read on into.

    `later` has the settings of these epochs; None if there are none.
    """
    start = share.turns(standing.step)[0]
    yield from reader.plans(order, share, start)
    epoch = standing.epoch + 1
    # An epoch without a load would end where the next one does.
    while later and start < share.n_turns and later.reads_on_into(epoch):
        order = later.shuffling.order(epoch)
        yield from reader.plans(order, share, 0, is_awaited=False)
        epoch += 1


class Pass:
    """One pass over an epoch, with a thread that finishes batches.

    Attributes
    ----------
    finish
        What finishes a batch in the thread; None if no thread does.
    """

    def __init__(self, epochs: Epochs) -> None:
        self.finish: Callable[[Batch], tuple[Batch, Any]] | None = None
        self._epochs: Epochs | None = epochs
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
        epochs = self._epochs
        if epochs is None:  # another thread closed it
            return iter(())
        epochs.begin_epoch()
        batches = chain.from_iterable(epochs.loads())
        if not depth:
            return map(finish, batches)
        self.finish = finish
        finished = _finished(batches, ref(self))
        stage = Prefetched(finished, depth, StopFlag(), waits, epochs.owner)
        # Listed before its thread runs, as an interrupt may come at any moment.
        self._stages.append(stage)
        stage.start()
        return stage

    def is_continued_at(self, standing: Standing) -> bool:
        """Whether the epoch is over at `standing`, and the next one was read ahead."""
        epochs = self._epochs
        return epochs is not None and epochs.continues_at(epochs.start_after(standing))

    def take_epochs(self, standing: Standing) -> Epochs | None:
        """The epochs, if they go on at `standing`; then the pass does not end them."""
        if not self.is_continued_at(standing):
            return None
        epochs, self._epochs = self._epochs, None
        return epochs

    def close(self, *, joins: bool = False) -> None:
        """End the threads of the pass; see `end`."""
        end(self._epochs, self._stages, joins=joins)


def _finished(
    batches: Iterator[Batch], owner: ref[Pass]
) -> Iterator[tuple[Batch, Any]]:
    """Batches, finished as their pass says, while it is there.

    The thread that runs this waits without a reference to the pass or its function. A
    transform may lead to the iteration, such as a method of what has both.
    """
    for batch in batches:
        current = owner()
        if current is None or current.finish is None:
            return
        handed = [current.finish(batch)]
        # Keeping the batch would keep its load.
        del batch, current
        yield handed.pop()


def end(
    epochs: Epochs | None, stages: Sequence[Prefetched[Any]] = (), *, joins: bool
) -> None:
    """End the threads of epochs and others; with `joins`, wait until they have ended.

    During an interrupt, also in a ``with`` block, the wait is short. A thread in a long
    task then ends after that task, or together with the interpreter.
    """
    ended = [*stages]
    if epochs is not None:
        epochs.close()
        ended += epochs.stages
    for stage in stages:
        stage.close()
    if joins:
        deadline = time.monotonic() + _longest_join()
        for stage in ended:
            stage.join(max(deadline - time.monotonic(), 0))


def end_all(progress: Progress) -> None:
    """End all threads of the loader with this `progress`, and wait as `end` does.

    Those of iterations that were left before may still be in a long task.
    """
    end_all_of(progress, _longest_join())


def _longest_join() -> float:
    is_interrupted = isinstance(sys.exception(), KeyboardInterrupt | SystemExit)
    return _INTERRUPTED_JOIN if is_interrupted else _LONGEST_JOIN
