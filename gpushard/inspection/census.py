"""How many inner chunks the stored shards of an array hold, and how many are empty."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from gpushard.inspection.contents import contents_of
from gpushard.inspection.room import at_once, most_entries, refuse_large_index
from gpushard.source import Source

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Census:
    """Counts over the stored shards of an array.

    Attributes
    ----------
    n_empty
        Missing inner chunks of stored shards that hold elements of the array. They read
        as the fill value.
    n_unreadable
        Shards whose index is damaged, whose inner chunks are not counted.
    """

    n_stored: int
    n_empty: int
    n_unreadable: int


def census(source: Source) -> Census:
    """Counts from all shard indexes.

    Raises `LimitError` if the indexes of a shard exceed the memory limit, and
    `StoreError` if the store failed.
    """
    layout = source.layout
    coordinates = layout.coordinates()
    n_stored = n_empty = n_unreadable = 0
    refuse_large_index(source)
    n_at_once = at_once(source, _AT_ONCE)
    while some := list(islice(coordinates, n_at_once)):
        for contents in contents_of(source, some, most_entries(source)):
            if contents.chunks is None:
                n_unreadable += contents.exists
                continue
            n_stored += contents.chunks.n_stored
            n_empty += contents.chunks.n_missing(layout)
    return Census(n_stored, n_empty, n_unreadable)
