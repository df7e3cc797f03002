"""`gzip` (RFC 1952, one or several members) and `numcodecs.zlib` (RFC 1950)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from gpushard.codecs import libdeflate
from gpushard.codecs.base import (
    DAMAGED_HINT,
    Compressor,
    HostBytes,
    size_error,
    stream_error,
)
from gpushard.errors import ChecksumError, CorruptShardError
from gpushard.layout import CodecSpec
from gpushard.options import KIB

# Below, the call of libdeflate through ctypes takes what it saves.
_LARGE_NBYTES = 8 * KIB
_GZIP_WBITS = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class DeflateCodec(Compressor):
    """Decoder of deflate streams in a gzip or a zlib wrapper."""

    name: str
    library: str
    wbits: int

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of all members (see `BytesCodec.decode`)."""
        if exact and limit >= _LARGE_NBYTES:
            wrapper = "gzip" if self.wbits == _GZIP_WBITS else "zlib"
            whole = libdeflate.decode_stream(encoded, limit, wrapper)
            if whole is not None:
                return whole
        decoded, rest = self._decode_member(encoded, limit, exact=exact)
        if rest:
            decoded = self._decode_rest(decoded, rest, limit, exact=exact)
        if exact and len(decoded) != limit:
            raise size_error(self.name, limit, len(decoded), exact=True)
        return decoded

    def _decode_rest(
        self, first: bytes, rest: bytes, limit: int, *, exact: bool
    ) -> bytes:
        if self.wbits != _GZIP_WBITS:
            raise stream_error(self.name, f"{len(rest)} bytes follow after its end")
        parts = [first]
        n_left = limit - len(first)
        # Writers pad with zeros up to a block of their medium; gzip ignores them.
        while rest := rest.lstrip(b"\0"):
            part, rest = self._decode_member(rest, n_left, exact=exact)
            parts.append(part)
            n_left -= len(part)
        return b"".join(parts)

    def _decode_member(
        self, encoded: HostBytes, limit: int, *, exact: bool
    ) -> tuple[bytes, bytes]:
        """One member's decoded bytes, and the encoded bytes after it."""
        member = zlib.decompressobj(self.wbits)
        try:
            # One byte of room beyond the limit lets the stream run to its end.
            decoded = member.decompress(encoded, limit + 1)
        except zlib.error as error:
            raise self._error(error) from error
        if len(decoded) > limit:
            raise size_error(self.name, limit, f"{len(decoded)} or more", exact=exact)
        if not member.eof:
            raise stream_error(self.name, "it ends inside a member")
        return decoded, member.unused_data

    def _error(self, error: zlib.error) -> CorruptShardError:
        # zlib's text for a CRC-32 or Adler-32 that does not match (inflate.c).
        if "incorrect data check" in str(error):
            return ChecksumError(
                "decoded bytes contradict the checksum of their stream",
                codec=self.name,
                hint=DAMAGED_HINT,
            )
        return stream_error(self.name, error)


def gzip_from_spec(spec: CodecSpec) -> DeflateCodec:
    """Decoder of gzip members for one entry of `codecs`."""
    return DeflateCodec(spec.name, _library(), _GZIP_WBITS)


def zlib_from_spec(spec: CodecSpec) -> DeflateCodec:
    """Decoder of a zlib stream for one entry of `codecs`."""
    return DeflateCodec(spec.name, _library(), zlib.MAX_WBITS)


def _library() -> str:
    label = f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
    return label if libdeflate.find() is None else f"libdeflate, {label}"
