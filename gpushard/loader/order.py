"""The order of samples: a pure function of the seed and the epoch.

An order maps positions in an epoch to samples. It can compute any position at any time,
so that a loader can enter an epoch anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpushard.loader.permutation import (
    LONGEST_LIST,
    Permutation,
    permutation,
    uniform,
)
from gpushard.loader.sample_grid import SampleGrid
from gpushard.selecting.selection import Ints

# Purposes of random numbers; no two purposes share a stream of numbers.
_SAMPLES, _BLOCKS, _GROUP, _DRAWS = range(4)
# Blocks whose samples are counted together: a block has columns of some 50 bytes.
_COUNTED_BLOCKS = 1 << 16


class Order(Protocol):
    """Samples of one epoch, by position."""

    @property
    def n(self) -> int:
        """Number of positions."""
        ...

    @property
    def is_scattered(self) -> bool:
        """Whether neighbouring positions may have samples from anywhere."""
        ...

    def at(self, positions: Ints, /) -> Ints:
        """Samples at `positions`: int64 in, int64 of the same shape out."""
        ...

    def cut(self, position: int, last: int, /) -> int:
        """First position, at or after `position`, at which a read should end.

        Samples that are stored together and come together lie between two of these,
        unless these lie so far apart that only one behind `last` is found.
        """
        ...


@dataclass(frozen=True)
class Sequential:
    """Samples in their stored order; `grid` is cut where a read may end."""

    n: int
    grid: SampleGrid
    is_scattered = False

    def at(self, positions: Ints) -> Ints:
        """See `Order`."""
        return positions

    def cut(self, position: int, last: int) -> int:
        """See `Order`: the end of inner chunks."""
        return min(self.grid.end(position, last), self.n)


class Shuffled:
    """Every sample once, at a random position."""

    is_scattered = True

    def __init__(self, n: int, n_samples: int, seed: int, epoch: int) -> None:
        self.n = n
        self.at = permutation(n_samples, seed, epoch, _SAMPLES)

    def cut(self, position: int, _last: int) -> int:
        """See `Order`: any position."""
        return min(position, self.n)


class BlockShuffled:
    """Blocks of samples in random order, with the samples of a few blocks mixed.

    Parameters
    ----------
    n
        Number of positions.
    grid
        The samples, cut into blocks.
    buffer_blocks
        Number of blocks in a group. The samples of a group are mixed.
    """

    is_scattered = False

    def __init__(
        self, n: int, grid: SampleGrid, buffer_blocks: int, seed: int, epoch: int
    ) -> None:
        self.n = n
        self._grid = grid
        self._buffer_blocks = buffer_blocks
        self._seed, self._epoch = seed, epoch
        self._block_at = permutation(grid.n_blocks, seed, epoch, _BLOCKS)
        # Position at which each group begins, and one past the end of the last; counted
        # as far as they are asked for, because blocks may be very many.
        self._starts = np.zeros(-(-grid.n_blocks // buffer_blocks) + 1, np.int64)
        self._n_counted = 0
        self._members = lru_cache(maxsize=2)(self._drawn)

    def _starts_to(self, position: int) -> Ints:
        """Where groups begin, up to one that begins behind `position` if there is."""
        n_blocks, size = self._grid.n_blocks, self._buffer_blocks
        n_more = max(1, _COUNTED_BLOCKS // size)
        g = self._n_counted
        while g < len(self._starts) - 1 and self._starts[g] <= position:
            place = np.arange(g * size, min((g + n_more) * size, n_blocks))
            sizes = self._grid.block_sizes(self._block_at(place))
            length = np.add.reduceat(sizes, np.arange(0, len(place), size))
            stop = g + len(length)
            self._starts[g + 1 : stop + 1] = self._starts[g] + np.cumsum(length)
            self._n_counted = g = stop
        return self._starts[: g + 1]

    def _drawn(self, group: int) -> Permutation:
        """Map of places in a group, in the order of the epoch, to samples.

        A group of windows at every element may have as many as a few shards have
        elements, so those of a large one are not listed.
        """
        place = np.arange(
            group * self._buffer_blocks,
            min((group + 1) * self._buffer_blocks, self._grid.n_blocks),
        )
        blocks = self._block_at(place)
        n = int(self._grid.block_sizes(blocks).sum())
        mixed = permutation(n, self._seed, self._epoch, _GROUP, group)
        if n > LONGEST_LIST:
            return lambda place: self._grid.in_blocks(blocks, mixed(place))
        return self._grid.of_blocks(blocks)[mixed(np.arange(n))].take

    def at(self, positions: Ints) -> Ints:
        """See `Order`."""
        if not len(positions):
            return positions
        if np.all(positions[1:] - positions[:-1] == 1):
            return self._run(int(positions[0]), int(positions[-1]) + 1)
        starts = self._starts_to(int(positions.max()))
        group = np.searchsorted(starts, positions, side="right") - 1
        samples = np.empty(len(positions), np.int64)
        # Positions come in order, so those of a group form one run, or a few.
        cuts = np.flatnonzero(group[1:] != group[:-1]) + 1
        for first, stop in pairwise([0, *cuts.tolist(), len(positions)]):
            g = int(group[first])
            place = positions[first:stop] - starts[g]
            samples[first:stop] = self._members(g)(place)
        return samples

    def _run(self, start: int, stop: int) -> Ints:
        """Samples at positions ``start:stop``, group by group."""
        samples = np.empty(stop - start, np.int64)
        done, starts = start, self._starts_to(stop)
        g = int(np.searchsorted(starts, start, side="right")) - 1
        while done < stop:
            first, last = int(starts[g]), min(int(starts[g + 1]), stop)
            place = np.arange(done - first, last - first)
            samples[done - start : last - start] = self._members(g)(place)
            done, g = last, g + 1
        return samples

    def cut(self, position: int, _last: int) -> int:
        """See `Order`: the end of a group."""
        starts = self._starts_to(position)
        return min(int(starts[np.searchsorted(starts, position)]), self.n)


class Drawn:
    """Samples drawn with replacement, all with equal probability or by weight.

    Parameters
    ----------
    cumulated
        float64, shape (n_samples,): sums of the weights up to each sample. None gives
        all samples the same probability.
    """

    is_scattered = True

    def __init__(
        self,
        n: int,
        n_samples: int,
        cumulated: NDArray[np.float64] | None,
        seed: int,
        epoch: int,
    ) -> None:
        self.n = n
        self._n_samples = n_samples
        self._cumulated = cumulated
        self._seed, self._epoch = seed, epoch

    def at(self, positions: Ints) -> Ints:
        """See `Order`."""
        number = uniform(positions, self._seed, self._epoch, _DRAWS)
        if self._cumulated is None:
            return (number * self._n_samples).astype(np.int64)
        reach = number * self._cumulated[-1]
        return np.searchsorted(self._cumulated, reach, side="right").astype(np.int64)

    def cut(self, position: int, _last: int) -> int:
        """See `Order`: any position."""
        return min(position, self.n)


@dataclass(frozen=True)
class ListedOrder:
    """Samples in the caller's own order: int64, shape (n,)."""

    samples: Ints
    is_scattered = True

    @property
    def n(self) -> int:
        """Number of positions."""
        return len(self.samples)

    def at(self, positions: Ints) -> Ints:
        """See `Order`."""
        return self.samples[positions]

    def cut(self, position: int, _last: int) -> int:
        """See `Order`: any position."""
        return min(position, self.n)


@dataclass(frozen=True, kw_only=True)
class Shuffling:
    """How samples are ordered in every epoch.

    Attributes
    ----------
    grid
        The samples, cut where a read may end, or into blocks if blocks are shuffled.
    seed
        Seed of all random numbers.
    shuffle
        Whether the order is random.
    buffer_blocks
        Number of blocks that are mixed; 0 mixes all samples.
    num_samples
        Positions in an epoch; None means one for each sample.
    replacement
        Whether each position is drawn from all samples.
    cumulated
        Sums of the weights up to each sample; see `Drawn`.
    sampler
        Function from the number of an epoch to the caller's order.
    """

    grid: SampleGrid
    seed: int = 0
    shuffle: bool = False
    buffer_blocks: int = 0
    num_samples: int | None = None
    replacement: bool = False
    cumulated: NDArray[np.float64] | None = None
    sampler: Callable[[int], Ints] | None = None

    def n(self, epoch: int) -> int:
        """Number of positions in an epoch; unlike its order, that takes no time."""
        if self.sampler is not None:
            return len(self.sampler(epoch))
        return self.grid.n if self.num_samples is None else self.num_samples

    def order(self, epoch: int) -> Order:
        """Order of the samples of an epoch."""
        n, n_samples = self.n(epoch), self.grid.n
        if self.sampler is not None:
            return ListedOrder(self.sampler(epoch))
        if self.replacement:
            return Drawn(n, n_samples, self.cumulated, self.seed, epoch)
        if not self.shuffle:
            return Sequential(n, self.grid)
        if self.buffer_blocks:
            return BlockShuffled(n, self.grid, self.buffer_blocks, self.seed, epoch)
        return Shuffled(n, n_samples, self.seed, epoch)

    def fingerprint(self, epoch: int) -> dict[str, Any]:
        """Everything that the order of an epoch depends on, as JSON."""
        facts: dict[str, Any] = {"n_samples": self.grid.n}
        if self.sampler is not None:
            return facts | {"sampler": crc32(self.sampler(epoch).tobytes())}
        facts |= {"num_samples": self.num_samples, "shuffle": self.shuffle}
        if self.replacement:
            facts["replacement"] = True
            if self.cumulated is not None:
                facts["weights"] = crc32(self.cumulated.tobytes())
        elif self.shuffle and self.buffer_blocks:
            facts["block"] = self.grid.facts()
            facts["buffer_blocks"] = self.buffer_blocks
            if self.grid.most_in_blocks(self.buffer_blocks) > LONGEST_LIST:
                facts["mixed"] = "unlisted"  # the lists of before had another order
        if self.shuffle or self.replacement:
            facts["seed"] = self.seed
        return facts
