"""The mark of a conversion in progress: a small JSON object beside the documents.

It is written before the array is made and deleted when the conversion is complete. It
identifies the source and the destination, so that a conversion never continues another
one, and it lists the finished shards. In stores where shards appear whole or not at
all, every shard that exists counts as finished, too. In other stores, a shard may be
incomplete, so only the mark counts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import OptionError, StoreError, UnsupportedError
from gpushard.hierarchies.documents import join
from gpushard.layout import ArrayLayout
from gpushard.metadata import DOCUMENTS
from gpushard.stores.base import ByteRequest, Store
from gpushard.stores.checks import asked
from gpushard.stores.local.files import FileWriter
from gpushard.stores.writers import writer_of
from gpushard.stores.zarr.store import ZarrStore, takes_any_key

NAME = ".gpushard-convert.json"
"""Name of the mark, below the destination's path."""

_VERSION = 1
# Writing the mark costs a small file; lost entries are found again shard by shard.
_INTERVAL_S = 2.0
# Number of stored objects whose versions show whether the source was written anew.
_N_SAMPLED = 16
_BATCH = 1024
# Shards whose numbers are listed at a time: a number takes 40 bytes.
_LISTED = 1 << 16


def source_fingerprint(store: Store, layout: ArrayLayout) -> str:
    """Text that changes if the source is another one, or is written anew.

    It covers the source's address, its metadata, and the versions of its documents and
    of a few objects.
    """
    step = max(1, layout.n_objects // _N_SAMPLED)
    sampled = [
        layout.key_prefix + layout.keys.key(unravelled(i, layout.grid))
        for i in range(0, layout.n_objects, step)
    ]
    documents = [join(layout.path, name) for name in DOCUMENTS]
    answers = asked(store, [ByteRequest(key, 0, 1) for key in (*documents, *sampled)])
    versions = [None if a is None else repr(a.version) for a in answers]
    return layout.digest(store.url, versions)


def unravelled(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinate of the cell with a given number, in C order."""
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


@dataclass
class ConversionMark:
    """The mark of one array's conversion.

    Attributes
    ----------
    key
        Key of the mark.
    source, document
        Fingerprints of the source and of the destination's metadata.
    done
        bool, shape (n_shards,), host. Which shards are finished, in C order.
    is_resumed
        Whether an interrupted conversion left the mark.
    """

    store: Store
    key: str
    source: str
    document: str
    done: NDArray[np.bool_]
    is_resumed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _written_at: float = 0.0

    def matches(self, found: dict[str, Any]) -> bool:
        """Whether a mark that was found belongs to exactly this conversion."""
        mine = (_VERSION, self.source, self.document)
        return mine == tuple(found.get(k) for k in ("version", "source", "document"))

    def write(self) -> None:
        """Write the mark to the store, if that has a place for it."""
        if not takes_mark(self.store):
            return
        members = {
            "what": "a conversion by gpushard is under way, or was interrupted",
            "version": _VERSION,
            "source": self.source,
            "document": self.document,
            "done": [list(run) for run in _runs(self.done)],
        }
        data = np.frombuffer(json.dumps(members).encode(), np.uint8)
        writer_of(self.store).put(self.key, [data])
        self._written_at = monotonic()

    def add(self, shards: Iterable[int]) -> None:
        """Note finished shards; at intervals, write the mark."""
        with self._lock:
            self.done[list(shards)] = True
            if monotonic() - self._written_at > _INTERVAL_S:
                self.write()

    def take_over(self, found: dict[str, Any]) -> None:
        """Take over the finished shards from an interrupted conversion's mark."""
        for start, stop in _valid_runs(found.get("done"), len(self.done)):
            self.done[start:stop] = True
        self.is_resumed = True

    def look_for(self, key_of: Callable[[int], str]) -> None:
        """Note shards that exist, by `key_of` their numbers, if all must be whole."""
        writer = writer_of(self.store)
        if not writer.puts_whole:
            return
        unknown = self._unfinished()
        while batch := list(islice(unknown, _BATCH)):
            answers = self.store.read([ByteRequest(key_of(i), 0, 1) for i in batch])
            for i, answer in zip(batch, answers, strict=True):
                self.done[i] = answer is not None
                if self.done[i] and isinstance(writer, FileWriter):
                    writer.drop_stale_lock(key_of(i))

    def _unfinished(self) -> Iterator[int]:
        """Numbers of the shards that are not known to be finished."""
        for first in range(0, len(self.done), _LISTED):
            some = np.flatnonzero(~self.done[first : first + _LISTED])
            yield from (first + some).tolist()

    def remove(self) -> None:
        """Delete the mark, as the conversion is complete."""
        if takes_mark(self.store):
            writer_of(self.store).put(self.key, None)


def refuse_lasting(store: Store) -> None:
    """Refuse a store from which the mark could not be deleted at the end."""
    if isinstance(store, ZarrStore) and not store.zarr_store.supports_deletes:
        raise UnsupportedError(
            "nothing can be deleted from this store, as a conversion has to",
            got=store.url,
            hint="convert to a directory, and pack that",
        )


def takes_mark(store: Store) -> bool:
    """Whether a mark can be stored; without one, a conversion cannot be resumed."""
    return not isinstance(store, ZarrStore) or takes_any_key(store.zarr_store)


def has_mark(store: Store, place: str) -> bool:
    """Whether there is a mark at `place`, as far as the store lets anybody look."""
    try:
        return store.read([ByteRequest(join(place, NAME), 0, 1)])[0] is not None
    except StoreError:  # a server may refuse names that begin with a dot
        return False


def find_mark(store: Store, place: str) -> dict[str, Any] | None:
    """The mark at the destination `place`; None if there is none."""
    data = store.get(join(place, NAME)) if takes_mark(store) else None
    if data is None:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError(
            f"{NAME} at the destination is no mark of a conversion",
            hint="pass overwrite=True and resume=False to delete what is there",
        )
    return dict(found)  # type: ignore[arg-type]  # keys of JSON are strings


def _runs(done: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Half-open runs of finished shards."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], done, [False]))))
    return ((int(a), int(b)) for a, b in edges.reshape(-1, 2))


def _valid_runs(value: Any, n: int) -> Iterator[tuple[int, int]]:
    for run in value if isinstance(value, list) else ():
        if (
            isinstance(run, list)
            and len(run) == 2
            and all(type(i) is int for i in run)
            and 0 <= run[0] <= run[1] <= n
        ):
            yield run[0], run[1]
