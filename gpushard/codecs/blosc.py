"""`blosc`: Blosc 1 frames, whatever compressor and filter their header names.

On the main thread numcodecs decompresses with its own thread pool. On any other thread
it decompresses with one thread, without any shared state.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.codecs.base import (
    PART_SHARE,
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.layout import CodecSpec

# Blocks that libraries hold while they undo a filter, for each thread that decodes
# (blosc.c, `create_serial_context`); numcodecs has several on the main thread alone.
_BLOCKS_HELD = 3
_MOST_THREADS = 8
# The same for snappy streams: what is in them, in a frame of one block, and unfiltered.
_SNAPPY_BLOCKS_HELD = _BLOCKS_HELD + 4


@dataclass(frozen=True, slots=True)
class BloscCodec(BytesCodec):
    """Decoder of `blosc` and `numcodecs.blosc`."""

    def beside_nbytes(
        self, decoded_nbytes: int, encoded: HostBytes | None = None
    ) -> int:
        """Memory for blocks of the sizes that writers choose by default, or larger.

        Only the header of a frame tells how large its blocks are.
        """
        usual = _BLOCKS_HELD * min(decoded_nbytes, blosc_frame.LARGE_BLOCK_NBYTES)
        if encoded is None:
            return usual
        header = blosc_frame.parse_header(encoded, self.name)
        if header.flags & blosc_frame.MEMCPYED or not header.nbytes:
            return usual
        if header.compressor == blosc_frame.SNAPPY:
            return max(usual, _SNAPPY_BLOCKS_HELD * header.block_nbytes)
        is_main = threading.current_thread() is threading.main_thread()
        n_held = _BLOCKS_HELD * (min(_MOST_THREADS, header.n_blocks) if is_main else 1)
        return max(usual, n_held * header.block_nbytes)

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
            return blosc_blocks.decode_snappy(encoded, header, self.name)
        blosc_frame.check_streams(encoded, header, self.name)
        try:
            return numcodecs.blosc.decompress(encoded)
        except (RuntimeError, ValueError) as error:
            raise stream_error(self.name, error) from error

    def decode_range(
        self, encoded: HostBytes, nbytes: int, start: int, stop: int
    ) -> NDArray[np.uint8] | None:
        """Decoded bytes of one frame, of which only ``start:stop`` are valid.

        Only the blocks that hold these bytes are decoded; the rest of the result has no
        meaning. None if that gains nothing, or if the frame decodes to another size;
        `decode` then says what is wrong.

        Returns
        -------
        numpy.ndarray or None
            uint8, shape (nbytes,), host.
        """
        header = blosc_frame.parse_header(encoded, self.name)
        blocks = _fewer_blocks(header, start, stop)
        if header.nbytes != nbytes or blocks is None:
            return None
        first, last = blocks
        decoded = blosc_blocks.decode_blocks(encoded, header, first, last, self.name)
        # Untouched pages cost nothing.
        out = np.empty(nbytes, np.uint8)
        place = first * header.block_nbytes
        out[place : place + len(decoded)] = np.frombuffer(decoded, np.uint8)
        return out

    def range_nbytes(self, encoded: HostBytes, start: int, stop: int) -> int | None:
        """Memory that `decode_range` takes; None if it would return None."""
        header = blosc_frame.parse_header(encoded, self.name)
        found = _fewer_blocks(header, start, stop)
        if found is None:
            return None
        # The blocks as they are stored, if that is no less, decoded, and in their
        # place.
        return 3 * (found[1] - found[0]) * header.block_nbytes


def _fewer_blocks(
    header: blosc_frame.BloscHeader, start: int, stop: int
) -> tuple[int, int] | None:
    """The blocks that hold a range of decoded bytes; None if they are too many."""
    if header.flags & blosc_frame.MEMCPYED or not header.block_nbytes:
        return None
    first, last = start // header.block_nbytes, -(-stop // header.block_nbytes)
    # Parsing a frame costs as much as decoding a few small blocks.
    return None if PART_SHARE * (last - first) > header.n_blocks else (first, last)


def from_spec(spec: CodecSpec) -> BloscCodec:
    """Decoder for one entry of `codecs`; the frames say all that a decoder needs."""
    return BloscCodec(spec.name, library_label("numcodecs"))
