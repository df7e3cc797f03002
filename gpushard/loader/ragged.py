"""Samples of different lengths: rows of one array, cut by another one's offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpushard.array import Array
from gpushard.errors import OptionError
from gpushard.fetching.job import Job
from gpushard.layout import GridAxis
from gpushard.loader.conversion import gathered
from gpushard.loader.fields import Field, Finish, Rows, concatenated
from gpushard.loader.memory import Memory
from gpushard.loader.windows import rows_of_all
from gpushard.selecting.selection import Ints

# Rows that a selection of its own is worth; shorter runs are listed row by row.
_LEAST_RUN = 256
# What listing a row takes, three times over.
_LISTED_NBYTES = 24


@dataclass(frozen=True)
class Ragged:
    """Samples of different lengths, for a `Loader`: sample i is a run of rows.

    A batch of them is a list with an array a sample.

    Parameters
    ----------
    values
        Array, or arrays joined by `concat`: rows of all samples, one after the other.
    offsets
        Array, of gpushard or NumPy, whole numbers, shape (n_samples + 1,): sample i is
        ``values[offsets[i]:offsets[i + 1]]``. It is read when a loader is made.
    packed
        Whether a batch is one array and its own offsets instead: ``(values, offsets)``,
        offsets int64 of NumPy, shape (n_batch + 1,), the first one 0.
    """

    values: Any
    offsets: Any
    packed: bool = False


@dataclass(frozen=True)
class RaggedField(Field):
    """Values of a `Ragged`, as one array of a loader.

    Attributes
    ----------
    offsets
        int64, shape (n_samples + 1,).
    packed
        See `Ragged`.
    """

    offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    packed: bool = False

    @property
    def _mean_length(self) -> float:
        return float(self.offsets[-1] - self.offsets[0]) / max(len(self.offsets) - 1, 1)

    @property
    def sample_nbytes(self) -> int:
        """Size of a sample as stored, on average."""
        return int(self._mean_length * self.row_nbytes) + 1

    @property
    def is_row_wise(self) -> bool:
        """See `Field`: a sample may span several."""
        return False

    @property
    def lands_in_place(self) -> bool:
        """See `Field`: rows are cut out of what was read."""
        return False

    @property
    def load_nbytes(self) -> int:
        """What a sample takes while it is read, on average."""
        return int(self._mean_length * (self.row_nbytes + _LISTED_NBYTES)) + 1

    def nbytes_of(self, samples: Ints) -> int:
        """See `Field`: as long as these are."""
        n_rows = int((self.offsets[samples + 1] - self.offsets[samples]).sum())
        return n_rows * (self.row_nbytes + _LISTED_NBYTES)

    @property
    def n_listed(self) -> int:
        """See `Field`: counted with what samples take."""
        return 0

    @property
    def touched_part(self) -> float:
        """See `Field`, on average."""
        axis = self.members[0].source.layout.inner_axes[0]
        reach = max(self._mean_length - 1, 0) + axis.extent / max(axis.n_cells, 1)
        return min(reach / max(self.array.shape[0], 1), 1.0)

    def facts(self) -> list[Any]:
        """See `Field`."""
        shape = list(self.array.shape)
        cut = f"crc {crc32(self.offsets.tobytes())}"
        return [shape, str(self.array.dtype), *self.origins, cut]

    def axis(self, unit: str) -> GridAxis:
        """Samples, cut where one begins in another shard or inner chunk."""
        stored = super().axis(unit)
        n = len(self.offsets) - 1
        starts = stored.start_of(np.arange(stored.n_cells, dtype=np.int64))
        first = np.searchsorted(self.offsets[:-1], starts)
        bounds = np.unique(np.append(first, [0, n])).astype(np.int64)
        return GridAxis(n, 0, bounds)

    def touches(self, origins: Ints, first: int, stop: int) -> NDArray[np.bool_]:
        """See `Field`."""
        sample = origins[:, 0]
        return (self.offsets[sample] < stop) & (self.offsets[sample + 1] > first)

    def read(self, origins: Ints, memory: Memory) -> tuple[list[Job], Finish]:
        """See `Field`: ranges of one batch, each read once in their stored order."""
        self.tally.add(loaded_samples=len(origins))
        samples, order = origins[:, 0], None
        if not np.all(samples[1:] > samples[:-1]):
            samples, order = np.unique(samples, return_inverse=True)
        first, stop = self.offsets[samples], self.offsets[samples + 1]
        lengths = stop - first
        n_rows = int(lengths.sum())
        values = memory.take((n_rows, *self.array.shape[1:]), self.array.dtype)
        jobs = self._ranges(first, stop, values) if n_rows else []
        places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return jobs, partial(self._rows, values, places, order, memory)

    def _ranges(self, first: Ints, stop: Ints, values: NDArray[Any]) -> list[Job]:
        """Jobs that read ascending ranges of rows one after the other."""
        is_new = np.append(True, first[1:] != stop[:-1])
        ends = np.append(np.flatnonzero(is_new)[1:] - 1, len(first) - 1)
        first, stop = first[is_new], stop[ends]
        first, stop = first[stop > first], stop[stop > first]
        shape = self.array.shape
        if len(first) * _LEAST_RUN > len(values):
            return self._jobs([rows_of_all(_listed(first, stop), shape)], [values])
        ends = np.cumsum(stop - first)
        outs = np.split(values, ends[:-1])
        runs = zip(first.tolist(), stop.tolist(), strict=True)
        wanted = [rows_of_all(np.arange(a, b), shape) for a, b in runs]
        return self._jobs(wanted, outs)

    def _rows(
        self, values: NDArray[Any], places: Ints, order: Ints | None, memory: Memory
    ) -> RaggedRows:
        listed, bounds = None, places
        if order is not None:
            first, stop = places[order], places[order + 1]
            listed = _listed(first, stop)
            bounds = np.concatenate([[0], np.cumsum(stop - first)]).astype(np.int64)
        out = gathered(values, listed, self.conversion, memory, self.n_workers)
        return RaggedRows(out, bounds, packed=self.packed)


def _listed(first: Ints, stop: Ints) -> Ints:
    """All numbers of ranges, one range after the other."""
    lengths = stop - first
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(first - before, lengths)


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Samples of different lengths, one after the other.

    Attributes
    ----------
    values
        Rows of all of them.
    bounds
        int64, shape (n + 1,). Sample i is rows ``bounds[i]:bounds[i + 1]``.
    packed
        See `Ragged`.
    """

    values: Rows
    bounds: Ints
    packed: bool

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.values.nbytes

    def __getitem__(self, rows: slice) -> RaggedRows:
        start, stop, _ = rows.indices(len(self))
        bounds = self.bounds[start : max(start, stop) + 1]
        values = self.values[int(bounds[0]) : int(bounds[-1])]
        return RaggedRows(values, bounds - bounds[0], self.packed)

    def joined(self, parts: Sequence[RaggedRows]) -> RaggedRows:
        """Samples of all parts, one after the other."""
        lengths = np.concatenate([np.diff(part.bounds) for part in parts])
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = concatenated([part.values for part in parts])
        return RaggedRows(values, bounds, self.packed)

    def moved(self, move: Callable[[Any], Rows]) -> RaggedRows:
        """The same with values elsewhere."""
        return RaggedRows(move(self.values), self.bounds, self.packed)

    def exported(self, export: Callable[[Rows], Any]) -> Any:
        """List of what `export` makes of each sample, or of all, with offsets."""
        if self.packed:
            return export(self.values), self.bounds
        bounds = self.bounds.tolist()
        return [export(self.values[first:stop]) for first, stop in pairwise(bounds)]


def read_offsets(ragged: Ragged, name: str) -> Ints:
    """Offsets of a `Ragged`: int64, shape (n_samples + 1,), ascending and inside.

    Raises
    ------
    OptionError
        They are no such offsets of the values.
    """
    given = ragged.offsets
    if isinstance(given, Array):
        given = Array(given.source)[...]  # on the host, wherever it was opened
    offsets = np.asarray(given)
    if offsets.ndim != 1 or not offsets.size or offsets.dtype.kind not in "iu":
        raise OptionError(
            f"offsets of {name} are not whole numbers, one more than samples",
            got=f"{offsets.dtype} of shape {offsets.shape}",
        )
    n_rows = ragged.values.shape[0]
    wrong = np.flatnonzero((offsets < 0) | (offsets > n_rows))
    falls = np.flatnonzero(offsets[1:] < offsets[:-1]) + 1
    at = next(iter([*wrong.tolist(), *falls.tolist()]), None)
    if at is not None:
        raise OptionError(
            f"offsets of {name} do not ascend from 0 to the number of its values",
            expected=f"0 to {n_rows}",
            got=f"offsets[{at}] = {offsets[at]}",
        )
    return offsets.astype(np.int64)
