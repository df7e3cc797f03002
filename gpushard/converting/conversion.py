"""Converts arrays, each from where an interruption left it.

Until a conversion is complete, a mark beside the destination's documents identifies it
and says which parts are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby, islice
from time import perf_counter
from typing import Any

import numpy as np

from gpushard.converting.copying import Copy
from gpushard.converting.kept import TargetArguments, target_blueprint
from gpushard.converting.mark import (
    NAME,
    ConversionMark,
    find_mark,
    refuse_lasting,
    source_fingerprint,
    takes_mark,
)
from gpushard.converting.nodes import Nodes, refuse_clearing
from gpushard.converting.progress import Advance, Progress, counted
from gpushard.converting.tiles import budget_for, with_room
from gpushard.errors import GpushardError, OptionError, naming
from gpushard.fetching.index_room import least_limit
from gpushard.fetching.pieces import least_beside_columns
from gpushard.hierarchies.documents import join
from gpushard.layout import ArrayLayout
from gpushard.moving.watch import watched_source
from gpushard.options import MIB, Options, ReadOptions
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from gpushard.stores.writers import writer_of
from gpushard.threads.workers import run_tasks
from gpushard.writing.assign import WriteSession
from gpushard.writing.blueprint import (
    Blueprint,
    plain_keys,
    put_group,
    put_groups_above,
    refuse_occupied,
    refuse_unfit_place,
)

# An array of one shard that needs no more memory than this waits for the disk or a
# server more than it computes. So many of these make a round: they are converted side
# by side, as far as each has that memory, and noted together.
_LITTLE_NBYTES, _MOST_IN_ROUND = 8 * MIB, 64


@dataclass(frozen=True, slots=True)
class ConvertedArray:
    """Result of converting one array.

    Attributes
    ----------
    shards, chunks
        Shapes of its shards and inner chunks.
    nbytes
        Size of its elements.
    n_shards
        Number of shards in its grid.
    n_written
        Number of objects written; a shard with only fill values gets none.
    n_resumed
        Number of shards that an earlier, interrupted conversion had finished.
    """

    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    nbytes: int
    n_shards: int
    n_written: int
    n_resumed: int


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Result of a conversion.

    Attributes
    ----------
    arrays
        The converted arrays, by path relative to the destination; "" is a single array.
    seconds
        Time that the conversion took, with verification.
    verified
        Whether everything was read back and compared.
    """

    arrays: Mapping[str, ConvertedArray]
    seconds: float
    verified: bool


@dataclass
class _Job:
    """One array of a conversion: its source, the array to make, and the progress.

    `enough_nbytes` is a memory limit with which no shard is divided; 0 as long as that
    is not known.
    """

    source: Source
    blueprint: Blueprint
    mark: ConversionMark
    enough_nbytes: int = 0

    @property
    def is_little(self) -> bool:
        n_shards = self.blueprint.layout.n_objects
        return n_shards <= 1 and self.enough_nbytes <= _LITTLE_NBYTES

    @property
    def nbytes(self) -> int:
        return self.source.layout.nbytes

    def copy(self, store: Store, options: Options) -> Copy:
        """The work on the shards of the array."""
        joins = not isinstance(store, LocalStore)
        source = self.source
        target = Source.prepare(self.blueprint.layout, store, options)
        least = max(
            _least_read_nbytes(one, target.layout.shards or ())
            for one in (source, target)
        )
        layouts = source.layout, target.layout
        wide = with_room(
            *layouts,
            target.options,
            joins=joins,
            least_read_nbytes=least,
            reads_parts=source.pipeline.is_raw,
        )
        budget = budget_for(*layouts, wide, joins=joins, least_read_nbytes=least)
        limit = wide.memory_limit
        source, target = (
            one.with_options(one.options.widened_to(limit)) for one in (source, target)
        )
        return Copy(source, target, self.mark, budget)


@dataclass
class Conversion:
    """All `nodes` of one conversion, from `store` to a `place` in the store `to`."""

    nodes: Nodes
    store: Store
    to: Store
    place: str
    options: ReadOptions
    resume: bool
    overwrite: bool

    def run(
        self, target: TargetArguments, progress: Progress, *, verify: bool
    ) -> ConversionReport:
        """Convert all arrays; then verify them if `verify`."""
        started = perf_counter()
        jobs = self._planned(target)
        nbytes = sum(job.nbytes for job in jobs.values())
        with counted(2 * nbytes if verify else nbytes, progress) as advance:
            mark = self._mark_of_all(jobs) if self.nodes.groups else jobs[""].mark
            arrays = self._convert_all(jobs, mark, advance)
            put_groups_above(self.to, self.place)
            for job in jobs.values() if verify else ():
                job.copy(self.to, self.options).verify(advance)
            mark.remove()
        return ConversionReport(arrays, perf_counter() - started, verify)

    def _planned(self, target: TargetArguments) -> dict[str, _Job]:
        """Plan each array; raises before any work if an array cannot be converted."""
        writer_of(self.to)  # here, where the error names the destination
        refuse_lasting(self.to)
        refuse_unfit_place(self.to, self.place)
        jobs: dict[str, _Job] = {}
        for path, layout in self.nodes.arrays.items():
            with naming(self.store, layout.path):
                jobs[path] = self._job(path, layout, target)
                copy = jobs[path].copy(self.to, self.options)
                jobs[path].enough_nbytes = copy.budget.enough_nbytes
                WriteSession(
                    Source.prepare(jobs[path].blueprint.layout, self.to, self.options)
                )
        return jobs

    def _job(self, path: str, layout: ArrayLayout, target: TargetArguments) -> _Job:
        place = join(self.place, path)
        try:
            blueprint = target_blueprint(layout, target, place, self.options)
        except GpushardError as error:
            # Errors in the arguments, and those that name the place of the new document
            # already, are not about the source.
            if isinstance(error, OptionError) or error.array_path is not None:
                error.add_context(store_url=self.to.url, array_path=place)
            raise
        mark = ConversionMark(
            store=self.to,
            key=join(place, NAME),
            source=source_fingerprint(self.store, layout),
            document=sha256(blueprint.documents[-1][1]).hexdigest(),
            done=np.zeros(blueprint.layout.n_objects, np.bool_),
        )
        source = watched_source(layout, self.store, self.options)
        return _Job(source, blueprint, mark)

    def _mark_of_all(self, jobs: Mapping[str, _Job]) -> ConversionMark:
        """The mark of a group's conversion, which says which arrays are finished."""
        sources = repr([(path, job.mark.source) for path, job in jobs.items()])
        documents = repr([job.mark.document for job in jobs.values()])
        return ConversionMark(
            store=self.to,
            key=join(self.place, NAME),
            source=sha256(sources.encode()).hexdigest(),
            document=sha256(documents.encode()).hexdigest(),
            done=np.zeros(len(jobs), np.bool_),
        )

    def _convert_all(
        self, jobs: dict[str, _Job], mark: ConversionMark, advance: Advance
    ) -> dict[str, ConvertedArray]:
        """Convert the arrays that are not finished, round by round."""
        if not self.nodes.groups:
            self._start(jobs[""].blueprint, mark)
            return {"": self._convert(jobs[""], advance)}
        self._start(None, mark)
        for path, attributes in self.nodes.groups.items():
            put_group(self.to, join(self.place, path), attributes)
        converted: dict[str, ConvertedArray] = {}
        for some in _rounds(jobs):
            first = len(converted)
            done = mark.done[first : first + len(some)]
            convert = partial(self._convert_in_group, converted, advance)
            each = zip(some, done.tolist(), strict=True)
            n_at_once = self._n_at_once(len(some))
            run_tasks((partial(convert, *one, noted) for one, noted in each), n_at_once)
            if not done.all():
                done[:] = True
                mark.write()
            # If an interruption came just here, the marks of these are still there.
            run_tasks((job.mark.remove for _, job in some), n_at_once)
        return {path: converted[path] for path in jobs}

    def _n_at_once(self, n_jobs: int) -> int:
        """How many of the jobs of a round to do side by side."""
        n = min(self.options.memory_limit // _LITTLE_NBYTES, self.to.costs.concurrency)
        return max(1, min(n, n_jobs))

    def _convert_in_group(
        self,
        converted: dict[str, ConvertedArray],
        advance: Advance,
        path: str,
        job: _Job,
        is_done: bool,
    ) -> None:
        """Convert an array, unless the group's mark says that it is done."""
        with naming(self.store, job.source.layout.path):
            if is_done:
                job.mark.done[:] = True
            else:
                self._start(job.blueprint, job.mark)
            converted[path] = self._convert(job, advance)

    def _convert(self, job: _Job, advance: Advance) -> ConvertedArray:
        copy = job.copy(self.to, self.options)
        if not job.mark.done.all() and job.mark.is_resumed:
            job.mark.look_for(copy.key_of)
        n_resumed = int(job.mark.done.sum())
        n_written = copy.run(advance)
        layout = job.blueprint.layout
        return ConvertedArray(
            shards=layout.shards or (),
            chunks=layout.chunks or (),
            nbytes=job.nbytes,
            n_shards=len(job.mark.done),
            n_written=n_written,
            n_resumed=n_resumed,
        )

    def _start(self, blueprint: Blueprint | None, mark: ConversionMark) -> None:
        """Make a place ready: mark it if it is free, or resume what lies there."""
        place = mark.key.removesuffix(NAME).rstrip("/")
        with naming(self.to, place):  # not the source, which the caller names
            self._make_ready(place, blueprint, mark)

    def _make_ready(
        self, place: str, blueprint: Blueprint | None, mark: ConversionMark
    ) -> None:
        found = find_mark(self.to, place) if self.resume or not self.overwrite else None
        if found is not None and self.resume and mark.matches(found):
            self._go_on(blueprint, mark, found)
            return
        is_top = place == self.place
        if self.overwrite and is_top:
            self._clear()
        elif found is not None:
            raise OptionError(
                "an unfinished conversion lies at the destination, of another source"
                " or to other shapes or codecs, or of a source written since",
                hint="repeat the very conversion to finish it, or pass overwrite=True"
                " and resume=False to delete what is there",
            )
        else:
            refuse_occupied(self.to, plain_keys(place))
        mark.write()
        if blueprint is not None:
            blueprint.put(self.to)

    def _clear(self) -> None:
        """Delete everything at the destination, unless it is the source."""
        if takes_mark(self.to):
            paths = [layout.path for layout in self.nodes.arrays.values()]
            refuse_clearing(self.store, paths, (self.to, self.place))
        writer_of(self.to).clear(self.place)

    def _go_on(
        self, blueprint: Blueprint | None, mark: ConversionMark, found: dict[str, Any]
    ) -> None:
        """Continue an interrupted conversion, with the documents that it made."""
        mark.take_over(found)
        if blueprint is None:
            return
        key, document = blueprint.documents[-1]
        there = self.to.get(key)
        if there is None:
            blueprint.put(self.to)
        elif there != document:
            raise OptionError(
                "the destination's metadata were changed since its conversion began",
                hint="pass overwrite=True and resume=False to begin anew",
            )
        writer = writer_of(self.to)
        if isinstance(writer, FileWriter):
            for name, _ in blueprint.documents:
                writer.drop_stale_lock(name)


def _rounds(jobs: Mapping[str, _Job]) -> Iterator[list[tuple[str, _Job]]]:
    """The arrays in order: several little ones at a time, or one other."""
    for is_little, alike in groupby(jobs.items(), lambda one: one[1].is_little):
        while some := list(islice(alike, _MOST_IN_ROUND if is_little else 1)):
            yield some


def _least_read_nbytes(source: Source, shard: tuple[int, ...]) -> int:
    """Memory limit that suffices to read the elements of a new shard from an array."""
    options = source.options
    needed = least_beside_columns(source, shard)
    # If the limit is below the least one, reads may take more than the limit.
    needed += options.memory_limit - options.bound_nbytes
    return max(least_limit(source), source.work_nbytes + source.whole_nbytes, needed)
