"""Decoded inner chunks that are kept: their keys, and the layout of their memory.

A key belongs to one index of one version of a shard. A read that has just checked
whether a shard was replaced has the index of the current version. It can therefore find
only inner chunks of that version.

Of an array without shards, a key is the place of a file in the chunk grid. What is kept
has the version of the file from which it was decoded, and a read that finds it looks
whether the file still has that version.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpushard.memory.chunk_cache import ChunkCache
from gpushard.memory.chunk_slots import Hold
from gpushard.memory.known import KnownIndex
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.base import lasts
from gpushard.stores.local.handles import FileVersion, packed_version

# A read that takes at most three quarters of the elements takes a part of them.
_PARTS = 4
# Low enough to stay negative when a place in an index is added to it.
NO_KEY = -(1 << 62)


def first_key(source: Source, known: KnownIndex | None) -> int | None:
    """The number that gives a key when the place in an index is added to it.

    None where nothing is kept. `known` is the index of a shard that was just checked.
    """
    if source.chunks is None or known is None or not lasts(known.version):
        return None
    return known.first_key


def first_keys(source: Source, known: Sequence[Any]) -> Ints:
    """`first_key` of each shard: int64, shape (n_shards,); `NO_KEY` in place of None.

    `known` are their indexes; any other object if a shard is missing or damaged.
    """
    first = [first_key(source, k) if isinstance(k, KnownIndex) else None for k in known]
    return np.array([NO_KEY if key is None else key for key in first], np.int64)


def keys_of(source: Source, known: Sequence[Any], shard: Ints, entry: Ints) -> Ints:
    """Keys of inner chunks: int64, shape (n_chunks,); negative where none can be kept.

    Parameters
    ----------
    known
        As in `first_keys`.
    shard, entry
        int64, shape (n_chunks,). The shard of each inner chunk, and its place in the
        index of that shard.
    """
    firsts = first_keys(source, known)
    return entry + (firsts[0] if len(firsts) == 1 else firsts[shard])


def file_version_of(version: Hashable | None) -> bytes | None:
    """Version of a file of one inner chunk, as it is kept; None if it does not last."""
    return packed_version(cast("FileVersion", version)) if lasts(version) else None


def current_file_version(source: Source, coordinate: tuple[int, ...]) -> bytes | None:
    """`file_version_of` the file at a place of the chunk grid; None: there is none."""
    _, version = source.store.current_version(source.key(coordinate))
    return file_version_of(version)


def find_current(
    source: Source, cache: ChunkCache, key: int, coordinate: tuple[int, ...]
) -> Hold | None:
    """Slot of the inner chunk that is kept under `key`; None if there is none.

    In an array without shards, `coordinate` is that of its file, which must still have
    the version from which it was decoded.
    """
    hold = cache.find_one(key)
    if hold is None or source.layout.levels:
        return hold
    if current_file_version(source, coordinate) == hold.versions[0]:
        return hold
    cache.drop(hold, [0])
    return None


def fits_cache(source: Source, n_chunks: int) -> bool:
    """Whether a read of `n_chunks` inner chunks may drop others to keep its own.

    A read of more than there is room for would drop all of them, and would keep
    nothing that another such read could find.
    """
    return source.chunks is not None and n_chunks <= source.chunks.n_most


def takes_part(source: Source, n_elements: int, n_chunks: int) -> bool:
    """Whether a read takes only a part of its inner chunks: others may want the rest.

    A read of a whole array takes all there is, although the last inner chunks along an
    axis have more room than elements.

    Parameters
    ----------
    n_elements, n_chunks
        Number of elements that the read takes, and of inner chunks that have them.
    """
    layout = source.layout
    taken_nbytes = n_elements * layout.dtype.itemsize
    held_nbytes = min(n_chunks * source.chunk_nbytes, layout.nbytes)
    return _PARTS * taken_nbytes <= (_PARTS - 1) * held_nbytes


def keep_chunk(
    source: Source,
    key: int,
    decoded: NDArray[Any],
    *,
    may_drop: bool,
    version: bytes,
) -> None:
    """Keep a copy of a decoded inner chunk, if there is room.

    `version` is that of its file, if the key does not tell it.
    """
    if source.chunks is None:
        return
    hold = source.chunks.claim([key], may_drop=may_drop)
    if hold.slots[0] >= 0:
        store_elements(source, hold.bytes_of(0), decoded)
        source.chunks.keep(hold, versions={0: version})


def kept_elements(source: Source, memory: NDArray[np.uint8]) -> NDArray[Any]:
    """Inner chunk, in the array's axes, from memory that is kept; may be a view."""
    stored = _stored_view(source, memory)
    # Any nonzero byte of a bool array means true.
    return stored != 0 if source.layout.dtype == np.bool_ else stored


def store_elements(
    source: Source, memory: NDArray[np.uint8], decoded: NDArray[Any]
) -> None:
    """Write a decoded inner chunk to memory, in the form that `kept_elements` reads."""
    _stored_view(source, memory)[...] = decoded


def _stored_view(source: Source, memory: NDArray[np.uint8]) -> NDArray[Any]:
    """Memory as an inner chunk: shape `chunk_shape`, any strides and byte order.

    If elements are plain, the memory has what the bytes-to-bytes codecs decode to,
    because that is what the compiled loops write and read. Otherwise it has elements
    in C order.
    """
    shape, strides = source.chunk_shape or (), source.element_strides
    dtype = source.layout.dtype if strides is None else source.pipeline.stored_dtype
    return np.ndarray(
        shape, dtype, memory, 0, None if strides is None else strides[:-1]
    )
