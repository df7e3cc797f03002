"""Ranges of files -> memory of a device, by way of two pinned buffers (compiled).

This is imported only once reads are large enough to pay for it. The driver copies on a
stream while a thread reads the next piece, and no thread needs the interpreter.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused.compiled import calls
from gpushard.fused.words import (
    CUT_SHORT,
    RANGE_COLUMNS,
    RANGE_FILE,
    RANGE_NBYTES,
    RANGE_OFFSET,
    RANGE_PLACE,
    WORDS,
    Relay,
    Team,
)

_relay_of = calls.tuple_at(Relay)


@calls.inner
def _filled(r: Relay, ranges: Any, buffer: int) -> bool:
    """Read the ranges of a piece into a buffer; False if bytes are missing."""
    first = ranges[0, RANGE_PLACE]
    for k in range(ranges.shape[0]):
        place, nbytes = ranges[k, RANGE_PLACE] - first, ranges[k, RANGE_NBYTES]
        file, offset = ranges[k, RANGE_FILE], ranges[k, RANGE_OFFSET]
        if calls.read_at(r.read, file, buffer + place, nbytes, offset) != nbytes:
            return False
    return True


@calls.inner
def _relay(r: Relay, ranges: Any, buffer: int, event: int) -> int:
    """Read a piece and queue its copy; its outcome (see `words.CUT_SHORT`)."""
    status = calls.call_wait(r.wait, (event,))
    if status != 0:
        return status
    if not _filled(r, ranges, buffer):
        return CUT_SHORT
    last = ranges.shape[0] - 1
    first = ranges[0, RANGE_PLACE]
    nbytes = ranges[last, RANGE_PLACE] + ranges[last, RANGE_NBYTES] - first
    status = calls.call_upload(r.upload, (r.target + first, buffer, nbytes, r.stream))
    if status != 0:
        return status
    return calls.call_record(r.record, (event, r.stream))


@calls.inner
def _relay_all(r: Relay) -> None:
    cuts = calls.ints(r.cuts, (r.n_pieces + 1,))
    ranges = calls.ints(r.ranges, (cuts[r.n_pieces], RANGE_COLUMNS))
    outcomes = calls.ints(r.outcomes, (r.n_pieces,))
    is_second = False
    piece = calls.claim(r.counter)
    while piece < r.n_pieces:
        event, buffer = r.first_event, r.buffers
        if is_second:
            event, buffer = r.second_event, r.buffers + r.buffer_nbytes
        some = ranges[cuts[piece] : cuts[piece + 1]]
        outcomes[piece] = _relay(r, some, buffer, event)
        is_second = not is_second
        piece = calls.claim(r.counter)


@calls.inner
def relay_pieces(r: Relay) -> None:
    """Claim pieces, one after the other, and relay each through one of two buffers.

    The driver's context is that of the calling thread meanwhile, and captures of CUDA
    graphs by other threads do not concern it. If there is no context to be had, the
    thread claims no piece.
    """
    if calls.call_context(r.get_context, (r.saved,)) != 0:
        return
    if calls.call_context(r.set_context, (r.context,)) == 0:
        calls.call_mode(r.exchange_mode, (r.mode,))
        _relay_all(r)
        calls.call_mode(r.exchange_mode, (r.mode,))
    calls.call_context(r.set_context, (calls.word(r.saved, 0),))


@calls.inner
def relay_together(t: Team) -> None:
    """Relay the pieces of a batch in several threads; see `words.Team`."""
    calls.call_mutex(t.lock, (t.turn,))
    n_begun = 1
    while n_begun < t.n_threads:
        thread, words = t.threads + 8 * n_begun, t.words + n_begun * t.words_nbytes
        # Those that there are do without the ones that the system refuses.
        if calls.call_create(t.create, (thread, 0, t.loops, words)) != 0:
            break
        n_begun += 1
    relay_pieces(_relay_of(t.words + 8 * WORDS))
    calls.call_mutex(t.unlock, (t.turn,))
    for k in range(1, n_begun):
        calls.call_join(t.join, (calls.word(t.threads, k), 0))
