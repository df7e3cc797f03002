"""Structs that the scatter kernels read, as in ``kernels/scatter_box.cuh``.

Their fields stand in the order and size of the C structs, so that neither side pads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scatter_boxes import Landings
from gpushard.devices.scatter_transfer import WIDEST_ACCESS, Transfer
from gpushard.errors import UnsupportedError
from gpushard.selecting.selection import Ints

LIMIT = 1 << 31
"""Sizes and counts are 32-bit in the kernels, with room for one step beyond."""

# The kernels take what is left over in turns.
_MAX_BLOCKS = 1 << 20

MAX_AXES = 32
"""Axes of an array that the kernels take."""

FAST_DIVISOR = np.dtype(
    [("divisor", "u4"), ("magic", "u4"), ("shift_first", "u4"), ("shift_last", "u4")]
)
LANDING = np.dtype([("in_offset", "i8"), ("out_offset", "i8")])
CELL = np.dtype([("in_offset", "i8"), ("out_offset", "i8"), ("length", FAST_DIVISOR)])
LOOP = np.dtype(
    [
        ("in_stride", "i8"),
        ("out_stride", "i8"),
        ("cells", "u8"),
        ("position", "u8"),
        ("members", "u8"),
        ("length", FAST_DIVISOR),
    ]
)
COLUMN = np.dtype([("landings", "u8"), ("position", "u8")])
TRANSFER = np.dtype(
    [
        ("from", "u4"),
        ("to", "u4"),
        ("in_log2", "u4"),
        ("out_log2", "u4"),
        ("in_swap", "u4"),
        ("out_swap", "u4"),
        ("is_affine", "u4"),
        ("scale", "f4"),
        ("offset", "f4"),
    ]
)


def _scatter_dtype(n_loops: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("out", "u8"),
            ("src", "u8"),
            ("status", "u8"),
            ("fill", "u8"),
            ("tile_bounds", "u8"),
            ("planes", "u8"),
            ("in_base", "i8"),
            ("tiles_per_row", FAST_DIVISOR),
            ("fill_nbytes", FAST_DIVISOR),
            ("transfer", TRANSFER),
            ("n_rows", "u4"),
            ("n_tiles", "u4"),
            ("tile_log2", "u4"),
            ("item_log2", "u4"),
            ("decoded_nbytes", "u4"),
            ("in_bits", "u4"),
            ("out_bits", "u4"),
            ("n_columns", "u4"),
            ("n_loops", "u4"),
            ("run", LOOP),
            ("columns", COLUMN, (MAX_AXES,)),
            ("loops", LOOP, (n_loops,)),
        ]
    )


SCATTER = {n_loops: _scatter_dtype(n_loops) for n_loops in (2, 4, 32)}
"""Most loops of a kernel -> its parameter, as in ``kernels/scatter_box.cuh``."""

POINTS = np.dtype(
    [
        ("out", "u8"),
        ("src", "u8"),
        ("status", "u8"),
        ("fill", "u8"),
        ("landings", "u8"),
        ("row", "u8"),
        ("planes", "u8"),
        ("units_per_point", FAST_DIVISOR),
        ("transfer", TRANSFER),
        ("n_units", "u4"),
        ("item_log2", "u4"),
        ("decoded_nbytes", "u4"),
    ]
)


class Addresses(NamedTuple):
    """Device addresses that a launch works on.

    Attributes
    ----------
    tables, batch_tables
        Where the two `tables` were uploaded, 16-byte aligned.
    out
        Element 0 of the output, seen with one axis a dimension of the array.
    src
        uint64, shape (n_rows,), device. Address of the decoded bytes of each row; 0
        for a missing inner chunk.
    status
        uint32, shape (n_rows,), device. Rows other than 0 are left alone, or cleared if
        they were decoded to where they land. 0: no table.
    planes
        `FAST_DIVISOR`, shape (n_rows,), device. Bytes of the blocks of each row whose
        byte shuffle is still on, divisor 0 where it is not. 0: no table.
    """

    tables: int
    batch_tables: int
    out: int
    src: int
    status: int = 0
    planes: int = 0


class Shuffle(NamedTuple):
    """A byte shuffle that rows may still have when they are scattered.

    Attributes
    ----------
    item_nbytes
        Size of the items: that of an element.
    decoded_nbytes
        Size of an inner chunk.
    """

    item_nbytes: int
    decoded_nbytes: int


NO_SHUFFLE = Shuffle(1, 0)
"""No row is shuffled, ever."""

FUSED_ITEMS = (2, 4, 8)
"""Sizes of shuffled items that the kernels put together."""


@dataclass(frozen=True, slots=True)
class ScatterBatch:
    """What a batch of rows adds to the tables of a scatter.

    Attributes
    ----------
    tables
        uint8, shape (n_bytes,), host.
    n_rows
        Inner chunks.
    n_items
        Tiles, or units of points.
    n_threads
        Threads that have something to do.
    places
        Where in `tables` each column begins: the position along each axis that is
        looked up, then maybe the bounds of the tiles; or landings and rows of points.
    tile_log2, tiles_per_row
        Size of a tile, and how many the largest row has.
    """

    tables: NDArray[np.uint8]
    n_rows: int
    n_items: int
    n_threads: int
    places: tuple[int, ...]
    tile_log2: int = 0
    tiles_per_row: int = 1

    def n_blocks(self, threads: int) -> int:
        """Blocks of `threads` threads to launch; 0 if there is nothing to do."""
        return min(-(-self.n_threads // threads), _MAX_BLOCKS)


class TableWriter:
    """Arrays one after the other, each 16-byte aligned."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._nbytes = 0

    def add(self, array: NDArray[Any]) -> int:
        """Offset at which `array` begins."""
        place, data = self._nbytes, array.tobytes()
        self._parts += (data, bytes(-len(data) % WIDEST_ACCESS))
        self._nbytes += len(data) + -len(data) % WIDEST_ACCESS
        return place

    def joined(self) -> NDArray[np.uint8]:
        """All of it: uint8, shape (n_bytes,)."""
        return np.frombuffer(b"".join(self._parts), np.uint8)


def fast_divisor(divisor: int | Ints) -> NDArray[Any]:
    """What the kernels divide by `divisor` with: `FAST_DIVISOR`, of its shape.

    Parameters
    ----------
    divisor
        At least 1 and below 2**31.
    """
    by = np.asarray(divisor, np.uint64)
    log2 = np.frexp((by - np.uint64(1)).astype(np.float64))[1].astype(np.uint64)
    one, low = np.uint64(1), np.uint64(32)
    found = np.empty(by.shape, FAST_DIVISOR)
    found["divisor"] = by
    found["magic"] = (((one << log2) - by) << low) // by + one
    found["shift_first"] = np.minimum(log2, one)
    found["shift_last"] = np.maximum(log2, one) - one
    return found


def set_shuffle(params: NDArray[Any], shuffle: Shuffle) -> None:
    """Tell a kernel of the byte shuffle that rows may have."""
    params["item_log2"] = shuffle.item_nbytes.bit_length() - 1
    params["decoded_nbytes"] = shuffle.decoded_nbytes


def transfer_record(transfer: Transfer) -> NDArray[Any]:
    """`TRANSFER` of `transfer`, 0-d."""
    record = np.zeros((), TRANSFER)
    record["from"], record["to"] = transfer.from_type, transfer.to_type
    record["in_log2"] = transfer.in_unit_nbytes.bit_length() - 1
    record["out_log2"] = transfer.out_unit_nbytes.bit_length() - 1
    record["in_swap"], record["out_swap"] = transfer.in_swap, transfer.out_swap
    if transfer.affine is not None:
        record["is_affine"] = 1
        record["scale"], record["offset"] = transfer.affine
    return record


def landing_table(landings: Landings) -> NDArray[Any]:
    """Offsets as `LANDING`, shape (n,)."""
    table = np.empty(len(landings.in_offset), LANDING)
    table["in_offset"], table["out_offset"] = landings
    return table


def field_place(dtype: np.dtype[Any], name: str) -> int:
    """Offset in bytes of a field of a struct."""
    fields: Any = dtype.fields
    return fields[name][1]


def check_limit(what: str, number: int, limit: int) -> None:
    """Refuse `number` unless it is below `limit`."""
    if number >= limit:
        raise UnsupportedError(
            f"the scatter kernels do not take so many {what}",
            expected=f"fewer than {limit}",
            got=number,
            hint="read a smaller selection at a time, or read on the CPU",
        )
