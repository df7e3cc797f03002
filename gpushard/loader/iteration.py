"""One pass over a rank's share of an epoch: reading ahead, and ending early."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gpushard.loader.batches import Batch, cut_batches
from gpushard.loader.order import Order
from gpushard.loader.prefetch import Prefetched, Waits
from gpushard.loader.reading import Reader
from gpushard.loader.shares import Share
from gpushard.loader.stop_flag import StopFlag

# Longest waits for a thread to end, in seconds. A thread ends after its current task: a
# batch of requests, or compiling the loops. An interrupt does not wait for the latter.
_LONGEST_JOIN, _INTERRUPTED_JOIN = 10.0, 0.5


@dataclass
class Pass:
    """One pass over an epoch, with its threads.

    Attributes
    ----------
    stop
        Set to end the pass.
    """

    stop: StopFlag = field(default_factory=StopFlag)
    _stages: list[Prefetched[Any]] = field(default_factory=list[Prefetched[Any]])

    def batches(
        self,
        reader: Reader,
        place: tuple[Order, Share, int],
        finish: Callable[[Batch], tuple[Batch, Any]],
        ahead: tuple[int, int],
        waits: Waits,
    ) -> Iterator[tuple[Batch, Any]]:
        """Batches, each with the result of `finish`.

        Parameters
        ----------
        place
            Order, share, and the first step.
        finish
            Makes the value that is handed out.
        ahead
            Number of loads to read and of batches to finish ahead; 0 does it on demand.
        waits
            Counts how the consumer waits.
        """
        order, share, step = place
        n_loads, n_batches = ahead
        plans = reader.plans(order, share, share.turns(step)[0])
        n_plans = reader.place.n_planned if n_loads else 0
        loads = reader.loads(self._ahead(plans, n_plans, Waits()))
        cut = cut_batches(loads, share, step)
        cut = self._ahead(cut, n_loads, Waits() if n_batches else waits)
        finished = map(finish, chain.from_iterable(cut))
        return self._ahead(finished, n_batches, waits)

    def _ahead(self, items: Iterator[Any], depth: int, waits: Waits) -> Iterator[Any]:
        """The same items, up to `depth` of them made ahead by a thread of the pass."""
        if not depth:
            return items
        stage: Prefetched[Any] = Prefetched(items, depth, self.stop, waits)
        # Listed before its thread runs, as an interrupt may come at any moment.
        self._stages.append(stage)
        stage.start()
        return stage

    def close(self, *, joins: bool = False) -> None:
        """End the threads of the pass; with `joins`, wait until they have ended.

        During an interrupt, also in a ``with`` block, the wait is short. A thread in a
        long task then ends after that task, or together with the interpreter.
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
