"""Orthogonal selections -> tables and parameters of the scatter kernels.

A selection is laid out once for an array and the shape of its inner chunks. Each batch
of inner chunks adds its columns. Addresses are filled in last.

    scatter = GridScatter.lay(part, in_strides, out_strides, transfer, fill)
    batch = scatter.batch(position, page)
    # upload scatter.tables once, and the page, both 16-byte aligned; launch
    # scatter.kernel over batch.n_blocks(threads) blocks with its one parameter
    scatter.parameter.packed(batch, Addresses(...))

Pure: NumPy only, no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scattering.boxes import (
    Boxes,
    Column,
    FarLandings,
    Landings,
    Loop,
    Runs,
    lay_boxes,
)
from gpushard.devices.scattering.joining import JoinedGrids
from gpushard.devices.scattering.launch import (
    Parameter,
    ParameterWriter,
    ScatterBatch,
    field_place,
    landing_table,
    transfer_record,
    word_of,
)
from gpushard.devices.scattering.squares import TURN_RANK, n_squares, turned
from gpushard.devices.scattering.transfer import (
    LIMIT,
    MAX_AXES,
    NO_SHUFFLE,
    WIDEST_ACCESS,
    Shuffle,
    Transfer,
    check_limit,
)
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import CELL, COLUMN, LOOP, SCATTER, fast_divisor
from gpushard.planning.grid import GridPart
from gpushard.selecting.selection import Ints

# A warp takes a tile. A tile is large enough to pay for looking up its row. It is so
# small that neighbouring warps work on neighbouring memory, and all have work until the
# end. A small batch has a tile for each warp of a large GPU (132 multiprocessors, each
# of 64 warps), as far as tiles may be that small.
_MAX_TILE_LOG2 = 12
_MIN_TILE_LOG2 = 11
_WANTED_TILES = 132 * 64
_LANES = 32
_WIDEST_STEP = 2 * WIDEST_ACCESS
# A thread block takes a square.
_SQUARE_THREADS = 256


class _Lookup(NamedTuple):
    """A table of cells along an axis, in which each row looks up its own.

    Two words of the struct point to the table, and to each row's entry in it. If the
    axis is long, each batch adds the table of its own cells, which `table` makes from
    their positions. Otherwise the selection has a table of all cells.
    """

    axis: int
    table_word: int
    position_word: int
    table: Callable[[Ints], NDArray[Any]] | None


class _GridWriter(ParameterWriter):
    """Writer of the struct for an orthogonal selection.

    Offsets that change from row to row are `lookups` by the row's position along an
    axis.
    """

    def __init__(
        self, boxes: Boxes, rank: int, transfer: Any, shuffle: Shuffle
    ) -> None:
        struct = SCATTER[rank]
        super().__init__(struct, transfer, shuffle)
        self.lookups: list[_Lookup] = []
        record = self.record
        record["in_base"] = boxes.in_base
        record["n_columns"] = len(boxes.columns)
        record["n_loops"] = len(boxes.loops)
        record["in_bits"], record["out_bits"] = _alignment_bits(boxes.loops)
        for i, column in enumerate(boxes.columns):
            place = field_place(struct, "columns") + i * COLUMN.itemsize
            self._add_column(column, place)
        self._add_loop(record["run"], boxes.run, field_place(struct, "run"))
        for i, loop in enumerate(boxes.loops):
            place = field_place(struct, "loops") + i * LOOP.itemsize
            self._add_loop(record["loops"][i], loop, place)

    def _add_column(self, column: Column, place: int) -> None:
        def table(position: Ints) -> NDArray[Any]:
            return landing_table(column.landings.at(position))

        words = word_of(COLUMN, "landings", place), word_of(COLUMN, "position", place)
        self._look_up(column.axis, column.landings, table, words)

    def _add_loop(self, record: Any, loop: Loop, place: int) -> None:
        record["in_stride"], record["out_stride"] = loop.in_stride, loop.out_stride
        if loop.members is not None:
            self.point(word_of(LOOP, "members", place), landing_table(loop.members))
        starts = loop.starts
        if starts is None:
            record["length"] = fast_divisor(loop.longest)
            return

        def table(position: Ints) -> NDArray[Any]:
            cells = np.empty(len(position), CELL)
            cells["in_offset"], cells["out_offset"] = starts.at(position)
            cells["length"] = fast_divisor(loop.lengths_at(position))
            return cells

        words = word_of(LOOP, "cells", place), word_of(LOOP, "position", place)
        self._look_up(loop.axis, starts, table, words)

    def _look_up(
        self,
        axis: int,
        cells: Landings | FarLandings,
        table: Callable[[Ints], NDArray[Any]],
        words: tuple[int, int],
    ) -> None:
        """Have rows look up cells by their position along an axis."""
        if isinstance(cells, FarLandings):
            self.lookups.append(_Lookup(axis, *words, table))
            return
        self.point(words[0], table(np.arange(len(cells.in_offset))))
        self.lookups.append(_Lookup(axis, *words, None))


@dataclass(frozen=True, slots=True)
class GridScatter:
    """An orthogonal selection over inner chunks of one shape, ready for batches.

    Attributes
    ----------
    kernel, planes_kernel
        Name of the kernel to launch without and with a table of planes.
    tables
        uint8, shape (n_bytes,), host.
    """

    kernel: str
    planes_kernel: str
    tables: NDArray[np.uint8]
    parameter: Parameter
    _boxes: Boxes
    _keeps_bytes: bool
    _is_turned: bool
    _lookups: tuple[_Lookup, ...]

    @classmethod
    def lay(
        cls,
        part: GridPart | JoinedGrids,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        transfer: Transfer,
        fill: bytes,
        shuffle: Shuffle = NO_SHUFFLE,
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
        shuffle
            The byte shuffle that rows may still have when they are scattered.

        Raises
        ------
        UnsupportedError
            The array has more than 32 axes, or 2 GiB or more of one inner chunk are
            wanted.
        """
        check_limit("axes of an array", len(in_strides), MAX_AXES + 1)
        boxes = lay_boxes(part.projections, in_strides, out_strides, transfer)
        if isinstance(part, JoinedGrids) and part.out_offset is not None:
            boxes = boxes.into(part.out_offset)
        check_limit("bytes wanted of an inner chunk", boxes.largest_nbytes, LIMIT)
        squares = turned(boxes, transfer, shuffle.item_nbytes)
        boxes = boxes if squares is None else squares
        is_turned = squares is not None
        plain, planes, rank = _kernels(boxes, transfer, shuffle, is_turned=is_turned)
        writer = _GridWriter(boxes, rank, transfer_record(transfer), shuffle)
        writer.record["fill_nbytes"] = fast_divisor(writer.set_fill(fill))
        parameter, tables = writer.written(boxes.out_base)
        return cls(
            kernel=plain,
            planes_kernel=planes,
            tables=tables,
            parameter=parameter,
            _boxes=boxes,
            _keeps_bytes=transfer.keeps_bytes,
            _is_turned=is_turned,
            _lookups=tuple(writer.lookups),
        )

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
        tiles, tile_log2 = self._tiles(position, n_rows)
        if isinstance(tiles, int):
            per_row, n_tiles = max(tiles, 1), tiles * n_rows
        else:
            per_row, n_tiles = int(tiles.max(initial=1)), int(tiles.sum())
        pointers: list[tuple[int, int]] = []
        for lookup in self._lookups:
            entry = position[lookup.axis]
            if lookup.table is not None:
                pointers.append((lookup.table_word, page.add(lookup.table(entry))))
                entry = np.arange(n_rows)
            entries = page.add(entry.astype(np.uint32))
            pointers.append((lookup.position_word, entries))
        # A few empty tiles cost less than a search for the row of each tile.
        if 2 * n_tiles < n_rows * per_row:
            of_rows = np.broadcast_to(tiles, n_rows)
            bounds = np.append(0, np.cumsum(of_rows)).astype(np.uint32)
            word = word_of(self.parameter.record.dtype, "tile_bounds")
            pointers.append((word, page.add(bounds)))
        else:
            n_tiles = n_rows * per_row
        check_limit("tiles of a batch", n_tiles, LIMIT)
        fields = {
            "n_rows": n_rows,
            "n_tiles": n_tiles,
            "tile_log2": tile_log2,
            "tiles_per_row": fast_divisor(per_row),
        }
        n_threads = n_tiles * (_SQUARE_THREADS if self._is_turned else _LANES)
        return ScatterBatch(tuple(pointers), fields, n_threads)

    def _tiles(self, position: Ints, n_rows: int) -> tuple[int | Ints, int]:
        """Number of tiles of each row, and the binary logarithm of their size.

        The number is one int if it is the same for all rows.
        """
        if self._is_turned:
            return n_squares(self._boxes, position), 0
        nbytes = self._boxes.nbytes(position)
        is_same = isinstance(nbytes, int)
        tile_log2 = _tile_log2(nbytes * n_rows if is_same else int(nbytes.sum()))
        return -(-nbytes >> tile_log2), tile_log2


def _kernels(
    boxes: Boxes, transfer: Transfer, shuffle: Shuffle, *, is_turned: bool
) -> tuple[str, str, int]:
    """Names of two kernels, without and with planes, and the rank that both take."""
    is_cast = transfer.kernel == "cast"
    if is_turned:
        name = f"gs_scatter_{'castturn' if is_cast else 'turn'}_{TURN_RANK}"
        return name, name, TURN_RANK
    rank = next(n for n in SCATTER if len(boxes.loops) <= n)
    planes = "planes"
    if is_cast and shuffle != NO_SHUFFLE:
        rank, planes = max(SCATTER), "castplanes"
    name = f"gs_scatter_{transfer.kernel}_{rank}"
    return name, f"gs_scatter_{planes}_{rank}", rank


def _alignment_bits(loops: Sequence[Loop]) -> tuple[int, int]:
    """Low bits that any distance at either end has, below four of the largest items."""
    in_bits, out_bits = 0, 0
    for loop in loops:
        in_bits |= loop.in_stride
        out_bits |= loop.out_stride
        if loop.members is not None:
            in_bits |= int(np.bitwise_or.reduce(loop.members.in_offset))
            out_bits |= int(np.bitwise_or.reduce(loop.members.out_offset))
    return in_bits % _WIDEST_STEP, out_bits % _WIDEST_STEP


def _tile_log2(total_nbytes: int) -> int:
    share = max(total_nbytes // _WANTED_TILES, 1).bit_length() - 1
    return min(max(share, _MIN_TILE_LOG2), _MAX_TILE_LOG2)
