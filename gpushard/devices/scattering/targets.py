"""Parts of a plan and their outputs -> targets in device memory for the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.base import Device, Stream
from gpushard.devices.decoding.chain import DeviceChain
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scattering.grids import GridScatter
from gpushard.devices.scattering.joining import (
    Grouping,
    group,
    join_grids,
    layout_of,
    offsets_of,
    patch_grid,
)
from gpushard.devices.scattering.points import PointScatter
from gpushard.devices.scattering.transfer import (
    NO_SHUFFLE,
    Shuffle,
    Transfer,
    fill_element,
    plan_transfer,
)
from gpushard.devices.slabs import TablePage
from gpushard.planning.blocks import ShardBlock
from gpushard.planning.grid import GridPart
from gpushard.planning.patches import PatchPart
from gpushard.planning.plan import Part
from gpushard.planning.points import PointPart
from gpushard.selecting.selection import Ints, Orthogonal, SliceAxis


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """Parts of a plan that one launch writes, laid out for the scatter kernels.

    Attributes
    ----------
    out
        Address of element 0 of the output; of the first output if there are several.
    held
        Memory that the tables lie in, and that they are uploaded from.
    """

    out: int
    scatter: GridScatter | PointScatter
    tables: int = 0
    held: tuple[Any, ...] = ()

    @classmethod
    def lay(
        cls,
        parts: Sequence[Part],
        outputs: Sequence[DeviceOutput],
        chain: DeviceChain,
        fill_value: NDArray[Any],
    ) -> DeviceTarget:
        """Target that writes parts of the same layout, each into its own output.

        Raises `UnsupportedError` if the kernels do not convert between the data types.
        """
        first = outputs[0]
        fill = fill_element(fill_value, first.dtype, first.affine)
        shuffle = NO_SHUFFLE
        if chain.fused_nbytes:
            shuffle = Shuffle(chain.fused_nbytes, chain.decoded_nbytes)
        how = _transfer(first, chain), fill, shuffle
        out = [output.address for output in outputs]
        grids = [part for part in parts if isinstance(part, GridPart)]
        if grids:
            part = grids[0] if len(grids) == 1 else join_grids(grids, out)
            strides = _strides(grids[0], first)
            return cls(out[0], GridScatter.lay(part, chain.strides, strides, *how))
        if isinstance(parts[0], PatchPart):
            grid = patch_grid(parts[0])
            scatter = GridScatter.lay(grid, chain.strides, first.strides, *how)
            return cls(out[0], scatter)
        points = [
            PointScatter.lay(part, chain.strides, output.strides, *how)
            for part, output in zip(parts, outputs, strict=True)
            if isinstance(part, PointPart)
        ]
        if len(points) == 1:
            return cls(out[0], points[0])
        return cls(out[0], PointScatter.join(points, offsets_of(out)))

    def landings(self, position: Ints, decoded_nbytes: int) -> Ints:
        """Addresses at which rows can be decoded in place; 0 for others.

        `position` is as `Grouping.positions` gives it. The result is int64, of shape
        (n_rows,).
        """
        runs = self.scatter.runs(position)
        if runs is None:
            return np.zeros(position.shape[1], np.int64)
        is_whole = runs.nbytes == decoded_nbytes
        return np.where(is_whole, self.out + runs.out_offset, 0)


class Targets(NamedTuple):
    """Targets of all parts of a plan, one for each group, and the groups of parts."""

    laid: tuple[DeviceTarget, ...]
    grouping: Grouping


def lay_targets(
    parts: Sequence[Part],
    outputs: Sequence[DeviceOutput],
    chain: DeviceChain,
    fill_value: NDArray[Any],
    chunk_shape: tuple[int, ...],
) -> Targets:
    """Targets of the parts of a plan, in as few groups as possible.

    Every inner chunk has the shape `chunk_shape`. Raises `UnsupportedError` if the
    kernels do not convert between the data types.
    """
    kinds = {(output.dtype, output.affine): output for output in outputs}
    transfers = {kind: _transfer(output, chain) for kind, output in kinds.items()}
    layouts = [
        layout_of(
            part,
            _strides(part, output),
            transfers[output.dtype, output.affine],
            chunk_shape,
        )
        for part, output in zip(parts, outputs, strict=True)
    ]
    grouping = group(parts, layouts)
    laid = (
        DeviceTarget.lay(
            [parts[k] for k in members],
            [outputs[k] for k in members],
            chain,
            fill_value,
        )
        for members in grouping.groups
    )
    return Targets(tuple(laid), grouping)


class Rows(NamedTuple):
    """Inner chunks of a batch, sorted so that those of one target are neighbours.

    Attributes
    ----------
    target
        int64, shape (n_rows,), ascending.
    position
        int64, shape (n, n_rows). Positions as `Grouping.positions` returns them.
    part
        int64, shape (n_rows,). Part of the plan; each part has an output of its own.
    """

    target: Ints
    position: Ints
    part: Ints

    @classmethod
    def of(cls, block: ShardBlock, columns: Ints, grouping: Grouping) -> Rows:
        """The given columns of a block, which are sorted by target."""
        part = block.part[columns]
        position = grouping.positions(block.position[:, columns], part)
        return cls(grouping.of_part[part], position, part)

    def by_target(self) -> Iterator[tuple[int, slice]]:
        """Index of each target that has rows, and the slice of its rows."""
        first = 0
        while first < len(self.target):
            t = int(self.target[first])
            last = int(np.searchsorted(self.target, t, side="right"))
            yield t, slice(first, last)
            first = last


def place_targets(device: Device, targets: Targets, stream: Stream) -> Targets:
    """The targets with addresses of their tables, which are uploaded in one copy."""
    page = TablePage()
    places = [page.add(target.scatter.tables) for target in targets.laid]
    memory = device.allocate(max(page.nbytes, 1))
    host = device.allocate_pinned(max(page.upload_nbytes, 1))
    page.write(host)
    device.upload(memory.address, host, stream)
    placed = [
        replace(target, tables=memory.address + place, held=(memory, host))
        for target, place in zip(targets.laid, places, strict=True)
    ]
    return Targets(tuple(placed), targets.grouping)


def _transfer(output: DeviceOutput, chain: DeviceChain) -> Transfer:
    """How elements change on their way into `output`."""
    return plan_transfer(
        chain.dtype, output.dtype, is_swapped=chain.is_swapped, affine=output.affine
    )


def _strides(part: Part, output: DeviceOutput) -> Sequence[int]:
    """Strides of an output; for a `GridPart`, one for each dimension of the array."""
    if isinstance(part, GridPart):
        return grid_strides(part.selection, output.strides)
    return output.strides


def grid_strides(selection: Orthogonal, strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a result, with exactly one for each dimension of the array."""
    kept = iter(s for i, s in enumerate(strides) if i not in selection.new_axes)
    return tuple(
        0 if isinstance(axis, SliceAxis) and axis.drop else next(kept)
        for axis in selection.axes
    )
