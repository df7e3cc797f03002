"""`numcodecs.lz4`: the decoded size in four little-endian bytes, then one LZ4 block."""

from __future__ import annotations

from dataclasses import dataclass

import numcodecs.lz4

from gpushard.codecs.base import (
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.layout import CodecSpec

_SIZE_NBYTES = 4
_EMPTY_BLOCK = b"\0"  # a token of no literals and no match


@dataclass(frozen=True, slots=True)
class Lz4Codec(BytesCodec):
    """Decoder of `numcodecs.lz4`."""

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of one block (see `BytesCodec.decode`)."""
        if len(encoded) <= _SIZE_NBYTES:
            raise stream_error(self.name, "it is shorter than the smallest block")
        claimed = int.from_bytes(memoryview(encoded)[:_SIZE_NBYTES], "little")
        if claimed > limit or (exact and claimed != limit):
            raise size_error(self.name, limit, claimed, exact=exact)
        if not claimed and bytes(encoded[_SIZE_NBYTES:]) == _EMPTY_BLOCK:
            return b""  # the library takes the result for a failure
        try:
            return numcodecs.lz4.decompress(encoded)  # of the claimed size, or refused
        except (RuntimeError, ValueError) as error:
            raise stream_error(self.name, error) from error


def from_spec(spec: CodecSpec) -> Lz4Codec:
    """Decoder for one entry of `codecs`."""
    return Lz4Codec(spec.name, library_label("numcodecs"))
