"""One batch of inner chunks on a lane: upload, decode, scatter, read the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.devices.chain import DeviceChain, StepKind
from gpushard.devices.decode import (
    Decoder,
    RowTables,
    add_dummies,
    reserve_dummy_room,
    reserve_results,
    reserve_scratch,
    results_at,
)
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import PADDING_NBYTES, Lane, Pending
from gpushard.devices.scatter_structs import Addresses, ScatterBatch
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import BYTE_SHUFFLED
from gpushard.devices.target import PlacedTarget
from gpushard.selection import Ints

Settle = Callable[[Ints], None]
_PITCH = 256


class Rows(NamedTuple):
    """Inner chunks of a batch, those of one part side by side.

    Attributes
    ----------
    part
        int64, shape (n_rows,), ascending.
    position
        int64, shape (n, n_rows). As in `ShardBlock`.
    """

    part: Ints
    position: Ints

    @classmethod
    def of(cls, block: ShardBlock, columns: Ints) -> Rows:
        """The given columns of a block, which are sorted by part."""
        return cls(block.part[columns], block.position[:, columns])

    def by_part(self) -> Iterator[tuple[int, slice]]:
        """Each part that has rows, and which they are."""
        first = 0
        while first < len(self.part):
            p = int(self.part[first])
            last = int(np.searchsorted(self.part, p, side="right"))
            yield p, slice(first, last)
            first = last


class Payload(NamedTuple):
    """Bytes of the inner chunks of a batch.

    Attributes
    ----------
    pieces
        uint8, host, one a row.
    low
        int64, shape (n_rows,). Bytes of the inner chunk ahead of each piece: not 0
        where only a span of plain elements was fetched.
    """

    pieces: Sequence[NDArray[np.uint8]]
    low: Ints


class _Part(NamedTuple):
    """Rows of one part on their way to its target."""

    target: PlacedTarget
    rows: slice
    batch: ScatterBatch
    tables: int


def scatter_fill(lane: Lane, targets: Sequence[PlacedTarget], rows: Rows) -> None:
    """Enqueue the fill value where missing inner chunks would land."""
    page = TablePage()
    absent = page.add(np.zeros(len(rows.part), np.uint64))
    parts = _lay_parts(page, targets, rows)
    address = lane.place_page(page)
    for part in parts:
        _scatter(lane, part, address, address + absent, 0)
    _settle_nothing(lane)


def scatter_decoded(
    lane: Lane, targets: Sequence[PlacedTarget], rows: Rows, payload: Payload
) -> None:
    """Enqueue inner chunks that need no decoding: upload and scatter."""
    src = lane.upload_bytes(payload.pieces) - payload.low.astype(np.uint64)
    page = TablePage()
    table = page.add(src)
    parts = _lay_parts(page, targets, rows)
    address = lane.place_page(page)
    for part in parts:
        _scatter(lane, part, address, address + table, 0)
    _settle_nothing(lane)


def decode_and_scatter(
    lane: Lane,
    chain: DeviceChain,
    targets: Sequence[PlacedTarget],
    rows: Rows,
    payload: Payload,
    settle: Settle,
) -> None:
    """Enqueue the decoding of encoded inner chunks, and their scattering.

    Parameters
    ----------
    settle
        Called, when the batch is done, with the rows that the device refused.
    """
    n_rows = len(rows.part)
    src = lane.upload_bytes(payload.pieces)
    page = TablePage()
    sizes = np.array([len(piece) for piece in payload.pieces], np.uint64)
    src_at, nbytes_at = page.add(src), page.add(sizes)
    sizes_at, filters_at = _add_step_columns(page, chain, n_rows)
    arenas_at = _add_arenas(page, lane, chain, n_rows)
    dummies_at = add_dummies(page)
    parts = _lay_parts(page, targets, rows)
    scratch_at, dummy_at = reserve_scratch(page, n_rows), reserve_dummy_room(page)
    results, results_nbytes = reserve_results(page, n_rows)
    address = lane.place_page(page)
    lane.device.clear(address + results, results_nbytes, lane.stream)
    verdict, status = results_at(address + results)
    tables = RowTables(
        n_rows,
        address + src_at,
        address + nbytes_at,
        tuple(address + at for at in sizes_at),
        {
            k: (address + a, address + b, address + c)
            for k, (a, b, c) in filters_at.items()
        },
        (address + arenas_at[0], address + arenas_at[1]),
        {algorithm: address + at for algorithm, at in dummies_at.items()},
        address + dummy_at,
        verdict,
        status,
        address + scratch_at,
    )
    decoder = Decoder(lane, tables, True, tables.src, tables.src_nbytes)
    for index, step in enumerate(chain.steps):
        decoder.run(step, index)
    decoder.judge()
    for part in parts:
        _scatter(lane, part, address, decoder.src, status)
    verdict_host, status_host = lane.read_verdict(verdict, n_rows)
    event = lane.device.record(lane.stream)
    lane.pending = Pending(event, verdict_host, status_host, settle)


def _add_step_columns(
    page: TablePage, chain: DeviceChain, n_rows: int
) -> tuple[list[int], dict[int, tuple[int, int, int]]]:
    """Offsets of the sizes after each step, and of the filters of shuffles."""
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


def _add_arenas(
    page: TablePage, lane: Lane, chain: DeviceChain, n_rows: int
) -> list[int]:
    """Offsets of the tables of where rows are decoded to, in both arenas."""
    largest = max((step.decoded_nbytes for step in chain.steps), default=0)
    pitch = -(-max(largest, 1) // _PITCH) * _PITCH
    kinds = [step.kind for step in chain.steps]
    second = StepKind.BLOSC in kinds or StepKind.SHUFFLE in kinds
    places: list[int] = []
    for k, arena in enumerate(lane.arenas):
        nbytes = n_rows * pitch + PADDING_NBYTES if k == 0 or second else 0
        start = arena.address(nbytes)
        rows = start + pitch * np.arange(n_rows, dtype=np.int64)
        places.append(page.add(rows.astype(np.uint64)))
    return places


def _lay_parts(
    page: TablePage, targets: Sequence[PlacedTarget], rows: Rows
) -> list[_Part]:
    parts: list[_Part] = []
    for p, some in rows.by_part():
        batch = targets[p].target.scatter.batch(rows.position[:, some])
        parts.append(_Part(targets[p], some, batch, page.add(batch.tables)))
    return parts


def _scatter(lane: Lane, part: _Part, page: int, src: int, status: int) -> None:
    """Launch one scatter; `src` and `status` are tables of all rows (0: no status)."""
    scatter = part.target.target.scatter
    first = part.rows.start
    addresses = Addresses(
        part.target.tables,
        page + part.tables,
        part.target.target.out,
        src + 8 * first,
        status + 4 * first if status else 0,
    )
    parameter: Any = scatter.pack(part.batch, addresses)
    n_blocks = part.batch.n_blocks(threads_of(scatter.kernel))
    if n_blocks:
        lane.device.launch(scatter.kernel, (n_blocks, 1), [parameter], lane.stream)


def _settle_nothing(lane: Lane) -> None:
    """The batch can only succeed: nothing to look at but its end."""
    fine = np.zeros(1, np.uint32)
    lane.pending = Pending(
        lane.device.record(lane.stream), fine, fine, lambda _rows: None
    )
