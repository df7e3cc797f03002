"""Room, within the memory limit, for the indexes that a verification holds."""

from __future__ import annotations

from math import prod

from gpushard.errors import LimitError
from gpushard.options import MIB
from gpushard.source import Source
from gpushard.stores.local.store import LocalStore

# Memory of an entry while its object is checked, overlaps included: columns in stored
# order and by byte range, and a coordinate per axis, held twice.
_ENTRY_NBYTES, _COORDINATE_NBYTES = 80, 16
# Objects of unknown size may be as large as any encoding, and stores hold a copy too.
_HELD_COPIES = 2
# Memory of a nested index besides its entries, counted in entries: 1.5 KiB.
INDEX_ENTRIES = 16
# This many entries are allowed whatever the limit is, as in reads.
_LEAST_ENTRIES = 1 << 17


def is_held(source: Source) -> bool:
    """Whether an object may be held with its contents, because its size is unknown."""
    if is_read_whole(source):
        return True
    if source.layout.levels or isinstance(source.store, LocalStore):
        return False
    # Imported here, because it takes as long as a look at an array in files.
    from gpushard.stores.zarr.store import ZarrStore

    return isinstance(source.store, ZarrStore)


def is_read_whole(source: Source) -> bool:
    """Whether an object has to be fetched whole before anything is known of it."""
    return bool(source.layout.object_codecs)


def entry_nbytes(source: Source) -> int:
    """Memory of an index entry while its object is checked."""
    return _ENTRY_NBYTES + _COORDINATE_NBYTES * source.layout.ndim


def most_entries(source: Source) -> int:
    """Entries of one object that may be held; a quarter of the limit is for payload."""
    share = source.options.memory_limit * 3 // 4
    return max(share // entry_nbytes(source), _LEAST_ENTRIES)


def _outer_entries(source: Source) -> int:
    """Entries of the outermost index of the largest shard."""
    return sum(source.index_entries[:1])


def inner_entries(source: Source) -> int:
    """Entries of all innermost indexes that one object may have; at least one."""
    return max(1, prod(source.index_entries))


def at_once(source: Source, most: int) -> int:
    """Objects whose indexes are held together: as many as fit, at most `most`."""
    return max(1, min(most, most_entries(source) // inner_entries(source)))


def refuse_more_than(most: int, n_entries: int, source: Source) -> None:
    """Refuse indexes of one object that have more than `most` entries together.

    Raises `LimitError`: they would take more memory than a verification may hold.
    """
    if n_entries > most:
        raise LimitError(
            "the shard indexes of one object take too much memory to be verified",
            array_path=source.layout.path,
            expected=f"at most {most} entries",
            got=f"{n_entries} entries",
            hint="raise options.memory_limit",
        )


def refuse_large_index(source: Source) -> None:
    """Refuse shards whose outermost index may not be held; raises `LimitError`."""
    refuse_more_than(most_entries(source), _outer_entries(source), source)


def _all_entries(source: Source) -> int:
    """Entries that the indexes of one object take the room of, nested ones too."""
    n_indexes, n_held = 1, 0
    for n_entries in source.index_entries:
        n_held += INDEX_ENTRIES * (n_indexes - 1)
        n_indexes *= n_entries
    return n_held + n_indexes


def beside_indexes(source: Source) -> Source:
    """The array, with fetches limited to the memory that indexes leave."""
    n_entries = min(_all_entries(source), most_entries(source))
    nbytes = n_entries * entry_nbytes(source)
    return source if nbytes <= MIB else source.beside(nbytes)


def most_unverified(source: Source) -> int:
    """Bytes that may be fetched and not verified yet, as far as a limit is set.

    A server without ranges sends whole objects, up to a quarter of the limit at a time,
    for ranges to be cut from.
    """
    nbytes = source.room.most_fetched_nbytes
    is_far = source.store.costs.prefers_whole_objects
    return nbytes // 2 if is_far and not source.options.is_left_open else nbytes


def workers(source: Source) -> int:
    """Tasks in parallel, if each may belong to another object and hold its index."""
    nbytes = _outer_entries(source) * entry_nbytes(source)
    n = source.options.memory_limit // max(1, 8 * nbytes)
    if is_held(source) and not is_read_whole(source):
        each = _HELD_COPIES * source.largest_chunk_nbytes + source.work_nbytes
        n = min(n, source.options.bound_nbytes // max(1, each))
    return max(1, min(source.most_workers, n))
