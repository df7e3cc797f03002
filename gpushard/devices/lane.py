"""A lane: one stream, with all the memory that a batch needs.

A batch runs wholly on one lane. The next batch of the lane uses the same slabs once
the batch before is done. Batches of other lanes run meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, Stream, wait_out
from gpushard.devices.budget import Budget
from gpushard.devices.slabs import PinnedSlab, Slab, TablePage
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints

if TYPE_CHECKING:
    from queue import SimpleQueue

# Kernels and decoders may read a few bytes before and after the range they are given.
PADDING_NBYTES = 64


@dataclass
class Pending:
    """A batch that was queued on the device; its statuses have not been read yet.

    Attributes
    ----------
    statuses
        uint32, shape (n_rows,), pinned. Status of each row, valid once the batch is
        done; empty if the batch cannot fail.
    settle
        Called with the rows whose status is not OK.
    """

    statuses: NDArray[np.uint32]
    settle: Callable[[NDArray[np.int64]], None]


@dataclass
class Lane:
    """One stream of a device, with its memory.

    Attributes
    ----------
    stream
        The stream. Whoever made it gives it back.
    budget
        What a batch may usually hold.
    counts_streams
        Whether the host waits until the streams of each batch are counted.
    encoded_nbytes
        Encoded bytes of the current batch. Bytes that rows share count for each row.
    n_waits
        How often the host has waited for the stream. All work that was queued before
        the last wait is done.
    n_settled
        How often the lane was found or made to have nothing under way. If it has grown
        since a batch was begun, that batch no longer needs its encoded bytes.
    is_used
        Whether a thread has the lane, to settle its last batch or to queue the next.
    waiting
        Queues of those who wait for `n_settled` to grow.
    decoding
        Inner chunks that are decoded on the device, until it is known to have survived
        that: a block, and which of its columns.
    """

    device: Device
    stream: Stream
    budget: Budget
    counts_streams: bool = False
    pending: Pending | None = field(init=False, default=None)
    encoded_nbytes: int = field(init=False, default=0)
    n_waits: int = field(init=False, default=0)
    n_settled: int = field(init=False, default=0)
    is_used: bool = field(init=False, default=False)
    waiting: deque[SimpleQueue[None]] = field(init=False, default_factory=deque)
    decoding: tuple[ShardBlock, Ints] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        device, most_nbytes = self.device, self.budget.encoded_nbytes
        self.encoded_host = PinnedSlab(
            device, max(self.budget.assembled_nbytes, most_nbytes)
        )
        self.encoded = Slab(device, most_nbytes + 2 * PADDING_NBYTES)
        self.arenas = (Slab(device), Slab(device))
        self.realigned = Slab(device)
        self.streams = Slab(device)
        self.temp = Slab(device)
        self.page = Slab(device)
        self._slabs = (
            self.encoded,
            *self.arenas,
            self.realigned,
            self.streams,
            self.temp,
            self.page,
        )
        self.page_host = PinnedSlab(device)
        self.statuses_host = PinnedSlab(device)
        self.totals_host = PinnedSlab(device)
        self._pinned = (
            self.encoded_host,
            self.page_host,
            self.statuses_host,
            self.totals_host,
        )
        # Not released where memory runs out: it has the bytes that are put again.
        self.returned_host = PinnedSlab(device)

    def settle_all(self) -> None:
        """Wait until nothing is under way, and settle the rows that were refused.

        Settling a batch may queue another. Raises what `Pending.settle` raises.
        """
        while self.pending is not None:
            self._settle(self.pending)
        self._note_settled()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use of the lane; after an error nothing is under way on it."""
        try:
            self.is_used = True
            yield
        except BaseException:
            self.abandon()
            raise
        finally:
            self.is_used = False

    def wake_waiting(self) -> None:
        """Have those who wait for the lane look at it again."""
        with suppress(IndexError):  # that was the last one; others tell them, too
            while True:
                self.waiting.pop().put(None)

    def _note_settled(self) -> None:
        self.n_settled += 1
        self.wake_waiting()

    def abandon(self) -> None:
        """Wait until all work is over, and ignore its outcome; see `wait_out`."""
        self.pending = None
        wait_out(self.device, (self.stream,))
        self._note_settled()

    def wait(self) -> None:
        """Wait until all work on the stream is done.

        Raises `DeviceError`, as all that waits for the lane, if work on the device
        failed.
        """
        self.device.wait_for(self.stream)
        self.n_waits += 1

    def release(self) -> None:
        """Wait until all work is done, ignore its statuses, and give the memory back.

        Raises as `wait`.
        """
        self.pending = None
        self.wait()
        self._note_settled()
        for slab in (*self._slabs, *self._pinned):
            slab.release()

    def _settle(self, pending: Pending) -> None:
        """Wait until a batch is done, and settle the rows that the device refused."""
        self.wait()
        self.pending = None  # not before: an interrupt may have ended the wait
        self.decoding = None
        for slab in self._slabs:
            slab.settle()
        if pending.statuses.any():
            pending.settle(np.flatnonzero(pending.statuses))

    def note_infallible(self) -> None:
        """Note a batch that cannot fail: `settle_all` only waits for its end."""
        self.pending = Pending(np.zeros(0, np.uint32), lambda _: None)

    def pinned_for(self, sizes: Ints) -> tuple[NDArray[np.uint8], Ints]:
        """Pinned memory for pieces side by side, and the offset of each: shape (n,)."""
        padded = -(-sizes // 16) * 16
        offsets = np.cumsum(padded) - padded
        return self.encoded_host.view(int(offsets[-1] + sizes[-1])), offsets

    def upload(self, data: NDArray[np.uint8]) -> int:
        """Device address of a copy of pinned memory; no batch may be under way."""
        nbytes = len(data) + 2 * PADDING_NBYTES
        address = self.encoded.address_anew(nbytes) + PADDING_NBYTES
        if len(data):
            self.device.upload(address, data, self.stream)
        return address

    def read_back(self, runs: Sequence[tuple[int, int]]) -> NDArray[np.uint8]:
        """Bytes of `runs` joined, on the host, once all queued work is done.

        `runs` are device addresses and numbers of bytes. The result is valid until the
        next call.
        """
        host = self.returned_host.view(sum(nbytes for _, nbytes in runs))
        at = 0
        for address, nbytes in runs:
            if nbytes:
                part = host[at : at + nbytes]
                self.device.download(part, address, self.stream)
                at += nbytes
        if at:
            self.wait()
        return host

    def place_page(self, page: TablePage) -> int:
        """Device address of a page; copying its content there is queued."""
        address = self.page.address(page.nbytes)
        if page.upload_nbytes:
            host = self.page_host.view(page.upload_nbytes)
            page.write(host)
            self.device.upload(address, host, self.stream)
        return address

    def read_statuses(self, address: int, n_rows: int) -> NDArray[np.uint32]:
        """Statuses of the rows of a batch; valid once the batch is done."""
        host = self.statuses_host.view(4 * n_rows)
        self.device.download(host, address, self.stream)
        return host.view(np.uint32)
