"""One pass over a rank's part of an epoch: what runs ahead, and how it ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpushard.loader.batches import Batch, cut_batches
from gpushard.loader.order import Order
from gpushard.loader.prefetch import Prefetched, Stopped, Waits
from gpushard.loader.reading import Reader
from gpushard.loader.shares import Share

# A thread that is told to end is over when its task is: one batch of requests, or the
# compilation of the loops, which whoever interrupts does not wait for.
_LONGEST_JOIN, _INTERRUPTED_JOIN = 10.0, 0.5


@dataclass
class Pass:
    """One pass over an epoch.

    Attributes
    ----------
    stop
        Set when it is to end.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    _stages: list[Prefetched[Any]] = field(default_factory=list[Prefetched[Any]])

    def batches(
        self,
        reader: Reader,
        place: tuple[Order, Share, int],
        finish: Callable[[Batch], tuple[Batch, Any]],
        ahead: tuple[int, int],
        waits: Waits,
    ) -> Iterator[tuple[Batch, Any]]:
        """Batches and what `finish` makes of each.

        Parameters
        ----------
        place
            Order and share, and the step to begin at.
        finish
            Makes what is handed out.
        ahead
            How many loads are read, and how many batches finished, before they are
            asked for; 0 does it when they are.
        waits
            Where to count how the consumer waits.
        """
        order, share, step = place
        n_loads, n_batches = ahead
        plans = reader.plans(order, share, share.turns(step)[0])
        if n_loads and reader.place.n_planned:
            plans = self._ahead(plans, reader.place.n_planned, Waits())
        loads = reader.loads(plans)
        if n_loads:
            inner = Waits() if n_batches else waits
            loads = self._ahead(loads, n_loads, inner)
        finished = map(finish, cut_batches(loads, share, step))
        if n_batches:
            return self._ahead(finished, n_batches, waits)
        return finished if n_loads else _until_stopped(finished)

    def _ahead(self, items: Iterator[Any], depth: int, waits: Waits) -> Iterator[Any]:
        stage: Prefetched[Any] = Prefetched(items, depth, self.stop, waits)
        # Known before its thread runs: an interrupt may come at any moment.
        self._stages.append(stage)
        stage.start()
        return stage

    def close(self, *, joins: bool = False) -> None:
        """Let its threads end; with `joins`, return when they have.

        On the way of an interrupt, also out of a ``with`` block, soon in any case: a
        thread that is in a long task ends after it, or with the interpreter.
        """
        self.stop.set()
        for stage in self._stages:
            stage.close()
        if joins:
            is_interrupted = isinstance(sys.exception(), KeyboardInterrupt | SystemExit)
            longest = _INTERRUPTED_JOIN if is_interrupted else _LONGEST_JOIN
            deadline = time.monotonic() + longest
            for stage in self._stages:
                stage.join(max(deadline - time.monotonic(), 0))


def _until_stopped(items: Iterator[Any]) -> Iterator[Any]:
    """Items that are made as they are asked for, until another thread ends the pass."""
    try:
        yield from items
    except Stopped:
        return
