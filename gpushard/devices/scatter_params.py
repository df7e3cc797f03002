"""Orthogonal selections -> tables and parameters of the scatter kernels.

Pure: NumPy only, no device. A selection is laid out once for an array and a shape of
its inner chunks; a batch of inner chunks adds its columns; addresses come last.

    scatter = GridScatter.lay(part, in_strides, out_strides, transfer, fill)
    batch = scatter.batch(position)
    # upload scatter.tables once and batch.tables, both 16-byte aligned; launch
    # scatter.kernel over batch.n_blocks(threads) blocks with its one parameter
    parameter = scatter.pack(batch, Addresses(...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.joining import JoinedGrids
from gpushard.devices.scatter_boxes import (
    Boxes,
    Column,
    Landings,
    Loop,
    Runs,
    lay_boxes,
)
from gpushard.devices.scatter_structs import (
    CELL,
    COLUMN,
    LIMIT,
    LOOP,
    MAX_AXES,
    NO_SHUFFLE,
    SCATTER,
    Addresses,
    ScatterBatch,
    Shuffle,
    TableWriter,
    check_limit,
    fast_divisor,
    field_place,
    landing_table,
    set_shuffle,
    transfer_record,
)
from gpushard.devices.scatter_transfer import WIDEST_ACCESS, Transfer, fill_pattern
from gpushard.devices.scatter_turn import TURN_RANK, n_squares, turned
from gpushard.planning.grid import GridPart
from gpushard.selecting.selection import Ints

# A warp takes a tile: large enough to pay for looking up its row, small enough that a
# batch gives every warp of a large GPU (132 multiprocessors of 64 warps) one.
_MAX_TILE_LOG2 = 15
_MIN_TILE_LOG2 = 11
_WANTED_TILES = 132 * 64
_LANES = 32
_WIDEST_STEP = 2 * WIDEST_ACCESS
# A block takes a square.
_SQUARE_THREADS = 256


class _Far(NamedTuple):
    """What the rows of a batch look up along a long axis.

    Attributes
    ----------
    axis, table
        The axis, and what gives the touched cells at positions along it.
    table_word, position_word
        Where the parameter points to that table, and to the places of rows in it.
    """

    axis: int
    table: Callable[[Ints], NDArray[Any]]
    table_word: int
    position_word: int


class _GridWriter:
    """Tables of an orthogonal selection, and the parameter that refers to them.

    Pointers are kept by the place of their word in the parameter: `into_tables` hold
    offsets into the tables, `positions` wait for the columns of a batch. What is looked
    up along a long axis comes with the batch, a table of its own rows: `far`.
    """

    def __init__(self, boxes: Boxes, rank: int) -> None:
        self.dtype = SCATTER[rank]
        self.params = np.zeros((), self.dtype)
        self.tables = TableWriter()
        self.into_tables: list[int] = []
        self.positions: list[int] = []
        self.axes: list[int] = []
        self.far: list[_Far] = []
        self.params["in_base"] = boxes.in_base
        self.params["n_columns"] = len(boxes.columns)
        self.params["n_loops"] = len(boxes.loops)
        self.params["in_bits"], self.params["out_bits"] = _alignment_bits(boxes.loops)
        for i, column in enumerate(boxes.columns):
            place = field_place(self.dtype, "columns") + i * COLUMN.itemsize
            self._add_column(column, place)
        self._add_loop(self.params["run"], boxes.run, field_place(self.dtype, "run"))
        for i, loop in enumerate(boxes.loops):
            place = field_place(self.dtype, "loops") + i * LOOP.itemsize
            self._add_loop(self.params["loops"][i], loop, place)

    def set_fill(self, element: bytes) -> None:
        """Add the fill value."""
        pattern = fill_pattern(element)
        self.params["fill_nbytes"] = fast_divisor(len(pattern))
        self._point(0, self.dtype, "fill", pattern)

    def _add_column(self, column: Column, place: int) -> None:
        landings = column.landings
        if isinstance(landings, Landings):
            self._point(place, COLUMN, "landings", landing_table(landings))
            self._look_up(place, COLUMN, column.axis)
            return

        def table(position: Ints) -> NDArray[Any]:
            return landing_table(landings.at(position))

        self._put_off(place, COLUMN, "landings", column.axis, table)

    def _add_loop(self, record: Any, loop: Loop, place: int) -> None:
        record["in_stride"], record["out_stride"] = loop.in_stride, loop.out_stride
        if loop.members is not None:
            self._point(place, LOOP, "members", landing_table(loop.members))
        starts = loop.starts
        if starts is None:
            record["length"] = fast_divisor(loop.longest)
            return

        def table(position: Ints) -> NDArray[Any]:
            cells = np.empty(len(position), CELL)
            cells["in_offset"], cells["out_offset"] = starts.at(position)
            cells["length"] = fast_divisor(loop.lengths_at(position))
            return cells

        if isinstance(starts, Landings):
            cells = table(np.arange(len(starts.in_offset)))
            self._point(place, LOOP, "cells", cells)
            self._look_up(place, LOOP, loop.axis)
        else:
            self._put_off(place, LOOP, "cells", loop.axis, table)

    def _point(
        self, place: int, dtype: np.dtype[Any], field: str, table: NDArray[Any]
    ) -> None:
        word = (place + field_place(dtype, field)) // 8
        self.params.reshape(1).view(np.uint64)[word] = self.tables.add(table)
        self.into_tables.append(word)

    def _look_up(self, place: int, dtype: np.dtype[Any], axis: int) -> None:
        self.positions.append((place + field_place(dtype, "position")) // 8)
        self.axes.append(axis)

    def _put_off(
        self,
        place: int,
        dtype: np.dtype[Any],
        field: str,
        axis: int,
        table: Callable[[Ints], NDArray[Any]],
    ) -> None:
        words = [
            (place + field_place(dtype, name)) // 8 for name in (field, "position")
        ]
        self.far.append(_Far(axis, table, words[0], words[1]))


@dataclass(frozen=True, slots=True)
class GridScatter:
    """An orthogonal selection over inner chunks of one shape, ready for batches.

    Attributes
    ----------
    kernel, planes_kernel
        Name of the kernel to launch: as a rule, and if there is a table of planes.
    tables
        uint8, shape (n_bytes,), host.
    """

    kernel: str
    planes_kernel: str
    tables: NDArray[np.uint8]
    _boxes: Boxes
    _keeps_bytes: bool
    _is_turned: bool
    _params: NDArray[Any]
    _axes: tuple[int, ...]
    _far: tuple[_Far, ...]
    _into_tables: NDArray[np.intp]
    _pointers: NDArray[np.intp]

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
        part
            The selection, laid over the grid, or several.
        in_strides
            Bytes between neighbours in a decoded inner chunk, one an axis of the
            array (transposes folded in).
        out_strides
            Bytes between neighbours in an output, one an axis of the array, any sign.
        transfer
            What happens to the elements.
        fill
            One element of the output, holding the fill value.
        shuffle
            What rows may still have when they are scattered.

        Raises
        ------
        UnsupportedError
            More than 32 axes, or 2 GiB or more wanted of one inner chunk.
        """
        check_limit("axes of an array", len(in_strides), MAX_AXES + 1)
        boxes = lay_boxes(part.projections, in_strides, out_strides, transfer)
        if isinstance(part, JoinedGrids):
            boxes = boxes.into(part.out_offset)
        check_limit("bytes wanted of an inner chunk", boxes.largest_nbytes, LIMIT)
        squares = turned(boxes, transfer, shuffle.item_nbytes)
        boxes = boxes if squares is None else squares
        kernel = _kernel(boxes, transfer, shuffle, is_turned=squares is not None)
        writer = _GridWriter(boxes, kernel.rank)
        writer.set_fill(fill)
        writer.params["transfer"] = transfer_record(transfer)
        set_shuffle(writer.params, shuffle)
        return cls(
            kernel.plain,
            kernel.planes,
            writer.tables.joined(),
            boxes,
            transfer.keeps_bytes,
            squares is not None,
            writer.params,
            tuple(writer.axes),
            tuple(writer.far),
            np.array(writer.into_tables, np.intp),
            np.array(
                writer.positions + [word for far in writer.far for word in far[-2:]],
                np.intp,
            ),
        )

    def runs(self, position: Ints) -> Runs | None:
        """Where each row's bytes go as they are, side by side; None if they do not.

        Parameters
        ----------
        position
            As of `batch`.

        Returns
        -------
        Offsets into the inner chunk and from `Addresses.out` on.
        """
        return self._boxes.runs(position) if self._keeps_bytes else None

    def batch(self, position: Ints) -> ScatterBatch:
        """Tables of a batch.

        Parameters
        ----------
        position
            int64, shape (ndim, n_rows). Position of each row in the projections, as
            in `ShardBlock`; of several selections a row more, which one it is of.

        Raises
        ------
        UnsupportedError
            The batch has 2**31 tiles or more.
        """
        n_rows = position.shape[1]
        tiles, tile_log2 = self._tiles(position, n_rows)
        per_row, n_tiles = int(tiles.max(initial=1)), int(tiles.sum())
        tables = TableWriter()
        places = [tables.add(position[axis].astype(np.uint32)) for axis in self._axes]
        for far in self._far:
            places.append(tables.add(far.table(position[far.axis])))
            places.append(tables.add(np.arange(n_rows, dtype=np.uint32)))
        # Empty tiles cost less than a search for the row, if there are not too many.
        if 2 * n_tiles < n_rows * per_row:
            bounds = np.append(0, np.cumsum(tiles))
            places.append(tables.add(bounds.astype(np.uint32)))
        else:
            n_tiles = n_rows * per_row
        check_limit("tiles of a batch", n_tiles, LIMIT)
        return ScatterBatch(
            tables.joined(),
            n_rows,
            n_tiles,
            n_tiles * (_SQUARE_THREADS if self._is_turned else _LANES),
            tuple(places),
            tile_log2,
            per_row,
        )

    def _tiles(self, position: Ints, n_rows: int) -> tuple[Ints, int]:
        """Tiles of each row, and the logarithm of their size."""
        if self._is_turned:
            return np.broadcast_to(n_squares(self._boxes, position), n_rows), 0
        nbytes = np.broadcast_to(self._boxes.nbytes(position), n_rows)
        tile_log2 = _tile_log2(int(nbytes.sum()))
        return -(-nbytes >> tile_log2), tile_log2

    def pack(self, batch: ScatterBatch, at: Addresses) -> Any:
        """Parameter of the kernel: a NumPy scalar of a data type in `SCATTER`."""
        params = self._params.copy()
        words = params.reshape(1).view(np.uint64)
        words[self._into_tables] += np.uint64(at.tables)
        places = np.array(batch.places, np.uint64) + np.uint64(at.batch_tables)
        n_pointers = len(self._pointers)
        words[self._pointers] = places[:n_pointers]
        if len(places) > n_pointers:
            params["tile_bounds"] = places[-1]
        params["out"] = at.out + self._boxes.out_base
        params["src"], params["status"] = at.src, at.status
        params["planes"] = at.planes
        params["n_rows"], params["n_tiles"] = batch.n_rows, batch.n_items
        params["tile_log2"] = batch.tile_log2
        params["tiles_per_row"] = fast_divisor(batch.tiles_per_row)
        return params[()]


class _Kernel(NamedTuple):
    """Kernels that take the same parameter: without planes and with them."""

    plain: str
    planes: str
    rank: int


def _kernel(
    boxes: Boxes, transfer: Transfer, shuffle: Shuffle, *, is_turned: bool
) -> _Kernel:
    is_cast = transfer.kernel == "cast"
    if is_turned:
        name = f"gs_scatter_{'castturn' if is_cast else 'turn'}_{TURN_RANK}"
        return _Kernel(name, name, TURN_RANK)
    rank = next(n for n in SCATTER if len(boxes.loops) <= n)
    planes = "planes"
    if is_cast and shuffle != NO_SHUFFLE:
        rank, planes = max(SCATTER), "castplanes"
    name = f"gs_scatter_{transfer.kernel}_{rank}"
    return _Kernel(name, f"gs_scatter_{planes}_{rank}", rank)


def _alignment_bits(loops: Sequence[Loop]) -> tuple[int, int]:
    """What the distances at both ends have in common, below four large items."""
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
