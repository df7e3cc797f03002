"""Arguments of a scatter kernel's launch, put together in three steps.

    a selection   `Parameter`: the kernel's struct; its pointers into the tables of the
                  selection are still offsets
    a batch       `ScatterBatch`: the fields that its rows set, and offsets of their
                  tables on the page of the batch
    a launch      `Addresses`: where all of these are in device memory

The kernels declare the structs; functions at the end fill their records.

Pure: NumPy only, no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scattering.boxes import Landings
from gpushard.devices.scattering.transfer import Shuffle, Transfer, fill_pattern
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import LANDING, TRANSFER, record

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
    planes
        `FAST_DIVISOR`, shape (n_rows,), device. Block size of each row that is still
        byte-shuffled; divisor 0 for other rows. 0: no table.
    """

    tables: int
    page: int
    out: int
    src: int
    status: int = 0
    planes: int = 0


@dataclass(frozen=True, slots=True)
class ScatterBatch:
    """What a batch of rows adds to a scatter.

    Attributes
    ----------
    pointers
        Words of the struct, and the offsets on the page that they point to.
    fields
        Further fields of the struct, by name.
    n_threads
        Number of threads that have work.
    """

    pointers: tuple[tuple[int, int], ...]
    fields: Mapping[str, Any]
    n_threads: int

    def n_blocks(self, threads: int) -> int:
        """Blocks of `threads` threads to launch; 0 if there is nothing to do."""
        return min(-(-self.n_threads // threads), _MAX_BLOCKS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """The parameter of a kernel before rows and addresses are known.

    Attributes
    ----------
    into_tables
        Words of the struct that are offsets into the tables of the selection.
    out_base
        Bytes from `Addresses.out` to the place that the kernel's offsets start at.
    """

    record: NDArray[Any]
    into_tables: tuple[int, ...]
    out_base: int = 0

    def packed(self, batch: ScatterBatch, at: Addresses) -> Any:
        """Argument of the launch: a NumPy scalar of the struct."""
        # As words: NumPy copies structs field by field.
        words = self.record.reshape(1).view(np.uint64).copy()
        record: NDArray[Any] = np.ndarray((), self.record.dtype, words)
        words[list(self.into_tables)] += np.uint64(at.tables)
        for word, place in batch.pointers:
            words[word] = at.page + place
        for name, value in batch.fields.items():
            record[name] = value
        record["out"] = at.out + self.out_base
        record["src"], record["status"] = at.src, at.status
        record["planes"] = at.planes
        return record[()]


class ParameterWriter:
    """Writer of a kernel's struct, and of a selection's tables that it points to."""

    def __init__(self, struct: np.dtype[Any], transfer: Any, shuffle: Shuffle) -> None:
        self.record = np.zeros((), struct)
        self.record["transfer"] = transfer
        self.record["item_log2"] = shuffle.item_nbytes.bit_length() - 1
        self.record["decoded_nbytes"] = shuffle.decoded_nbytes
        self._tables = TablePage()
        self._into_tables: list[int] = []

    def point(self, word: int, table: NDArray[Any]) -> None:
        """Add `table`, and make a word of the struct point to it."""
        self.record.reshape(1).view(np.uint64)[word] = self._tables.add(table)
        self._into_tables.append(word)

    def set_fill(self, element: bytes) -> int:
        """Add the fill value, and return the size of the pattern that repeats it."""
        pattern = fill_pattern(element)
        self.point(word_of(self.record.dtype, "fill"), pattern)
        return len(pattern)

    def written(self, out_base: int = 0) -> tuple[Parameter, NDArray[np.uint8]]:
        """The parameter, and the tables: uint8, shape (n_bytes,), host."""
        parameter = Parameter(self.record, tuple(self._into_tables), out_base)
        return parameter, self._tables.packed()


def transfer_record(transfer: Transfer) -> Any:
    """`transfer` as a record of `TRANSFER`."""
    affine = transfer.affine
    scale, offset = affine or (0, 0)
    return record(
        TRANSFER,
        **{"from": transfer.from_type, "to": transfer.to_type},
        in_log2=transfer.in_unit_nbytes.bit_length() - 1,
        out_log2=transfer.out_unit_nbytes.bit_length() - 1,
        in_swap=transfer.in_swap,
        out_swap=transfer.out_swap,
        is_affine=affine is not None,
        scale=scale,
        offset=offset,
    )


def landing_table(landings: Landings) -> NDArray[Any]:
    """Offsets as `LANDING`, shape (n,)."""
    table = np.empty(len(landings.in_offset), LANDING)
    table["in_offset"], table["out_offset"] = landings
    return table


def field_place(struct: np.dtype[Any], name: str) -> int:
    """Offset of a field in bytes."""
    fields: Any = struct.fields
    return fields[name][1]


def word_of(struct: np.dtype[Any], name: str, place: int = 0) -> int:
    """Index of a field in words of 8 bytes, if its struct begins at byte `place`."""
    return (place + field_place(struct, name)) // 8
