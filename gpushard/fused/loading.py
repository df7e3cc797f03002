"""The compiled loops, loaded: compiled here, or kept from another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from gpushard.fused import loops, planning
from gpushard.fused.columns import FIRST_LENGTH, WORK_AXES, Decoder


class Compiled(NamedTuple):
    """The loops, and the types of what they take.

    Attributes
    ----------
    place_boxes, decoder
        As in `gpushard.fused.loops` and `gpushard.fused.columns`.
    plan_boxes, plan_axes, plan_points, planned
        As in `gpushard.fused.planning`.
    """

    place_boxes: Callable[..., Any]
    decoder: type[Decoder]
    plan_boxes: Callable[..., Any]
    plan_axes: Callable[..., Any]
    plan_points: Callable[..., Any]
    planned: type[planning.Planned]


def load() -> Compiled:
    """The loops, ready to run."""
    stamp = _sources_stamp()
    try:
        return _warm(stamp, keeps=True)
    except (RuntimeError, OSError):  # no folder, or a full one, to keep them in
        return _warm(stamp, keeps=False)


def _sources_stamp() -> int:
    """Number of all that is compiled; numba looks at the age of one file alone."""
    folder = Path(__file__).parent
    names = ("calls", "columns", "copies", "frames", "loops", "lz4", "planning")
    return crc32(b"".join((folder / f"{name}.py").read_bytes() for name in names))


def _warm(stamp: int, *, keeps: bool) -> Compiled:
    """The loops, once called with nothing to do: so they are compiled."""
    place_boxes = loops.compiled(stamp, keeps=keeps)
    plan_boxes, plan_axes, plan_points = planning.compiled(stamp, keeps=keeps)
    decoder = Decoder(*[0] * len(Decoder._fields))
    boxes = np.empty((0, FIRST_LENGTH + 1), np.int64)
    strides = np.empty((2, 1, 1), np.int64)
    work = np.empty((4, WORK_AXES), np.int64)
    place_boxes(decoder, boxes, strides, work, np.empty(0, np.bool_))
    planned = planning.Planned(*[0] * len(planning.Planned._fields))
    cells, ranges = np.empty((4, 0), np.int64), np.empty((2, 0, 1), np.int64)
    shards = np.empty((0, 5), np.int64)
    plan_boxes(planned, strides, cells, ranges, shards, boxes)
    axes, elements = np.zeros((12, 1), np.int64), np.empty((2, 0), np.int64)
    plan_axes(planned, strides, axes, elements, shards, boxes)
    plan_points(planned, axes, np.empty((3, 0), np.int64), shards, boxes)
    return Compiled(
        place_boxes, Decoder, plan_boxes, plan_axes, plan_points, planning.Planned
    )
