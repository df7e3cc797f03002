"""Checks of the bytes of stored inner chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, LimitError
from gpushard.fetching.fetch import fetch_payload
from gpushard.formats.codec_specs import CHECKSUMS
from gpushard.inspection.columns import StoredChunks, holds_elements
from gpushard.inspection.contents import Contents
from gpushard.inspection.findings import Check, Finding
from gpushard.planning.coalesce import Requests, coalesce
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest
from gpushard.threads.work_queue import Spawner, Task

# Largest payload of one task, except for larger inner chunks; progress is reported
# after each task.
_TASK_NBYTES = 16 << 20

Report = Callable[[Contents, Finding], None]
Advance = Callable[[Contents, int, int], None]
"""Called with the object, the number of checked inner chunks, and the bytes read."""


@dataclass(frozen=True, slots=True)
class PayloadCheck:
    """How the bytes of an array's inner chunks are checked.

    Attributes
    ----------
    decodes
        Whether inner chunks are decoded, which checks all checksums and sizes inside.
    checksum
        Name of the outermost codec, if that is a checksum; None otherwise.
    refused
        Why no inner chunk may be held, so that its bytes are not checked.
    """

    decodes: bool
    checksum: str | None
    refused: LimitError | None = None

    @classmethod
    def of(cls, source: Source, *, decodes: bool) -> PayloadCheck:
        """The checks that are possible for the array of `source`."""
        # The last codec of a chain covers the stored bytes: it verifies them as they
        # are.
        last = source.pipeline.bytes_codecs[-1:]
        name = last[0].name if last and last[0].name in CHECKSUMS else None
        check = cls(decodes, name)
        if check.reads:
            try:
                source.room.refuse_large(in_part=False)
            except LimitError as error:
                return replace(check, refused=error)
        return check

    @property
    def reads(self) -> bool:
        """Whether payload is fetched at all."""
        return self.refused is None and (self.decodes or self.checksum is not None)

    def described(self, source: Source) -> list[Check]:
        """The checks of the payload that are done, and those that are not."""
        codecs = [placed.codec for placed in reversed(source.pipeline.placements())]
        is_sized = source.chunk_shape is not None and (
            source.pipeline.payload_nbytes(source.chunk_shape) is not None
        )
        sizes = "compared with the size that the codecs make"
        if not is_sized:
            sizes = "at most what the codecs can make of an inner chunk"
        checks = [Check("sizes of inner chunks", True, sizes)]
        if self.refused is not None:
            how = f"{self.refused.what}: {self.refused.got}"
            return [*checks, Check("bytes of inner chunks", False, how)]
        if self.decodes:
            how = f"decoded through {', '.join(codecs)}"
            return [*checks, Check("bytes of inner chunks", True, how)]
        if self.checksum:
            how = f"their {self.checksum} checksum"
            checks.append(Check("bytes of inner chunks", True, how))
            if codecs[:-1] != ["bytes"]:  # uncompressed elements need no decoding
                how = f"{', '.join(codecs[:-1])} not undone: use --decode"
                checks.append(Check("decoding", False, how))
            return checks
        why = f"{', '.join(codecs)} with no checksum outermost: use --decode"
        return [*checks, Check("bytes of inner chunks", False, why)]

    def verify(
        self, source: Source, data: NDArray[np.uint8], shape: tuple[int, ...]
    ) -> None:
        """Verify the bytes of an inner chunk of `shape`.

        Raises `CorruptShardError` if they are not a valid encoding, or contradict a
        checksum.
        """
        if self.decodes:
            source.decode(data, shape)
        elif self.checksum is not None:
            limit = source.pipeline.encoded_limit(shape)
            source.pipeline.bytes_codecs[-1].decode(data, limit, exact=False)


def _misfits(
    contents: Contents, chunks: StoredChunks, stored: Ints, report: Report
) -> NDArray[np.bool_]:
    """Which inner chunks have an impossible size, each reported: bool, (n_chunks,)."""
    source = contents.source
    # Inner chunks of several shapes are objects of their own.
    shape = source.shape_of(contents.coordinate)
    expected = source.pipeline.payload_nbytes(shape)
    limit = source.pipeline.encoded_limit(shape)
    told = f"at most {limit} bytes" if expected is None else f"{expected} bytes"
    nbytes = chunks.stop - chunks.start
    wrong = np.zeros(len(nbytes), bool)
    size = nbytes[stored]
    wrong[stored] = size > limit if expected is None else size != expected
    for row in wrong.nonzero()[0].tolist():
        error = CorruptShardError(
            "an inner chunk is stored in a number of bytes that its codecs never make"
            " of it",
            expected=told,
            got=f"{int(nbytes[row])} bytes",
        )
        at_chunk = chunks.coordinate[row]
        report(contents, _finding(contents, at_chunk, error, 1, is_size=True))
    return wrong


def _unfit(
    contents: Contents, chunks: StoredChunks, report: Report, wrong: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which inner chunks exceed the limit in stored form: bool, (n_chunks,)."""
    room = contents.source.room
    nbytes = chunks.stop - chunks.start
    unfit = (nbytes > room.most_stored_nbytes) & ~wrong
    for row in unfit.nonzero()[0].tolist():
        try:
            room.refuse_stored(int(nbytes[row]))
        except LimitError as error:
            report(contents, _finding(contents, chunks.coordinate[row], error, 1))
    return unfit


def payload_tasks(
    check: PayloadCheck, contents: Contents, report: Report, advance: Advance
) -> Iterator[Spawner]:
    """Tasks that verify the bytes of an object's inner chunks.

    They raise `ObjectChangedError` if the object was replaced since its indexes were
    read, and `StoreError` if the store failed.
    """
    chunks = contents.chunks
    if chunks is None:
        return
    stored = chunks.stored
    wrong = _misfits(contents, chunks, stored, report)
    if not check.reads:
        return
    wrong |= _unfit(contents, chunks, report, wrong)
    rows = ((chunks.stop > chunks.start) & ~wrong).nonzero()[0]
    rows, n_sharing = _distinct(chunks.start, chunks.stop, rows)
    if len(rows):
        some = _Batch(check, contents, chunks, rows, n_sharing, report, advance)
        yield from some.tasks()
    empty = stored[(chunks.stop == chunks.start)[stored] & ~wrong[stored]]
    if len(empty):
        once = np.ones_like(empty)
        nothing = _Batch(check, contents, chunks, empty, once, report, advance)
        yield Spawner(nothing.verify_empty, 0)


def _distinct(start: Ints, stop: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """One row for each distinct byte range, by offset, and how many rows share it."""
    start, stop = start[rows], stop[rows]
    order = np.lexsort((stop, start))
    rows, start, stop = rows[order], start[order], stop[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (start[1:] != start[:-1]) | (stop[1:] != stop[:-1])
    firsts = is_first.nonzero()[0]
    n_sharing = np.empty_like(firsts)
    n_sharing[:-1] = firsts[1:] - firsts[:-1]
    n_sharing[-1:] = len(rows) - firsts[-1:]
    return rows[firsts], n_sharing


@dataclass(frozen=True, slots=True)
class _Batch:
    """Inner chunks of an object to verify: rows by offset, and how many share each."""

    check: PayloadCheck
    contents: Contents
    chunks: StoredChunks
    rows: Ints
    n_sharing: Ints
    report: Report
    advance: Advance

    def tasks(self) -> Iterator[Spawner]:
        """Tasks of some requests each; there must be at least one row."""
        source, chunks = self.contents.source, self.chunks
        costs, room = source.store.costs, source.room
        most = min(
            source.options.memory_limit // (2 * source.most_workers), _TASK_NBYTES
        )
        largest = min(most, costs.max_request_nbytes, room.most_request_nbytes)
        requests = coalesce(
            np.zeros(len(self.rows), np.int64),
            chunks.start[self.rows],
            chunks.stop[self.rows],
            gap_nbytes=costs.gap_nbytes,
            max_request_nbytes=max(1, largest),
        )
        group = np.cumsum(requests.nbytes) // max(1, most)
        cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        for first, last in pairwise(cuts):
            nbytes = int(requests.nbytes[first:last].sum())
            yield Spawner(partial(self._verify, requests, range(first, last)), nbytes)

    def verify_empty(self) -> Sequence[Task]:
        """Verify inner chunks that are stored in 0 bytes, without fetching."""
        for i, row in enumerate(self.rows.tolist()):
            self._verify_one(i, np.empty(0, np.uint8), int(self.chunks.start[row]))
        self.advance(self.contents, len(self.rows), 0)
        return ()

    def _verify(self, requests: Requests, some: range) -> Sequence[Task]:
        contents = self.contents
        offered = contents.source.room.offered
        asked = [
            ByteRequest(
                contents.key,
                int(requests.start[r]),
                int(requests.stop[r]),
                contents.version,
                offered(int(requests.nbytes[r])),
                is_indexed=bool(contents.source.layout.levels),
            )
            for r in some
        ]
        try:
            answers = fetch_payload(contents.source, asked)
        except CorruptShardError:
            self._verify_singly(requests, some)
            return ()
        for r, answer in zip(some, answers, strict=True):
            at = requests.order[requests.bounds[r] : requests.bounds[r + 1]]
            for i in at.tolist():
                self._verify_one(i, answer, int(requests.start[r]))
            self.advance(contents, int(self.n_sharing[at].sum()), len(answer))
        return ()

    def _verify_singly(self, requests: Requests, some: range) -> None:
        """As `_verify`, if the object ends before some requested bytes."""
        chunks, contents = self.chunks, self.contents
        first, last = requests.bounds[some.start], requests.bounds[some.stop]
        for i in requests.order[first:last].tolist():
            row = int(self.rows[i])
            start, stop = int(chunks.start[row]), int(chunks.stop[row])
            request = ByteRequest(contents.key, start, stop, contents.version)
            n_sharing = int(self.n_sharing[i])
            try:
                (answer,) = fetch_payload(contents.source, [request])
            except CorruptShardError as error:
                found = _finding(contents, chunks.coordinate[row], error, n_sharing)
                self.report(contents, replace(found, kind="bounds"))
            else:
                self._verify_one(i, answer, start)
            self.advance(contents, n_sharing, stop - start)

    def _verify_one(self, i: int, data: NDArray[np.uint8], base: int) -> None:
        contents, chunks, row = self.contents, self.chunks, int(self.rows[i])
        coordinate = chunks.coordinate[row]
        shape = contents.source.shape_of(tuple(coordinate.tolist()))
        mine = data[int(chunks.start[row]) - base : int(chunks.stop[row]) - base]
        try:
            self.check.verify(contents.source, mine, shape)
        except (CorruptShardError, LimitError) as error:
            found = _finding(contents, coordinate, error, int(self.n_sharing[i]))
            self.report(contents, found)


def _finding(
    contents: Contents,
    coordinate: Ints,
    error: CorruptShardError | LimitError,
    n_sharing: int,
    *,
    is_size: bool = False,
) -> Finding:
    """Finding for the inner chunk at `coordinate`."""
    inside = bool(holds_elements(contents.source.layout, coordinate[None])[0])
    return Finding.of(
        error,
        contents.key,
        inner_chunk=tuple(coordinate.tolist()),
        kind="size" if is_size else None,
        n_inner_chunks=n_sharing if inside else 0,
    )
