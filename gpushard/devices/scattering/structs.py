"""Structs that the scatter kernels read, and functions that fill them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.declared import declared_struct
from gpushard.devices.scattering.boxes import Landings
from gpushard.devices.scattering.transfer import Transfer

_ANY_BOXES = "gs_scatter_copy_2"

LANDING = declared_struct(_ANY_BOXES, "Landing")
CELL = declared_struct(_ANY_BOXES, "Cell")
LOOP = declared_struct(_ANY_BOXES, "Loop")
COLUMN = declared_struct(_ANY_BOXES, "Column")
TRANSFER = declared_struct(_ANY_BOXES, "Transfer")

SCATTER = {n: declared_struct(_ANY_BOXES, "Scatter", R=n) for n in (2, 4, 32)}
"""Largest number of loops of a kernel -> data type of its parameter."""

POINTS = declared_struct("gs_scatter_points", "Points")
"""Parameter of ``gs_scatter_points``."""


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


def word_of(struct: np.dtype[Any], name: str, place: int = 0) -> int:
    """Index of a field in words of 8 bytes, if its struct begins at byte `place`."""
    return (place + field_place(struct, name)) // 8
