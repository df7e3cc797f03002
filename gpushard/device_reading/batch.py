"""One batch of inner chunks on a lane: bring, decode, scatter, fetch the statuses.

There are three kinds: missing inner chunks (`fill`), those that the host decodes
(`decode_on_host`), and those that the device decodes (`decode`).

All tables of a batch lie on one page, which is uploaded at once: those of its rows
(`RowTables`) and those of its scatters (`ScatterBatch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.device_reading.host_rows import put_rows
from gpushard.device_reading.payload.answers import FetchedChunks, brought_back
from gpushard.device_reading.payload.ring import PinnedPayload
from gpushard.devices.budget import LEAD_NBYTES, row_pitch
from gpushard.devices.decoding.chain import DeviceChain, Step, StepKind
from gpushard.devices.decoding.row_tables import EncodedRows, RowTables
from gpushard.devices.decoding.steps import BatchDecoder, landing_alignment
from gpushard.devices.decoding.streams import RowStreams
from gpushard.devices.kernels import threads_of
from gpushard.devices.lane import PADDING_NBYTES, Lane, Pending
from gpushard.devices.scattering.launch import Addresses, ScatterBatch
from gpushard.devices.scattering.targets import DeviceTarget, Rows, Targets
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import FAST_DIVISOR
from gpushard.fetching.job import Job
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints


class BatchInput(NamedTuple):
    """Inner chunks of one block of a job, and their encoded bytes."""

    job: Job
    block: ShardBlock
    encoded: FetchedChunks


Settle = Callable[[Lane, BatchInput], None]


class _Scatter(NamedTuple):
    """The rows of one target, ready to launch once their page has an address."""

    target: DeviceTarget
    rows: slice
    batch: ScatterBatch


def fill(lane: Lane, targets: Targets, block: ShardBlock, columns: Ints) -> None:
    """Enqueue writing the fill value where missing inner chunks would land.

    `columns` are those of the block, sorted by the target that they land in.
    """
    rows = Rows.of(block, columns, targets.grouping)
    _scatter(lane, targets, rows, np.zeros(len(columns), np.uint64))


def decode_on_host(
    lane: Lane, chain: DeviceChain, targets: Targets, fetched: BatchInput
) -> None:
    """Enqueue scattering inner chunks that the host decodes.

    Raises `CorruptShardError` if one is damaged.
    """
    encoded = fetched.encoded
    rows = Rows.of(fetched.block, encoded.column, targets.grouping)
    sizes = np.full(len(encoded), chain.decoded_nbytes)
    host, places = lane.pinned_for(sizes)
    put_rows(chain, fetched, lane, host, places)
    src = (places + lane.upload(host)).astype(np.uint64)
    _scatter(lane, targets, rows, src)


def enqueue_decode(
    lane: Lane,
    chain: DeviceChain,
    targets: Targets,
    fetched: BatchInput,
    settle: Settle,
) -> None:
    """Enqueue bringing, decoding and scattering inner chunks; or copying plain ones.

    `settle` is called with the lane and the inner chunks that the device refused, once
    the batch is done.
    """
    encoded = fetched.encoded
    rows = Rows.of(fetched.block, encoded.column, targets.grouping)
    if not chain.steps:
        _place_plain(lane, targets, rows, encoded)
        return
    src = encoded.payload.bring(lane, encoded)
    brought = EncodedRows(src, encoded.nbytes)

    def settle_rows(refused: Ints) -> None:
        found = brought_back(lane, encoded[refused], src[refused])
        settle(lane, fetched._replace(encoded=found))

    statuses = _decode(lane, chain, targets, rows, brought)
    lane.pending = Pending(statuses, settle_rows)


def _place_plain(
    lane: Lane, targets: Targets, rows: Rows, encoded: FetchedChunks
) -> None:
    """Enqueue copying plain elements to the outputs, or else scattering them."""
    payload = encoded.payload
    if isinstance(payload, PinnedPayload):
        copies = targets.copies(rows, encoded.offset - encoded.low)
        if copies is not None:
            payload.copy_to_outputs(lane, copies)
            return
    src = payload.bring(lane, encoded) - encoded.low.view(np.uint64)
    _scatter(lane, targets, rows, src)


def _scatter(lane: Lane, targets: Targets, rows: Rows, src: NDArray[np.uint64]) -> None:
    """Enqueue scattering inner chunks that need no decoding.

    `src`, uint64 of shape (n_rows,), host, has the device address of byte 0 of each; 0
    writes the fill value where a missing one would land.
    """
    page = TablePage()
    table = page.add(src)
    scatters = _lay_scatters(page, targets, rows)
    address = lane.place_page(page)
    for scatter in scatters:
        _launch(lane, scatter, address, address + table, 0)
    lane.note_infallible()


def _decode(
    lane: Lane,
    chain: DeviceChain,
    targets: Targets,
    rows: Rows,
    encoded: EncodedRows,
) -> NDArray[np.uint32]:
    """Enqueue decoding and scattering; statuses of the rows, once the batch is done."""
    lane.encoded_nbytes = int(encoded.nbytes.sum())
    page = TablePage()
    scatters = _lay_scatters(page, targets, rows)
    alignment = 0
    if not chain.guards_rows:
        alignment = landing_alignment(lane.device.decoder, chain.steps[-1])
    landings = targets.landings(rows, chain.decoded_nbytes, alignment)
    places = _places(lane, chain, landings)
    laid = RowTables.lay(page, chain, encoded, places)
    address = lane.place_page(page)
    tables = laid.at(address)
    decoder = BatchDecoder(RowStreams(lane, tables), tables.src, tables.src_nbytes)
    for index, step in enumerate(chain.steps):
        decoder.run(step, index)
    for scatter in scatters:
        _launch(lane, scatter, address, decoder.src, tables.status, decoder.planes)
    return lane.read_statuses(tables.status, tables.n_rows)


def _places(lane: Lane, chain: DeviceChain, landings: Ints) -> list[Ints]:
    """Addresses that rows are decoded to: in both arenas, and by the last step."""
    pitch = row_pitch(chain.largest_nbytes)
    tail = lane.budget.tail_nbytes + PADDING_NBYTES
    n_writes = sum(map(_n_writes, chain.steps))
    n_used, ordinal, lands = len(landings), np.arange(len(landings)), landings.any()
    if lands and n_writes == 1:
        # Rows that only the last step writes need no place in an arena if they land.
        in_arena = landings == 0
        n_used, ordinal = int(in_arena.sum()), np.cumsum(in_arena) - in_arena
    offset, room = pitch * ordinal, LEAD_NBYTES + n_used * pitch + tail
    places: list[Ints] = []
    for k, arena in enumerate(lane.arenas):
        start = arena.address(room if n_used and k < n_writes else 0)
        if k < max(n_writes, 1):  # nothing reads the places of an arena without writes
            places.append(start + LEAD_NBYTES + offset)
    last = places[(n_writes - 1) % len(places)]
    landed = np.where(landings, landings, last) if lands else last
    return [places[0], places[-1], landed]


def _n_writes(step: Step) -> int:
    """How many times a step writes from one arena to the other."""
    if step.kind is StepKind.CRC32C:
        return 0
    return 2 if step.kind is StepKind.BLOSC else 1


def _lay_scatters(page: TablePage, targets: Targets, rows: Rows) -> list[_Scatter]:
    scatters: list[_Scatter] = []
    for t, some in rows.of_target:
        target = targets.laid[t]
        batch = target.scatter.batch(rows.position[:, some], page)
        scatters.append(_Scatter(target, some, batch))
    return scatters


def _launch(
    lane: Lane, some: _Scatter, page: int, src: int, status: int, planes: int = 0
) -> None:
    """Launch one scatter; `src`, `status` and `planes` are tables of all rows, or 0."""
    scatter = some.target.scatter
    first = some.rows.start
    addresses = Addresses(
        some.target.tables,
        page,
        some.target.out,
        src + 8 * first,
        status + 4 * first if status else 0,
        planes + FAST_DIVISOR.itemsize * first if planes else 0,
    )
    kernel = scatter.planes_kernel if planes else scatter.kernel
    n_blocks = some.batch.n_blocks(threads_of(kernel))
    if n_blocks:
        parameter = scatter.parameter.packed(some.batch, addresses)
        lane.device.launch(kernel, (n_blocks, 1), [parameter], lane.stream)
