"""Point selections -> tables and parameters of ``gs_scatter_points``.

`PointScatter` is used like `GridScatter`, which is for orthogonal selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.scattering.boxes import Landings
from gpushard.devices.scattering.launch import (
    Parameter,
    ParameterWriter,
    ScatterBatch,
    landing_table,
    transfer_record,
    word_of,
)
from gpushard.devices.scattering.transfer import (
    LIMIT,
    NO_SHUFFLE,
    ElementType,
    Shuffle,
    Transfer,
    check_limit,
)
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import POINTS, fast_divisor
from gpushard.planning.points import PointPart
from gpushard.selecting.selection import Ints

_WIDEST_NUMBER = 8


@dataclass(frozen=True, slots=True)
class PointScatter:
    """A point selection over inner chunks of one shape, ready for batches.

    Attributes
    ----------
    tables
        uint8, shape (n_bytes,), host.
    bounds
        int64, shape (n_chunks + 1,). Points of inner chunk i are
        ``bounds[i]:bounds[i + 1]``.
    landings
        `LANDING`, shape (n_points,), host. Offsets of each point at both ends.
    """

    kernel = planes_kernel = "gs_scatter_points"
    tables: NDArray[np.uint8]
    bounds: Ints
    landings: NDArray[Any]
    parameter: Parameter
    _units: int

    @classmethod
    def lay(
        cls,
        part: PointPart,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        transfer: Transfer,
        fill: bytes,
        shuffle: Shuffle = NO_SHUFFLE,
    ) -> PointScatter:
        """Scatter of `part`.

        Parameters
        ----------
        in_strides
            Bytes between neighbours in a decoded inner chunk, for each axis of the
            array.
        out_strides
            Bytes between neighbours in the output, for each axis of the result. May be
            negative.
        transfer, fill, shuffle
            As for `GridScatter.lay`.
        """
        in_offset = np.zeros(len(part.out_index), np.int64)
        for index, stride in zip(part.in_index, in_strides, strict=True):
            in_offset += index * stride
        out_offset = np.zeros(len(part.out_index), np.int64)
        rest = part.out_index
        shape = part.selection.shape
        for extent, stride in zip(reversed(shape), reversed(out_strides), strict=True):
            rest, index = np.divmod(rest, max(extent, 1))
            out_offset += index * stride
        out_unit, record = _point_units(transfer)
        n_units = transfer.out_nbytes // out_unit
        writer = ParameterWriter(POINTS, record, shuffle)
        writer.record["units_per_point"] = fast_divisor(n_units)
        writer.set_fill(fill)
        parameter, tables = writer.written()
        return cls(
            tables,
            part.bounds,
            landing_table(Landings(in_offset, out_offset)),
            parameter,
            n_units,
        )

    @classmethod
    def join(cls, several: Sequence[PointScatter], out_offset: Ints) -> PointScatter:
        """Scatter of several point selections, with their inner chunks in sequence.

        They differ only in their outputs, to which `out_offset`, int64 of shape (n,),
        gives the bytes from the first one.
        """
        n_points = [len(scatter.landings) for scatter in several]
        landings = np.concatenate([scatter.landings for scatter in several])
        landings["out_offset"] += np.repeat(out_offset, n_points)
        before = np.cumsum(n_points) - n_points
        firsts = zip(several, before, strict=True)
        bounds = [scatter.bounds[:-1] + first for scatter, first in firsts]
        return replace(
            several[0],
            landings=landings,
            bounds=np.concatenate([*bounds, [len(landings)]]),
        )

    def runs(self, position: Ints) -> None:
        """None: neighbouring points are not contiguous in general."""

    def batch(self, position: Ints, page: TablePage) -> ScatterBatch:
        """Scatter of some rows, with its tables added to the page of their batch.

        Parameters
        ----------
        position
            int64, shape (n, n_rows). Row 0 has the number of each row's inner chunk in
            the part, as in `ShardBlock`.

        Raises
        ------
        UnsupportedError
            The batch has 2**31 units or more.
        """
        first = self.bounds[position[0]]
        count = self.bounds[position[0] + 1] - first
        row = np.repeat(np.arange(len(count), dtype=np.uint32), count)
        before = np.cumsum(count) - count
        nth = np.arange(len(row), dtype=np.int64) + (first - before)[row]
        n_units = len(row) * self._units
        check_limit("units of a batch of points", n_units, LIMIT)
        pointers = (
            (word_of(POINTS, "landings"), page.add(self.landings[nth])),
            (word_of(POINTS, "row"), page.add(row)),
        )
        return ScatterBatch(pointers, {"n_units": n_units}, n_units)


def _point_units(transfer: Transfer) -> tuple[int, Any]:
    """Number of bytes that a thread writes, and the transfer of one such unit."""
    if transfer.kernel == "cast" or transfer.from_type is ElementType.BOOL:
        return transfer.out_unit_nbytes, transfer_record(transfer)
    # Strings and structs are copied in the widest words that divide them.
    word = gcd(transfer.out_nbytes, _WIDEST_NUMBER)
    whole = replace(transfer, in_unit_nbytes=word, out_unit_nbytes=word)
    return word, transfer_record(whole)
