"""Samples -> loads: fused reads of all arrays, repeated if the store fails.

Every error of a read passes `Reader._failing`, and every stop ends in `Reader.loads`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import (
    CorruptShardError,
    DeviceError,
    GpushardError,
    StoreError,
    WindowMovedError,
)
from gpushard.layout import GridAxis
from gpushard.loader.blame import name_samples
from gpushard.loader.fields import Field, SampleRows, concatenated
from gpushard.loader.groups import Groups
from gpushard.loader.loads import Incidents, Load, PlannedLoad
from gpushard.loader.losses import Losses, quick_until
from gpushard.loader.order import Order
from gpushard.loader.places import Place
from gpushard.loader.shares import Share
from gpushard.loader.sizes import (
    fair_samples,
    load_end,
    load_nbytes,
    load_samples,
    whole_batches,
)
from gpushard.loader.stopping import Stopped, stoppable
from gpushard.loader.windows import Origins
from gpushard.options import MIB
from gpushard.reading.read import Prepared, finish, prepare, run, start_early
from gpushard.selecting.selection import Ints
from gpushard.threads.stop_flag import StopFlag

OnError = Literal["raise", "skip"]

# Usual size of a load. It is large enough that its plan costs little, and small enough
# that several loads fit, each with a second copy for samples that are cast.
LOAD_NBYTES = 16 * MIB
# Pauses before a failed read is tried again, in seconds.
_PAUSES = (0.1, 0.4, 1.6)
# The same for a sample alone, where a store may be dead.
_SHORT_PAUSE = 0.05
# Loads grow by this factor, from a small first one. A load of samples that differ in
# length is cut if it takes more than _LARGE times its mean size.
_GROWTH, _LARGE = 4, 2


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads samples of several arrays together.

    Attributes
    ----------
    fields, origins
        The arrays, and where samples begin.
    axis
        Axis 0 of the first array, cut into inner chunks.
    place
        Memory that samples are read into.
    on_error
        What to do with samples that cannot be read.
    stop
        Set to end reading after the current task, whose requests are broken off.
    n_under_way
        Number of loads that may be under way when the next one is begun.
    n_asked
        Number of loads that stores over a network are asked for while another is read.
    attempts
        The read that was begun last to repeat a load, or a part of it; or none.
    """

    fields: Sequence[Field]
    origins: Origins
    axis: GridAxis
    place: Place
    on_error: OnError
    stop: StopFlag
    incidents: Incidents = field(default_factory=Incidents)
    n_under_way: int = 0
    n_asked: int = 0
    attempts: list[PlannedLoad] = field(default_factory=list[PlannedLoad])

    def plans(
        self, order: Order, share: Share, start: int, *, is_awaited: bool = True
    ) -> Iterator[PlannedLoad]:
        """Reads of a rank's turns from `start` on, in order; other threads begin them.

        If the first batch is awaited, its read is small, so that it comes early.
        """
        fields, room, n = self.fields, self._room_nbytes, self.origins.n
        least, is_anywhere = share.batch_size, order.is_scattered
        usual, most = load_samples(fields, room, n, least, is_scattered=is_anywhere)
        each_nbytes = load_nbytes(fields)
        n_wanted = max(usual // 8, least) if is_awaited else most
        # No server is asked for anything else beside the read that is awaited. Indexes
        # that it fetches are known to the next one.
        n_in_turn = 2 if is_awaited else 0
        losses, is_whole = Losses(fields, self.origins), start == 0
        while start < share.n_turns:
            n_whole = whole_batches(start, n_wanted, least)
            stop = self._end(order, share, start, n_whole, most)
            samples = order.at(share.positions(start, stop))
            origins = self.origins.of(samples)
            most_nbytes = each_nbytes * max(_LARGE * most, stop - start)
            is_large = sum(f.nbytes_of(origins) for f in fields) > most_nbytes
            if is_large and n_wanted > least:
                n_wanted = max(n_wanted // 2, least)
                continue
            kept = ~losses.of(samples)
            if not kept.all():
                samples, origins = samples[kept], origins[kept]
            ends = is_whole and stop == share.n_turns
            handed = [PlannedLoad(start, kept, samples, losses, ends)]
            self._plan(handed[0], origins)
            # Free threads begin with it once the read ahead leaves them nothing to do,
            # even while a result is handed out to a consumer, who then holds the
            # interpreter's lock.
            ready = handed[0].prepared
            early = None
            if ready is not None:
                n_asked = 0 if n_in_turn else self.n_asked
                early = handed[0].early = start_early(ready, n_asked)
            n_in_turn = max(n_in_turn - 1, 0)
            try:
                yield handed.pop()  # popped, so that it is not held here meanwhile
            except GeneratorExit:  # `run` will not wait for the threads
                if early is not None:
                    early.end()
                raise
            start, n_wanted = stop, min(_GROWTH * n_wanted, most)

    def _end(
        self, order: Order, share: Share, start: int, n_whole: int, most: int
    ) -> int:
        """Turn at which a load from `start` ends, of about `n_whole` samples.

        Whoever waits for the last sample of large inner chunks holds all others.
        """
        stop = load_end(order, share, start, n_whole, most)
        n = stop - start
        if n <= _LARGE * most:
            return stop
        fitting = self.place.most_load_nbytes // load_nbytes(self.fields)
        n_fair = min(fair_samples(self.fields, n, share.n_turns), fitting)
        if n_fair >= n:
            return stop
        return start + whole_batches(start, max(n_whole, n_fair), share.batch_size)

    @property
    def _room_nbytes(self) -> int:
        """Memory for the samples of a usual load, in bytes."""
        in_place = all(field.lands_in_place for field in self.fields)
        return LOAD_NBYTES * self.place.load_factor(lands_in_place=in_place)

    def loads(self, plans: Iterator[PlannedLoad]) -> Generator[Load]:
        """Loads for the planned reads, in order.

        On a device, a load is waited for once the next one is under way.
        """
        under_way: deque[PlannedLoad] = deque()
        try:
            for planned in plans:
                under_way.append(planned)
                self._leave_out_lost(planned)
                self._begin(planned)
                del planned
                if len(under_way) > self.n_under_way:
                    yield self._oldest(under_way)
            while under_way:
                yield self._oldest(under_way)
        except Stopped:  # nobody waits for loads any more
            return
        finally:
            for left in (*self.attempts, *under_way):
                self.place.abandon(left.jobs)
            self.attempts.clear()

    def _oldest(self, under_way: deque[PlannedLoad]) -> Load:
        """Load of the oldest read in `under_way`, which is then removed from it.

        If a device broke of damage, that may be damage in any of the reads. After an
        error or an interrupt, `under_way` and `attempts` have what is to be abandoned.
        """
        try:
            load = self._load(under_way[0])
        except DeviceError as error:
            reads = [*self.attempts, *under_way]
            for read in reads:
                self.place.abandon(read.jobs)
            for read in reads:
                with self._failing(read):
                    self.place.blame(error, read.jobs, self.stop)
            raise
        under_way.popleft()
        self.attempts.clear()
        return load

    def _leave_out_lost(self, read: PlannedLoad) -> None:
        """Plan a read anew if it needs what is lost since it was planned."""
        lost = read.losses.of(read.samples)
        if not lost.any():
            return
        if read.early is not None:
            read.early.end()
        self.place.abandon(read.jobs)
        read.kept, read.samples = read.kept.copy(), read.samples[~lost]
        read.kept[read.kept] = ~lost
        read.unplan()  # its memory is not to be held beside that of the new plan
        self._plan(read, self.origins.of(read.samples))

    def _load(self, read: PlannedLoad) -> Load:
        kept, samples, losses = read.kept, read.samples, read.losses
        arrays = self._whole(read)
        if arrays is None:
            is_left, arrays = self._left(samples, losses, _PAUSES)
            kept, samples = kept.copy(), samples[is_left]
            kept[kept] = is_left
        if read.ends_epoch:
            losses.refuse_dead_store(is_end=True)
        self.incidents.n_skipped += int(len(kept) - kept.sum())
        return Load(read.start, kept, samples, arrays)

    def _whole(self, read: PlannedLoad) -> list[SampleRows] | None:
        """All samples of a read; None if some of them may have to be left out."""
        losses, started = read.losses, monotonic()
        try:
            arrays = self._read(read, () if losses.n_failing else _PAUSES)
        except (CorruptShardError, StoreError) as error:
            if self.on_error == "raise":
                raise
            seconds = monotonic() - started
            losses.suspected.clear()
            losses.note_failed(error, read.samples, seconds, "repeatedly")
            losses.refuse_dead_store()
            return None
        losses.note_read(read.samples)
        return arrays

    def _left(
        self, samples: Ints, losses: Losses, pauses: Sequence[float]
    ) -> tuple[NDArray[np.bool_], list[SampleRows]]:
        """Which samples can be read, bool, shape (n_samples,); and these, by field.

        What can be read in groups may fail together: of a store that fails now and
        then, a read of many requests never succeeds. Its halves are then read.
        """
        kept = self._readable(samples, losses)
        left = samples[kept]
        try:
            return kept, self._read(self._begin_again(left, losses), pauses)
        except (CorruptShardError, StoreError):
            if not len(left):
                raise
        middle = len(left) // 2
        if not middle:
            nothing = self._begin_again(left[:0], losses)
            return np.zeros_like(kept), self._read(nothing, ())
        at_once = (0.0,) * len(_PAUSES)
        parts = (left[:middle], left[middle:])
        halves = [self._left(part, losses, at_once) for part in parts]
        kept[kept] = np.concatenate([is_left for is_left, _ in halves])
        by_field = zip(*(arrays for _, arrays in halves), strict=True)
        return kept, [concatenated(pair) for pair in by_field]

    def _read(
        self, read: PlannedLoad, pauses: Sequence[float], until: float = math.inf
    ) -> list[SampleRows]:
        """One array for each field; a failed read is repeated after each pause.

        None is repeated after the time `until`.
        """
        for pause in pauses:
            try:
                return self._finish(read)
            except WindowMovedError:  # trying again cannot help
                raise
            except StoreError:
                if monotonic() > until:
                    raise
                self.incidents.n_retries += 1
                if self.stop.wait(pause):
                    raise Stopped("stopped") from None
            read = self._begin_again(read.samples, read.losses)
        return self._finish(read)

    def _plan(self, planned: PlannedLoad, origins: Ints) -> None:
        """Plan a read of all fields; `_finish` raises its errors."""
        with self._failing_later(planned):
            for array_field in self.fields:
                # The memory of the result may be lacking.
                with array_field.naming_errors():
                    jobs, done = self.place.read(array_field, origins)
                planned.jobs += jobs
                planned.finishers.append(done)
            if not any(array_field.keeps_chunks for array_field in self.fields):
                planned.prepared = self._prepared(planned)

    def _prepared(self, planned: PlannedLoad) -> Prepared:
        return prepare([stoppable(job, self.stop) for job in planned.jobs])

    def _begin(self, planned: PlannedLoad) -> None:
        """Begin a read; `_finish` raises its errors."""
        if planned.error is None:
            with self._failing_later(planned):
                run(planned.prepared or self._prepared(planned), planned.early)

    @contextmanager
    def _failing(self, read: PlannedLoad) -> Iterator[None]:
        """What every error of a read goes through: it names the samples of the read.

        No work of the read is under way any more when the error is raised.
        """
        try:
            yield
        except BaseException as error:
            self.place.abandon(read.jobs)
            if isinstance(error, GpushardError):
                origins = self.origins.of(read.samples)
                name_samples(error, self.fields, read.samples, origins)
            raise

    @contextmanager
    def _failing_later(self, read: PlannedLoad) -> Iterator[None]:
        """Keep an error of a read until its result is wanted."""
        try:
            with self._failing(read):
                yield
        except GpushardError as error:
            read.error = error

    def _begin_again(self, samples: Ints, losses: Losses) -> PlannedLoad:
        self.attempts.clear()  # its memory is not to be held beside the next one's
        planned = PlannedLoad(0, np.ones(len(samples), np.bool_), samples, losses)
        self._plan(planned, self.origins.of(samples))
        self.attempts.append(planned)
        self._begin(planned)
        return planned

    def _finish(self, read: PlannedLoad) -> list[SampleRows]:
        """One complete array for each field."""
        if read.error is not None:
            if self.stop.is_set():  # it may be of a request that was broken off
                raise Stopped("stopped")
            raise read.error
        with self._failing(read):
            finish(read.jobs)
            arrays: list[SampleRows] = []
            for array_field, done in zip(self.fields, read.finishers, strict=True):
                with array_field.naming_errors():
                    arrays.append(done())
            return arrays

    def _readable(self, samples: Ints, losses: Losses) -> NDArray[np.bool_]:
        """Which samples can be read: bool, shape (n_samples,).

        Groups are tried without pauses, because `_read` paused before. With pauses for
        each group, many shards that are lost for good would take minutes.
        """
        groups = Groups(samples, losses, self.axis)
        while (group := groups.next()) is not None:
            pause = _SHORT_PAUSE if losses.n_failing > 1 else 0.0
            pauses = (pause,) * len(_PAUSES) if groups.is_alone else ()
            started, until = monotonic(), quick_until()
            try:
                self._read(self._begin_again(group, losses), pauses, until)
            except (CorruptShardError, StoreError) as error:
                groups.note_failed(error, monotonic() - started)
            else:
                groups.note_read()
        return groups.kept
