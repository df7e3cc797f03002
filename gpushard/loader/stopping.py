"""Jobs -> jobs that end after their current task once nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpushard.fetching.job import (
    Answer,
    BatchCut,
    Job,
    JobReader,
    KeptPlacer,
    RequestReader,
    RequestsDone,
    Sink,
)
from gpushard.fetching.ranged import RangedBlock
from gpushard.planning.blocks import Block, ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.stores.base import ByteRequest
from gpushard.threads.stop_flag import StopFlag
from gpushard.threads.work_queue import Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Stopped(Exception):  # noqa: N818 - it is no error
    """Raised when nobody waits for a read any more; it never reaches a user."""


def stoppable(job: Job, stop: StopFlag) -> Job:
    """The same job; it ends once `stop` is set."""
    return replace(job, sink=_StoppableSink(job.sink, stop))


@dataclass(frozen=True, slots=True)
class _StoppableReader:
    """A `JobReader` that stops between its tasks."""

    reader: JobReader
    check: Callable[[], None]

    def tasks(self, n_workers: int) -> Iterator[Task]:
        return _checked(self.reader.tasks(n_workers), self.check)

    @property
    def seen(self) -> set[str]:
        return self.reader.seen

    def left_over(self) -> Iterator[Block]:
        return self.reader.left_over()


@dataclass(frozen=True, slots=True)
class _StoppableSink:
    """A `Sink` that refuses further work once nobody waits for it."""

    sink: Sink
    stop: StopFlag

    @property
    def batch_nbytes(self) -> int | None:
        return self.sink.batch_nbytes

    @property
    def batch_cut(self) -> BatchCut | None:
        return self.sink.batch_cut

    def job_reader(self, job: Job) -> JobReader | None:
        reader = self.sink.job_reader(job)
        return None if reader is None else _StoppableReader(reader, self.check)

    def fetch(
        self, job: Job, requests: Sequence[ByteRequest], n_rows: int
    ) -> AbstractContextManager[Sequence[Any]]:
        self.check()
        return self.sink.fetch(job, requests, n_rows)

    def request_reader(self, job: Job, ranged: RangedBlock) -> RequestReader | None:
        self.check()
        reader = self.sink.request_reader(job, ranged)
        if reader is None:
            return None

        def checked(n_workers: int, done: RequestsDone) -> Iterator[Task]:
            return _checked(reader(n_workers, done), self.check)

        return checked

    @property
    def place_kept(self) -> KeptPlacer | None:
        return self.sink.place_kept

    def fill(self, job: Job, block: ShardBlock, rows: Ints) -> None:
        self.sink.fill(job, block, rows)

    def place(self, job: Job, ranged: RangedBlock, fetched: Sequence[Answer]) -> None:
        self.check()
        self.sink.place(job, ranged, fetched)

    def finish(self) -> None:
        self.sink.finish()

    def check(self) -> None:
        """Raise if nobody waits for the job any more."""
        if self.stop.is_set():
            raise Stopped("stopped")


def _checked(tasks: Iterable[Task], check: Callable[[], None]) -> Iterator[Task]:
    """The same tasks; `check` is called before each runs."""

    def run(task: Task) -> None:
        check()
        task()

    for task in tasks:
        yield partial(run, task)
