"""Random keys of every kind, with what NumPy takes for them, and grids of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gpushard
from gpushard.selecting import expressions
from selection_strategies import take_orthogonal

if TYPE_CHECKING:
    import random

_KINDS = ("basic", "basic", "row", "oindex", "vindex", "mask", "blocks")


class Chosen(NamedTuple):
    """A key, the door that takes it, the same for `read`, and what NumPy takes."""

    door: str
    key: Any
    wanted: Any
    take: Callable[[NDArray[Any]], Any]


class Doubt(NamedTuple):
    """Where elements may be others; a read of some of them may be refused."""

    mask: NDArray[np.bool_]
    others: NDArray[Any]


def random_key(
    rng: random.Random,
    array: Any,
    cell: Cell,
    *,
    is_written: bool = False,
) -> Chosen:
    """A key of any kind for an array of such shards; no element twice to be written."""
    shape = array.shape
    kind = rng.choice(_KINDS if isinstance(array, gpushard.Array) else _KINDS[:-1])
    if kind in ("basic", "row"):
        key: Any = tuple(_slice(rng, n) for n in shape)
        if kind == "row":
            n_fixed = rng.randint(1, len(shape))
            key = tuple(rng.randrange(-n, n) for n in shape[:n_fixed])
        return Chosen("", key, key, lambda full: full[key])
    if kind == "oindex":
        key = tuple(_listed(rng, n, is_written=is_written) for n in shape)
        wanted = expressions.orthogonal(key, shape)
        return Chosen(kind, key, wanted, partial(take_orthogonal, key=key))
    if kind == "blocks":
        return _blocks(rng, array, cell)
    if kind == "mask":
        noise = np.random.default_rng(rng.getrandbits(32)).random(shape)
        key = noise < rng.choice((0, 5, 100, 1500)) / noise.size
    else:
        n = 1 if is_written else rng.choice((1, 3, 20))
        key = tuple(np.array(rng.choices(range(-s, s), k=n)) for s in shape)
    wanted = expressions.points(key, shape)
    return Chosen("vindex", key, wanted, lambda full: full[key])


def read_by(array: Any, some: list[Chosen], how: dict[str, Any]) -> list[Any]:
    """Results of a read: by a door if nothing is said of how, else by `read`."""
    one, outs = some[0], how.get("out", [None])
    if not how:
        return [(getattr(array, one.door) if one.door else array)[one.key]]
    if len(some) > 1:
        return array.read_many([one.wanted for one in some], **how)
    return [array.read(one.wanted, **how | {"out": outs[0]})]


Cell = Sequence[Any]
"""Lengths of the cells of each axis: one for all, or a list."""


def grids_of(document: dict[str, Any], array: Any) -> tuple[Cell, Cell]:
    """Cells of objects, and of what they are made of."""
    if document.get("chunk_grid", {}).get("name") != "rectilinear":
        return array.shards or array.chunks, array.chunks
    outer = document["chunk_grid"]["configuration"]["chunk_shapes"]
    first = document["codecs"][0]
    is_shard = first["name"] == "sharding_indexed"
    return outer, first["configuration"]["chunk_shape"] if is_shard else outer


def n_cells(shape: Sequence[int], cell: Cell) -> list[int]:
    """Cells of a grid along each axis."""
    return [
        -(-n // c) if isinstance(c, int) else len(c)
        for n, c in zip(shape, cell, strict=True)
    ]


def region(at: Sequence[int], cell: Cell) -> tuple[slice, ...]:
    """Elements of a cell of a grid."""
    return _cut([slice(i, i + 1) for i in at], cell)


def _cut(cells: Sequence[slice], cell: Cell) -> tuple[slice, ...]:
    """Elements of cells from one on to another."""
    return tuple(
        slice(s.start * c, s.stop * c)
        if isinstance(c, int)
        else slice(sum(c[: s.start]), sum(c[: s.stop]))
        for s, c in zip(cells, cell, strict=True)
    )


def _blocks(rng: random.Random, array: gpushard.Array, cell: Cell) -> Chosen:
    grid = n_cells(array.shape, cell)
    spans = [sorted((rng.randrange(n), rng.randint(1, n))) for n in grid]
    key = tuple(slice(first, max(last, first + 1)) for first, last in spans)
    cut = _cut(key, cell)
    wanted = expressions.blocks(key, array.source.layout.axes)
    return Chosen("blocks", key, wanted, lambda full: full[cut])


def _slice(rng: random.Random, n: int) -> Any:
    start, stop = sorted(rng.randrange(n + 1) for _ in range(2))
    step = rng.choice((1, 1, 1, 2, 5, -1, -1, -3))
    some = slice(start, stop, step) if step > 0 else slice(stop, start or None, step)
    whole = slice(None, None, step)
    return rng.choice((rng.randrange(-n, n), whole, some, some, some))


def _listed(rng: random.Random, n: int, *, is_written: bool) -> Any:
    listed = rng.choices(range(-n, n), k=rng.choice((0, 1, 4, 30)))
    if is_written:
        listed = rng.sample(range(n), min(n, 4))
    mask = np.array([rng.random() < 0.5 for _ in range(n)])
    return rng.choice((_slice(rng, n), _slice(rng, n), listed, mask))
