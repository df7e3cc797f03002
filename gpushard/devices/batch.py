"""One batch of inner chunks on a lane: upload, decode, scatter, fetch the statuses.

All tables of a batch lie on one page, which is uploaded at once: those of its rows
(`RowTables`) and those of its scatters (`ScatterBatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.chain import DeviceChain, Step, StepKind
from gpushard.devices.decoding.row_tables import RowTables
from gpushard.devices.decoding.steps import Decoder, landing_alignment
from gpushard.devices.decoding.streams import RowStreams
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import PADDING_NBYTES, Lane, Pending
from gpushard.devices.scattering.joining import Grouping
from gpushard.devices.scattering.launch import Addresses, ScatterBatch
from gpushard.devices.scattering.targets import DeviceTarget
from gpushard.devices.slabs import TablePage
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints

Settle = Callable[[Ints], None]
_PITCH = 256


class Rows(NamedTuple):
    """Inner chunks of a batch, sorted so that those of one target are neighbours.

    Attributes
    ----------
    target
        int64, shape (n_rows,), ascending.
    position
        int64, shape (n, n_rows). Positions as `Grouping.positions` returns them.
    part
        int64, shape (n_rows,). Part of the plan; each part has an output of its own.
    """

    target: Ints
    position: Ints
    part: Ints

    @classmethod
    def of(cls, block: ShardBlock, columns: Ints, grouping: Grouping) -> Rows:
        """The given columns of a block, which are sorted by target."""
        part = block.part[columns]
        position = grouping.positions(block.position[:, columns], part)
        return cls(grouping.of_part[part], position, part)

    def by_target(self) -> Iterator[tuple[int, slice]]:
        """Index of each target that has rows, and the slice of its rows."""
        first = 0
        while first < len(self.target):
            t = int(self.target[first])
            last = int(np.searchsorted(self.target, t, side="right"))
            yield t, slice(first, last)
            first = last


class Payload(NamedTuple):
    """Bytes of the inner chunks of a batch, in device memory.

    Device addresses, uint64, host, and sizes in bytes, int64: shape (n_rows,).
    """

    src: NDArray[np.uint64]
    nbytes: Ints


class _Scatter(NamedTuple):
    """The rows of one target, ready to launch once their page has an address."""

    target: DeviceTarget
    rows: slice
    batch: ScatterBatch


def scatter_decoded(
    lane: Lane,
    targets: Sequence[DeviceTarget],
    rows: Rows,
    src: NDArray[np.uint64],
) -> None:
    """Enqueue the scattering of inner chunks that need no decoding.

    `src`, uint64 of shape (n_rows,), host, has the device address of byte 0 of each; 0
    writes the fill value where a missing one would land.
    """
    page = TablePage()
    table = page.add(src)
    scatters = _lay_scatters(page, targets, rows)
    address = lane.place_page(page)
    for scatter in scatters:
        _launch(lane, scatter, address, address + table, 0)
    lane.note_harmless()


def decode_and_scatter(
    lane: Lane,
    chain: DeviceChain,
    targets: Sequence[DeviceTarget],
    rows: Rows,
    payload: Payload,
    settle: Settle,
) -> None:
    """Enqueue decoding encoded inner chunks and scattering them to the outputs.

    `settle` is called with the rows that the device refused, once the batch is done.
    """
    lane.encoded_nbytes = int(payload.nbytes.sum())
    page = TablePage()
    scatters = _lay_scatters(page, targets, rows)
    places = _places(lane, chain, _landings(lane, chain, targets, rows))
    laid = RowTables.lay(page, chain, (payload.src, payload.nbytes), places)
    address = lane.place_page(page)
    tables = laid.at(address)
    decoder = Decoder(RowStreams(lane, tables), tables.src, tables.src_nbytes)
    for index, step in enumerate(chain.steps):
        decoder.run(step, index)
    for scatter in scatters:
        _launch(lane, scatter, address, decoder.src, tables.status)
    statuses = lane.read_statuses(tables.status, tables.n_rows)
    lane.pending = Pending(statuses, settle)


def _landings(
    lane: Lane, chain: DeviceChain, targets: Sequence[DeviceTarget], rows: Rows
) -> Ints:
    """Address in an output that each row is decoded to; 0 if it must be scattered."""
    landings = np.zeros(len(rows.target), np.int64)
    alignment = landing_alignment(lane.device.decoder, chain.steps[-1])
    if alignment:
        for t, some in rows.by_target():
            position = rows.position[:, some]
            found = targets[t].landings(position, chain.decoded_nbytes)
            landings[some] = np.where(found % alignment, 0, found)
    return landings


def _places(lane: Lane, chain: DeviceChain, landings: Ints) -> list[Ints]:
    """Addresses that rows are decoded to: in both arenas, and by the last step."""
    largest = max(step.decoded_nbytes for step in chain.steps)
    pitch = -(-max(largest, 1) // _PITCH) * _PITCH
    n_writes = sum(map(_n_writes, chain.steps))
    # Rows that only the last step writes need no place in an arena if they land.
    in_arena = landings == 0 if n_writes == 1 else np.ones(len(landings), bool)
    ordinal = np.cumsum(in_arena) - in_arena
    places: list[Ints] = []
    for k, arena in enumerate(lane.arenas):
        n_used = int(in_arena.sum()) if k < n_writes else 0
        start = arena.address(n_used * pitch + PADDING_NBYTES if n_used else 0)
        places.append(start + pitch * ordinal)
    last = places[(n_writes - 1) % 2]
    return [*places, np.where(landings, landings, last)]


def _n_writes(step: Step) -> int:
    """How many times a step writes from one arena to the other."""
    if step.kind is StepKind.CRC32C:
        return 0
    return 2 if step.kind is StepKind.BLOSC else 1


def _lay_scatters(
    page: TablePage, targets: Sequence[DeviceTarget], rows: Rows
) -> list[_Scatter]:
    return [
        _Scatter(
            targets[t], some, targets[t].scatter.batch(rows.position[:, some], page)
        )
        for t, some in rows.by_target()
    ]


def _launch(lane: Lane, some: _Scatter, page: int, src: int, status: int) -> None:
    """Launch one scatter; `src` and `status` are tables of all rows, or 0."""
    kernel = some.target.scatter.kernel
    first = some.rows.start
    addresses = Addresses(
        some.target.tables,
        page,
        some.target.out,
        src + 8 * first,
        status + 4 * first if status else 0,
    )
    n_blocks = some.batch.n_blocks(threads_of(kernel))
    if n_blocks:
        parameter = some.batch.packed(addresses)
        lane.device.launch(kernel, (n_blocks, 1), [parameter], lane.stream)
