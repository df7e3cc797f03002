"""Parts of a plan and their outputs -> targets in device memory for the kernels.

Also, which inner chunks reach them without a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from gpushard.selecting.numbering import as_slice, columns_at
from gpushard.selecting.selection import Ints, Orthogonal

# A copy is a driver call, and a scattered batch takes few calls (20). With more copies,
# one large copy and a scatter are cheaper: device memory is much faster than the bus.
_MAX_COPIES = 8


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


class Rows(NamedTuple):
    """Inner chunks of a batch, sorted so that those of one target are neighbours.

    Attributes
    ----------
    of_target
        The targets that have rows, and the slice of each one's rows.
    position
        int64, shape (n, n_rows). Positions as `Grouping.positions` returns them.
    part
        int64, shape (n_rows,). Part of the plan; each part has an output of its own.
    """

    of_target: Sequence[tuple[int, slice]]
    position: Ints
    part: Ints

    @classmethod
    def of(cls, block: ShardBlock, columns: Ints, grouping: Grouping) -> Rows:
        """The given columns of a block, which are sorted by target."""
        which = as_slice(columns)
        is_one = len(grouping.of_part) == 1
        part = np.zeros_like(columns) if is_one else block.part[which]
        position = grouping.positions(columns_at(block.position, which), part)
        return cls(grouping.rows_of_groups(part), position, part)


class Copies(NamedTuple):
    """Copies of fetched bytes into outputs: int64, shape (n,).

    `nbytes` bytes at offset `at` of their payload go to the device address `address`.
    """

    at: Ints
    address: Ints
    nbytes: Ints


class Targets(NamedTuple):
    """Targets of all parts of a plan, one for each group, and the groups of parts.

    Some rows need no scatter: those whose bytes are contiguous in the inner chunk and
    in the output, and stay as they are.
    """

    laid: tuple[DeviceTarget, ...]
    grouping: Grouping

    def landings(self, rows: Rows, decoded_nbytes: int, alignment: int) -> Ints:
        """Addresses in an output that rows can be decoded to; 0 for others.

        They are whole inner chunks in the output, at multiples of `alignment`; 0: none
        is. The result is int64, of shape (n_rows,).
        """
        landings = np.zeros(len(rows.part), np.int64)
        for t, some in rows.of_target if alignment else ():
            target = self.laid[t]
            runs = target.scatter.runs(rows.position[:, some])
            if runs is not None:
                found = target.out + runs.out_offset
                is_right = (runs.nbytes == decoded_nbytes) & (found % alignment == 0)
                landings[some] = np.where(is_right, found, 0)
        return landings

    def copies(self, rows: Rows, at: Ints) -> Copies | None:
        """Copies that move rows to the outputs exactly as they are stored.

        `at`, int64 of shape (n_rows,), is the offset in the payload of byte 0 of each
        inner chunk, also if that byte was not fetched. None if one inner chunk needs a
        scatter, or if there would be too many copies.
        """
        source, address, nbytes = np.empty((3, len(rows.part)), np.int64)
        for t, some in rows.of_target:
            target = self.laid[t]
            runs = target.scatter.runs(rows.position[:, some])
            if runs is None:
                return None
            source[some] = at[some] + runs.in_offset
            address[some] = target.out + runs.out_offset
            nbytes[some] = runs.nbytes
        return _joined(rows.part, source, address, nbytes)


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


def _joined(part: Ints, source: Ints, address: Ints, nbytes: Ints) -> Copies | None:
    """Copies with neighbours at both ends joined; None if too many remain.

    Outputs that are neighbours are not joined: they may be separate allocations, and no
    copy may span two of these.
    """
    order = np.argsort(source, kind="stable")
    part, source = part[order], source[order]
    address, nbytes = address[order], nbytes[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = part[1:] != part[:-1]
    is_first[1:] |= _gaps(source, nbytes) | _gaps(address, nbytes)
    firsts = np.flatnonzero(is_first)
    if len(firsts) > _MAX_COPIES:
        return None
    return Copies(source[firsts], address[firsts], np.add.reduceat(nbytes, firsts))


def _gaps(start: Ints, nbytes: Ints) -> NDArray[np.bool_]:
    """Whether each item except the first starts elsewhere than the one before ends."""
    return start[1:] != start[:-1] + nbytes[:-1]


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
    return tuple(0 if axis.drop else next(kept) for axis in selection.axes)
