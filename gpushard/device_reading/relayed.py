"""Files -> device memory, relayed in pieces by threads of compiled loops.

The ring reads a whole batch and then copies it. That writes the batch to the host's
memory, which the bus then reads, and its threads take the interpreter's lock for each
range. Small pieces stay in the processor's cache until the bus has them, and the
threads of a batch begin and end without the lock
(docs/decisions/2026-11-28-relays-instead-of-a-ring.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.device_reading.payload.answers import ALIGNMENT, nbytes_of
from gpushard.device_reading.payload.device_slots import (
    DeviceFetch,
    Fetch,
    Handover,
    Reading,
)
from gpushard.device_reading.payload.direct import DirectFetch, direct_files
from gpushard.device_reading.payload.ring import RingFetch
from gpushard.devices.base import (
    ONLY_OWN_CAPTURES,
    Copier,
    CopyEvent,
    Device,
    Event,
    Stream,
)
from gpushard.devices.budget import Budget
from gpushard.devices.decoding.chain import DeviceChain
from gpushard.devices.spares import Spares
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.fused.addresses import address_of
from gpushard.fused.choice import are_loaded, relay_loops
from gpushard.fused.system_calls import new_mutex, pread_address
from gpushard.fused.words import LEFT, Relay
from gpushard.machine import usable_cpu_count
from gpushard.options import KIB, MIB
from gpushard.pages import LINE_NBYTES
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest
from gpushard.stores.local.handles import FileHandle
from gpushard.stores.local.store import LocalStore, holds_plain_files

if TYPE_CHECKING:
    from gpushard.fused.code.loading import CompiledLoops

# Eight threads with two buffers of 4 MiB each relayed 48 GB/s, of 52 that the bus has.
# Fewer did not read as fast, and larger buffers than the processor's cache holds were
# slower by half.
_MOST_THREADS, _PIECE_NBYTES = 8, 4 * MIB
# To read less takes no longer than to hand it to a thread.
_SHARE_NBYTES, _LEAST_PIECE_NBYTES = 2 * MIB, 256 * KIB
_N_BUFFERS = 2
# One set of buffers for the batch that is relayed, and one for the batch before, whose
# last pieces are still being copied.
_N_SETS = 2
# The sets of buffers take the place of one slot; the ring needs another.
_LEAST_SLOTS = 2
# The files of a batch are open at once, and so are those of others that wait for a
# slot; the ring opens them in turn. They shall all fit beside those that are kept.
_FILES_SHARE = 2


class Pieces(NamedTuple):
    """Ranges of files, cut and joined to pieces that are relayed one by one.

    Attributes
    ----------
    ranges
        int64, shape (n_ranges, 4). See `fused.words.RANGE_FILE`.
    cuts
        int64, shape (n_pieces + 1,). Ranges of piece p: ``cuts[p]:cuts[p + 1]``.
    """

    ranges: Ints
    cuts: Ints

    @classmethod
    def cut(
        cls, files: Ints, offsets: Ints, nbytes: Ints, places: Ints, most_nbytes: int
    ) -> Pieces:
        """Pieces that span at most `most_nbytes` bytes of the places.

        All columns are int64 of shape (n,), with the ranges in the order of places, and
        no range is empty.
        """
        first, last = places // most_nbytes, (places + nbytes - 1) // most_nbytes
        n_cells = last - first + 1
        cell = np.repeat(first - np.cumsum(n_cells) + n_cells, n_cells)
        cell += np.arange(len(cell))
        range_of = np.repeat(np.arange(len(places)), n_cells)
        start = np.maximum(places[range_of], cell * most_nbytes)
        stop = np.minimum((places + nbytes)[range_of], (cell + 1) * most_nbytes)
        ranges = np.stack(
            (
                files[range_of],
                offsets[range_of] + start - places[range_of],
                stop - start,
            )
        )
        cuts = np.append(np.flatnonzero(np.diff(cell, prepend=-1)), len(cell))
        return cls(np.ascontiguousarray(np.vstack((ranges, start)).T), cuts)


class RelayState(NamedTuple):
    """How far the pieces of a batch are relayed; all threads of the batch write to it.

    Attributes
    ----------
    outcomes
        int64, shape (n_pieces,). See `fused.words.CUT_SHORT`.
    counter
        int64. Its first entry is the number of the piece to claim next.
    """

    outcomes: Ints
    counter: Ints

    @classmethod
    def at_start(cls, pieces: Pieces) -> RelayState:
        """State of pieces of which none was relayed yet."""
        counter = np.zeros(2 * LINE_NBYTES // 8, np.int64)
        return cls(np.full(len(pieces.cuts) - 1, LEFT), counter)


class ThreadBuffers(NamedTuple):
    """Memory and events with which one thread relays.

    Attributes
    ----------
    buffers
        uint8, pinned: two buffers side by side.
    events
        One for each buffer.
    saved
        int64, shape (1,): memory for a context of the driver.
    mode
        int32, shape (1,): `ONLY_OWN_CAPTURES`, and memory for another mode.
    """

    buffers: NDArray[np.uint8]
    events: tuple[CopyEvent, CopyEvent]
    saved: Ints
    mode: NDArray[np.int32]


class BufferSet:
    """Buffers for all threads that relay one batch, made when they are first needed.

    Parameters
    ----------
    device, copier
        The device, and what copies to it.
    most_threads
        Number of threads to have buffers for.
    piece_nbytes
        Size of a buffer.
    """

    def __init__(
        self, device: Device, copier: Copier, most_threads: int, piece_nbytes: int
    ) -> None:
        self.copier = copier
        self.most_threads, self.piece_nbytes = most_threads, piece_nbytes
        self._device = device
        self._made: list[ThreadBuffers] = []

    def n_threads_for(self, nbytes: int) -> int:
        """Number of threads that so many bytes are worth, at least one."""
        return min(max(nbytes // _SHARE_NBYTES, 1), self.most_threads)

    def take(self, n_threads: int) -> list[ThreadBuffers]:
        """Buffers for `n_threads` threads; for fewer if no more memory can be pinned.

        Raises `DeviceMemoryError` if there are none.
        """
        try:
            while len(self._made) < n_threads:
                self._made.append(self._make())
        except DeviceMemoryError:
            if not self._made:
                raise
        return self._made[:n_threads]

    def _make(self) -> ThreadBuffers:
        buffers = self._device.allocate_pinned(_N_BUFFERS * self.piece_nbytes)
        events = self.copier.create_event(), self.copier.create_event()
        mode = np.array([ONLY_OWN_CAPTURES], np.int32)
        return ThreadBuffers(buffers, events, np.zeros(1, np.int64), mode)


class _Opened(NamedTuple):
    """Ranges of open files, and the loops that relay them."""

    store: LocalStore
    requests: Sequence[ByteRequest]
    handles: Sequence[FileHandle]
    loops: CompiledLoops

    def pieces(self, places: Ints, most_nbytes: int) -> Pieces:
        """The ranges in pieces; each goes to one of `places`: int64, shape (n,)."""
        files = np.array([handle.fd for handle in self.handles])
        offsets = np.array([request.start for request in self.requests])
        sizes = np.array([nbytes_of(request) for request in self.requests])
        return Pieces.cut(files, offsets, sizes, places, most_nbytes)

    def refuse_changed(self) -> None:
        """Raise `ObjectChangedError` if a file was overwritten since it was opened."""
        for handle in dict.fromkeys(self.handles):
            self.store.confirm(handle)


class RelayFetch(DeviceFetch):
    """Relays files in pieces, one batch after the other; see `DeviceFetch`.

    A batch has all threads and the whole bus, so that it comes sooner. Once no piece of
    it is left to claim, the next batch begins, with the other one of two buffer sets.
    """

    alignment = ALIGNMENT

    def __init__(
        self, buffer_sets: Sequence[BufferSet], handover: Handover, ring: Fetch
    ) -> None:
        n_threads = buffer_sets[0].most_threads
        label = f"relay of {n_threads} threads, else a {ring.label}"
        super().__init__(handover, ring, label)
        self._device = handover.device
        handover.streams.append(self._device.create_stream())
        self._stream = handover.streams[-1]  # an interrupt here loses no stream
        self._buffer_sets: Spares[BufferSet] = Spares(buffer_sets)
        self._turn = new_mutex()

    def begin(self, job: Job, requests: Sequence[ByteRequest]) -> Reading | None:
        """Has threads relay; None for little, many files, and until there are loops."""
        store = job.source.store
        nbytes = sum(map(nbytes_of, requests))
        if not holds_plain_files(store) or nbytes < _SHARE_NBYTES:
            return None
        most_files = job.source.options.file_handles // _FILES_SHARE
        if len({request.key for request in requests}) > most_files:
            return None
        loops = relay_loops(job.source.options, nbytes)
        if loops is None:
            return None
        handles = [store.open_file(r.key, r.version) for r in requests]
        stops = [request.stop or 0 for request in requests]
        if any(s > h.nbytes for s, h in zip(stops, handles, strict=True)):
            return None  # the ring's read reports the error
        return partial(self._read, job, _Opened(store, requests, handles, loops))

    def _read(self, job: Job, opened: _Opened, addresses: Sequence[int]) -> Event:
        """Relay the ranges, and check that no file was overwritten meanwhile."""
        places = np.array(addresses) - addresses[0]
        nbytes = sum(map(nbytes_of, opened.requests))
        with self._buffer_sets.one() as buffer_set:
            n_threads = buffer_set.n_threads_for(nbytes)
            share = max(-(-nbytes // (_N_BUFFERS * n_threads)), _LEAST_PIECE_NBYTES)
            pieces = opened.pieces(places, min(buffer_set.piece_nbytes, share))
            state = RelayState.at_start(pieces)
            where = addresses[0], self._stream
            common = relay_of_batch(pieces, state, buffer_set, *where)
            relays = [
                relay_of_thread(common, buffers)
                for buffers in buffer_set.take(n_threads)
            ]
            opened.loops.relay(relays, address_of(self._turn))
            copied = self._device.record(self._stream)
            opened.refuse_changed()
            if state.outcomes.any():
                _refuse(state.outcomes, buffer_set.copier)
        job.tally.add(n_relayed_requests=len(opened.requests))
        return copied


def relay_of_batch(
    pieces: Pieces,
    state: RelayState,
    buffer_set: BufferSet,
    target: int,
    stream: Stream,
) -> Relay:
    """What the loops must know of a batch to relay it to `target`, by way of `stream`.

    `relay_of_thread` sets the buffers of a thread.
    """
    return Relay(
        cuts=address_of(pieces.cuts),
        n_pieces=len(state.outcomes),
        ranges=address_of(pieces.ranges),
        outcomes=address_of(state.outcomes),
        counter=address_of(state.counter),
        target=target,
        stream=stream,
        buffers=0,
        buffer_nbytes=buffer_set.piece_nbytes,
        first_event=0,
        second_event=0,
        read=pread_address(),
        **buffer_set.copier.calls._asdict(),
        saved=0,
        mode=0,
    )


def relay_of_thread(common: Relay, buffers: ThreadBuffers) -> Relay:
    """What one thread must know: the batch, and its own buffers."""
    return common._replace(
        buffers=address_of(buffers.buffers),
        first_event=buffers.events[0].handle,
        second_event=buffers.events[1].handle,
        saved=address_of(buffers.saved),
        mode=address_of(buffers.mode),
    )


def _refuse(outcomes: Ints, copier: Copier) -> None:
    """Raise what failed; no file was overwritten.

    `UnsupportedError` if bytes are missing: the ring reads again, and has the reason.
    """
    failed = outcomes[outcomes > 0]
    if len(failed):
        raise copier.failure(int(failed[0]))
    if (outcomes == LEFT).any():
        raise DeviceError("no thread could use the driver", hint="start a new process")
    raise UnsupportedError("a file gave fewer bytes than it has")


def relay_budget(source: Source, chain: DeviceChain, budget: Budget) -> Budget | None:
    """Budget for relaying the files of an array; None if they cannot be relayed.

    None also if memory is short: for the buffers, which take the place of one of the
    ring's slots, or for batches that are worth it.
    """
    is_wanted = source.options.relay and bool(source.layout.levels)
    if not (is_wanted and holds_plain_files(source.store)):
        return None
    if not chain.steps and budget.n_slots >= 2 * _LEAST_SLOTS and are_loaded():
        budget = budget.of_plain_relays()
    least_nbytes = max(_SHARE_NBYTES, _LEAST_PIECE_NBYTES * _N_BUFFERS * _N_SETS)
    has_room = budget.encoded_nbytes >= least_nbytes
    return budget if budget.n_slots >= _LEAST_SLOTS and has_room else None


def choose_fetch(handover: Handover, source: Source, chain: DeviceChain) -> Fetch:
    """The way for payload that a device may decode; its `label` tells the reason."""
    try:
        files, label = direct_files(source)
    except UnsupportedError as error:
        return _relay_or_ring(handover, source, chain, error.what)
    ring = RingFetch(handover.device, handover.budget, "small ranges")
    return DirectFetch(files, handover, ring, label)


def _relay_or_ring(
    handover: Handover, source: Source, chain: DeviceChain, why: str
) -> Fetch:
    """A relay if there is room for it, else the ring; `why` says why nothing faster."""
    device, budget = handover.device, handover.budget
    copier = device.copier
    relayed = relay_budget(source, chain, budget)
    if copier is None or relayed is None:
        return RingFetch(device, budget, why)
    share_nbytes = relayed.encoded_nbytes // (_N_BUFFERS * _N_SETS)
    n_threads = min(_MOST_THREADS, source.options.threads, usable_cpu_count())
    n_threads = max(1, min(n_threads, share_nbytes // _LEAST_PIECE_NBYTES))
    piece_nbytes = min(_PIECE_NBYTES, share_nbytes // n_threads)
    buffer_sets = [
        BufferSet(device, copier, n_threads, piece_nbytes) for _ in range(_N_SETS)
    ]
    ring = RingFetch(device, replace(relayed, n_slots=relayed.n_slots - 1), why)
    return RelayFetch(buffer_sets, handover._replace(budget=relayed), ring)
