"""`blosc`: Blosc 1 frames, whatever compressor and filter their header names.

numcodecs decompresses with its own thread pool when called on the main thread and
with one thread, without any shared state, when called on another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.codecs.base import (
    Compressor,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.layout import CodecSpec

# Taking a frame apart costs as much as decoding a few small blocks.
_FEWER_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class BloscCodec(Compressor):
    """Decoder of `blosc` and `numcodecs.blosc`."""

    name: str
    library: str

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
        blosc_frame.check_streams(encoded, header, self.name)
        try:
            return numcodecs.blosc.decompress(encoded)
        except (RuntimeError, ValueError) as error:
            raise stream_error(self.name, error) from error

    def decode_range(
        self, encoded: HostBytes, nbytes: int, start: int, stop: int
    ) -> NDArray[np.uint8] | None:
        """Decoded bytes of one frame, of which only ``start:stop`` are there.

        The blocks that hold them are decoded, the rest of the result is zeros. None
        where that gains nothing, or where the frame is of another size: it is for
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
        if header.nbytes != nbytes or header.flags & blosc_frame.MEMCPYED:
            return None
        first, last = start // header.block_nbytes, -(-stop // header.block_nbytes)
        if _FEWER_BLOCKS * (last - first) > header.n_blocks:
            return None
        frame = blosc_frame.parse(encoded, self.name)
        blocks = blosc_blocks.decode_blocks(encoded, frame, first, last, self.name)
        # Pages that nobody touches cost nothing.
        out = np.zeros(nbytes, np.uint8)
        place = first * header.block_nbytes
        out[place : place + len(blocks)] = np.frombuffer(blocks, np.uint8)
        return out


def from_spec(spec: CodecSpec) -> BloscCodec:
    """Decoder for one entry of `codecs`; all that matters stands in the frames."""
    return BloscCodec(spec.name, library_label("numcodecs"))
