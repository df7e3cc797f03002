"""One batch of inner chunks on a lane: upload, decode, scatter, fetch the statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.decoding.chain import DeviceChain, Step, StepKind
from gpushard.devices.decoding.row_tables import (
    RowTables,
    add_dummies,
    add_results,
    reserve_dummy_room,
    reserve_scratch,
)
from gpushard.devices.decoding.steps import Decoder, landing_alignment
from gpushard.devices.decoding.streams import RowStreams
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import PADDING_NBYTES, Lane, Pending
from gpushard.devices.scattering.joining import Grouping
from gpushard.devices.scattering.launch import Addresses, ScatterBatch
from gpushard.devices.scattering.targets import PlacedTarget
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import BYTE_SHUFFLED, FAST_DIVISOR, fast_divisor
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

    Attributes
    ----------
    src
        uint64, host, shape (n_rows,). Device addresses.
    nbytes
        int64, shape (n_rows,). Sizes in bytes.
    """

    src: NDArray[np.uint64]
    nbytes: Ints


class _Scatter(NamedTuple):
    """The rows of one target, with their tables, ready to launch."""

    target: PlacedTarget
    rows: slice
    batch: ScatterBatch
    tables: int


def scatter_fill(lane: Lane, targets: Sequence[PlacedTarget], rows: Rows) -> None:
    """Enqueue writing the fill value where missing inner chunks would land."""
    scatter_decoded(lane, targets, rows, np.zeros(len(rows.target), np.uint64))


def scatter_decoded(
    lane: Lane,
    targets: Sequence[PlacedTarget],
    rows: Rows,
    src: NDArray[np.uint64],
) -> None:
    """Enqueue the scattering of inner chunks that need no decoding.

    Parameters
    ----------
    src
        uint64, host, shape (n_rows,). Device address of byte 0 of each inner chunk; 0
        for a missing one.
    """
    page = TablePage()
    table = page.add(src)
    scatters = _lay_scatters(page, targets, rows)
    address = lane.place_page(page)
    for scatter in scatters:
        _launch(lane, scatter, address, address + table, 0)
    _settle_nothing(lane)


def copy_straight(
    lane: Lane, memory: NDArray[np.uint8], copies: Sequence[tuple[int, int, int]]
) -> None:
    """Enqueue copies of pinned memory to their places in the outputs.

    Parameters
    ----------
    copies
        For each copy: offset in `memory`, device address and number of bytes.
    """
    for at, address, nbytes in copies:
        if nbytes:
            lane.device.upload(address, memory[at : at + nbytes], lane.stream)
    _settle_nothing(lane)


def decode_and_scatter(
    lane: Lane,
    chain: DeviceChain,
    targets: Sequence[PlacedTarget],
    rows: Rows,
    payload: Payload,
    settle: Settle,
) -> None:
    """Enqueue decoding encoded inner chunks and scattering them to the outputs.

    Parameters
    ----------
    settle
        Called with the rows that the device refused, once the batch is done.
    """
    n_rows = len(rows.target)
    lane.encoded_nbytes = int(payload.nbytes.sum())
    page = TablePage()
    src_at = page.add(payload.src)
    nbytes_at = page.add(payload.nbytes.astype(np.uint64))
    sizes_at, filters_at = _add_step_columns(page, chain, n_rows)
    landings = _landings(lane, chain, targets, rows)
    *arenas_at, landings_at = _add_arenas(page, lane, chain, landings)
    planes_at = _add_planes(page, chain, n_rows)
    dummies_at = add_dummies(page)
    scatters = _lay_scatters(page, targets, rows)
    totals_at, realigned_at, status_at = add_results(page, n_rows)
    scratch_at, dummy_at = reserve_scratch(page, n_rows), reserve_dummy_room(page)
    address = lane.place_page(page)
    tables = RowTables(
        n_rows=n_rows,
        src=address + src_at,
        src_nbytes=address + nbytes_at,
        sizes=tuple(address + at for at in sizes_at),
        filters={
            k: (address + a, address + b, address + c)
            for k, (a, b, c) in filters_at.items()
        },
        arenas=(address + arenas_at[0], address + arenas_at[1]),
        landings=address + landings_at,
        planes=address + planes_at if planes_at >= 0 else 0,
        fused_nbytes=chain.fused_nbytes,
        dummies={algorithm: address + at for algorithm, at in dummies_at.items()},
        dummy_dst=address + dummy_at,
        totals=address + totals_at,
        n_realigned=address + realigned_at,
        status=address + status_at,
        scratch=address + scratch_at,
    )
    streams = RowStreams(lane, tables)
    decoder = Decoder(streams, tables.src, tables.src_nbytes)
    for index, step in enumerate(chain.steps):
        decoder.run(step, index)
    for scatter in scatters:
        _launch(lane, scatter, address, decoder.src, tables.status, decoder.planes)
    lane.pending = Pending(lane.read_statuses(tables.status, n_rows), settle)


def _add_step_columns(
    page: TablePage, chain: DeviceChain, n_rows: int
) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """Offsets of the columns of sizes after each step, and of the shuffle filters."""
    sizes: list[int] = []
    filters: dict[int, tuple[int, int, int]] = {}
    for index, step in enumerate(chain.steps):
        sizes.append(page.add(np.full(n_rows, step.decoded_nbytes, np.uint64)))
        if step.kind is StepKind.SHUFFLE:
            filters[index] = (
                page.add(np.full(n_rows, BYTE_SHUFFLED, np.uint32)),
                page.add(np.full(n_rows, step.itemsize, np.uint32)),
                page.add(np.full(n_rows, step.decoded_nbytes, np.uint32)),
            )
    return sizes, filters


def _add_planes(page: TablePage, chain: DeviceChain, n_rows: int) -> int:
    """Offset of the table of blocks that the last step leaves shuffled; -1 if none."""
    if not chain.fused_nbytes or chain.steps[-1].kind is not StepKind.SHUFFLE:
        return -1
    return page.add(np.repeat(fast_divisor(chain.decoded_nbytes), n_rows))


def _landings(
    lane: Lane, chain: DeviceChain, targets: Sequence[PlacedTarget], rows: Rows
) -> Ints:
    """Address in an output that each row is decoded to; 0 if it must be scattered."""
    landings = np.zeros(len(rows.target), np.int64)
    alignment = landing_alignment(lane.device.decoder, chain.steps[-1])
    if alignment:
        for t, some in rows.by_target():
            target = targets[t].target
            found = target.landings(rows.position[:, some], chain.decoded_nbytes)
            landings[some] = np.where(found % alignment, 0, found)
    return landings


def _add_arenas(
    page: TablePage, lane: Lane, chain: DeviceChain, landings: Ints
) -> list[int]:
    """Offsets of three address tables: both arenas, and the final place of rows."""
    largest = max((step.decoded_nbytes for step in chain.steps), default=0)
    pitch = -(-max(largest, 1) // _PITCH) * _PITCH
    n_writes = sum(map(_n_writes, chain.steps))
    n_rows = len(landings)
    places: list[Ints] = []
    for k, arena in enumerate(lane.arenas):
        is_only_last = n_writes == 1
        in_arena = landings == 0 if is_only_last else np.ones(n_rows, bool)
        n_used = int(in_arena.sum()) if k < n_writes else 0
        start = arena.address(n_used * pitch + PADDING_NBYTES if n_used else 0)
        ordinal = np.cumsum(in_arena) - in_arena
        places.append(start + pitch * ordinal)
    last = places[(n_writes - 1) % 2]
    landed = np.where(landings, landings, last)
    return [page.add(table.astype(np.uint64)) for table in (*places, landed)]


def _n_writes(step: Step) -> int:
    """How many times a step writes from one arena to the other."""
    if step.kind is StepKind.CRC32C:
        return 0
    return 2 if step.kind is StepKind.BLOSC else 1


def _lay_scatters(
    page: TablePage, targets: Sequence[PlacedTarget], rows: Rows
) -> list[_Scatter]:
    scatters: list[_Scatter] = []
    for t, some in rows.by_target():
        batch = targets[t].target.scatter.batch(rows.position[:, some])
        scatters.append(_Scatter(targets[t], some, batch, page.add(batch.tables)))
    return scatters


def _launch(
    lane: Lane, some: _Scatter, page: int, src: int, status: int, planes: int = 0
) -> None:
    """Launch one scatter; `src`, `status` and `planes` are tables of all rows, or 0."""
    scatter = some.target.target.scatter
    first = some.rows.start
    addresses = Addresses(
        some.target.tables,
        page + some.tables,
        some.target.target.out,
        src + 8 * first,
        status + 4 * first if status else 0,
        planes + FAST_DIVISOR.itemsize * first if planes else 0,
    )
    kernel = scatter.planes_kernel if planes else scatter.kernel
    parameter: Any = scatter.parameter.packed(some.batch, addresses)
    n_blocks = some.batch.n_blocks(threads_of(kernel))
    if n_blocks:
        lane.device.launch(kernel, (n_blocks, 1), [parameter], lane.stream)


def _settle_nothing(lane: Lane) -> None:
    """Note a batch that cannot fail, so that `Lane.retire` only waits for its end."""
    lane.pending = Pending(np.zeros(0, np.uint32), lambda _: None)
