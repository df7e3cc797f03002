"""What the compiled loops need to open the files of an unsharded array.

Each inner chunk of such an array is a file. The loops open it by its path below the
store's directory.
"""

from __future__ import annotations

import os
import sys
from math import prod
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.system_calls import FileCalls, file_calls
from gpushard.fused.words import VERSION_NBYTES, Opener
from gpushard.memory.chunk_room import usual_stored
from gpushard.source import Source
from gpushard.stores.failures import refuse_unsafe_key
from gpushard.stores.local.handles import FileHandle
from gpushard.stores.local.store import LocalStore, holds_plain_files

if sys.platform == "linux":  # the only system whose files the loops open
    import resource

# openat2(2). A link may lead out of the store: the general path looks where it leads.
_NO_LINKS = 0x04
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# So many files are read by one thread at first. If it waits for at least half of them,
# and each takes longer than so much beside decoding, a disk or a server is slow: the
# general path asks it for more at once.
N_TRIED, _SLOW_US = 8, 300
# About so many boxes are placed by one call of the loops; interrupts wait for its end.
MOST_AT_ONCE = 512
_MOST_FILES = 1 << 62


class Opening(NamedTuple):
    """How the loops open some files.

    Attributes
    ----------
    opener
        What they are told. Of `missing` and `held` it has only addresses.
    missing
        bool, shape (n_boxes,). Set for each box whose file is found not to exist.
    held
        The directory, and objects with memory that the loops read.
    """

    opener: Opener
    missing: NDArray[np.bool_]
    held: tuple[object, ...]

    def behind(self, n: int) -> Opener:
        """The same for the boxes behind the first `n`."""
        opener = self.opener
        versions = opener.versions and opener.versions + n * VERSION_NBYTES
        return opener._replace(missing=opener.missing + n, versions=versions)


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
    strides
        int64, shape (n_axes,). Distance of neighbours along each axis, if all places of
        the chunk grid are numbered in C order.
    """

    def __init__(self, source: Source, store: LocalStore, calls: FileCalls) -> None:
        layout = source.layout
        self.store = store
        self.most_nbytes = _most_nbytes(source)
        self.strides = np.array(source.object_strides, np.int64)
        self._first_key = source.key((0,) * layout.ndim)
        # What no path can have is refused before this is used.
        prefix = (layout.key_prefix + layout.keys.start).encode(
            sys.getfilesystemencoding(), "surrogatepass"
        )
        links = store.allow_symlinks_outside
        knows_missing = not (links or store.checks_missing)
        self._prefix = np.frombuffer(prefix, np.uint8)
        self._offsets = np.array(layout.keys.offset or (0,) * layout.ndim, np.int64)
        # Behind the struct, a path of no characters.
        self._how = np.array([_FLAGS, 0, 0 if links else _NO_LINKS, 0], np.int64)
        self._opener = Opener(
            root=0,
            prefix=address_of(self._prefix),
            prefix_nbytes=len(prefix),
            separator=ord(layout.keys.separator),
            strides=address_of(self.strides),
            offsets=address_of(self._offsets),
            n_axes=layout.ndim,
            missing=0,
            knows_missing=int(knows_missing),
            how=address_of(self._how),
            **calls._asdict(),
            most_nbytes=self.most_nbytes,
        )

    def opening(self, root: FileHandle, n_boxes: int) -> Opening:
        """How to open the files of some boxes; `root` is the store's directory, open.

        Raises
        ------
        StoreError
            Keys of the array lead out of its directory.
        """
        # Other keys differ in numbers only.
        refuse_unsafe_key(self._first_key, self.store.url)
        missing = np.zeros(n_boxes, np.bool_)
        opener = self._opener._replace(root=root.fd, missing=address_of(missing))
        return Opening(opener, missing, (root, self))


def object_files(source: Source) -> ObjectFiles | None:
    """The files of a source's inner chunks; None if the loops cannot open them."""
    store = source.store
    if source.layout.levels or source.layout.object_codecs:
        return None
    if not holds_plain_files(store):
        return None
    # The loops number files in 64 bits.
    if prod(axis.n_cells for axis in source.layout.axes) > _MOST_FILES:
        return None
    calls = file_calls()
    return None if calls is None else ObjectFiles(source, store, calls)


class Beginning(NamedTuple):
    """When the first files were read, and how often this thread had waited before."""

    at_s: float
    n_waits: int

    @classmethod
    def now(cls) -> Beginning:
        """The present moment."""
        return cls(perf_counter(), _n_waits())

    def waited_s(self, n_files: int) -> float:
        """Seconds since then; 0 if the thread has not waited for half of the files.

        It was then decoding, or other threads and processes had its CPU.
        """
        n_waits = _n_waits() - self.n_waits
        return perf_counter() - self.at_s if 2 * n_waits >= n_files else 0.0


def _n_waits() -> int:
    """How often this thread has given up its CPU, as it does to wait for a disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def are_slow(elapsed_s: float, n_files: int, chunk_us: float) -> bool:
    """Whether files were waited for, beside decoding, of `chunk_us` for each."""
    return 1e6 * elapsed_s / n_files - chunk_us > _SLOW_US


def fits_memory(source: Source, files: ObjectFiles) -> bool:
    """Whether the memory that a read may take has room for its inner chunks."""
    is_small = source.chunk_nbytes <= source.options.max_chunk_nbytes
    return is_small and files.most_nbytes <= source.room.most_window_nbytes


def _most_nbytes(source: Source) -> int:
    if source.raw_strides is not None:
        return source.chunk_nbytes
    limit = source.pipeline.encoded_limit(source.chunk_shape or ())
    return min(limit, usual_stored(source.chunk_nbytes))
