"""What the compiled loops need to open the files of an unsharded array.

Each inner chunk of such an array is a file. The loops open it by its path below the
store's directory.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.columns import Opener
from gpushard.fused.libraries import FileCalls, file_calls
from gpushard.fused.thread_memory import address_of
from gpushard.memory.chunk_room import usual_stored
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.handles import FileHandle
from gpushard.stores.local import LocalStore, holds_plain_files

# openat2(2). A link may lead out of the store: the general path looks where it leads.
_NO_LINKS = 0x04
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# So many files are read by one thread at first. If each takes longer than so much
# beside decoding, a disk or a server is waited for: the general path asks it for more
# at once.
N_TRIED, SLOW_US = 8, 300
# About so many boxes are placed by one call of the loops; interrupts wait for its end.
MOST_AT_ONCE = 512


class _Paths:
    """Paths of some objects, relative to the store's directory.

    Attributes
    ----------
    addresses
        int64, shape (n_objects,). Address of each path, which ends with a zero byte.
    """

    def __init__(self, source: Source, coordinates: Ints) -> None:
        keys = source.keys(coordinates)
        refuse_unsafe_key(keys[0], source.store.url)  # others differ in numbers only
        text = os.fsencode("\0".join(keys))
        self._text = np.frombuffer(text + b"\0", np.uint8)
        first = np.zeros(len(keys), np.int64)
        first[1:] = np.flatnonzero(self._text == 0)[:-1] + 1
        self.addresses = first + address_of(self._text)


class Opening(NamedTuple):
    """How the loops open some files.

    Attributes
    ----------
    opener
        What they are told. Of `missing` and `held` it has only addresses.
    missing
        bool, shape (n_objects,). Set for each file that is found not to exist.
    held
        The directory, and objects with memory that the loops read.
    """

    opener: Opener
    missing: NDArray[np.bool_]
    held: tuple[object, ...]


class ObjectFiles:
    """The files of one unsharded array.

    Parameters
    ----------
    source, store
        The array, and its store.
    calls
        Functions of the C library.

    Attributes
    ----------
    store
        The parameter.
    most_nbytes
        Size of the largest file that the loops read.
    """

    def __init__(self, source: Source, store: LocalStore, calls: FileCalls) -> None:
        self.store = store
        self.most_nbytes = _most_nbytes(source)
        self._calls = calls
        links = store.allow_symlinks_outside
        self._knows_missing = not (links or store.checks_missing)
        # Behind the struct, a path of no characters.
        self._how = np.array([_FLAGS, 0, 0 if links else _NO_LINKS, 0], np.int64)

    def opening(self, source: Source, root: FileHandle, coordinates: Ints) -> Opening:
        """How to open the files of some objects.

        Parameters
        ----------
        root
            The store's directory, open.
        coordinates
            int64, shape (n_objects, n_axes). Places of the objects in the chunk grid.
        """
        paths = _Paths(source, coordinates)
        missing = np.zeros(len(coordinates), np.bool_)
        opener = Opener(
            root.fd,
            address_of(paths.addresses),
            address_of(missing),
            int(self._knows_missing),
            address_of(self._how),
            *self._calls,
            self.most_nbytes,
        )
        return Opening(opener, missing, (root, paths, self._how))


def object_files(source: Source) -> ObjectFiles | None:
    """The files of a source's inner chunks; None if the loops cannot open them."""
    store = source.store
    if source.layout.levels or source.layout.object_codecs:
        return None
    if not holds_plain_files(store):
        return None
    calls = file_calls()
    return None if calls is None else ObjectFiles(source, store, calls)


def fits_memory(source: Source, files: ObjectFiles) -> bool:
    """Whether the memory that a read may take has room for its inner chunks."""
    is_small = source.chunk_nbytes <= source.options.max_chunk_nbytes
    return is_small and files.most_nbytes <= source.room.most_window_nbytes


def _most_nbytes(source: Source) -> int:
    if source.raw_strides is not None:
        return source.chunk_nbytes
    limit = source.pipeline.encoded_limit(source.chunk_shape or ())
    return min(limit, usual_stored(source.chunk_nbytes))
