"""Parameter of a scatter kernel, filled in three steps.

    a selection   `StructWriter`: the fields that all batches share
    a batch       the same, copied: the fields that its rows set -> `ScatterBatch`
    a launch      `Addresses`: where tables and rows are in device memory

Pointers into a table are offsets on a page until the launch. The kernels declare the
structs. Pure: NumPy only, no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.declared import declared_struct
from gpushard.devices.scattering.boxes import Landings
from gpushard.devices.scattering.transfer import Transfer, fill_pattern
from gpushard.devices.slabs import TablePage

_ANY_BOXES = "gs_scatter_copy_4"

LANDING = declared_struct(_ANY_BOXES, "Landing")
EXTENT = declared_struct(_ANY_BOXES, "Extent")
LOOP = declared_struct(_ANY_BOXES, "Loop")
TRANSFER = declared_struct(_ANY_BOXES, "Transfer")

SCATTER = {n: declared_struct(_ANY_BOXES, "Scatter", R=n) for n in (4, 32)}
"""Largest number of loops of a kernel -> data type of its parameter."""

POINTS = declared_struct("gs_scatter_points", "Points")
"""Parameter of ``gs_scatter_points``."""

# Blocks of a launch; the kernels loop over the rest.
_MAX_BLOCKS = 1 << 20


class Addresses(NamedTuple):
    """Device addresses that a launch uses.

    Attributes
    ----------
    tables, page
        Addresses of the tables of the selection and of the page, 16-byte aligned.
    out
        Element 0 of the output, seen with one axis for each dimension of the array.
    src
        uint64, shape (n_rows,), device. Address of the decoded bytes of each row; 0
        for a missing inner chunk.
    status
        uint32, shape (n_rows,), device. Rows with a status other than 0 are skipped, or
        cleared if they were decoded to where they land. 0: no table.
    """

    tables: int
    page: int
    out: int
    src: int
    status: int = 0


class StructWriter:
    """Writer of a kernel's struct, and of the tables that it points to on a page."""

    def __init__(self, record: NDArray[Any], page: TablePage) -> None:
        self.record = record
        self.page = page
        self.words: list[int] = []

    @classmethod
    def of(
        cls, struct: np.dtype[Any], transfer: NDArray[Any], fill: bytes
    ) -> StructWriter:
        """Writer for a selection, with what all kernels take.

        `fill` is one element of the output, holding the fill value.
        """
        writer = cls(np.zeros((), struct), TablePage())
        writer.record["transfer"] = transfer
        writer.point(field_place(struct, "fill"), fill_pattern(fill))
        return writer

    def point(self, place: int, table: NDArray[Any]) -> None:
        """Add a table to the page, and point to it from byte `place` of the struct."""
        word = place // 8
        self.record.reshape(1).view(np.uint64)[word] = self.page.add(table)
        self.words.append(word)


@dataclass(frozen=True, slots=True)
class ScatterBatch:
    """The parameter for a batch of rows, before addresses are known.

    Attributes
    ----------
    into_tables, into_page
        Words of the struct that are offsets into the tables of the selection, and on
        the page of the batch.
    n_threads
        Number of threads that have work.
    """

    record: NDArray[Any]
    into_tables: list[int]
    into_page: list[int]
    n_threads: int

    def n_blocks(self, threads: int) -> int:
        """Blocks of `threads` threads to launch; 0 if there is nothing to do."""
        return min(-(-self.n_threads // threads), _MAX_BLOCKS)

    def packed(self, at: Addresses) -> Any:
        """Argument of the launch: a NumPy scalar of the struct."""
        record = self.record.copy()
        words = record.reshape(1).view(np.uint64)
        words[self.into_tables] += np.uint64(at.tables)
        words[self.into_page] += np.uint64(at.page)
        record["out"], record["src"], record["status"] = at.out, at.src, at.status
        return record[()]


def transfer_record(transfer: Transfer) -> NDArray[Any]:
    """`transfer` as a record of `TRANSFER`, 0-d."""
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


def field_place(struct: np.dtype[Any], name: str) -> int:
    """Offset of a field in bytes."""
    fields: Any = struct.fields
    return fields[name][1]
