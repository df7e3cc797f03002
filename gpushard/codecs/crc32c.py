"""`crc32c`: four little-endian bytes of checksum at the end (RFC 3720)."""

from __future__ import annotations

from dataclasses import dataclass

from crc32c import crc32c

from gpushard.codecs.base import (
    DAMAGED_HINT,
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.errors import ChecksumError
from gpushard.layout import CodecSpec

CHECKSUM_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Crc32cCodec(BytesCodec):
    """Verifier of `crc32c`."""

    def encoded_nbytes(self, decoded_nbytes: int) -> int | None:
        """Encoded size: four bytes more."""
        return decoded_nbytes + CHECKSUM_NBYTES

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """View of the bytes before the checksum (see `BytesCodec.decode`)."""
        view = memoryview(encoded)
        decoded_nbytes = len(view) - CHECKSUM_NBYTES
        if decoded_nbytes < 0:
            raise stream_error(self.name, "it is shorter than its checksum")
        if decoded_nbytes > limit or (exact and decoded_nbytes != limit):
            raise size_error(self.name, limit, decoded_nbytes, exact=exact)
        decoded = view[:decoded_nbytes]
        stored = int.from_bytes(view[decoded_nbytes:], "little")
        computed = crc32c(decoded)
        if stored != computed:
            raise ChecksumError(
                "stored bytes contradict their checksum",
                codec=self.name,
                expected=f"{stored:#010x}",
                got=f"{computed:#010x}",
                hint=DAMAGED_HINT,
            )
        return decoded


def from_spec(spec: CodecSpec) -> Crc32cCodec:
    """Verifier for one entry of `codecs`."""
    return Crc32cCodec(spec.name, library_label("crc32c"), n_copies=0)


def with_checksum(data: HostBytes) -> bytes:
    """`data` as the codec encodes it."""
    view = memoryview(data)
    return b"".join((view, crc32c(view).to_bytes(CHECKSUM_NBYTES, "little")))
