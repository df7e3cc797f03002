"""Number of samples in a load, from the memory and the decoding that they need."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

import numpy as np

from gpushard.loader.fields import Field
from gpushard.loader.order import Order
from gpushard.loader.shares import Share
from gpushard.options import GIB, KIB

# Most entries of a load in columns; each entry takes up to 100 bytes.
_MOST_LISTED = 1 << 18
# Loads grow up to this factor.
_MOST_TIMES = 4
# A load grows while it decodes more than _AMPLIFIED times the wanted bytes, and while a
# load of twice the samples decodes less than _LESS_THAN_TWICE times as much.
_AMPLIFIED, _LESS_THAN_TWICE = 1.25, 1.6
# Of windows that overlap, a load returns this many times what their inner chunks have.
# With 1, loads of shuffled blocks decoded up to 2.1 times what they returned, because
# windows reach into blocks beside; with 4, 0.9 times.
_FAIR_TIMES = 4
# Loads that decode more than this are made smaller. Looking for an inner chunk takes
# about as long as decoding this many bytes.
_MOST_DECODED_NBYTES = GIB
_LOOK_NBYTES = 64 * KIB


def load_samples(
    fields: Sequence[Field], room_nbytes: int, n: int, least: int, *, is_scattered: bool
) -> tuple[int, int]:
    """Samples of a usual load of `room_nbytes`, and of the largest; `least` or more.

    `n` is the number of all samples; `is_scattered`, whether a load's lie anywhere.
    """
    listed = _MOST_LISTED // max(sum(f.n_listed for f in fields), 1)
    fitting = max(min(room_nbytes // load_nbytes(fields), listed), 1)
    usual = usual_samples(fields, fitting, n, is_scattered=is_scattered)
    usual = max(usual, least)
    most = most_samples(fields, usual, is_scattered=is_scattered)
    return usual, max(min(most, listed), usual)


def load_nbytes(fields: Sequence[Field]) -> int:
    """Memory for a sample of all arrays during the read, in bytes, at least 1."""
    return max(sum(f.load_nbytes for f in fields), 1)


def usual_samples(
    fields: Sequence[Field], n: int, n_samples: int, *, is_scattered: bool
) -> int:
    """Samples of a usual load: `n`, which fit its memory, or fewer if they are small.

    Each sample may lie in another inner chunk. So a load of many small samples may
    decode thousands of times as many bytes as it returns, or look for millions of
    shards, while its samples wait for one another. The load is halved as long as both
    halves together decode little more than the whole did.

    Parameters
    ----------
    n_samples
        Number of all samples.
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
    """Bytes that `n` samples decode; each inner chunk costs at least a look-up."""
    cost = 0.0
    for f in fields:
        whole = max(f.array.nbytes, f.n_chunks * _LOOK_NBYTES)
        part = -expm1(-n * f.touched_part) if is_scattered else n / max(n_samples, n)
        cost += whole * part
    return cost


def most_samples(fields: Sequence[Field], n: int, *, is_scattered: bool) -> int:
    """Samples of the largest load, if `n` samples fit the usual memory.

    In a small load, scattered samples share few inner chunks, and each load decodes all
    inner chunks that it touches. For an array of the size of a few loads, each load
    then decodes nearly the whole array.
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
    """Bytes decoded for `n` scattered samples, each inner chunk once."""
    return -sum(f.array.nbytes * expm1(-n * f.touched_part) for f in fields)


def fair_samples(fields: Sequence[Field], n: int, n_turns: int) -> int:
    """Samples of a load that returns a few times what it decodes; at most `n`.

    Where windows overlap, the samples of a few inner chunks can take hundreds of times
    the memory of these, and a load that waits for the last of them has no bound. Parts
    of that load decode the same inner chunks again, which is then cheap.

    Parameters
    ----------
    n
        Number of samples that lie in the same inner chunks.
    n_turns
        Number of all samples of this rank.
    """
    wanted = n_turns * sum(f.sample_nbytes for f in fields)
    stored = sum(f.array.nbytes for f in fields)
    return min(_FAIR_TIMES * n * stored // max(wanted, 1), n)


def whole_batches(start: int, n_wanted: int, batch_size: int) -> int:
    """About `n_wanted` turns from `start` on, to the end of a batch if one is there.

    A batch from two loads costs a copy, and keeps the first one's memory.
    """
    n = n_wanted - (start + n_wanted) % batch_size
    return n if n >= batch_size else n_wanted


def load_end(order: Order, share: Share, start: int, n_wanted: int, most: int) -> int:
    """Turn at which a load from `start` ends: at least one turn, about `n_wanted`.

    If inner chunks that are needed again lie further apart than a load of `most` turns
    may grow, it ends before.
    """
    wanted = share.positions(start, min(start + n_wanted, share.n_turns))
    # Samples that pad a share begin at position 0 again; then the rest is wanted.
    is_rest = start + n_wanted >= share.n_turns or np.any(wanted[1:] < wanted[:-1])
    position = share.n if is_rest else int(wanted[-1]) + 1
    last = int(wanted[0]) + _MOST_TIMES * most * share.world_size
    while (stop := share.n_before(order.cut(position, last))) <= start:
        position = order.cut(position, last) + 1
    return stop
