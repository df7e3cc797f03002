"""A device that broke while it decoded -> the damage that it broke of, if it did.

The vendor's decoders promise nothing for damaged streams, and one of these may end the
work of a process on its GPU. The host then decodes what the device had in hand: only
its decoders tell what is wrong, and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpushard.damage import ENDS_READ
from gpushard.device_reading.sink import DeviceSink
from gpushard.errors import CorruptShardError, DeviceError, GpushardError
from gpushard.fetching.job import Answer, Job, JobReader
from gpushard.fetching.ranged import RangedBlock
from gpushard.placing.place import HostSink, completed, decode_row
from gpushard.planning.blocks import ShardBlock
from gpushard.reading.read import execute
from gpushard.report import Tally
from gpushard.selecting.selection import Ints
from gpushard.threads.work_queue import Task

_LOST = "the device is lost with it: start a new process"
_INTACT = "the host found no damage in what was being decoded"
_UNREAD = "the host could not look for damage in what was being decoded"


def blame(
    error: DeviceError,
    jobs: Sequence[Job],
    adapt: Callable[[Job], Job] = lambda job: job,
) -> None:
    """Raise the damage that made a device fail with `error`, if the host finds some.

    `jobs` are those that were under way on the device, and are no more. `adapt` makes
    of a job of the host the one that is run. Otherwise the hint of `error` says what
    the host found. Does nothing if the device still works, and asks nothing of it.

    Raises
    ------
    CorruptShardError
        Also if the read was to go on over damage: no device is left to do so.
    """
    for job in jobs:
        sink = job.sink
        if not isinstance(sink, DeviceSink) or _works(sink):
            continue
        found = _INTACT
        try:
            _look(job, list(sink.under_way()), adapt)
        except CorruptShardError as damage:
            damage.hint = _joined(damage.hint, _LOST)
            raise damage from error
        except GpushardError:
            found = _UNREAD
        if found not in (error.hint or ""):
            error.hint = _joined(error.hint, found)


def _look(job: Job, blocks: Sequence[ShardBlock], adapt: Callable[[Job], Job]) -> None:
    """Decode inner chunks of a job on the host; raises as a read of these."""
    if not blocks:
        return
    options = job.source.options
    # A device has larger batches than the host where no limit is set.
    source = job.source.with_batches(min(options.memory_limit, options.bound_nbytes))
    sink, tally = _LookingSink(blocks), Tally(is_wanted=False)
    looking = replace(job, source=source, sink=sink, tally=tally, damage=ENDS_READ)
    execute([adapt(looking)])


def _joined(hint: str | None, more: str) -> str:
    return more if hint is None else f"{hint}; {more}"


def _works(sink: DeviceSink) -> bool:
    try:
        sink.device.check()
    except DeviceError:
        return False
    return True


class _LookingSink:
    """Decodes the inner chunks of some blocks, and drops what comes out."""

    batch_nbytes = batch_cut = place_kept = None

    def __init__(self, blocks: Sequence[ShardBlock]) -> None:
        self._blocks = blocks
        self.fetch = HostSink((), ()).fetch

    def job_reader(self, job: Job) -> JobReader:
        """Leave over those blocks of the whole job."""
        del job
        return _Only(self._blocks)

    def request_reader(self, job: Job, ranged: RangedBlock) -> None:
        """Do nothing: this sink is given what is fetched."""

    def finish(self) -> None:
        """Do nothing: nothing is under way."""

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        """Do nothing: what is missing is not damaged."""

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        """Decode the inner chunks in some requests; raises as `HostSink.place`."""
        for r, data in fetched:
            rows = ranged.rows_of(r)
            cuts = ranged.cuts(rows, int(ranged.requests.start[r]))
            for row, (start, stop, *whole) in zip(rows.tolist(), cuts, strict=True):
                stored = completed(job.source.room, data[start:stop], *whole)
                decode_row(job, ranged.block, row, stored)


@dataclass(frozen=True, slots=True)
class _Only:
    """Reads nothing of a job, and leaves a few blocks; see `JobReader`."""

    blocks: Sequence[ShardBlock]

    @property
    def seen(self) -> set[str]:
        """None: no index was read."""
        return set()

    def tasks(self, n_workers: int) -> Iterator[Task]:
        """None: the stages of a read do it all."""
        del n_workers
        return iter(())

    def left_over(self) -> Iterator[ShardBlock]:
        """The blocks."""
        return iter(self.blocks)
