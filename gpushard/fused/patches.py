"""Patches of an array -> boxes, in the form that the compiled loops take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.columns import FIRST_LENGTH, KEEP, LISTED, OFFSET, PART, TARGET
from gpushard.planning.patches import PatchPart
from gpushard.selecting.patches import entries_of
from gpushard.selecting.selection import Ints


class PatchLanding(NamedTuple):
    """Patches and the output that they are written to.

    Attributes
    ----------
    part
        The patches, laid over the inner chunks.
    address
        Address of the output's first element.
    extents, strides
        Shape of the output, and its strides in bytes.
    """

    part: PatchPart
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, part: PatchPart, out: NDArray[Any]) -> PatchLanding:
        """Landing of patches in a host array of their shape."""
        return cls(part, address_of(out), out.shape, out.strides)

    @property
    def steps(self) -> tuple[int, ...]:
        """Step between wanted elements of an inner chunk, along each axis."""
        return (1,) * len(self.strides)


def cut_patches(
    landing: PatchLanding, p: int, chunk_strides: tuple[int, ...], position: Ints
) -> tuple[Ints, Ints]:
    """Boxes of inner chunks at `position` in part `p`: see `boxes.cut`."""
    part = landing.part
    which, nth = part.boxes_at(position[0])
    boxes = np.empty((len(which), FIRST_LENGTH + len(landing.strides)), np.int64)
    boxes[:, PART], boxes[:, KEEP], boxes[:, LISTED] = p, 0, 0
    offset: Any = 0
    target: Any = landing.address
    for axis, stride in enumerate(chunk_strides):
        offset = offset + entries_of(part.in_first[axis], which) * stride
        out_first = entries_of(part.out_first[axis], which)
        target = target + out_first * landing.strides[axis]
        boxes[:, FIRST_LENGTH + axis] = entries_of(part.length[axis], which)
    boxes[:, OFFSET], boxes[:, TARGET] = offset, target
    return boxes, nth
