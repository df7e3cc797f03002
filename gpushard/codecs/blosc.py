"""`blosc`: Blosc 1 frames, whatever compressor and filter their header names.

numcodecs decompresses with its own thread pool when called on the main thread and
with one thread, without any shared state, when called on another one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs import blosc_blocks, blosc_frame, libblosc2
from gpushard.codecs.base import (
    Compressor,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.layout import CodecSpec

# What libraries hold of blocks while they undo a filter, for each thread that decodes
# (blosc.c, `create_serial_context`); numcodecs has several on the main thread alone.
_BLOCKS_HELD = 3
_MOST_THREADS = 8
# Streams that no library puts together: filtered, unfiltered, and bits of bytes.
_SNAPPY_COPIES = 11
# Taking a frame apart costs as much as decoding a few small blocks.
_FEWER_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class BloscCodec(Compressor):
    """Decoder of `blosc` and `numcodecs.blosc`."""

    name: str
    library: str

    def beside_nbytes(self, decoded_nbytes: int) -> int:
        """Memory beside that: blocks as large as writers choose them."""
        return _BLOCKS_HELD * min(decoded_nbytes, blosc_frame.LARGE_BLOCK_NBYTES)

    def extra_nbytes(self, encoded: HostBytes, decoded_nbytes: int) -> int:
        """Memory that a frame of large blocks takes, which only its header tells."""
        header = blosc_frame.parse_header(encoded, self.name)
        if header.flags & blosc_frame.MEMCPYED or not header.nbytes:
            return 0
        if header.compressor == blosc_frame.SNAPPY:
            return _SNAPPY_COPIES * header.nbytes
        is_main = threading.current_thread() is threading.main_thread()
        n_held = _BLOCKS_HELD * (min(_MOST_THREADS, header.n_blocks) if is_main else 1)
        counted = self.beside_nbytes(decoded_nbytes)
        return max(0, n_held * header.block_nbytes - counted)

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of one frame (see `BytesCodec.decode`).

        A stored frame comes out as a view.
        """
        header = blosc_frame.parse_header(encoded, self.name)
        nbytes = header.nbytes
        if nbytes > limit or (exact and nbytes != limit):
            raise size_error(self.name, limit, nbytes, exact=exact)
        if not nbytes:
            return b""
        if header.flags & blosc_frame.MEMCPYED:
            return memoryview(encoded)[blosc_frame.HEADER_NBYTES :]
        if header.compressor == blosc_frame.SNAPPY:
            frame = blosc_frame.parse(encoded, self.name)
            return blosc_blocks.decode_streams(encoded, frame, self.name)
        is_alike = blosc_frame.check_streams(encoded, header, self.name)
        if header.compressor == blosc_frame.ZSTD and is_alike:
            whole = _decode_zstd(encoded, header)
            if whole is not None:
                return whole
        try:
            return numcodecs.blosc.decompress(encoded)
        except (RuntimeError, ValueError) as error:
            raise stream_error(self.name, error) from error

    def decode_range(
        self, encoded: HostBytes, nbytes: int, start: int, stop: int
    ) -> NDArray[np.uint8] | None:
        """Decoded bytes of one frame, of which only ``start:stop`` are there.

        The blocks that hold them are decoded, the rest of the result has no meaning.
        None where that gains nothing, or where the frame is of another size: it is for
        `decode` to say what is wrong.

        Returns
        -------
        numpy.ndarray or None
            uint8, shape (nbytes,), host.

        Raises
        ------
        CorruptShardError
            One of these blocks is damaged, or a stream lies outside the frame.
        """
        header = blosc_frame.parse_header(encoded, self.name)
        blocks = _fewer_blocks(header, start, stop)
        if header.nbytes != nbytes or blocks is None:
            return None
        first, last = blocks
        frame = blosc_frame.parse(encoded, self.name)
        decoded = blosc_blocks.decode_blocks(encoded, frame, first, last, self.name)
        # Pages that nobody touches cost nothing.
        out = np.empty(nbytes, np.uint8)
        place = first * header.block_nbytes
        out[place : place + len(decoded)] = np.frombuffer(decoded, np.uint8)
        return out

    def range_nbytes(self, encoded: HostBytes, start: int, stop: int) -> int | None:
        """Memory that `decode_range` takes; None where it decodes nothing."""
        header = blosc_frame.parse_header(encoded, self.name)
        found = _fewer_blocks(header, start, stop)
        if found is None:
            return None
        # As they are stored, where that is no less; decoded; and in their place.
        return 3 * (found[1] - found[0]) * header.block_nbytes


def _fewer_blocks(
    header: blosc_frame.BloscHeader, start: int, stop: int
) -> tuple[int, int] | None:
    """The blocks that hold a range of decoded bytes, where they are few."""
    if header.flags & blosc_frame.MEMCPYED or not header.block_nbytes:
        return None
    first, last = start // header.block_nbytes, -(-stop // header.block_nbytes)
    return None if _FEWER_BLOCKS * (last - first) > header.n_blocks else (first, last)


def _decode_zstd(
    encoded: HostBytes, header: blosc_frame.BloscHeader
) -> NDArray[np.uint8] | None:
    """Decoded bytes of a frame of zstd streams; None if they are left to numcodecs."""
    # libblosc2 keeps room for blocks with its context, numcodecs gives it back.
    is_small = header.block_nbytes <= blosc_frame.LARGE_BLOCK_NBYTES
    if not is_small or not blosc_frame.is_alike(encoded, header):
        return None
    return libblosc2.decode_frame(encoded, header.nbytes)


def from_spec(spec: CodecSpec) -> BloscCodec:
    """Decoder for one entry of `codecs`; all that matters stands in the frames."""
    label = library_label("numcodecs")
    if libblosc2.find() is not None:
        label += f", {library_label('blosc2')} for zstd"
    return BloscCodec(spec.name, label)
