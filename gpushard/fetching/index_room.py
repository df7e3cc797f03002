"""Room for shard indexes: how many are read together, and what they leave of the limit.

Indexes count against `memory_limit` like what is fetched and decoded, so a read is held
to what its own leave of it.
"""

from __future__ import annotations

from gpushard.errors import LimitError
from gpushard.options import MIB
from gpushard.planning.blocks import BLOCK_SHARDS
from gpushard.source import Source

# What is held of an index while it is parsed: its bytes, and 17 for an entry of 16.
_COPIES = 17 / 8
# Beside its entries an index takes 1.4 KiB, whatever its size: what copies make of it.
_EACH_NBYTES = 700
# Indexes that are read together take so much less than half of the limit, encoded a
# quarter; more than this many bytes need not be asked for at once.
_SHARE = 4
_MOST_NBYTES = 64 * MIB
# What does not count, where a read is not cut for it.
_LITTLE_SHARE = 32
# An index of 131,072 entries has room whatever the limit is, as the columns of so many
# inner chunks have.
_LEAST_NBYTES = 2 * MIB + 64


def n_at_once(source: Source, level: int) -> int:
    """Shard indexes of a level that may be read together, one at least."""
    sizes = source.index_nbytes
    room = min(source.options.memory_limit // _SHARE, _MOST_NBYTES) // len(sizes)
    return max(1, room // (sizes[level] + _EACH_NBYTES))


def are_many(source: Source, n_shards: int) -> bool:
    """Whether indexes of so many shards are no trifle beside the memory limit."""
    little = max(source.options.memory_limit // _LITTLE_SHARE, _LEAST_NBYTES)
    return n_shards * sum(source.index_nbytes) > little


def held_nbytes(source: Source, n_shards: int, n_chunks: int) -> int:
    """Memory of the indexes in hand, in a read of some inner chunks of some shards."""
    nbytes = 0
    for level, index_nbytes in enumerate(source.index_nbytes):
        most = min(n_chunks if level else n_shards, BLOCK_SHARDS)
        nbytes += min(most, n_at_once(source, level)) * (index_nbytes + _EACH_NBYTES)
    return int(_COPIES * nbytes)


def least_limit(source: Source) -> int:
    """Memory limit below which reads of the array are refused; 0 if none are."""
    nbytes = sum(source.index_nbytes)
    return _SHARE * nbytes if nbytes > _LEAST_NBYTES else 0


def refuse_large(source: Source) -> None:
    """Refuse shard indexes that take more than half of the memory limit.

    Raises
    ------
    LimitError
        Parsed, one of them does, with one of each level that is nested in it.
    """
    most = max(source.options.memory_limit // _SHARE, _LEAST_NBYTES)
    nbytes = sum(source.index_nbytes)
    if nbytes > most:
        raise LimitError(
            "a shard index takes more than half of the memory that a read may hold",
            array_path=source.layout.path,
            expected=f"an index of at most {most} bytes",
            got=f"one of {nbytes} bytes",
            hint="raise options.memory_limit",
        )
