"""Memory in separate pages, which return to the system as soon as nobody uses them.

A C library keeps freed memory, in which small blocks that stay are then placed. NumPy
also asks for huge pages, and a huge page that is used in part counts whole.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from gpushard.options import KIB, MIB

LINE_NBYTES = 64
"""Size of a cache line."""

# The C library serves smaller requests faster, from the gaps that it has.
PAGED_NBYTES = 256 * KIB
_PRIVATE = {}
if hasattr(mmap, "MAP_PRIVATE"):  # not on Windows, where memory is private anyway
    _PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
# The usual size of a huge page, of which at most this part may stay unused.
HUGE_NBYTES = 2 * MIB
_UNUSED_SHARE = 8
_HUGE: int = getattr(mmap, "MADV_HUGEPAGE", 0)


def in_pages(nbytes: int) -> NDArray[np.uint8]:
    """Memory of `nbytes`: uint8, host, any content.

    Raises
    ------
    MemoryError
        The host has no more memory.
    """
    if nbytes < PAGED_NBYTES:
        return np.empty(nbytes, np.uint8)
    return np.frombuffer(mapped_pages(nbytes), np.uint8)


def on_a_line(nbytes: int) -> NDArray[np.uint8]:
    """Memory that starts on a cache line: uint8, host, any content."""
    memory = np.empty(nbytes + LINE_NBYTES, np.uint8)
    first = -int(memory.__array_interface__["data"][0]) % LINE_NBYTES
    return memory[first : first + nbytes]


def in_huge_pages(nbytes: int) -> NDArray[np.uint8]:
    """Memory of whole pages, huge ones if it fills them: uint8, host, any content.

    The system clears huge pages in an eighth of the time (0.07 ms instead of 0.5 for
    each MiB), and they need fewer look-ups when elements are taken that lie far apart.

    Raises
    ------
    MemoryError
        The host has no more memory.
    """
    length = -(-nbytes // HUGE_NBYTES) * HUGE_NBYTES
    if not _HUGE or (length - nbytes) * _UNUSED_SHARE > length:
        return np.frombuffer(mapped_pages(nbytes), np.uint8)
    pages = mapped_pages(length)
    with suppress(OSError):  # the kernel may have no huge pages
        pages.madvise(_HUGE)
    return np.frombuffer(pages, np.uint8)[:nbytes]


def into_or_pages(into: NDArray[np.uint8] | None, nbytes: int) -> NDArray[np.uint8]:
    """The first `nbytes` of `into`, if it has as many; else memory as by `in_pages`."""
    if into is None or len(into) < nbytes:
        return in_pages(nbytes)
    return into[:nbytes]


def pages_if_any(nbytes: int) -> NDArray[np.uint8] | None:
    """Memory to fetch `nbytes` into, as by `in_pages`; None if the host has none.

    A store then answers with memory of its own, and only for what exists.
    """
    with suppress(MemoryError):
        return in_pages(nbytes)
    return None


def mapped_pages(nbytes: int) -> mmap.mmap:
    """Pages for `nbytes` bytes; untouched ones take no memory.

    Raises
    ------
    MemoryError
        The host has no more memory.
    """
    try:
        return mmap.mmap(-1, nbytes, **_PRIVATE)
    except OSError as error:
        raise MemoryError(f"no room for {nbytes} bytes") from error


def enlarged(pages: mmap.mmap, nbytes: int) -> mmap.mmap:
    """The same bytes with room for `nbytes`; Linux moves pages, and copies no bytes.

    Nobody may have a view of `pages`.

    Raises
    ------
    MemoryError
        The host has no more memory.
    """
    try:
        pages.resize(nbytes)
    except (OSError, SystemError, ValueError):  # other systems cannot move pages
        larger = mapped_pages(nbytes)
        larger[: len(pages)] = memoryview(pages)
        return larger
    return pages
