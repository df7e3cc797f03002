"""Samples -> loads: fused reads of all arrays, tried again where the store fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import (
    CorruptShardError,
    GpushardError,
    StoreError,
    WindowMovedError,
)
from gpushard.fetching.job import Job
from gpushard.layout import GridAxis
from gpushard.loader.fields import Field, Finish, Rows
from gpushard.loader.order import Order
from gpushard.loader.places import Place
from gpushard.loader.prefetch import Stopped
from gpushard.loader.shares import Share
from gpushard.loader.sizes import most_samples, usual_samples
from gpushard.loader.stopping import stoppable
from gpushard.loader.windows import Origins
from gpushard.options import MIB
from gpushard.reading.read import Prepared, begin, begin_early, finish, prepare
from gpushard.selecting.selection import Ints
from gpushard.workers import Begun

if TYPE_CHECKING:
    from threading import Event

OnError = Literal["raise", "skip"]

# Large enough that a plan costs nothing beside it, small enough that several fit, with
# as much again for samples that are gathered or cast; twice that where none are.
LOAD_NBYTES = 16 * MIB
# Entries that a load has in columns at the most, which take up to 100 bytes each.
_MOST_LISTED = 1 << 18
# Waits before a read that the store failed is tried again, in seconds.
_PAUSES = (0.1, 0.4, 1.6)
_MOST_NAMED = 8
# Loads grow so fast from the first, small one, and are cut where samples that differ in
# length take so many times what they take on average.
_GROWTH, _LARGE = 4, 2


@dataclass(slots=True)
class Load:
    """What one fused read brought.

    Attributes
    ----------
    start
        First turn of the rank that it has samples of.
    kept
        bool, shape (n_turns,): turns whose sample could be read.
    samples
        int64, shape (n_kept,).
    arrays
        One a field, of shape (n_kept, *sample_shape).
    """

    start: int
    kept: NDArray[np.bool_]
    samples: Ints
    arrays: list[Rows]

    @property
    def stop(self) -> int:
        """One past the last turn."""
        return self.start + len(self.kept)


@dataclass(slots=True)
class Planned:
    """A read that is to be made, or was begun.

    Attributes
    ----------
    start
        First turn of the rank that it reads samples of.
    samples
        int64, shape (n_turns,).
    jobs, finishers
        What it consists of.
    prepared
        The jobs, ready to be run; None where they are not yet.
    early
        What other threads do of them as soon as they are free.
    error
        What ended it already.
    """

    start: int
    samples: Ints
    jobs: list[Job] = field(default_factory=list[Job])
    finishers: list[Finish] = field(default_factory=list[Finish])
    prepared: Prepared | None = None
    early: Begun | None = None
    error: GpushardError | None = None


@dataclass
class Incidents:
    """What went wrong and was dealt with: reads tried again, samples left out."""

    n_retries: int = 0
    n_skipped: int = 0


@dataclass(frozen=True)
class Reader:
    """Reads samples of several arrays together.

    Attributes
    ----------
    fields, origins
        The arrays, and where samples begin.
    axis
        Axis 0 of the first array, cut into inner chunks.
    place
        Where samples are read to.
    on_error
        What a sample does that cannot be read.
    stop
        When set, reading ends as soon as a task does.
    n_behind
        Loads that may be under way while the next one is begun.
    """

    fields: Sequence[Field]
    origins: Origins
    axis: GridAxis
    place: Place
    on_error: OnError
    stop: Event
    incidents: Incidents = field(default_factory=Incidents)
    n_behind: int = 0

    @property
    def sample_nbytes(self) -> int:
        """What a sample of all arrays takes while it is read."""
        return max(sum(f.load_nbytes for f in self.fields), 1)

    def plans(self, order: Order, share: Share, start: int) -> Iterator[Planned]:
        """Reads of a rank's turns from `start` on, in order, begun by other threads.

        The first one is small, so that the first batch is soon there.
        """
        is_scattered = order.is_scattered
        usual = usual_samples(
            self.fields,
            self._n_usual,
            self.origins.n,
            is_scattered=is_scattered,
        )
        usual = max(usual, share.batch_size)
        most = most_samples(self.fields, usual, is_scattered=is_scattered)
        most = max(min(most, _MOST_LISTED // self._n_listed), usual)
        n_wanted = max(usual // 8, share.batch_size)
        while start < share.n_turns:
            stop = load_end(order, share, start, n_wanted)
            samples = order.at(share.positions(start, stop))
            is_large = self._nbytes(samples) > _LARGE * most * self.sample_nbytes
            if is_large and n_wanted > share.batch_size:
                n_wanted = max(n_wanted // 2, share.batch_size)
                continue
            handed = [self._planned(start, samples)]
            early = handed[0].early = self._begun_early(handed[0])
            try:
                yield handed.pop()  # and is not held here meanwhile
            except GeneratorExit:  # nobody joins them
                if early is not None:
                    early.end()
                raise
            start, n_wanted = stop, min(_GROWTH * n_wanted, most)

    def _begun_early(self, planned: Planned) -> Begun | None:
        """A read that others begin with once the one ahead leaves them nothing to do.

        They go from one to the next without a wait, also while that is handed out to a
        consumer, who then has the interpreter's lock.
        """
        if planned.prepared is None or planned.error is not None:
            return None
        return begin_early(planned.prepared)

    @property
    def _load_nbytes(self) -> int:
        """What the samples of a usual load take."""
        spares = self.place.has_copies and all(f.lands_in_place for f in self.fields)
        return 2 * LOAD_NBYTES if spares else LOAD_NBYTES

    @property
    def _n_usual(self) -> int:
        """Samples of a usual load, as far as memory goes."""
        by_nbytes = self._load_nbytes // self.sample_nbytes
        return max(min(by_nbytes, _MOST_LISTED // self._n_listed), 1)

    @property
    def _n_listed(self) -> int:
        """Entries that a sample has in columns; 1 if it has none."""
        return max(sum(f.n_listed for f in self.fields), 1)

    def _nbytes(self, samples: Ints) -> int:
        """What these samples take while they are read."""
        return sum(f.nbytes_of(samples) for f in self.fields)

    def loads(self, plans: Iterator[Planned]) -> Iterator[Load]:
        """Loads that were planned, in order.

        What a device has under way is waited for when the next one is under way, too.
        """
        begun: deque[Planned] = deque()
        try:
            for planned in plans:
                self._begin(planned)
                begun.append(planned)
                del planned
                if len(begun) > self.n_behind:
                    yield self._load(begun.popleft())
            while begun:
                yield self._load(begun.popleft())
        finally:
            for left in begun:
                self.place.abandon(left.jobs)

    def _load(self, begun: Planned) -> Load:
        start, samples = begun.start, begun.samples
        kept = np.ones(len(samples), np.bool_)
        try:
            return Load(start, kept, samples, self._read(begun, _PAUSES))
        except (CorruptShardError, StoreError):
            if self.on_error == "raise":
                raise
        kept = self._readable(samples)
        self.incidents.n_skipped += int(len(kept) - kept.sum())
        samples = samples[kept]
        arrays = self._read(self._begun(start, samples), _PAUSES)
        return Load(start, kept, samples, arrays)

    def _read(self, begun: Planned, pauses: Sequence[float]) -> list[Rows]:
        """One array a field; tried again, after each pause, where the store failed."""
        for pause in pauses:
            try:
                return self._finish(begun)
            except WindowMovedError:  # for good
                raise
            except StoreError:
                self.incidents.n_retries += 1
                if self.stop.wait(pause):
                    raise Stopped("stopped") from None
            begun = self._begun(begun.start, begun.samples)
        return self._finish(begun)

    def _planned(self, start: int, samples: Ints) -> Planned:
        """A read of all fields; what goes wrong is raised by `_finish`."""
        planned = Planned(start, samples)
        origins = self.origins.of(samples)
        with self._held(planned):
            for one in self.fields:
                jobs, done = self.place.read(one, origins)
                planned.jobs += jobs
                planned.finishers.append(done)
            if not self._keeps_chunks:
                planned.prepared = self._prepared(planned)
        return planned

    @property
    def _keeps_chunks(self) -> bool:
        """Whether the load before may bring what the next one need not read."""
        members = (member for field in self.fields for member in field.members)
        return any(member.source.chunks is not None for member in members)

    def _prepared(self, planned: Planned) -> Prepared:
        return prepare([stoppable(job, self.stop) for job in planned.jobs])

    def _begin(self, planned: Planned) -> None:
        """Begin a read; what goes wrong is raised by `_finish`."""
        if planned.error is None:
            with self._held(planned):
                begin(planned.prepared or self._prepared(planned), planned.early)

    @contextmanager
    def _held(self, planned: Planned) -> Iterator[None]:
        """Keep what ends a read until it is asked for."""
        try:
            yield
        except GpushardError as error:
            self.place.abandon(planned.jobs)
            self._name(error, planned.samples, self.origins.of(planned.samples))
            planned.error = error
        except BaseException:
            self.place.abandon(planned.jobs)
            raise

    def _begun(self, start: int, samples: Ints) -> Planned:
        planned = self._planned(start, samples)
        self._begin(planned)
        return planned

    def _finish(self, begun: Planned) -> list[Rows]:
        """One array a field, complete."""
        if begun.error is not None:
            raise begun.error
        try:
            finish(begun.jobs)
            return [done() for done in begun.finishers]
        except GpushardError as error:
            self.place.abandon(begun.jobs)
            self._name(error, begun.samples, self.origins.of(begun.samples))
            raise
        except BaseException:
            self.place.abandon(begun.jobs)
            raise

    def _readable(self, samples: Ints) -> NDArray[np.bool_]:
        """Which samples can be read: bool, shape (n_samples,).

        Halves of what fails are tried, down to the samples of one inner chunk. The
        pauses were made before: with one for each piece a shard that is gone for good
        would take minutes.
        """
        kept = np.zeros(len(samples), np.bool_)
        first_row = self.origins.of(samples)[:, 0]
        cell = self.axis.cell_at(np.minimum(first_row, self.axis.extent - 1))
        order = np.argsort(samples, kind="stable")
        pieces = [order]
        while pieces:
            piece = pieces.pop()
            is_one = self._is_one(piece, cell)
            pauses = (0.0,) * len(_PAUSES) if is_one else ()
            try:
                self._read(self._begun(0, samples[piece]), pauses)
            except (CorruptShardError, StoreError):
                if is_one:
                    continue
                middle = len(piece) // 2
                pieces += [piece[:middle], piece[middle:]]
            else:
                kept[piece] = True
        return kept

    def _is_one(self, piece: Ints, cell: Ints) -> bool:
        """Whether samples fail together: one, or rows of one inner chunk each."""
        if len(piece) == 1:
            return True
        is_aligned = len(self.fields) == 1 and self.fields[0].is_row_wise
        return is_aligned and bool(np.all(cell[piece] == cell[piece[0]]))

    def _name(self, error: GpushardError, samples: Ints, origins: Ints) -> None:
        """Say in `error` which samples it keeps from being read."""
        named = [f for f in self.fields if _is_about(f, error)] or list(self.fields)
        source = named[0].members[0].source
        error.add_context(store_url=source.store.url)
        chunk = error.inner_chunk
        if chunk and len(named[0].members) == 1:
            axis = source.layout.inner_axes[0]
            first = int(axis.start_of(chunk[0]))
            stop = first + int(axis.length_of(chunk[0]))
            samples = samples[named[0].touches(origins, first, stop)]
        told = np.sort(samples)[:_MOST_NAMED].tolist()
        more = "" if len(samples) <= _MOST_NAMED else f" and {len(samples) - len(told)}"
        which = ", ".join(map(str, told)) + (f"{more} more" if more else "")
        error.add_note(f"while a loader read samples {which} of {named[0].name}")


def _is_about(field_: Field, error: GpushardError) -> bool:
    return any(member.path == error.array_path for member in field_.members)


def load_end(order: Order, share: Share, start: int, n_wanted: int) -> int:
    """Turn at which a load from `start` on ends: at least one, about `n_wanted`."""
    wanted = share.positions(start, min(start + n_wanted, share.n_turns))
    # What pads a share begins anew, at position 0: then the rest is wanted.
    is_rest = start + n_wanted >= share.n_turns or np.any(wanted[1:] < wanted[:-1])
    position = share.n if is_rest else int(wanted[-1]) + 1
    while (stop := share.n_before(order.cut(position))) <= start:
        position = order.cut(position) + 1
    return stop
