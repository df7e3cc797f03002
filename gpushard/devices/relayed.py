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

from gpushard.devices.base import Copier, CopyEvent, Device, Event
from gpushard.devices.budget import Budget
from gpushard.devices.decoding.chain import DeviceChain
from gpushard.devices.payload.answers import ALIGNMENT, nbytes_of
from gpushard.devices.payload.device_slots import DeviceFetch, Fetch, Handover, Reading
from gpushard.devices.payload.direct import DirectFetch, direct_files
from gpushard.devices.payload.ring import RingFetch
from gpushard.devices.spares import Spares
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError
from gpushard.fetching.job import Job
from gpushard.fused.choice import are_loaded, relay_loops
from gpushard.fused.columns import LEFT, Relay
from gpushard.fused.libraries import new_mutex, pread_address
from gpushard.fused.room import address_of
from gpushard.machine import usable_cpu_count
from gpushard.options import KIB, MIB
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import ByteRequest
from gpushard.stores.handles import Handle
from gpushard.stores.local import LocalStore, holds_plain_files

if TYPE_CHECKING:
    from gpushard.fused.loading import Compiled

# Eight threads with two buffers of 4 MiB each relayed 48 GB/s, of 52 that the bus has.
# Fewer did not read as fast, and larger buffers than the processor's cache holds were
# slower by half.
_MOST_THREADS, _PIECE_NBYTES = 8, 4 * MIB
# To read less takes no longer than to hand it to a thread.
_SHARE_NBYTES, _LEAST_PIECE_NBYTES = 2 * MIB, 256 * KIB
_N_BUFFERS = 2
# Of the batch that is relayed, and of the one whose last pieces are.
_N_HANDS = 2
# One for the hands, one for the ring.
_LEAST_SLOTS = 2
_CACHE_LINE = 64
# The files of a batch are open at once, and so are those of others that wait for a
# slot; the ring opens them in turn. They shall all fit beside those that are kept.
_FILES_SHARE = 2


class Pieces(NamedTuple):
    """Ranges of files, cut and joined to pieces that are relayed one by one.

    Attributes
    ----------
    ranges
        int64, shape (n_ranges, 4). See `fused.columns.RANGE_FILE`.
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
        of = np.repeat(np.arange(len(places)), n_cells)
        start = np.maximum(places[of], cell * most_nbytes)
        stop = np.minimum((places + nbytes)[of], (cell + 1) * most_nbytes)
        ranges = np.stack((files[of], offsets[of] + start - places[of], stop - start))
        cuts = np.append(np.flatnonzero(np.diff(cell, prepend=-1)), len(cell))
        return cls(np.ascontiguousarray(np.vstack((ranges, start)).T), cuts)


class Shared(NamedTuple):
    """What the threads that relay a batch write to.

    Attributes
    ----------
    outcomes
        int64, shape (n_pieces,). See `fused.columns.CUT_SHORT`.
    counter
        int64. The piece to claim next comes first.
    """

    outcomes: Ints
    counter: Ints

    @classmethod
    def of(cls, pieces: Pieces) -> Shared:
        """For pieces of which none was relayed yet."""
        counter = np.zeros(2 * _CACHE_LINE // 8, np.int64)
        return cls(np.full(len(pieces.cuts) - 1, LEFT), counter)


class Hand(NamedTuple):
    """What a thread relays with.

    Attributes
    ----------
    buffers
        uint8, pinned: two buffers side by side.
    events
        One for each buffer.
    saved
        int64, shape (1,): memory for a context of the driver.
    """

    buffers: NDArray[np.uint8]
    events: tuple[CopyEvent, CopyEvent]
    saved: Ints


class Hands:
    """The hands of a batch, made when they are first of use.

    Parameters
    ----------
    n_most, piece_nbytes
        Most hands, and the size of a buffer.
    """

    def __init__(
        self, device: Device, copier: Copier, n_most: int, piece_nbytes: int
    ) -> None:
        self.copier = copier
        self.n_most, self.piece_nbytes = n_most, piece_nbytes
        self._device = device
        self._made: list[Hand] = []

    def n_worth(self, nbytes: int) -> int:
        """Number of hands that so many bytes are worth, at least one."""
        return min(max(nbytes // _SHARE_NBYTES, 1), self.n_most)

    def some(self, n: int) -> list[Hand]:
        """As many hands of `n` as can be had, at least one.

        Raises `DeviceMemoryError` if there is none.
        """
        try:
            while len(self._made) < n:
                self._made.append(self._make())
        except DeviceMemoryError:
            if not self._made:
                raise
        return self._made[:n]

    def _make(self) -> Hand:
        buffers = self._device.allocate_pinned(_N_BUFFERS * self.piece_nbytes)
        events = self.copier.create_event(), self.copier.create_event()
        return Hand(buffers, events, np.zeros(1, np.int64))


class _Opened(NamedTuple):
    """Ranges of open files, and the loops that relay them."""

    store: LocalStore
    requests: Sequence[ByteRequest]
    handles: Sequence[Handle]
    loops: Compiled

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

    A batch has all threads and the whole bus, so that it comes the sooner. Once it has
    no piece left to claim, the next batch begins, with the other one of two `hands`.
    """

    alignment = ALIGNMENT

    def __init__(self, hands: Sequence[Hands], handover: Handover, ring: Fetch) -> None:
        label = f"relay of {hands[0].n_most} threads, else a {ring.label}"
        super().__init__(handover, ring, label)
        self._device = handover.device
        handover.streams.append(self._device.create_stream())
        self._stream = handover.streams[-1]  # an interrupt here loses no stream
        self._hands: Spares[Hands] = Spares(hands)
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
        if any(s > h.version[2] for s, h in zip(stops, handles, strict=True)):
            return None  # the ring's read reports the error
        return partial(self._read, job, _Opened(store, requests, handles, loops))

    def _read(self, job: Job, opened: _Opened, addresses: Sequence[int]) -> Event:
        """Relay the ranges, and check that no file was overwritten meanwhile."""
        places, target = np.array(addresses) - addresses[0], addresses[0]
        nbytes = sum(map(nbytes_of, opened.requests))
        with self._hands.one() as hands:
            n = hands.n_worth(nbytes)
            share = max(-(-nbytes // (_N_BUFFERS * n)), _LEAST_PIECE_NBYTES)
            pieces = opened.pieces(places, min(hands.piece_nbytes, share))
            shared = Shared.of(pieces)
            common = _common(pieces, shared, hands)
            common = common._replace(target=target, stream=self._stream)
            relays = [_with(hand, common) for hand in hands.some(n)]
            opened.loops.relay(relays, address_of(self._turn))
            copied = self._device.record(self._stream)
            opened.refuse_changed()
            if shared.outcomes.any():
                _refuse(shared.outcomes, hands.copier)
        job.tally.add(n_relayed_requests=len(opened.requests))
        return copied


def _common(pieces: Pieces, shared: Shared, hands: Hands) -> Relay:
    """What all hands are told of a batch, except of its target."""
    return Relay(
        address_of(pieces.cuts),
        len(shared.outcomes),
        address_of(pieces.ranges),
        address_of(shared.outcomes),
        address_of(shared.counter),
        0,
        0,
        0,
        hands.piece_nbytes,
        0,
        0,
        pread_address(),
        *hands.copier.calls,
        0,
    )


def _with(hand: Hand, common: Relay) -> Relay:
    """What one hand is told."""
    return common._replace(
        buffers=address_of(hand.buffers),
        first_event=hand.events[0].handle,
        second_event=hand.events[1].handle,
        saved=address_of(hand.saved),
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


def relay_budget(
    device: Device, source: Source, chain: DeviceChain, budget: Budget
) -> Budget | None:
    """Budget for relaying the files of an array; None if nothing can relay them.

    None also if memory is short: for hands, which take the place of one of the ring's
    slots, or for batches that are worth it.
    """
    can_relay = device.copier is not None and holds_plain_files(source.store)
    if not (can_relay and source.options.relay and source.layout.levels):
        return None
    if not chain.steps and budget.n_slots >= 2 * _LEAST_SLOTS and are_loaded():
        budget = budget.of_plain_relays()
    least_nbytes = max(_SHARE_NBYTES, _LEAST_PIECE_NBYTES * _N_BUFFERS * _N_HANDS)
    has_room = budget.encoded_nbytes >= least_nbytes
    return budget if budget.n_slots >= _LEAST_SLOTS and has_room else None


def choose_fetch(handover: Handover, source: Source, chain: DeviceChain) -> Fetch:
    """The way for payload that a device may decode; its `label` tells the reason."""
    device, budget = handover.device, handover.budget
    try:
        files, label = direct_files(source)
    except UnsupportedError as error:
        why = error.what
    else:
        ring = RingFetch(device, budget, "small ranges")
        return DirectFetch(files, handover, ring, label)
    copier = device.copier
    relayed = relay_budget(device, source, chain, budget)
    if copier is None or relayed is None:
        return RingFetch(device, budget, why)
    share_nbytes = relayed.encoded_nbytes // (_N_BUFFERS * _N_HANDS)
    n_hands = min(_MOST_THREADS, source.options.threads, usable_cpu_count())
    n_hands = max(1, min(n_hands, share_nbytes // _LEAST_PIECE_NBYTES))
    piece_nbytes = min(_PIECE_NBYTES, share_nbytes // n_hands)
    hands = [Hands(device, copier, n_hands, piece_nbytes) for _ in range(_N_HANDS)]
    ring = RingFetch(device, replace(relayed, n_slots=relayed.n_slots - 1), why)
    return RelayFetch(hands, handover._replace(budget=relayed), ring)
