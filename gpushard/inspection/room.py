"""Room, within the memory limit, for what a verification holds of indexes."""

from __future__ import annotations

from gpushard.inspection.contents import too_many_entries
from gpushard.inspection.payload import n_workers
from gpushard.options import MIB
from gpushard.source import Source

# What an entry takes while its object is looked at, where ranges overlap too: columns
# as they are stored, and by byte range; and of each axis a coordinate, held twice.
_ENTRY_NBYTES, _COORDINATE_NBYTES = 80, 16
# So many entries have room whatever the limit is, as in reads.
_LEAST_ENTRIES = 1 << 17


def entry_nbytes(source: Source) -> int:
    """Memory of an entry of an index that is looked at."""
    return _ENTRY_NBYTES + _COORDINATE_NBYTES * source.layout.ndim


def most_entries(source: Source) -> int:
    """Entries of one object that may be held: a quarter is for what they name."""
    share = source.options.memory_limit * 3 // 4
    return max(share // entry_nbytes(source), _LEAST_ENTRIES)


def outer_entries(source: Source) -> int:
    """Entries of the outermost index of a shard, of the largest."""
    return sum(source.index_nbytes[:1]) // 16


def refuse_many(source: Source, n_entries: int) -> None:
    """Refuse indexes of one object that have too many entries together.

    Raises
    ------
    LimitError
        They would take more than three quarters of the memory limit.
    """
    most = most_entries(source)
    if n_entries > most:
        raise too_many_entries(source, n_entries, most)


def beside_indexes(source: Source) -> Source:
    """The array, what is fetched of it held to what indexes leave of the limit."""
    nbytes = outer_entries(source) * entry_nbytes(source)
    return source if nbytes <= MIB else source.beside(nbytes)


def workers(source: Source) -> int:
    """Tasks side by side, each of which may be of another object."""
    nbytes = outer_entries(source) * entry_nbytes(source)
    n = source.options.memory_limit // max(1, 8 * nbytes)
    return max(1, min(n_workers(source), n))
