"""Arrays of a group for its histories: what is known of each, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

import gpushard
from gpushard.rolling import RollingArray

if TYPE_CHECKING:
    import random

OF_ZARR = ("sharded", "plain", "zarr", "v2")
"""Layouts that zarr-python writes, too."""
# A group lists what is of its own format, as zarr-python does.
_LAYOUTS = {
    2: ("v2", "v2-prototype-ii"),
    3: ("sharded", "sharded", "plain", "zarr", "rolling"),
}
_DTYPES = ("int32", "int32", "float32", "bool")


@dataclass(eq=False)
class Node:
    """What is stored at a path: the elements that it reads as, and attributes."""

    values: NDArray[Any]
    layout: str
    attrs: dict[str, Any]

    def joins(self, other: Node, axis: int) -> bool:
        """Whether both can be joined along an axis."""
        mine, its = self.values, other.values
        return mine.dtype == its.dtype and mine.shape[1 - axis] == its.shape[1 - axis]

    def region(self, rng: random.Random) -> tuple[slice, ...]:
        """Some of the elements, or all along an axis."""
        bounds = [
            sorted(rng.randrange(n + 1) for _ in range(2))
            if rng.random() < 0.7
            else (0, n)
            for n in self.values.shape
        ]
        return tuple(slice(*both) for both in bounds)

    def others(self, rng: random.Random, shape: tuple[int, ...]) -> NDArray[Any]:
        """Elements of any values, of the array's data type."""
        dtype, noise = self.values.dtype, np.random.default_rng(rng.getrandbits(32))
        return noise.integers(0, 2 if dtype == np.bool_ else 120, shape).astype(dtype)


def made(
    rng: random.Random, place: tuple[Any, str], zarr_format: int, shape: tuple[int, ...]
) -> Node:
    """A new array of the fill value at a store and path, in place of what is there.

    A rolling array is as long as some shards, which its attribute `step` is.
    """
    layout, dtype = rng.choice(_LAYOUTS[zarr_format]), rng.choice(_DTYPES)
    chunks = tuple(rng.choice((1, 2, 5, 16)) for _ in shape)
    shards = tuple(n * rng.choice((1, 2, 3)) for n in chunks)
    attrs: dict[str, Any] = {"mine": rng.randrange(1000)}
    if layout == "rolling":
        attrs["step"] = shards[0]
        shape = (shards[0] * rng.choice((1, 2, 3)), *shape[1:])
    fill = bool(rng.randrange(2)) if dtype == "bool" else rng.choice((0, 7))
    how: dict[str, Any] = {"shape": shape, "dtype": dtype, "chunks": chunks}
    how |= {"fill_value": fill, "attributes": attrs, "overwrite": True}
    if rng.random() < 0.4:
        how["compressors"] = None
    if layout in ("zarr", "v2"):
        zarr.create_array(place[0], name=place[1], zarr_format=zarr_format, **how)
    elif layout == "rolling":
        RollingArray.create(*place, shards=shards, **how)
    elif layout == "plain":
        gpushard.create_array(*place, **how)
    else:
        kind: Any = layout if layout == "v2-prototype-ii" else "v3"
        gpushard.create_array(*place, format=kind, shards=shards, **how)
    return Node(np.full(shape, fill, dtype), layout, attrs)
