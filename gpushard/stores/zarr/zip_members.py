"""Byte ranges of what a zip file has uncompressed, read from their places in it.

Up to Python 3.12, `zipfile` reads an object from its beginning for each range of it.
"""

from __future__ import annotations

import os
import struct
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipInfo

import numpy as np
from numpy.typing import NDArray

from gpushard.stores.local.file_bytes import FileSlice
from gpushard.stores.zarr.ranges import ZarrObjects

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest
    from zarr.core.buffer import BufferPrototype
    from zarr.storage import ZipStore

# APPNOTE.TXT, 4.3.7: a local file header, up to the lengths of its name and of the
# extra field behind it.
_HEADER = struct.Struct("<26xHH")


class ZipObjects(ZarrObjects):
    """The objects of zarr's store of a zip file."""

    def __init__(self, store: ZipStore, prototype: BufferPrototype) -> None:
        super().__init__(store, prototype)
        self._places: tuple[Any, dict[str, int]] = (None, {})

    async def get(
        self, key: str, byte_range: ZarrByteRequest | None
    ) -> NDArray[np.uint8] | None:
        """Bytes in a range of an object, None for all of it; None if there is none."""
        # zipfile compares all bytes of an object with their checksum.
        found = None if byte_range is None else self._read(key, byte_range)
        return await super().get(key, byte_range) if found is None else found

    def _read(self, key: str, byte_range: ZarrByteRequest) -> NDArray[np.uint8] | None:
        """Bytes of a range; None if zarr has to get them, or to say what is wrong."""
        store: Any = self.store
        archive = store._zf  # noqa: SLF001 - there is no public name
        file = archive.fp
        # What is still being written may not be in the file yet.
        if store.path is None or archive.mode != "r" or file is None:
            return None
        info = archive.NameToInfo.get(key)
        if info is None or not _is_plain(info):
            return None
        start, stop = _span(byte_range, info.file_size)
        data = None
        try:
            place = self._place_of(archive, file, info)
            data = FileSlice(file.fileno(), place + start, place + stop).read()
        except Exception:
            if archive.fp is not None:
                raise
        # Closed meanwhile by another thread, its number may have meant another file.
        return None if archive.fp is None else data

    def _place_of(self, archive: Any, file: IO[bytes], info: ZipInfo) -> int:
        """Where the bytes of an object begin in the archive's file.

        Raises
        ------
        zipfile.BadZipFile
            The file has another object there.
        """
        opened, places = self._places
        if opened is not archive:  # the store was closed and opened since
            places = {}
            self._places = archive, places
        if info.filename not in places:
            with archive.open(info):  # which looks at the header
                pass
            header = os.pread(file.fileno(), _HEADER.size, info.header_offset)
            nbytes = _HEADER.size + sum(_HEADER.unpack(header))
            places[info.filename] = info.header_offset + nbytes
        return places[info.filename]


def _is_plain(info: ZipInfo) -> bool:
    """Whether the file has the bytes of an object as they are."""
    # An encrypted object is longer than its bytes: a header precedes them.
    is_whole = info.compress_size == info.file_size
    return info.compress_type == ZIP_STORED and is_whole


def _span(byte_range: ZarrByteRequest, nbytes: int) -> tuple[int, int]:
    """Half-open range of bytes in an object of `nbytes`."""
    from zarr.abc.store import OffsetByteRequest, SuffixByteRequest

    if isinstance(byte_range, SuffixByteRequest):
        return max(0, nbytes - byte_range.suffix), nbytes
    if isinstance(byte_range, OffsetByteRequest):
        return min(byte_range.offset, nbytes), nbytes
    stop = min(byte_range.end, nbytes)
    return min(byte_range.start, stop), stop
