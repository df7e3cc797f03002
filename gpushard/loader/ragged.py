"""Samples of different lengths: rows of one array, cut at another array's offsets."""

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
from gpushard.loader.fields import Box, Field, Finish, SampleRows, concatenated
from gpushard.loader.memory import Memory
from gpushard.selecting.numbering import distinct
from gpushard.selecting.patches import Patches
from gpushard.selecting.selection import Ints

# Size of the columns of one sample.
_COLUMNS_NBYTES = 100


@dataclass(frozen=True)
class Ragged:
    """Samples of different lengths, for a `Loader`: each sample is a run of rows.

    A batch of such samples is a list with one array for each sample.

    Parameters
    ----------
    values
        The rows of all samples, one sample after the other: an array, or several that
        `concat` joined.
    offsets
        Array of gpushard or NumPy, whole numbers, shape (n_samples + 1,): sample i is
        ``values[offsets[i]:offsets[i + 1]]``. The loader reads it when it is made.
    packed
        Whether a batch is one array with its own offsets instead of a list:
        ``(values, offsets)``, offsets int64 of NumPy, shape (n_batch + 1,), starting
        at 0.
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
        """Mean size of a sample before the conversion, in bytes."""
        return int(self._mean_length * self.row_nbytes) + 1

    @property
    def is_row_wise(self) -> bool:
        """See `Field`: a sample may have several rows."""
        return False

    @property
    def lands_in_place(self) -> bool:
        """See `Field`: loads stay small, because the lengths of samples differ."""
        return False

    @property
    def load_nbytes(self) -> int:
        """Mean memory for a sample during the read, in bytes."""
        return int(self._mean_length * self.row_nbytes) + _COLUMNS_NBYTES

    def nbytes_of(self, origins: Ints) -> int:
        """See `Field`: computed from the lengths of these samples."""
        sample = origins[:, 0]
        n_rows = int((self.offsets[sample + 1] - self.offsets[sample]).sum())
        return n_rows * self.row_nbytes + len(sample) * _COLUMNS_NBYTES

    @property
    def n_listed(self) -> int:
        """See `Field`: 0, because `load_nbytes` includes the columns."""
        return 0

    @property
    def touched_part(self) -> float:
        """See `Field`: for a sample of mean length."""
        axis = self.members[0].source.layout.inner_axes[0]
        reach = max(self._mean_length - 1, 0) + axis.extent / max(axis.n_cells, 1)
        return min(reach / max(self.array.shape[0], 1), 1.0)

    def facts(self) -> list[Any]:
        """See `Field`."""
        shape = list(self.array.shape)
        cut = f"crc {crc32(self.offsets.tobytes())}"
        return [shape, str(self.array.dtype), *self.origins, cut]

    def axis(self, unit: str, d: int = 0) -> GridAxis:
        """Samples, cut where the first row is in another shard or inner chunk."""
        stored = super().axis(unit, d)
        n = len(self.offsets) - 1
        starts = stored.start_of(np.arange(stored.n_cells, dtype=np.int64))
        first = np.searchsorted(self.offsets[:-1], starts)
        bounds = distinct(np.append(first, [0, n])).astype(np.int64)
        return GridAxis(n, 0, bounds)

    def touches(self, origins: Ints, box: Box) -> NDArray[np.bool_]:
        """See `Field`; an empty sample has none."""
        (first, stop), sample = box[0], origins[:, 0]
        begin = np.maximum(self.offsets[sample], first)
        return begin < np.minimum(self.offsets[sample + 1], stop)

    def read(self, origins: Ints, memory: Memory) -> tuple[list[Job], Finish]:
        """See `Field`: the samples are read to one array, one after the other."""
        self.tally.add(loaded_samples=len(origins))
        first = self.offsets[origins[:, 0]]
        lengths = self.offsets[origins[:, 0] + 1] - first
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rest = self.array.shape[1:]
        values = memory.take((int(bounds[-1]), *rest), self.on_read.dtype)
        has_rows = np.flatnonzero(lengths if 0 not in rest else np.zeros_like(lengths))
        whole = tuple(np.array([extent]) for extent in rest)
        none = (np.zeros(1, np.int64),) * len(rest)
        patches = Patches(
            len(has_rows),
            (first[has_rows], *none),
            (lengths[has_rows], *whole),
            (bounds[:-1][has_rows], *none),
            values.shape,
        )
        jobs = self._jobs([patches], [values])
        return jobs, partial(self._rows, values, bounds, memory)

    def _rows(self, values: NDArray[Any], bounds: Ints, memory: Memory) -> RaggedRows:
        out = self._converted(values, memory)
        return RaggedRows(out, bounds, packed=self.packed)


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Samples of different lengths, one after the other.

    Attributes
    ----------
    values
        Rows of all samples.
    bounds
        int64, shape (n + 1,). Sample i is rows ``bounds[i]:bounds[i + 1]``.
    packed
        See `Ragged`.
    """

    values: SampleRows
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
        """Samples of all parts, one after the other, in new memory."""
        lengths = np.concatenate([np.diff(part.bounds) for part in parts])
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = concatenated([part.values for part in parts])
        return RaggedRows(values, bounds, self.packed)

    def moved(self, move: Callable[[Any], SampleRows]) -> RaggedRows:
        """The same samples, with their values moved by `move`."""
        return RaggedRows(move(self.values), self.bounds, self.packed)

    def exported(self, export: Callable[[SampleRows], Any]) -> Any:
        """List of `export` of each sample; if packed, `export` of all, and offsets."""
        if self.packed:
            return export(self.values), self.bounds
        bounds = self.bounds.tolist()
        return [export(self.values[first:stop]) for first, stop in pairwise(bounds)]


def read_offsets(ragged: Ragged, name: str) -> Ints:
    """Offsets of a `Ragged`: int64, shape (n_samples + 1,), ascending and in range.

    Raises
    ------
    OptionError
        The offsets are not whole numbers, do not ascend or are out of range.
    """
    given = ragged.offsets
    if isinstance(given, Array):
        given = Array(given.source)[...]  # read on the host, whatever its device
    try:
        offsets = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise OptionError(f"offsets of {name} must be a flat list") from error
    if offsets.ndim != 1 or not offsets.size or offsets.dtype.kind not in "iu":
        raise OptionError(
            f"offsets of {name} must be whole numbers, one more than there are samples",
            got=f"{offsets.dtype} of shape {offsets.shape}",
        )
    n_rows = ragged.values.shape[0]
    wrong = np.flatnonzero((offsets < 0) | (offsets > n_rows))
    falls = np.flatnonzero(offsets[1:] < offsets[:-1]) + 1
    at = next(iter([*wrong.tolist(), *falls.tolist()]), None)
    if at is not None:
        raise OptionError(
            f"offsets of {name} must ascend from 0 to the number of its values",
            expected=f"0 to {n_rows}",
            got=f"offsets[{at}] = {offsets[at]}",
        )
    return offsets.astype(np.int64)
