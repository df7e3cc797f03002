"""Cells that a slice with a step touches along a rectilinear axis, computed in runs.

No formula gives these cells. The number of touched cells in each run of cells is kept;
the touched cells themselves are computed again for each run that is asked for.
"""

from __future__ import annotations

import numpy as np

from gpushard.layout import GridAxis
from gpushard.selecting.numbering import distinct
from gpushard.selecting.projection import cells_of_slice
from gpushard.selecting.selection import Ints, SliceAxis

# Cells per run; computing a run takes 3 MiB at the most.
_RUN_CELLS = 1 << 16


class SteppedCells:
    """The touched cells, found by their positions among the `n_cells` touched cells.

    The slice has at least one element, and the axis cells of several lengths.
    """

    def __init__(self, selection: SliceAxis, axis: GridAxis) -> None:
        self._selection, self._axis = selection, axis
        self._first = int(axis.cell_at(selection.start))
        self._stop = int(axis.cell_at(selection.last)) + 1
        n_runs = -(-(self._stop - self._first) // _RUN_CELLS)
        counts = [len(self._run(nth)) for nth in range(n_runs)]
        # Positions of each run's first touched cell, and behind the last one.
        self._starts = np.append(0, np.cumsum(counts, dtype=np.int64))
        self.n_cells = int(self._starts[-1])
        # The last run asked for, which usually has the next positions too.
        self._latest = (-1, np.empty(0, np.int64))

    def cell_at(self, position: Ints) -> Ints:
        """Touched cells at these positions: int64, of the shape of `position`."""
        position = np.asarray(position)
        run = np.searchsorted(self._starts, position, side="right") - 1
        cell = np.empty(position.shape, np.int64)
        for nth in distinct(run).tolist():
            mine = run == nth
            cell[mine] = self._kept(nth)[position[mine] - self._starts[nth]]
        return cell

    def _kept(self, nth: int) -> Ints:
        known, cells = self._latest
        if known != nth:
            cells = self._run(nth)
            self._latest = nth, cells
        return cells

    def _run(self, nth: int) -> Ints:
        """Touched cells in a run of cells."""
        low = self._first + nth * _RUN_CELLS
        high = min(low + _RUN_CELLS, self._stop)
        begin, end = int(self._axis.start_of(low)), int(self._axis.start_of(high))
        some = self._selection.within(begin, end)
        if some is None:
            return np.empty(0, np.int64)
        return cells_of_slice(some._replace(start=begin + some.start), self._axis)
