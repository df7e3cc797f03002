"""`blosc`: Blosc 1 frames, whatever compressor and filter their header names.

numcodecs decompresses with its own thread pool when called on the main thread and
with one thread, without any shared state, when called on another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numcodecs.blosc

from gpushard.codecs import blosc_blocks, blosc_frame
from gpushard.codecs.base import (
    Compressor,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.layout import CodecSpec


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


def from_spec(spec: CodecSpec) -> BloscCodec:
    """Decoder for one entry of `codecs`; all that matters stands in the frames."""
    return BloscCodec(spec.name, library_label("numcodecs"))
