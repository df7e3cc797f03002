"""The conductor of a verification: every object of an array, whatever is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from time import perf_counter

from gpushard.errors import ObjectChangedError, StoreError, naming
from gpushard.inspection.columns import ByteUse, StoredChunks, byte_use
from gpushard.inspection.contents import Contents, contents_of
from gpushard.inspection.findings import Check, Finding, FindingsSoFar, Verification
from gpushard.inspection.payload import PayloadCheck, payload_tasks
from gpushard.inspection.room import (
    beside_indexes,
    inner_entries,
    is_held,
    is_read_whole,
    most_entries,
    most_unverified,
    refuse_large_index,
    workers,
)
from gpushard.layout import Coordinate
from gpushard.listed import each_of, listed_coordinates
from gpushard.memory.known import IndexCache
from gpushard.options import MIB
from gpushard.planning import blocks
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from gpushard.threads.work_queue import Spawner, Task, Work
from gpushard.threads.workers import run_tasks

# After so many failures the store counts as failed: each may take as long as
# `patience_s`.
_MOST_UNREADABLE = 8
# Overlaps that are reported one by one.
_MOST_REMARKS = 100

Progress = Callable[[float, int], None]
"""Called with the number of further verified objects, and of bytes read for them."""


def verify_array(
    source: Source, *, decodes: bool = False, progress: Progress | None = None
) -> Verification:
    """Verify the stored objects of an array.

    It may hold as much memory as a read: indexes, and the payload in flight.

    Parameters
    ----------
    decodes
        Whether inner chunks are decoded, which is the only way to verify inner chunks
        whose outermost codec is not a checksum.
    progress
        Called from several threads.

    Raises
    ------
    LimitError
        Objects that have to be held whole, or their indexes, are larger than the
        options allow. Too large inner chunks are only a finding, because everything
        else is verified.
    StoreError
        The store fails again and again; a failure for single objects is a finding.
    HostMemoryError
        The host has less memory than the limits allow.
    """
    with naming(source.store, source.layout.path):
        return _verified(source, decodes, progress or _no_progress)


def _verified(source: Source, decodes: bool, progress: Progress) -> Verification:
    started = perf_counter()
    source = replace(source, indexes=IndexCache(0), chunks=None)
    if is_read_whole(source):
        source.room.refuse_large(in_part=False)
    check = PayloadCheck.of(source, decodes=decodes)
    refuse_large_index(source)
    most = most_entries(source)
    n_workers = workers(source)
    listed = listed_coordinates(source)
    if listed is not None and listed.nbytes > MIB:
        source = source.beside(listed.nbytes)
    run = _Run(beside_indexes(source), check, progress, most, n_workers, listed)
    most_nbytes = most_unverified(run.source)
    run_tasks(run.tasks(run.coordinates()), n_workers, most_nbytes)
    changed = sorted(run.changed)
    run.is_second = True
    for coordinate in changed:
        run_tasks(run.tasks(iter([coordinate])), n_workers, most_nbytes)
    result = run.result()
    result.seconds = perf_counter() - started
    return result


def _no_progress(n_objects: float, nbytes: int) -> None:
    """Report no progress."""


@dataclass
class _Run:
    """A verification in progress, which gets findings from several threads.

    At most `most_entries` index entries of one object may be held. Objects that were
    replaced meanwhile are `changed`, and verified again by a second attempt. If
    objects are `listed`, by their coordinates, no others are asked for.
    """

    source: Source
    check: PayloadCheck
    progress: Progress
    most_entries: int
    n_workers: int
    listed: Ints | None
    changed: set[Coordinate] = field(default_factory=set[Coordinate])
    is_second: bool = False
    n_unreadable: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    _found: FindingsSoFar = field(default_factory=FindingsSoFar)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_size_unknown: bool = False

    def coordinates(self) -> Iterator[Coordinate]:
        """Coordinates of the objects to verify; what is not listed is missing."""
        if self.listed is None:
            return self.source.layout.coordinates()
        n_missing = self.source.layout.n_objects - len(self.listed)
        self.counts["n_missing_shards"] = n_missing
        self.progress(n_missing, 0)
        return each_of(self.listed)

    def tasks(self, coordinates: Iterator[Coordinate]) -> Iterator[Work]:
        """Tasks that verify the objects at `coordinates`; drawn one at a time."""
        n_at_once = max(1, blocks.BLOCK_CHUNKS // inner_entries(self.source))
        n_at_once = min(n_at_once, blocks.BLOCK_SHARDS)
        if not self.source.layout.levels:
            # Stores that report no sizes return a whole chunk, which is held.
            room = self.source.options.memory_limit // (4 * self.n_workers)
            largest = max(1, self.source.largest_chunk_nbytes)
            n_at_once = max(1, min(n_at_once, room // largest))
        while some := list(islice(coordinates, n_at_once)):
            if is_held(self.source):
                each = [[one] for one in some] if is_read_whole(self.source) else [some]
                yield from (partial(self._verify_held, few) for few in each)
                continue
            for contents in self._contents(some):
                yield from self._object_tasks(contents)

    def _verify_held(self, some: list[Coordinate]) -> None:
        for contents in self._contents(some):
            for work in self._object_tasks(contents):
                work.spawn()

    def _contents(self, some: list[Coordinate]) -> list[Contents]:
        """Contents of objects; those that cannot be read are findings."""
        try:
            return contents_of(self.source, some, self.most_entries)
        except StoreError as error:
            if len(some) == 1:
                self._begin(some[0])
                self._give_up(some[0], error, None)
                self._end(some[0])
                self.progress(1, 0)
                return []
        return [one for coordinate in some for one in self._contents([coordinate])]

    def _object_tasks(self, contents: Contents) -> Iterator[Spawner]:
        self._begin(contents.coordinate)
        self._record(contents)
        n_stored = 0 if contents.chunks is None else contents.chunks.n_stored
        works = payload_tasks(self.check, contents, self._report, self._advance)
        n_tasks = 0
        for work in works:
            n_tasks += 1
            self._begin(contents.coordinate)
            yield replace(work, spawn=partial(self._guarded, work, contents))
        if not n_tasks or not n_stored:
            self.progress(1, 0)
        self._end(contents.coordinate)

    def _guarded(self, work: Spawner, contents: Contents) -> Sequence[Task]:
        try:
            work.spawn()
        except StoreError as error:
            self._give_up(contents.coordinate, error, contents)
        self._end(contents.coordinate)
        return ()

    def _begin(self, coordinate: Coordinate) -> None:
        with self._lock:
            self._found.begin(coordinate)

    def _end(self, coordinate: Coordinate) -> None:
        with self._lock:  # replaced objects are verified again
            is_void = coordinate in self.changed and not self.is_second
            self._found.end(coordinate, counts=not is_void)

    def _give_up(
        self, coordinate: Coordinate, error: StoreError, contents: Contents | None
    ) -> None:
        """Note that an object could not be read, or was replaced meanwhile."""
        is_changed = isinstance(error, ObjectChangedError)
        with self._lock:
            if is_changed and not self.is_second:
                if coordinate not in self.changed and contents is not None:
                    # The second attempt will count it again.
                    self._count(contents, -1, _unused_nbytes(contents))
                self.changed.add(coordinate)
                return
            self.counts["n_unread_shards"] += contents is None
            self.n_unreadable += not is_changed
            if self.n_unreadable > _MOST_UNREADABLE:
                raise error
        key = self.source.key(coordinate)
        kind = "changed" if is_changed else "unreadable"
        self._note(coordinate, Finding.of(error, key, kind=kind, n_inner_chunks=0))

    def _record(self, contents: Contents) -> None:
        """Count the contents of an object, and note the findings of its indexes."""
        findings = list(contents.findings)
        n_unused = 0
        if contents.chunks is not None:
            use = byte_use(contents.chunks)
            findings += _overlaps(contents.key, contents.chunks, use)
            n_unused = use.unused_nbytes
            del use
        with self._lock:
            self._count(contents, 1, n_unused)
        for finding in self._with_note(contents, findings):
            self._note(contents.coordinate, finding)

    def _count(self, contents: Contents, sign: int, unused_nbytes: int) -> None:
        """Add the contents of an object to the counts, or subtract them again."""
        chunks = contents.chunks
        counts = {"n_missing_shards": int(not contents.exists)}
        if chunks is not None:
            counts |= {
                "n_indexes": len(chunks.index_start),
                "n_inner_chunks": chunks.n_stored,
                "n_missing_inner_chunks": chunks.n_missing(self.source.layout),
                "payload_nbytes": chunks.payload_nbytes,
                "stored_nbytes": chunks.end,
                "unused_nbytes": unused_nbytes,
            }
            self._is_size_unknown |= chunks.object_nbytes is None
        for name, n in counts.items():
            self.counts[name] += sign * n

    def _with_note(
        self, contents: Contents, findings: list[Finding]
    ) -> Iterator[Finding]:
        """Findings, completed with the note of an interrupted write in place."""
        has_note = self._has_note(contents.key)
        is_told = False
        for finding in findings:
            if has_note and finding.kind == "index":
                is_told = True
                yield replace(
                    finding,
                    kind="torn",
                    hint="a write in place was cut off: run verify --repair",
                )
            else:
                yield finding
        if has_note and not is_told:
            yield Finding(
                "note",
                contents.key,
                None,
                0,
                "beside the shard lies the note of a write in place that is under way"
                " or was cut off",
                hint="if nobody is writing, run verify --repair",
            )

    def _has_note(self, key: str) -> bool:
        store = self.source.store
        if not isinstance(store, LocalStore) or not self.source.layout.levels:
            return False
        return FileWriter(store).has_note(key)

    def _report(self, contents: Contents, finding: Finding) -> None:
        self._note(contents.coordinate, finding)

    def _advance(self, contents: Contents, n_chunks: int, nbytes: int) -> None:
        chunks = contents.chunks
        n_stored = 1 if chunks is None else max(1, chunks.n_stored)
        with self._lock:
            self._found.check(contents.coordinate, n_chunks)
            self.counts["read_nbytes"] += nbytes
        self.progress(n_chunks / n_stored, nbytes)

    def _note(self, coordinate: Coordinate, finding: Finding) -> None:
        with self._lock:
            self._found.note(coordinate, finding)

    def result(self) -> Verification:
        """The result."""
        totals = self._found.totals
        self.counts["n_checked_inner_chunks"] = totals["checked inner chunks"]
        checks = [*self._index_checks(), *self.check.described(self.source)]
        findings = self._found.findings
        found = [f for at in sorted(findings) for f in _sorted(findings[at])]
        refused = self.check.refused
        if refused is not None:
            unread = Finding.of(refused, "", kind="unreadable", n_inner_chunks=0)
            found.insert(0, unread)
        n_refused = int(refused is not None)
        layout = self.source.layout
        n_unverified = totals["unverified"] + n_refused
        return Verification(
            layout.path,
            checks,
            {"n_shards": layout.n_objects, **self.counts},
            found,
            n_findings=totals["damage"] + n_unverified + totals["remark"],
            n_damage=totals["damage"],
            n_unverified=n_unverified,
            n_damaged_inner_chunks=totals["damaged inner chunks"],
        )

    def _index_checks(self) -> list[Check]:
        layout = self.source.layout
        if not layout.levels:
            return []
        last = [level.index_chain.bytes_bytes[-1:] for level in layout.levels]
        names = {specs[0].name for specs in last if specs}
        how = "decoded" + (f", with their {', '.join(sorted(names))}" if names else "")
        if not all(specs for specs in last):
            how += ", without a checksum" if not names else " (not at every level)"
        checks = [Check("shard indexes", True, how)]
        if layout.object_codecs:
            around = ", ".join(spec.name for spec in layout.object_codecs)
            checks.insert(0, Check("whole shards", True, f"decoded through {around}"))
        bounds = Check("byte ranges", True, "within their shard, overlaps told")
        if self._is_size_unknown:
            how = "the store tells no sizes: only by reading what they name"
            bounds = Check("byte ranges", self.check.reads, how)
        return [*checks, bounds]


_COUNTS = (
    "n_missing_shards",
    "n_unread_shards",
    "n_indexes",
    "n_inner_chunks",
    "n_missing_inner_chunks",
    "n_checked_inner_chunks",
    "stored_nbytes",
    "payload_nbytes",
    "unused_nbytes",
    "read_nbytes",
)


def _unused_nbytes(contents: Contents) -> int:
    return 0 if contents.chunks is None else byte_use(contents.chunks).unused_nbytes


def _overlaps(key: str, chunks: StoredChunks, use: ByteUse) -> list[Finding]:
    """Findings for overlapping inner chunks, the first of them one by one."""
    findings: list[Finding] = []
    first, others = use.overlapping[:_MOST_REMARKS], use.overlapped[:_MOST_REMARKS]
    for row, other in zip(first.tolist(), others.tolist(), strict=True):
        what = "an index"
        if other >= 0:
            what = f"inner chunk {tuple(chunks.coordinate[other].tolist())}"
        findings.append(
            Finding(
                "overlap",
                key,
                tuple(chunks.coordinate[row].tolist()),
                0,
                f"an inner chunk lies in bytes of {what}: legal, but rarely meant",
                got=f"bytes {int(chunks.start[row])} to {int(chunks.stop[row])}",
            )
        )
    return findings


def _sorted(findings: list[Finding]) -> list[Finding]:
    """Findings about a whole object first, then by inner chunk."""
    return sorted(findings, key=lambda found: (found.inner_chunk or (), found.kind))
