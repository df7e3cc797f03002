"""Whether inner chunks fit the memory limit, and how many of them at a time.

A read holds the stored bytes of an inner chunk, and while it decodes them, the decoded
inner chunk and what the codecs need besides (`HostPipeline.working_nbytes`). Sizes are
checked against the limit before anything is fetched or allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.memory.freed import freed, give_back
from gpushard.options import KIB, MIB, ReadOptions
from gpushard.pages import in_pages
from gpushard.stores.base import ByteRequest

# Room is left for this many inner chunks in addition to those that threads decode: an
# occasional stream takes more than others, and one may be of fill values.
_SPARE = 3
# Copies that a shard with codecs around it may take: it may be twice as large as its
# elements, and its stored bytes may be twice that.
_WRAPPED_COPIES = 6
# Contexts that libraries keep for each thread that decodes: two of libzstd (its own
# and zstandard's) take 94 KiB each, those of other libraries less.
_CONTEXTS_NBYTES = 256 * KIB
# Memory of any read: threads, handles and Python objects.
_FIXED_NBYTES = 2 * MIB
# Decoding that takes at least this much is checked for each inner chunk.
_WATCHED_NBYTES = 4 * MIB
# An inner chunk of fill values may take this part of what reads of plain elements hold.
_FILLING_SHARE = 8
# The rarest streams take this many decoded inner chunks more than usual.
_RARE_COPIES = 11
# A C library keeps freed memory that it cannot use again: as a rule as much as is in
# use, and more if decoders work in large blocks.
_KEPT_TWICE = 2
# After this part of the limit was taken and freed, freed memory goes to the system.
_FREED_SHARE = 16
# A memory limit has room for this many requests; fetched bytes take half of it. There
# are `_KEPT_REQUESTS` if each of many threads keeps the memory of what it fetched.
_LEAST_REQUESTS, _KEPT_REQUESTS = 8, 32
# Larger answers come in pieces of this part of the limit. Of these, up to 32 threads of
# a store keep an eighth of the limit.
_PIECES, _LEAST_PIECE_NBYTES = 256, 64 * KIB
_KEPT_SHARE = 8
# Number of threads that read in parallel from a store that keeps them waiting.
_LEAST_THREADS = 8
# Compressors enlarge bytes that they cannot compress by at most a 64th and a table.
_GROWTH_SHARE, _GROWTH_NBYTES = 64, 64 * KIB


def usual_stored(nbytes: int) -> int:
    """Largest size that a compressor makes of `nbytes` bytes."""
    return nbytes + nbytes // _GROWTH_SHARE + _GROWTH_NBYTES


@dataclass(frozen=True)
class ChunkRoom:
    """The part of a memory limit that is for inner chunks.

    Attributes
    ----------
    path, options
        Path of the array, and the options of its reads.
    chunk_nbytes
        Decoded size of an inner chunk.
    whole_nbytes
        Largest decoded size of an inner chunk, or of a shard with codecs around it.
    work_nbytes
        Memory that decoding one takes in addition to its stored bytes.
    is_raw
        Whether elements are plain, so that any range of them can be read.
    is_wrapped
        Whether shards have codecs around them, so that they are decoded whole.
    added_nbytes
        Most bytes to expect in such a shard beside its elements.
    is_text
        Whether sizes are known only from the bytes.
    keeps_fetched
        Whether fetched bytes lie in memory that the C library keeps when it is freed.
    keeps_in_threads
        Whether it keeps such memory for several threads of the store.
    """

    path: str
    options: ReadOptions
    chunk_nbytes: int
    whole_nbytes: int
    work_nbytes: int
    is_raw: bool
    is_wrapped: bool
    added_nbytes: int
    is_text: bool
    keeps_fetched: bool = False
    keeps_in_threads: bool = False

    @cached_property
    def alone_nbytes(self) -> int:
        """Memory that an inner chunk may take, with its stored bytes, while decoded."""
        return max(0, self.options.alone_nbytes - _FIXED_NBYTES - self._kept_nbytes)

    @property
    def _kept_nbytes(self) -> int:
        """Memory that threads of the store keep of pieces of answers."""
        return self.options.bound_nbytes // _KEPT_SHARE if self.keeps_in_threads else 0

    def _beside_kept(self, nbytes: int) -> int:
        """Least bound with room for `nbytes` beside what threads of the store keep."""
        if not self.keeps_in_threads:
            return nbytes
        return nbytes + (nbytes - 1) // (_KEPT_SHARE - 1)

    @cached_property
    def least_nbytes(self) -> int:
        """Least bound of a read with room for an inner chunk of usual stored size."""
        held = usual_stored(self.whole_nbytes) + self.work_nbytes
        held = _FIXED_NBYTES + held * (2 if self.is_wrapped else 1)
        return self._beside_kept(held)

    @cached_property
    def has_any(self) -> bool:
        """Whether inner chunks fit, without their stored bytes."""
        most = self.options.max_chunk_nbytes
        return self.is_raw or (
            self.whole_nbytes <= most and self.work_nbytes <= self.alone_nbytes
        )

    @cached_property
    def watched_nbytes(self) -> int | None:
        """What one inner chunk may take, if each must be checked; None if all fit."""
        is_watched = self.is_text or self.work_nbytes >= _WATCHED_NBYTES
        if is_watched or self.is_crowded_by(_RARE_COPIES * self.whole_nbytes):
            return self.alone_nbytes
        return None

    @cached_property
    def most_stored_nbytes(self) -> int:
        """Most stored bytes of an inner chunk that fit while it is decoded."""
        return self.alone_nbytes - self.work_nbytes

    @cached_property
    def most_span_nbytes(self) -> int:
        """Size up to which a part of plain elements need not be checked."""
        return min(self.options.max_chunk_nbytes, self.alone_nbytes // 2)

    @cached_property
    def is_tight(self) -> bool:
        """Whether one inner chunk leaves no room for anything else."""
        return (_SPARE + 2) * self.work_nbytes > self.options.bound_nbytes

    @cached_property
    def _shared_nbytes(self) -> int:
        """Memory that all inner chunks share, without what is freed but still kept."""
        return self.options.bound_nbytes - _FIXED_NBYTES - self._freed_nbytes

    @property
    def _freed_nbytes(self) -> int:
        return self.options.bound_nbytes // _FREED_SHARE

    @cached_property
    def _is_fetched_twice(self) -> bool:
        """Whether memory of fetched bytes that threads keep takes a notable part."""
        return self.keeps_fetched and self.is_crowded

    @property
    def _n_threads(self) -> int:
        """Number of threads that may decode at a time."""
        n_threads = max(self.options.threads, _LEAST_THREADS)
        return min(n_threads, self.most_workers)

    @cached_property
    def most_fetched_nbytes(self) -> int:
        """Most fetched bytes that may wait while all threads decode."""
        half = self.options.memory_limit // 2
        if self._is_fetched_twice:
            half //= _KEPT_TWICE
        if self.is_raw:
            return half
        n_threads = self._n_threads
        decoded = (_SPARE + n_threads) * self.work_nbytes
        left = self._shared_nbytes - decoded - n_threads * _CONTEXTS_NBYTES
        return max(1, min(half, left))

    def is_crowded_by(self, extra_nbytes: int) -> bool:
        """Whether freed memory matters if each inner chunk takes so much more."""
        return not self.is_raw and self._fills_limit(extra_nbytes)

    def _fills_limit(self, extra_nbytes: int) -> bool:
        each = self.whole_nbytes + self.work_nbytes + extra_nbytes
        held = _KEPT_TWICE * self._n_threads * each
        fetched = self.options.memory_limit // 2
        if self.keeps_fetched:
            fetched *= _KEPT_TWICE
        return held + fetched > self.alone_nbytes

    @cached_property
    def is_crowded(self) -> bool:
        """Whether freed memory that the C library keeps takes a notable part."""
        return self._fills_limit(0)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory for fetched bytes or an inner chunk: uint8, host, any content.

        If memory is crowded, it returns to the system as soon as it is released.
        """
        return in_pages(nbytes) if self.is_crowded else np.empty(nbytes, np.uint8)

    def offered(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Memory to fetch bytes into, as by `empty`; None if the host has none.

        A store then answers with memory of its own, and only for what exists.
        """
        with suppress(MemoryError):
            return self.empty(nbytes)
        return None

    def note_taken(self, nbytes: int) -> None:
        """Count memory to be freed, and return freed memory to the system when due."""
        if self.is_crowded:
            freed.note(nbytes, self._freed_nbytes)

    @cached_property
    def most_request_nbytes(self) -> int:
        """Largest size of a request, as a thread may keep twice what it fetches."""
        share = _KEPT_REQUESTS if self._is_fetched_twice else _LEAST_REQUESTS
        most = max(1, self.options.memory_limit // share)
        return min(most, self.most_stored_nbytes) if self.is_tight else most

    def note_fetched(self, requests: Sequence[ByteRequest]) -> Sequence[ByteRequest]:
        """Count memory of fetched bytes like `note_taken`, if threads keep it.

        Returns the requests, large ones to be fetched in pieces: each thread of a store
        may keep as much as its largest answer took.
        """
        if not self._is_fetched_twice:
            return requests
        sizes = [(r.stop or r.max_nbytes or 0) - r.start for r in requests]
        self.note_taken(sum(sizes))
        most, piece = self.most_request_nbytes, self._piece_nbytes
        return [
            request._replace(piece_nbytes=piece) if nbytes > most else request
            for request, nbytes in zip(requests, sizes, strict=True)
        ]

    @property
    def _piece_nbytes(self) -> int:
        return max(_LEAST_PIECE_NBYTES, self.options.memory_limit // _PIECES)

    def let_go(self) -> None:
        """Return all freed memory to the system, if the next read needs it."""
        if self.is_crowded:
            give_back()

    @cached_property
    def most_workers(self) -> int:
        """Number of threads whose work fits the memory limit together, at least 1."""
        if self.is_raw:
            return self.options.memory_limit
        decoded = self._decoded_nbytes
        n_fitting = self.options.memory_limit // (decoded + self.whole_nbytes)
        # Fetched bytes that wait take half of the bound.
        n_decoding = (self.options.bound_nbytes // 2 - _FIXED_NBYTES) // decoded
        n_beside = (self._shared_nbytes - _SPARE * decoded) // self._worker_nbytes
        return max(1, min(n_fitting, n_beside, n_decoding))

    def bound_for(self, n_threads: int) -> int:
        """Least limit and bound with which that many workers fit; 0 if any would do."""
        if self.is_raw:
            return 0
        decoded = self._decoded_nbytes
        beside = _FIXED_NBYTES + _SPARE * decoded + n_threads * self._worker_nbytes
        return max(
            n_threads * (decoded + self.whole_nbytes),
            2 * (n_threads * decoded + _FIXED_NBYTES),
            beside + -(-beside // (_FREED_SHARE - 1)),
        )

    @property
    def _decoded_nbytes(self) -> int:
        """Memory that a worker takes for what it decodes, besides stored bytes."""
        return max(1, self.whole_nbytes, self.work_nbytes)

    @property
    def _worker_nbytes(self) -> int:
        """Memory that a worker takes."""
        if self.is_wrapped:  # stored and decoded bytes, as many as are allowed
            each = _WRAPPED_COPIES * (self._decoded_nbytes + self.added_nbytes)
        else:
            each = self._decoded_nbytes + self.whole_nbytes
        return each + _CONTEXTS_NBYTES

    @cached_property
    def most_direct_workers(self) -> int:
        """Number of threads that fit if they decode to memory that is counted already.

        Then a thread only keeps what its library needs.
        """
        room = self._shared_nbytes // 2
        return max(self.most_workers, room // _CONTEXTS_NBYTES)

    @cached_property
    def most_window_nbytes(self) -> int:
        """Most stored bytes that each thread may hold for itself."""
        n_workers = min(self.options.threads, self.most_workers)
        if self.is_raw:
            room = self.options.bound_nbytes - self.most_filling_nbytes - _FIXED_NBYTES
            return max(0, room) // n_workers
        room = self._shared_nbytes - _SPARE * self.work_nbytes
        share = room // n_workers - self.work_nbytes
        share += usual_stored(self.chunk_nbytes) - self.chunk_nbytes
        return share - _CONTEXTS_NBYTES

    @cached_property
    def most_filling_nbytes(self) -> int:
        """Largest inner chunk of fill values that may be held to fill others."""
        share = _FILLING_SHARE if self.is_raw else _SPARE + 2
        return self.options.bound_nbytes // share

    def refuse_large(self, *, in_part: bool = True) -> None:
        """Refuse inner chunks above the limits; plain ones only if not read `in_part`.

        Raises
        ------
        LimitError
            What must be decoded in one piece is larger than the limits.
        """
        if self.is_raw and in_part:
            return
        what = "a shard with codecs around it" if self.is_wrapped else "an inner chunk"
        if self.whole_nbytes > self.options.max_chunk_nbytes:
            raise self.too_large(what, self.whole_nbytes)
        needed = self.work_nbytes
        if self.is_raw or self.is_wrapped:
            needed += self.whole_nbytes
        if needed > self.alone_nbytes:
            if self.is_wrapped or not self.is_raw:  # the stored size is not known
                needed += usual_stored(self.whole_nbytes)
            raise self.beyond(what, needed)

    def refuse_stored(self, nbytes: int) -> None:
        """Refuse an inner chunk that does not fit together with its stored bytes.

        Raises
        ------
        LimitError
            It takes more memory than the limit leaves.
        """
        if nbytes > self.most_stored_nbytes:
            needed = nbytes + self.work_nbytes
            raise self.beyond("an inner chunk", needed)

    def refuse_span(self, nbytes: int) -> None:
        """Refuse a part of an inner chunk of plain elements that is too large.

        Raises
        ------
        LimitError
            Its fetched bytes, with their copy in a whole inner chunk, do not fit.
        """
        what = "the wanted part of an inner chunk"
        if nbytes > self.options.max_chunk_nbytes:
            raise self.too_large(what, nbytes)
        needed = nbytes if nbytes == self.chunk_nbytes else 2 * nbytes
        if needed > self.alone_nbytes:
            raise self.beyond(what, needed)

    def beyond(self, what: str, nbytes: int) -> LimitError:
        """Error for what takes more memory than the limit leaves."""
        needed = self._beside_kept(nbytes + _FIXED_NBYTES)
        most = self.alone_nbytes + _FIXED_NBYTES + self._kept_nbytes
        held = self.options.held_nbytes
        beside, hint = "", "raise options.memory_limit"  # to `needed` bytes
        if held:
            beside = " beside its columns and indexes"
            # Columns take up to half of what indexes leave.
            hint = f"{hint} ({2 * needed + held} bytes are enough)"
        return LimitError(
            f"{what} takes more memory than a read may hold{beside}",
            array_path=self.path,
            expected=f"at most {most} bytes",
            got=f"{needed} bytes",
            hint=hint,
        )

    def too_large(self, what: str, nbytes: int) -> LimitError:
        """Error for what is larger than may be held in one piece."""
        return LimitError(
            f"{what} is larger than may be held at once",
            array_path=self.path,
            expected=f"at most {self.options.max_chunk_nbytes} bytes",
            got=f"{nbytes} bytes",
            hint="raise options.max_chunk_nbytes",
        )
