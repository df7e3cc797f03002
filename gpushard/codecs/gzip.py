"""`gzip` (RFC 1952, one or several members) and `numcodecs.zlib` (RFC 1950)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from gpushard.codecs import libdeflate
from gpushard.codecs.base import (
    DAMAGED_HINT,
    PIECE_NBYTES,
    BytesCodec,
    GatheredBytes,
    HostBytes,
    stream_error,
)
from gpushard.errors import ChecksumError, CorruptShardError
from gpushard.layout import CodecSpec
from gpushard.options import KIB

# Below this size, calling libdeflate through ctypes costs what it saves.
_LARGE_NBYTES = 8 * KIB
_GZIP_WBITS = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class DeflateCodec(BytesCodec):
    """Decoder of deflate streams in a gzip or a zlib wrapper."""

    wbits: int

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of all members (see `BytesCodec.decode`)."""
        if exact and limit >= _LARGE_NBYTES:
            wrapper = "gzip" if self.wbits == _GZIP_WBITS else "zlib"
            whole = libdeflate.decode_stream(encoded, limit, wrapper)
            if whole is not None:
                return whole
        source, decoded = (
            memoryview(encoded),
            GatheredBytes(self.name, limit, exact=exact),
        )
        start = self._decode_member(source, 0, decoded)
        if start < len(source) and self.wbits != _GZIP_WBITS:
            n_left = len(source) - start
            raise stream_error(self.name, f"{n_left} bytes follow after its end")
        # Writers pad with zeros up to a block of their medium; gzip ignores them.
        while (start := _after_zeros(source, start)) < len(source):
            start = self._decode_member(source, start, decoded)
        return decoded.all()

    def _decode_member(
        self, source: memoryview, start: int, decoded: GatheredBytes
    ) -> int:
        """Add the decoded bytes of the member at `start`; returns where it ends."""
        member = zlib.decompressobj(self.wbits)
        piece: memoryview | bytes = b""
        try:
            while not member.eof:
                if not piece:
                    piece = source[start : start + PIECE_NBYTES]
                    start += len(piece)
                part = member.decompress(piece, decoded.room)
                decoded.add(part)
                if not (part or piece):
                    raise stream_error(self.name, "it ends inside a member")
                piece = member.unconsumed_tail
        except zlib.error as error:
            raise self._error(error) from error
        return start - len(member.unused_data)

    def _error(self, error: zlib.error) -> CorruptShardError:
        # zlib's text for a CRC-32 or Adler-32 that does not match (inflate.c).
        if "incorrect data check" in str(error):
            return ChecksumError(
                "decoded bytes contradict the checksum of their stream",
                codec=self.name,
                hint=DAMAGED_HINT,
            )
        return stream_error(self.name, error)


def _after_zeros(source: memoryview, start: int) -> int:
    """Position of the first byte that is not zero, from `start` on."""
    while start < len(source):
        piece = source[start : start + PIECE_NBYTES].tobytes()
        left = len(piece.lstrip(b"\0"))
        if left:
            return start + len(piece) - left
        start += len(piece)
    return start


def gzip_from_spec(spec: CodecSpec) -> DeflateCodec:
    """Decoder of gzip members for one entry of `codecs`."""
    return DeflateCodec(spec.name, _library(), _GZIP_WBITS)


def zlib_from_spec(spec: CodecSpec) -> DeflateCodec:
    """Decoder of a zlib stream for one entry of `codecs`."""
    return DeflateCodec(spec.name, _library(), zlib.MAX_WBITS)


def _library() -> str:
    label = f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
    return label if libdeflate.find() is None else f"libdeflate, {label}"
