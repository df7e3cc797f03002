"""Seed -> random numbers and permutations, the same with every version of NumPy.

Everything is computed from the raw output of a bit generator, which NumPy promises to
keep (NEP 19). The output of NumPy's `Generator` may change between versions, and then
another version could not resume an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.numbering import distinct
from gpushard.selecting.selection import Ints

Permutation = Callable[[Ints], Ints]
"""Map of positions: int64 in, int64 of the same shape out."""

# A permutation up to this length is a list of its elements, at most 8 MiB.
LONGEST_LIST = 2**20
_N_ROUNDS = 8
_DRAWS_PER_BLOCK = 4096


def bits(n: int, seed: int, *path: int) -> NDArray[np.uint64]:
    """Random words: uint64, shape (n,), from the substream `path` of the seed."""
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=path)).random_raw(n)


def ranked(words: NDArray[np.uint64]) -> Ints:
    """Order that sorts `words`; equal words keep their order: int64, shape (n,)."""
    # A word and its index are packed into one number, because NumPy sorts numbers
    # several times faster than it finds an order. The index replaces low bits of the
    # word. Two words hardly ever differ in these bits only.
    low = np.uint64((1 << len(words).bit_length()) - 1)
    numbers = words & ~low
    numbers |= np.arange(len(words), dtype=np.uint64)
    numbers.sort()
    high = numbers & ~low
    if np.any(high[1:] == high[:-1]):
        return np.argsort(words, kind="stable").astype(np.int64, copy=False)
    numbers &= low
    return numbers.view(np.int64)


def permutation(n: int, seed: int, *path: int) -> Permutation:
    """Random permutation of ``range(n)``.

    A long permutation is a network of keyed rounds. It computes each element on demand
    and stores nothing.
    """
    if n <= LONGEST_LIST:
        return ranked(bits(n, seed, *path)).take
    return _Network(n, bits(_N_ROUNDS, seed, *path))


class _Network:
    """Permutation of ``range(n)`` by Feistel rounds over the next power of four.

    A value outside ``range(n)`` goes through the rounds again until it is inside. The
    result is a permutation, because this only removes elements from its cycles.
    """

    def __init__(self, n: int, keys: NDArray[np.uint64]) -> None:
        self._n = n
        self._keys = keys
        self._half = np.uint64(((n - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)

    def __call__(self, positions: Ints) -> Ints:
        values = self._once(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._n)
        while len(outside):
            values[outside] = self._once(values[outside])
            outside = outside[values[outside] >= self._n]
        return values.astype(np.int64)

    def _once(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return (left << self._half) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words in which each bit depends on all input bits (MurmurHash3's finaliser)."""
    shift = np.uint64(33)
    values = (values ^ (values >> shift)) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> shift)) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> shift)


def uniform(positions: Ints, seed: int, *path: int) -> NDArray[Any]:
    """Random numbers in ``[0, 1)``, one for each position: float64, same shape.

    Each number depends only on the seed, the path and the position.
    """
    drawn = np.empty(len(positions))
    block = positions // _DRAWS_PER_BLOCK
    for b in distinct(block).tolist():
        mine = block == b
        words = bits(_DRAWS_PER_BLOCK, seed, *path, b)
        drawn[mine] = (words >> np.uint64(11))[positions[mine] % _DRAWS_PER_BLOCK]
    return drawn * 2.0**-53
