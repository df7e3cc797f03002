"""Encoded inner chunks of a shard as columns, and the shard that they make up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.encoded import Bytes, EncodedArrays, Ints
from gpushard.planning.index import CORRUPT, MISSING
from gpushard.stores.local.file_bytes import FileBytes, join_pieces
from gpushard.stores.local.spool import Held, Pending, Spool, pieces_by_now
from gpushard.writing.shard import StoredShard, blank_entries


class Payloads(NamedTuple):
    """Inner chunks after a change.

    Attributes
    ----------
    entries, encoded
        Index entries of those that are stored, int64, shape (n_stored,), and their
        bytes.
    gone
        Index entries of those that are missing from now on: int64, shape (n_gone,).
    nested
        Entries of nested shards that are stored, and the parts of each of them.
    """

    entries: Ints
    encoded: EncodedArrays
    gone: Ints
    nested: Sequence[tuple[int, Sequence[Pending]]] = ()

    @classmethod
    def of(cls, found: Mapping[int, Bytes | None]) -> Payloads:
        """Inner chunks by entry; None for those that are missing from now on."""
        stored = {entry: data for entry, data in found.items() if data is not None}
        gone = [entry for entry, data in found.items() if data is None]
        encoded = EncodedArrays.of([*stored.values()])
        return cls(_entries([*stored]), encoded, _entries(gone))

    @classmethod
    def of_nested(cls, entry: int, parts: Sequence[Pending]) -> Payloads:
        """A nested shard in its parts."""
        return cls.of({})._replace(nested=[(entry, parts)])

    def items(self) -> Iterator[tuple[int, Bytes | None]]:
        """Entry of each inner chunk, and its bytes, or None."""
        yield from zip(self.entries.tolist(), self.encoded.items(), strict=True)
        yield from ((entry, None) for entry in self.gone.tolist())
        for entry, parts in self.nested:
            yield entry, join_pieces(pieces_by_now(parts))


class Assembly:
    """Inner chunks of a shard that is to be written, as columns over its index.

    Parameters
    ----------
    n_entries
        Entries of the index.
    changed
        The changed inner chunks.
    spool
        Holds their bytes, in its file when there are too many. None: all are held here.
    """

    def __init__(
        self,
        n_entries: int,
        changed: Iterable[Payloads],
        spool: Spool | None = None,
    ) -> None:
        self._sources: list[Bytes | FileBytes | Held | Sequence[Pending]] = []
        self._is_there, self._is_changed = np.zeros((2, n_entries), bool)
        self._source, self._offset, self._nbytes = np.zeros((3, n_entries), np.int64)
        for payloads in changed:
            self._add(payloads, spool)
            del payloads  # nothing holds it while the next ones are encoded

    def _add(self, payloads: Payloads, spool: Spool | None) -> None:
        """Take changed inner chunks."""
        entries, (buffers, buffer, offset, nbytes), gone, nested = payloads
        self._put(entries, buffer + len(self._sources), offset, nbytes)
        self._sources += buffers if spool is None else map(spool.hold, buffers)
        self._is_there[gone] = False
        self._is_changed[entries] = self._is_changed[gone] = True
        for entry, parts in nested:
            self._put(entry, len(self._sources), 0, sum(map(len, parts)))
            self._sources.append(parts)
            self._is_changed[entry] = True

    def keep(self, stored: StoredShard) -> None:
        """Take the inner chunks of a stored shard that did not change as they are.

        Raises
        ------
        CorruptShardError
            The index entry of one of them is damaged.
        """
        index = stored.index
        kept = np.flatnonzero((index.state != MISSING) & ~self._is_changed)
        damaged = kept[index.state[kept] == CORRUPT]
        if len(damaged):
            index.refuse_corrupt(int(damaged[0]))
        number = np.full_like(kept, len(self._sources))
        self._put(kept, number, index.offset[kept], index.nbytes[kept])
        self._sources.append(stored.data)

    def laid_out(
        self, order: Ints, start: int
    ) -> tuple[NDArray[np.uint64], list[Pending]] | None:
        """Index entries of the shard, and its bytes from `start` on.

        None if all inner chunks are missing. Entries: uint64, shape (n_entries, 2).
        `order` has the index entries in the order in which inner chunks are stored.
        """
        order = order[self._is_there[order]]
        if not len(order):
            return None
        nbytes = self._nbytes[order]
        entries = blank_entries(len(self._is_there))
        entries[order, 0] = start + np.cumsum(nbytes) - nbytes
        entries[order, 1] = nbytes
        return entries, [*self._parts(order)]

    def _put(self, entries: Any, source: Any, offset: Any, nbytes: Any) -> None:
        """Note where inner chunks are: int64 arrays, or numbers for one of them."""
        self._is_there[entries] = True
        self._source[entries] = source
        self._offset[entries] = offset
        self._nbytes[entries] = nbytes

    def _parts(self, order: Ints) -> Iterator[Pending]:
        """Bytes of the inner chunks; what lies together already is one part."""
        source, start = self._source[order], self._offset[order]
        stop = start + self._nbytes[order]
        is_last = np.ones(len(order), bool)
        is_last[:-1] = (source[1:] != source[:-1]) | (start[1:] != stop[:-1])
        (lasts,) = is_last.nonzero()
        firsts = np.zeros_like(lasts)
        firsts[1:] = lasts[:-1] + 1
        runs = (source[firsts], start[firsts], stop[lasts])
        for number, *span in zip(*(column.tolist() for column in runs), strict=True):
            data = self._sources[number]
            if isinstance(data, Held):
                yield data.part(*span)
            elif isinstance(data, FileBytes):
                yield data.unread_slice(slice(*span))
            elif isinstance(data, np.ndarray):
                yield data[slice(*span)]
            else:
                yield from data


def _entries(entries: list[int]) -> Ints:
    return np.array(entries, np.int64)
