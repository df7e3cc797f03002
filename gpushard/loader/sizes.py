"""How many samples a load reads: by what they take, decode, and share."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from gpushard.loader.fields import Field
from gpushard.options import GIB, KIB

# Loads grow up to so many times, ...
_MOST_TIMES = 4
# ... while more bytes are decoded than wanted, and twice the samples take less than
# twice the decoding.
_AMPLIFIED, _LESS_THAN_TWICE = 1.25, 1.6
# Loads that decode more are cut. To look for an inner chunk takes about as long as to
# decode so many bytes.
_MOST_DECODED_NBYTES = GIB
_LOOK_NBYTES = 64 * KIB


def usual_samples(
    fields: Sequence[Field], n: int, n_samples: int, *, is_scattered: bool
) -> int:
    """Samples of a load, of which `n` take its usual memory: fewer of small ones.

    Each may lie in another inner chunk, so that a load of small samples, which wait for
    one another, may decode thousands of times what it gives, or look for millions of
    shards. It is halved as long as the halves decode little more than the whole did.

    Parameters
    ----------
    n_samples
        Samples that there are.
    """
    while (
        n > 1
        and (cost := _cost_nbytes(fields, n, n_samples, is_scattered))
        > _MOST_DECODED_NBYTES
        and cost
        > _LESS_THAN_TWICE * _cost_nbytes(fields, n // 2, n_samples, is_scattered)
    ):
        n //= 2
    return n


def _cost_nbytes(
    fields: Sequence[Field], n: int, n_samples: int, is_scattered: bool
) -> float:
    """What `n` samples decode, an inner chunk at least what it takes to look for it."""
    cost = 0.0
    for f in fields:
        whole = max(f.array.nbytes, f.n_chunks * _LOOK_NBYTES)
        part = -expm1(-n * f.touched_part) if is_scattered else n / max(n_samples, n)
        cost += whole * part
    return cost


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
