"""Where a part of a plan lands in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, DeviceBuffer, Stream
from gpushard.devices.chain import DeviceChain
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scatter_params import GridScatter
from gpushard.devices.scatter_points import PointScatter
from gpushard.devices.scatter_structs import NO_SHUFFLE, Shuffle
from gpushard.devices.scatter_transfer import fill_element, plan_transfer
from gpushard.devices.slabs import TablePage
from gpushard.grid import GridPart
from gpushard.plan import Part
from gpushard.selection import Ints, Orthogonal, SliceAxis


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """One part of a plan, laid out for the scatter kernels.

    Attributes
    ----------
    part
        The part.
    out
        Address of element 0 of its output.
    scatter
        What the kernels are told.
    """

    part: Part
    out: int
    scatter: GridScatter | PointScatter

    @classmethod
    def lay(
        cls,
        part: Part,
        output: DeviceOutput,
        chain: DeviceChain,
        fill_value: NDArray[Any],
    ) -> DeviceTarget:
        """Target that writes `part` into `output`.

        Raises
        ------
        UnsupportedError
            The kernels do not convert between the two data types.
        """
        transfer = plan_transfer(
            chain.dtype,
            output.dtype,
            is_swapped=chain.is_swapped,
            affine=output.affine,
        )
        fill = fill_element(fill_value, output.dtype, output.affine)
        shuffle = NO_SHUFFLE
        if chain.fused_nbytes:
            shuffle = Shuffle(chain.fused_nbytes, chain.decoded_nbytes)
        how = transfer, fill, shuffle
        if isinstance(part, GridPart):
            strides = grid_strides(part.selection, output.strides)
            scatter = GridScatter.lay(part, chain.strides, strides, *how)
        else:
            scatter = PointScatter.lay(part, chain.strides, output.strides, *how)
        return cls(part, output.address, scatter)

    def landings(self, position: Ints, decoded_nbytes: int) -> Ints:
        """Where rows can be decoded to at once, because they land whole as they are.

        Parameters
        ----------
        position
            int64, shape (n, n_rows), as in `ShardBlock`.
        decoded_nbytes
            Size of a decoded inner chunk.

        Returns
        -------
        int64, shape (n_rows,). Addresses, 0 for rows that have to be scattered.
        """
        runs = self.scatter.runs(position)
        if runs is None:
            return np.zeros(position.shape[1], np.int64)
        is_whole = runs.nbytes == decoded_nbytes
        return np.where(is_whole, self.out + runs.out_offset, 0)


class PlacedTarget(NamedTuple):
    """A target whose tables are in device memory, at `tables`.

    `memory` keeps them there, and `host` what they are copied from.
    """

    target: DeviceTarget
    tables: int
    memory: DeviceBuffer
    host: NDArray[np.uint8]


def place_targets(
    device: Device, targets: Sequence[DeviceTarget], stream: Stream
) -> list[PlacedTarget]:
    """Targets with their tables on the way to the device, in one upload."""
    page = TablePage()
    places = [page.add(target.scatter.tables) for target in targets]
    memory = device.allocate(max(page.nbytes, 1))
    host = device.allocate_pinned(max(page.upload_nbytes, 1))
    page.write(host)
    device.upload(memory.address, host, stream)
    return [
        PlacedTarget(target, memory.address + place, memory, host)
        for target, place in zip(targets, places, strict=True)
    ]


def grid_strides(selection: Orthogonal, strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result, seen with exactly one axis a dimension of the array."""
    kept = iter(s for i, s in enumerate(strides) if i not in selection.new_axes)
    return tuple(
        0 if isinstance(axis, SliceAxis) and axis.drop else next(kept)
        for axis in selection.axes
    )
