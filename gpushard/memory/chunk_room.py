"""Whether inner chunks fit the memory limit, and how many of them at a time.

An inner chunk is held as it is stored, and takes memory while it is decoded: its size,
and what its codecs need beside (`HostPipeline.working_nbytes`). Both are held to the
limit before anything of it is fetched or made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import LimitError
from gpushard.memory.freed import freed, give_back
from gpushard.memory.pages import in_pages
from gpushard.options import KIB, MIB, ReadOptions
from gpushard.stores.base import ByteRequest
from gpushard.workers import run_in_turn

# Inner chunks that have room beside those that are decoded side by side: one stream in
# a while takes more than others, and of one the fill value may be held.
_SPARE = 3
# A shard with codecs around it may be twice as large as its elements and a batch, and
# stored in twice as much.
_WRAPPED_COPIES = 6
# What a read takes whatever it reads: threads, handles, what Python keeps of it.
_FIXED_NBYTES = 2 * MIB
# From so much memory on it matters what the bytes of an inner chunk say they take.
_WATCHED_NBYTES = 4 * MIB
# Of what reads of plain elements may hold, what is for an inner chunk of fill values.
_FILLING_SHARE = 8
# What the rarest streams take beside their work, in decoded inner chunks.
_RARE_COPIES = 11
# What is freed between others is not all of use again: a C library keeps twice what is
# held, as a rule, and more where decoders work in large blocks.
_KEPT_TWICE = 2
# Of a limit, what may be taken and freed before all that is kept is given back.
_FREED_SHARE = 16
# Requests that a memory limit has room for; half of it is for what is fetched. So many
# where as many threads as there may be keep what they bring.
_LEAST_REQUESTS, _KEPT_REQUESTS = 8, 32
# Threads that read side by side, where a store keeps them waiting.
_LEAST_THREADS = 8
# What compressors make of bytes that they cannot compress: a 64th more, and a table.
_GROWTH_SHARE, _GROWTH_NBYTES = 64, 64 * KIB


def usual_stored(nbytes: int) -> int:
    """Most that a compressor makes of so many bytes."""
    return nbytes + nbytes // _GROWTH_SHARE + _GROWTH_NBYTES


def decode_in_turn(decode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """What `decode` gives, run where nothing else runs that takes as much memory."""
    heeded: Any = np.geterr()  # each thread has its own

    def work() -> NDArray[Any]:
        try:
            with np.errstate(**heeded):
                return decode()
        finally:
            give_back()

    return run_in_turn(work)


@dataclass(frozen=True)
class ChunkRoom:
    """What of a memory limit is for inner chunks.

    Attributes
    ----------
    path, options
        The array's, and how it is read.
    chunk_nbytes
        Decoded size of an inner chunk.
    whole_nbytes
        The largest decoded size of one, or of a shard with codecs around it.
    work_nbytes
        What decoding one takes beside what it is stored in.
    is_raw
        Whether they are plain elements, of which any range can be had.
    is_wrapped
        Whether shards have codecs around them, and have to be decoded whole.
    is_text
        Whether only the bytes tell how large they are.
    keeps_fetched
        Whether fetched bytes lie in memory that the C library keeps.
    """

    path: str
    options: ReadOptions
    chunk_nbytes: int
    whole_nbytes: int
    work_nbytes: int
    is_raw: bool
    is_wrapped: bool
    is_text: bool
    keeps_fetched: bool = False

    @cached_property
    def alone_nbytes(self) -> int:
        """What an inner chunk may take, encoded and while it is decoded."""
        return max(0, self.options.alone_nbytes - _FIXED_NBYTES)

    @cached_property
    def least_nbytes(self) -> int:
        """Bound of a read that has room for an inner chunk, as it is usually stored."""
        held = usual_stored(self.whole_nbytes) + self.work_nbytes
        return _FIXED_NBYTES + held * (2 if self.is_wrapped else 1)

    @cached_property
    def has_any(self) -> bool:
        """Whether inner chunks fit, but for what they are stored in."""
        most = self.options.max_chunk_nbytes
        return self.is_raw or (
            self.whole_nbytes <= most and self.work_nbytes <= self.alone_nbytes
        )

    @cached_property
    def watched_nbytes(self) -> int | None:
        """The same, where each has to be looked at; None where all of them fit."""
        is_watched = self.is_text or self.work_nbytes >= _WATCHED_NBYTES
        if is_watched or self.is_crowded_by(_RARE_COPIES * self.whole_nbytes):
            return self.alone_nbytes
        return None

    @cached_property
    def most_stored_nbytes(self) -> int:
        """Stored bytes of an inner chunk that may be held while it is decoded."""
        return self.alone_nbytes - self.work_nbytes

    @cached_property
    def most_span_nbytes(self) -> int:
        """Plain elements of which no more have to be looked at one by one."""
        return min(self.options.max_chunk_nbytes, self.alone_nbytes // 2)

    @cached_property
    def is_tight(self) -> bool:
        """Whether one inner chunk takes so much that nothing has room beside it."""
        return (_SPARE + 2) * self.work_nbytes > self.options.bound_nbytes

    @cached_property
    def _shared_nbytes(self) -> int:
        """What inner chunks share: of the rest, some is freed and not given back."""
        return self.options.bound_nbytes - _FIXED_NBYTES - self._freed_nbytes

    @property
    def _freed_nbytes(self) -> int:
        return self.options.bound_nbytes // _FREED_SHARE

    @cached_property
    def _is_fetched_twice(self) -> bool:
        """Whether what threads keep of fetched memory matters."""
        return self.keeps_fetched and self.is_crowded

    @property
    def _n_threads(self) -> int:
        """Threads that may decode at a time."""
        n_threads = max(self.options.threads, _LEAST_THREADS)
        return min(n_threads, self.most_workers)

    @cached_property
    def most_fetched_nbytes(self) -> int:
        """Fetched bytes that may wait, beside what all threads decode."""
        half = self.options.memory_limit // 2
        if self._is_fetched_twice:
            half //= _KEPT_TWICE
        if self.is_raw:
            return half
        n_decoded = _SPARE + self._n_threads
        return max(1, min(half, self._shared_nbytes - n_decoded * self.work_nbytes))

    def is_crowded_by(self, extra_nbytes: int) -> bool:
        """Whether what the C library keeps matters, if each takes so much more."""
        return not self.is_raw and self._is_crowded_by(extra_nbytes)

    def _is_crowded_by(self, extra_nbytes: int) -> bool:
        each = self.whole_nbytes + self.work_nbytes + extra_nbytes
        held = _KEPT_TWICE * self._n_threads * each
        fetched = self.options.memory_limit // 2
        if self.keeps_fetched:
            fetched *= _KEPT_TWICE
        return held + fetched > self.alone_nbytes

    @cached_property
    def is_crowded(self) -> bool:
        """Whether what the C library keeps of inner chunks as a rule matters."""
        return self._is_crowded_by(0)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Room for fetched bytes, or an inner chunk: uint8, host, of any content.

        Where it matters it goes back to the system as soon as it is let go.
        """
        return in_pages(nbytes) if self.is_crowded else np.empty(nbytes, np.uint8)

    def note_taken(self, nbytes: int) -> None:
        """Let go what others freed, where so much is taken that it matters."""
        if self.is_crowded:
            freed.note(nbytes, self._freed_nbytes)

    @cached_property
    def most_request_nbytes(self) -> int:
        """Size at which a request is cut: of what it brings a thread may keep twice."""
        share = _KEPT_REQUESTS if self._is_fetched_twice else _LEAST_REQUESTS
        most = max(1, self.options.memory_limit // share)
        return min(most, self.most_stored_nbytes) if self.is_tight else most

    def note_fetched(self, requests: Sequence[ByteRequest]) -> None:
        """Let go what others freed, where so much is fetched that it matters."""
        if self._is_fetched_twice:
            sizes = [(r.stop or r.max_nbytes or 0) - r.start for r in requests]
            self.note_taken(sum(sizes))

    def let_go(self) -> None:
        """Let go all that was freed, where it matters to what is read next."""
        if self.is_crowded:
            give_back()

    @cached_property
    def most_workers(self) -> int:
        """Threads whose work at a time fits the memory limit, one at least."""
        if self.is_raw:
            return self.options.memory_limit
        decoded = max(1, self.whole_nbytes, self.work_nbytes)
        n_fitting = self.options.memory_limit // (decoded + self.whole_nbytes)
        each = decoded + self.whole_nbytes
        if self.is_wrapped:  # stored, and decoded, with as many gaps as may be
            each = _WRAPPED_COPIES * (decoded + self.options.batch_nbytes)
        room = self._shared_nbytes - _SPARE * decoded
        # Half of all is for what is fetched and waits.
        n_decoding = (self.options.bound_nbytes // 2 - _FIXED_NBYTES) // decoded
        return max(1, min(n_fitting, room // each, n_decoding))

    @cached_property
    def most_window_nbytes(self) -> int:
        """Stored bytes that each of the threads may hold of its own."""
        n_workers = min(self.options.threads, self.most_workers)
        if self.is_raw:
            room = self.options.bound_nbytes - self.most_filling_nbytes - _FIXED_NBYTES
            return max(0, room) // n_workers
        room = self._shared_nbytes - _SPARE * self.work_nbytes
        share = room // n_workers - self.work_nbytes
        return share + usual_stored(self.chunk_nbytes) - self.chunk_nbytes

    @cached_property
    def most_filling_nbytes(self) -> int:
        """Size of an inner chunk of fill values that may be held to fill others by."""
        share = _FILLING_SHARE if self.is_raw else _SPARE + 2
        return self.options.bound_nbytes // share

    def refuse_large(self, *, in_part: bool = True) -> None:
        """Refuse inner chunks above the limits; plain ones too, unless read `in_part`.

        Raises
        ------
        LimitError
            What has to be decoded as one is larger.
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
            if not (self.is_raw or self.is_wrapped):  # how it is stored is not known
                needed += usual_stored(self.whole_nbytes)
            raise self.beyond(what, needed)

    def refuse_stored(self, nbytes: int) -> None:
        """Refuse an inner chunk that does not fit with the bytes that it is stored in.

        Raises
        ------
        LimitError
            It takes more than there is.
        """
        if nbytes > self.most_stored_nbytes:
            needed = nbytes + self.work_nbytes
            raise self.beyond("an inner chunk", needed)

    def refuse_span(self, nbytes: int) -> None:
        """Refuse a part of an inner chunk of plain elements that is too large.

        Raises
        ------
        LimitError
            It does not fit, as it is fetched and in its place among the others.
        """
        what = "the wanted part of an inner chunk"
        if nbytes > self.options.max_chunk_nbytes:
            raise self.too_large(what, nbytes)
        needed = nbytes if nbytes == self.chunk_nbytes else 2 * nbytes
        if needed > self.alone_nbytes:
            raise self.beyond(what, needed)

    def beyond(self, what: str, nbytes: int) -> LimitError:
        """Error for what takes more memory than there is."""
        needed, held = nbytes + _FIXED_NBYTES, self.options.held_nbytes
        beside, hint = "", "raise options.memory_limit"  # to what is needed
        if held:
            beside = " beside its columns and indexes"
            # Columns take as much as half of what indexes leave.
            hint = f"{hint} ({2 * needed + held} bytes are enough)"
        return LimitError(
            f"{what} takes more memory than a read may hold{beside}",
            array_path=self.path,
            expected=f"at most {self.alone_nbytes + _FIXED_NBYTES} bytes",
            got=f"{needed} bytes",
            hint=hint,
        )

    def too_large(self, what: str, nbytes: int) -> LimitError:
        """Error for what would have to be held at once."""
        return LimitError(
            f"{what} is larger than may be held at once",
            array_path=self.path,
            expected=f"at most {self.options.max_chunk_nbytes} bytes",
            got=f"{nbytes} bytes",
            hint="raise options.max_chunk_nbytes",
        )
