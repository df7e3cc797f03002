"""Epoch -> the share of each rank, and the steps in which the rank gets it.

The order of samples does not depend on the ranks. Step k of all ranks together is one
*global batch*: the positions from ``k * batch_size * world_size`` on. Each rank gets a
part of it. So the samples of the first k steps are the same for any number of ranks, if
the global batch has the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpushard.loader.ranks import Ranks
from gpushard.selecting.selection import Ints

Uneven = Literal["drop", "pad", "allow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of an epoch.

    The samples of the share are counted from 0; these numbers are *turns*. Attributes
    not listed here are parameters of the loader.

    Attributes
    ----------
    n
        Number of positions in the epoch.
    n_full
        Number of steps in which every rank has a full batch.
    last_start, n_last
        For the step after these: position of its first sample, and number of samples.
        There is no such step if the number is 0.
    """

    n: int
    batch_size: int
    rank: int
    world_size: int
    n_full: int
    last_start: int
    n_last: int

    @classmethod
    def cut(
        cls,
        n: int,
        batch_size: int,
        ranks: Ranks,
        uneven: Uneven = "drop",
        *,
        drop_last: bool = False,
    ) -> Share:
        """Share of a rank in `n` positions; `ranks` says which."""
        rank, world_size = ranks
        n_full, rest = divmod(n, batch_size * world_size)
        if uneven == "allow":
            offset = rank * batch_size
            n_last = min(max(rest - offset, 0), batch_size)
        else:
            n_last = rest // world_size if uneven == "drop" else -(-rest // world_size)
            offset = rank * n_last
        if drop_last and n_last < batch_size:
            n_last = 0
        start = n_full * batch_size * world_size + offset
        return cls(
            n=n,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            n_full=n_full,
            last_start=start,
            n_last=n_last,
        )

    @property
    def n_turns(self) -> int:
        """Number of samples of this rank."""
        return self.n_full * self.batch_size + self.n_last

    @property
    def n_steps(self) -> int:
        """Number of batches of this rank."""
        return self.n_full + (self.n_last > 0)

    def turns(self, step: int) -> tuple[int, int]:
        """First turn of a step's batch, and one past its last turn."""
        start = step * self.batch_size
        return start, min(start + self.batch_size, self.n_turns)

    def positions(self, start: int, stop: int) -> Ints:
        """Positions in the epoch of turns ``start:stop``: int64, shape (n_turns,).

        Positions that pad the last batch start again at 0.
        """
        turn = np.arange(start, stop, dtype=np.int64)
        if self.world_size == 1:
            return turn
        step, place = np.divmod(turn, self.batch_size)
        first = (step * self.world_size + self.rank) * self.batch_size
        first[step >= self.n_full] = self.last_start
        return (first + place) % max(self.n, 1)

    def n_before(self, position: int) -> int:
        """Number of turns of this rank before `position` of the epoch."""
        if position >= self.n:
            return self.n_turns
        step, place = divmod(position, self.batch_size * self.world_size)
        if step >= self.n_full:
            place = min(max(position - self.last_start, 0), self.n_last)
        else:
            place = min(max(place - self.rank * self.batch_size, 0), self.batch_size)
        return min(step, self.n_full) * self.batch_size + place
