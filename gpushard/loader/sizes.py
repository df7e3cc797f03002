"""How many samples a load reads: more where they share inner chunks."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from gpushard.loader.fields import Field

# Loads grow up to so many times, ...
_MOST_TIMES = 4
# ... while more bytes are decoded than wanted, and twice the samples take less than
# twice the decoding.
_AMPLIFIED, _LESS_THAN_TWICE = 1.25, 1.6


def most_samples(fields: Sequence[Field], n: int, *, is_scattered: bool) -> int:
    """Samples of a load, of which `n` take its usual memory.

    Samples from anywhere share inner chunks with few others of a small load, and each
    load decodes those that it touches: of an array of a few loads' size nearly all,
    for every one of them.
    """
    if not is_scattered:
        return n
    wanted = max(sum(f.sample_nbytes for f in fields), 1)
    most = n
    while (
        most < _MOST_TIMES * n
        and _decoded_nbytes(fields, most) > _AMPLIFIED * most * wanted
        and _decoded_nbytes(fields, 2 * most)
        < _LESS_THAN_TWICE * _decoded_nbytes(fields, most)
    ):
        most *= 2
    return most


def _decoded_nbytes(fields: Sequence[Field], n: int) -> float:
    """Bytes decoded for `n` samples from anywhere, each inner chunk once."""
    return -sum(f.array.nbytes * expm1(-n * f.touched_part) for f in fields)
