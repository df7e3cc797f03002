"""Vectors of 16 bytes for compiled loops, which every CPU that they run on has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 16

_BYTES = ir.VectorType(ir.IntType(8), WIDTH)
_WORDS = ir.VectorType(ir.IntType(64), WIDTH // 8)
# The functions that use these are called by numba's code generator, which has no type
# stubs.
_INT64 = ir.IntType(64)
# Bytes of two vectors in turns, of their first halves and of their second ones.
_TURNS = [k + first for k in range(WIDTH) for first in (0, WIDTH)]
_HALVES = [
    ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), half)
    for half in (_TURNS[:WIDTH], _TURNS[WIDTH:])
]
# Distance of bits, and the lower ones of the pairs of bits with that distance.
_SWAPS = (1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)


def _loaded(builder: Any, address: Any, stride: Any, n: int, kind: Any) -> list[Any]:
    """Vectors at an address and every `stride` bytes behind it."""
    vectors = []
    for _ in range(n):
        place = builder.inttoptr(address, kind.as_pointer())
        vectors.append(builder.load(place, align=1))
        address = builder.add(address, stride)
    return vectors


def _store(builder: Any, address: Any, vectors: Sequence[Any]) -> None:
    place = builder.inttoptr(address, _BYTES.as_pointer())
    for k, vector in enumerate(vectors):
        at = builder.gep(place, [ir.Constant(_INT64, k)])
        builder.store(vector, at, align=1)


def _interleaved(builder: Any, vectors: Sequence[Any]) -> Sequence[Any]:
    """The first bytes of all vectors, then the second ones, and so on.

    There are a power of two. Each round interleaves those of the first half with those
    of the second, so that after all rounds each byte has moved to its place.
    """
    half = len(vectors) // 2
    for _ in range(half.bit_length()):
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [
            builder.shuffle_vector(low, high, mask)
            for (low, high), mask in product(pairs, _HALVES)
        ]
    return vectors


def _interleave(n: int) -> Any:
    """Items of `n` bytes, 16 of them, from their bytes `stride` bytes apart."""

    @intrinsic
    def interleave(_typing: Any, target: Any, source: Any, stride: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            planes = _loaded(builder, values[1], values[2], n, _BYTES)
            _store(builder, values[0], _interleaved(builder, planes))

        return types.void(target, source, stride), generate

    return interleave


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Eight rows of bits -> their columns, in each byte place apart."""
    for distance, mask in _SWAPS:
        shift, lower = (ir.Constant(_WORDS, [value] * 2) for value in (distance, mask))
        for k in range(8):
            if k & distance:
                continue
            low, high = rows[k], rows[k + distance]
            shifted = builder.lshr(low, shift)
            changed = builder.and_(builder.xor(shifted, high), lower)
            rows[k] = builder.xor(low, builder.shl(changed, shift))
            rows[k + distance] = builder.xor(high, changed)
    return rows


@intrinsic
def _bytes_of_bits(_typing: Any, target: Any, source: Any, stride: Any) -> Any:
    """A byte of each of 128 items, from their bits `stride` bytes apart.

    A byte in the source has the bits of eight items, that of the first one lowest.
    """

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        rows = _loaded(builder, values[1], values[2], 8, _WORDS)
        columns = _transposed(builder, rows)
        vectors = [builder.bitcast(column, _BYTES) for column in columns]
        _store(builder, values[0], _interleaved(builder, vectors))

    return types.void(target, source, stride), generate


# Called without the arguments that numba adds, which type checkers do not know.
interleave_2, interleave_4 = _interleave(2), _interleave(4)
interleave_8, interleave_16 = _interleave(8), _interleave(16)
bytes_of_bits: Any = _bytes_of_bits
