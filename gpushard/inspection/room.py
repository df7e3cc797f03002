"""Room, within the memory limit, for what a verification holds of indexes."""

from __future__ import annotations

from math import prod

from gpushard.errors import LimitError
from gpushard.options import MIB
from gpushard.source import Source
from gpushard.stores.zarr_store import ZarrStore

# What an entry takes while its object is looked at, where ranges overlap too: columns
# as they are stored, and by byte range; and of each axis a coordinate, held twice.
_ENTRY_NBYTES, _COORDINATE_NBYTES = 80, 16
# Objects of no told size may be as large as any encoding, and stores hold them, too.
_HELD_COPIES = 2
# So many entries have room whatever the limit is, as in reads.
_LEAST_ENTRIES = 1 << 17


def is_held(source: Source) -> bool:
    """Whether an object may be held with its contents, as its size is not told."""
    is_untold = isinstance(source.store, ZarrStore) and not source.layout.levels
    return is_read_whole(source) or is_untold


def is_read_whole(source: Source) -> bool:
    """Whether nothing is known of an object until all of it is there."""
    return bool(source.layout.object_codecs)


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


def index_entries(source: Source, coordinate: tuple[int, ...]) -> int:
    """Entries of all indexes that one object may have, at the least one."""
    levels = range(len(source.layout.levels))
    return prod(prod(source.chunks_per_shard(coordinate, level)) for level in levels)


def at_once(source: Source, most: int) -> int:
    """Objects whose indexes are held together: as many as have room, `most` of them."""
    n_entries = prod(nbytes // 16 for nbytes in source.index_nbytes)
    return max(1, min(most, most_entries(source) // max(1, n_entries)))


def refuse_more_than(most: int, n_entries: int, source: Source) -> None:
    """Refuse indexes of one object that have more than `most` entries together.

    Raises
    ------
    LimitError
        They would take more memory than a verification may hold.
    """
    if n_entries > most:
        raise LimitError(
            "the shard indexes of one object take too much memory to be verified",
            array_path=source.layout.path,
            expected=f"at most {most} entries",
            got=f"{n_entries} entries",
            hint="raise options.memory_limit",
        )


def beside_indexes(source: Source) -> Source:
    """The array, what is fetched of it held to what indexes leave of the limit."""
    nbytes = outer_entries(source) * entry_nbytes(source)
    return source if nbytes <= MIB else source.beside(nbytes)


def n_workers(source: Source) -> int:
    """Tasks that run side by side: requests over a network keep a worker waiting."""
    most = source.room.most_workers
    if source.store.costs.prefers_whole_objects:
        return min(max(source.options.threads, 8), most)
    return min(source.options.threads, most)


def workers(source: Source) -> int:
    """As `n_workers`, where each task may be of another object, and hold its index."""
    nbytes = outer_entries(source) * entry_nbytes(source)
    n = source.options.memory_limit // max(1, 8 * nbytes)
    if is_held(source) and not is_read_whole(source):
        each = _HELD_COPIES * source.largest_chunk_nbytes + source.work_nbytes
        n = min(n, source.options.bound_nbytes // max(1, each))
    return max(1, min(n_workers(source), n))
