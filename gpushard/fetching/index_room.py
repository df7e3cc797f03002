"""Room for shard indexes: how many are read together, and what they leave of the limit.

Indexes count against `memory_limit`, like bytes that are fetched and decoded. The rest
of a read is limited to what the read's own indexes leave.
"""

from __future__ import annotations

from gpushard import pages
from gpushard.errors import LimitError
from gpushard.options import MIB
from gpushard.planning.blocks import BLOCK_SHARDS
from gpushard.source import Source

# While an index is parsed, memory holds its bytes, and 17 more for each entry of 16.
_COPIES = 17 / 8
# Beside its entries an index takes 1.4 KiB, whatever its size: `_COPIES` times this.
_EACH_NBYTES = 700
# The encoded indexes that are read together take at most a quarter of the limit; with
# the copies, somewhat over half. More bytes than `_MOST_NBYTES` need not be requested
# at once.
_SHARE = 4
_MOST_NBYTES = 64 * MIB
# Indexes that take less than this part of the limit do not reduce it for the rest.
_LITTLE_SHARE = 32
# An index of 131,072 entries is read whatever the limit, like the columns of as many
# inner chunks.
_LEAST_NBYTES = 2 * MIB + 64
# Memory of indexes that the C library may keep, for each thread apart: one part in so
# many of the limit. Fresh pages take three times as long as memory that it kept.
_KEPT_SHARE = 8


def need_pages(source: Source, nbytes: int) -> bool:
    """Whether indexes of `nbytes` get pages, which return to the system by themselves.

    Whichever thread is free parses the next index, and the C library would keep such
    memory for each thread.
    """
    kept_nbytes = source.options.threads * _COPIES * nbytes
    most_nbytes = source.options.bound_nbytes // _KEPT_SHARE
    return nbytes >= pages.PAGED_NBYTES and kept_nbytes > most_nbytes


def most_indexes(source: Source, level: int) -> int:
    """Most shard indexes of a level that may be read together, at least 1."""
    sizes = source.index_nbytes
    room = min(source.options.memory_limit // _SHARE, _MOST_NBYTES) // len(sizes)
    return max(1, room // (sizes[level] + _EACH_NBYTES))


def are_indexes_many(source: Source, n_shards: int) -> bool:
    """Whether the indexes of `n_shards` shards take a notable part of the limit."""
    little = max(source.options.memory_limit // _LITTLE_SHARE, _LEAST_NBYTES)
    return n_shards * sum(source.index_nbytes) > little


def held_nbytes(source: Source, n_shards: int, n_chunks: int) -> int:
    """Memory of the indexes in hand, in a read of `n_chunks` of `n_shards` shards."""
    nbytes = 0
    for level, index_nbytes in enumerate(source.index_nbytes):
        most = min(n_chunks if level else n_shards, BLOCK_SHARDS)
        nbytes += min(most, most_indexes(source, level)) * (index_nbytes + _EACH_NBYTES)
    return int(_COPIES * nbytes)


def least_limit(source: Source) -> int:
    """Lowest memory limit with which the array can be read; 0 if any limit does."""
    nbytes = sum(source.index_nbytes)
    return _SHARE * nbytes if nbytes > _LEAST_NBYTES else 0


def refuse_large_indexes(source: Source) -> None:
    """Refuse shard indexes that take more than half of the memory limit.

    Raises
    ------
    LimitError
        A parsed index, with one of each level nested in it, takes more than that.
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
