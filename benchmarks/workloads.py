"""What is read: a workload and the number of its repetition give selections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import SEED

if TYPE_CHECKING:
    from benchmarks.configs import Dataset, Shape

N_SAMPLES = 32
BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class Box:
    """A read by basic indexing."""

    key: tuple[Any, ...]

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Elements of an array in memory that this read asks for."""
        return values[self.key]


@dataclass(frozen=True, slots=True)
class Rows:
    """A read of scattered rows along the first axis."""

    rows: NDArray[np.int64]

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Elements of an array in memory that this read asks for."""
        return values[self.rows]


Read = Box | Rows


def _full(shape: Shape, rng: np.random.Generator) -> list[Read]:  # noqa: ARG001 - nothing random in it
    return [Box((slice(None),) * len(shape))]


def _box(shape: Shape, rng: np.random.Generator) -> list[Read]:
    """One box of about half of each axis, aligned to nothing."""
    key = []
    for n in shape:
        length = max(1, n // 2 - 3)
        start = int(rng.integers(0, n - length + 1))
        key.append(slice(start, start + length))
    return [Box(tuple(key))]


def _strided(shape: Shape, rng: np.random.Generator) -> list[Read]:  # noqa: ARG001 - nothing random in it
    return [Box((slice(None, None, 2),) * len(shape))]


def _pixel(shape: Shape, rng: np.random.Generator) -> list[Read]:
    """All of the first axis at one place of the others."""
    place = [int(rng.integers(n)) for n in shape[1:]]
    return [Box((slice(None), *place))]


def _sample(shape: Shape, rng: np.random.Generator) -> list[Read]:
    """Single rows, one read each."""
    return [Box((int(row),)) for row in rng.integers(shape[0], size=N_SAMPLES)]


def _batch(shape: Shape, rng: np.random.Generator) -> list[Read]:
    """Different rows in no order, in one read."""
    n = min(BATCH_ROWS, shape[0])
    return [Rows(rng.choice(shape[0], n, replace=False))]


_MAKERS: dict[str, Callable[[Shape, np.random.Generator], list[Read]]] = {
    "full": _full,
    "box": _box,
    "strided": _strided,
    "pixel": _pixel,
    "sample": _sample,
    "batch256": _batch,
}
# Each repetition reads somewhere else, so that no cache of decoded chunks answers it.
MOVING = {"box", "pixel", "sample", "batch256"}
WORKLOADS: dict[Dataset, tuple[str, ...]] = {
    "field": ("full", "box", "strided", "pixel"),
    "tiles": ("full", "sample", "batch256"),
}


def reads_of(workload: str, shape: Shape, repetition: int) -> list[Read]:
    """Reads of one repetition; the same for the same arguments, in any process."""
    rng = np.random.default_rng([SEED, repetition, *workload.encode()])
    return _MAKERS[workload](shape, rng)
