"""Random keys of every kind, with what NumPy takes for them."""

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


def random_key(
    rng: random.Random,
    array: Any,
    cell: Sequence[int],
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


def region(at: Sequence[int], cell: Sequence[int]) -> tuple[slice, ...]:
    """Elements of a cell of a grid."""
    return tuple(slice(i * n, i * n + n) for i, n in zip(at, cell, strict=True))


def _blocks(rng: random.Random, array: gpushard.Array, cell: Sequence[int]) -> Chosen:
    grid = [-(-n // c) for n, c in zip(array.shape, cell, strict=True)]
    spans = [sorted((rng.randrange(n), rng.randint(1, n))) for n in grid]
    key = tuple(slice(first, max(last, first + 1)) for first, last in spans)
    cut = tuple(slice(s.start * c, s.stop * c) for s, c in zip(key, cell, strict=True))
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
