"""Orthogonal selections -> tables and parameters of the scatter kernels.

A selection is laid out once for an array and the shape of its inner chunks. Each batch
of inner chunks adds its columns. Addresses are filled in last.

    scatter = GridScatter.lay(part, in_strides, out_strides, transfer, fill)
    batch = scatter.batch(position, page)
    # upload scatter.tables once, and the page, both 16-byte aligned; launch
    # scatter.kernel over batch.n_blocks(threads) blocks with its one parameter
    batch.packed(Addresses(...))

Pure: NumPy only, no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scattering.boxes import Boxes, Loop, Runs, lay_boxes
from gpushard.devices.scattering.joining import JoinedGrids
from gpushard.devices.scattering.launch import (
    EXTENT,
    LOOP,
    SCATTER,
    ScatterBatch,
    StructWriter,
    field_place,
    landing_table,
    transfer_record,
)
from gpushard.devices.scattering.transfer import (
    LIMIT,
    MAX_AXES,
    WIDEST_ACCESS,
    Transfer,
    check_limit,
    fill_pattern,
)
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import fast_divisor
from gpushard.planning.grid import GridPart
from gpushard.selecting.selection import Ints

# A warp takes a tile. A tile is large enough to pay for looking up its row. It is so
# small that a batch has one for each warp of a large GPU (132 multiprocessors, each of
# 64 warps).
_MAX_TILE_LOG2 = 15
_MIN_TILE_LOG2 = 11
_WANTED_TILES = 132 * 64
_LANES = 32


@dataclass(frozen=True, slots=True)
class GridScatter:
    """An orthogonal selection over inner chunks of one shape, ready for batches.

    Attributes
    ----------
    kernel
        Name of the kernel to launch.
    tables
        uint8, shape (n_bytes,), host.
    """

    kernel: str
    tables: NDArray[np.uint8]
    _struct: StructWriter
    _boxes: Boxes
    _keeps_bytes: bool

    @classmethod
    def lay(
        cls,
        part: GridPart | JoinedGrids,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        transfer: Transfer,
        fill: bytes,
    ) -> GridScatter:
        """Scatter of `part`.

        Parameters
        ----------
        in_strides
            Bytes between neighbours in a decoded inner chunk, for each axis of the
            array (transposes included).
        out_strides
            Bytes between neighbours in an output, for each axis of the array. May be
            negative.
        fill
            One element of the output, holding the fill value.

        Raises
        ------
        UnsupportedError
            The array has more than 32 axes, or 2 GiB or more of one inner chunk are
            wanted.
        """
        check_limit("axes of an array", len(in_strides), MAX_AXES + 1)
        offset = part.out_offset if isinstance(part, JoinedGrids) else None
        boxes = lay_boxes(part.projections, in_strides, out_strides, transfer, offset)
        check_limit("bytes wanted of an inner chunk", boxes.largest_nbytes, LIMIT)
        rank = next(n for n in SCATTER if len(boxes.loops) <= n)
        struct = StructWriter.of(SCATTER[rank], transfer_record(transfer), fill)
        record = struct.record
        record["fill_nbytes"] = fast_divisor(len(fill_pattern(fill)))
        record["n_loops"] = len(boxes.loops)
        record["in_bits"], record["out_bits"] = _alignment_bits(boxes.loops)
        for loop, place in _places(struct, boxes):
            _write_loop(struct, loop, place)
        kernel = f"gs_scatter_{transfer.kernel}_{rank}"
        return cls(kernel, struct.page.packed(), struct, boxes, transfer.keeps_bytes)

    def runs(self, position: Ints) -> Runs | None:
        """Where each row's bytes go, if unchanged and contiguous; None if not.

        Takes positions as `batch`. Offsets are relative to the inner chunk and to
        `Addresses.out`.
        """
        return self._boxes.runs(position) if self._keeps_bytes else None

    def batch(self, position: Ints, page: TablePage) -> ScatterBatch:
        """Scatter of some rows, with its tables added to the page of their batch.

        Parameters
        ----------
        position
            int64, shape (ndim, n_rows). Position of each row in the projections, as in
            `ShardBlock`. Joined selections have one more row: the selection's number.

        Raises
        ------
        UnsupportedError
            The batch has 2**31 tiles or more.
        """
        n_rows = position.shape[1]
        nbytes = np.broadcast_to(self._boxes.nbytes(position), n_rows)
        tile_log2 = _tile_log2(int(nbytes.sum()))
        bounds = np.append(0, np.cumsum(-(-nbytes >> tile_log2)))
        n_tiles = int(bounds[-1])
        check_limit("tiles of a batch", n_tiles, LIMIT)
        struct = StructWriter(self._struct.record.copy(), page)
        dtype = struct.record.dtype
        landings = landing_table(self._boxes.landings(position))
        struct.point(field_place(dtype, "landings"), landings)
        struct.point(field_place(dtype, "tile_bounds"), bounds.astype(np.uint32))
        for loop, place in _places(struct, self._boxes):
            if loop.axis is not None:
                extents = _extents(loop, position)
                struct.point(place + field_place(LOOP, "extents"), extents)
        record = struct.record
        record["n_rows"], record["n_tiles"] = n_rows, n_tiles
        record["tile_log2"] = tile_log2
        words = self._struct.words, struct.words
        return ScatterBatch(record, *words, n_tiles * _LANES)


def _places(struct: StructWriter, boxes: Boxes) -> Iterator[tuple[Loop, int]]:
    """The run and each loop, with its place in the struct."""
    dtype = struct.record.dtype
    yield boxes.run, field_place(dtype, "run")
    for d, loop in enumerate(boxes.loops):
        yield loop, field_place(dtype, "loops") + d * LOOP.itemsize


def _write_loop(struct: StructWriter, loop: Loop, place: int) -> None:
    """Write what a loop has in all rows."""
    record = struct.record.reshape(1).view(np.uint8)[place:][: LOOP.itemsize].view(LOOP)
    record["in_stride"], record["out_stride"] = loop.in_stride, loop.out_stride
    record["length"] = fast_divisor(loop.longest)
    if loop.members is not None:
        members = landing_table(loop.members)
        struct.point(place + field_place(LOOP, "members"), members)


def _extents(loop: Loop, position: Ints) -> NDArray[Any]:
    """What a loop has in each row: `EXTENT`, shape (n_rows,)."""
    extents = np.empty(position.shape[1], EXTENT)
    extents["length"] = fast_divisor(loop.lengths(position))
    extents["first_member"] = loop.first_members(position)
    return extents


def _alignment_bits(loops: Sequence[Loop]) -> tuple[int, int]:
    """Low bits that any distance at either end has, below the widest access."""
    in_bits, out_bits = 0, 0
    for loop in loops:
        in_bits |= loop.in_stride
        out_bits |= loop.out_stride
        if loop.members is not None:
            in_bits |= int(np.bitwise_or.reduce(loop.members.in_offset))
            out_bits |= int(np.bitwise_or.reduce(loop.members.out_offset))
    return in_bits % WIDEST_ACCESS, out_bits % WIDEST_ACCESS


def _tile_log2(total_nbytes: int) -> int:
    share = max(total_nbytes // _WANTED_TILES, 1).bit_length() - 1
    return min(max(share, _MIN_TILE_LOG2), _MAX_TILE_LOG2)
