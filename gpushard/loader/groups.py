"""Samples that failed together -> groups of them to try, down to what is lost."""

from __future__ import annotations

import numpy as np

from gpushard.concatenation import ConcatArray
from gpushard.errors import GpushardError
from gpushard.layout import GridAxis
from gpushard.loader.losses import (
    Losses,
    is_of_shard,
    is_of_store,
    n_alone,
    shard_of,
)
from gpushard.selecting.selection import Ints


class Groups:
    """Groups of samples to try, one after the other.

    A group that fails is divided, down to the samples of one inner chunk. Those of a
    shard that is lost are given up together. While a store may be dead, a sample is
    tried before its group, and again once anything was read.

    Parameters
    ----------
    samples
        int64, shape (n_samples,).
    losses
        What failed reads of the epoch have told; is told of these, too.
    axis
        Axis 0 of the first array, cut into inner chunks.

    Attributes
    ----------
    kept
        bool, shape (n_samples,): which samples were read.
    is_alone
        Whether the current group is not divided any more: it is worth several tries.
    """

    def __init__(self, samples: Ints, losses: Losses, axis: GridAxis) -> None:
        self.kept = np.zeros(len(samples), np.bool_)
        self.is_alone = False
        self._samples, self._losses = samples, losses
        first_row = losses.origins.of(samples)[:, 0]
        self._cell = axis.cell_at(np.minimum(first_row, axis.extent - 1))
        self._pieces = [np.argsort(samples, kind="stable")]
        self._piece = self._pieces[0]
        # Samples that were tried before their group.
        self._is_early, self._put_off = False, list[Ints]()

    def next(self) -> Ints | None:
        """Samples of the next group, int64; None if there is none."""
        while self._pieces:
            piece = self._pieces.pop()
            piece = piece[~self._losses.of(self._samples[piece])]
            if not len(piece):
                continue
            fail_together = self._fail_together(piece)
            self._is_early = not fail_together and self._losses.n_failing > 0
            if self._is_early:
                # Another part of the group each time: shards beside one another may
                # fail although the store is well.
                at = len(piece) * (7 * self._losses.n_failing % 10) // 10
                self._pieces.append(np.delete(piece, at))
                piece = piece[at : at + 1]
            self._piece, self.is_alone = piece, fail_together or self._is_early
            return self._samples[piece]
        return None

    def note_read(self) -> None:
        """Note that the current group was read."""
        self._losses.note_read(self._samples[self._piece])
        self.kept[self._piece] = True
        self._pieces += self._put_off
        self._put_off = []

    def note_failed(self, error: GpushardError, seconds: float) -> None:
        """Note that the current group failed, after so many seconds.

        Raises
        ------
        StoreError
            The store is dead.
        """
        losses, tried = self._losses, self._samples[self._piece]
        how = "alone" if self.is_alone else "once"
        losses.note_failed(error, tried, seconds, how)
        losses.refuse_dead_store()
        if self._is_early:
            self._put_off.append(self._piece)
        elif not self.is_alone:
            self._pieces += self._divided(error, seconds)

    def _divided(self, error: GpushardError, seconds: float) -> list[Ints]:
        """Groups to try instead of the one that failed; the last one first.

        If a shard failed, these are some of its samples alone, which show whether it is
        lost, and the group again. Otherwise, they are halves.
        """
        piece, losses, shard = self._piece, self._losses, shard_of(error)
        tried = self._samples[piece]
        if losses.of(tried).any():
            return [piece]
        of_store = is_of_store(error)
        if shard not in losses.suspected and (of_store or is_of_shard(error)):
            losses.suspected.add(shard)
            about = piece[losses.about(error, tried)]
            if len(about):
                # A damaged index concerns whatever is read of the shard.
                n = min(n_alone(seconds), len(about)) if of_store else 0
                spread = about[np.linspace(0, len(about) - 1, n).astype(np.int64)]
                return [piece, *spread[:, None]]
        middle = len(piece) // 2
        return [piece[:middle], piece[middle:]]

    def _fail_together(self, piece: Ints) -> bool:
        """Whether the samples fail together: only one, or rows of one inner chunk."""
        if len(piece) == 1:
            return True
        fields, cell = self._losses.fields, self._cell
        first = fields[0]
        # `cell` is where samples begin, not where the rows ahead of them lie. Arrays
        # that were joined side by side may be cut at other rows than the first one.
        is_aligned = len(fields) == 1 and first.is_row_wise and not first.cut.lead
        if isinstance(first.array, ConcatArray) and first.array.axis != 0:
            is_aligned = False
        return is_aligned and bool(np.all(cell[piece] == cell[piece[0]]))
