"""`zstd`: Zstandard frames (RFC 8878), one or several, with skippable ones between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import zstandard

from gpushard.codecs import libzstd
from gpushard.codecs.base import (
    DAMAGED_HINT,
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.errors import ChecksumError, CorruptShardError
from gpushard.layout import CodecSpec
from gpushard.options import KIB

# RFC 8878: 3.1.1 (magic, checksum), 3.1.1.2 (blocks), 3.1.2 (skippable frames).
_FRAME_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_BLOCK_MAX_NBYTES = 128 * 1024
# zstd_decompress.c, ZSTD_MAXWINDOWSIZE_DEFAULT: the largest window of a stream.
_WINDOW_MAX_NBYTES = (1 << 27) + 1
_BLOCK_MIN_NBYTES = 4  # a header of three bytes and a byte to be repeated
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED_BLOCK = 1, 2, 3
# The lower half of XXH64 of no bytes, seed 0.
_EMPTY_CHECKSUM = (0x51D8E999).to_bytes(4, "little")
_MAGIC_AND_SIZE = Struct("<II")


class _Decompressors(threading.local):
    """One decompressor per thread: two threads must not share a context."""

    def __init__(self) -> None:
        self.one = zstandard.ZstdDecompressor()


_decompressors = _Decompressors()


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where one frame lies, and the most bytes that its blocks can decode to."""

    start: int
    stop: int
    decoded_bound: int


class _TruncatedError(Exception):
    """The bytes end inside a frame."""


@dataclass(frozen=True, slots=True)
class ZstdCodec(BytesCodec):
    """Decoder of `zstd` and `numcodecs.zstd`."""

    def beside_nbytes(
        self, decoded_nbytes: int, encoded: HostBytes | None = None
    ) -> int:
        """Memory for the window of a frame without a size, and for joining several."""
        if encoded is None:
            return 0
        data: Any = encoded  # as in `decode`
        try:
            told: Any = zstandard.get_frame_parameters(data)
        except zstandard.ZstdError:
            return 2 * decoded_nbytes
        if told.content_size == decoded_nbytes:
            return 0
        if not _is_alone(encoded):
            return 2 * decoded_nbytes
        is_told = told.content_size != zstandard.CONTENTSIZE_UNKNOWN
        return 0 if is_told else min(told.window_size, decoded_nbytes)

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of all frames in `encoded` (see `BytesCodec.decode`)."""
        data: Any = encoded  # the library's stubs do not know NumPy's buffers
        try:
            claimed = zstandard.frame_content_size(data)
            # The library allocates the size that the header claims (or
            # `max_output_size` if it claims none), and accepts a claim of 0 without
            # looking further. Blocks cannot decode to more than `most`, so a claim of
            # up to `most` is never excessive.
            most = (len(data) // _BLOCK_MIN_NBYTES + 1) * _BLOCK_MAX_NBYTES
            needed = limit if claimed < 0 and exact else claimed
            if 0 < needed <= limit and needed <= most:
                if exact and limit >= libzstd.LARGE_NBYTES and _has_room(data, claimed):
                    whole = libzstd.decode_frame(encoded, limit)
                    if whole is not None:
                        return whole
                decoded = _decompressors.one.decompress(
                    data, max_output_size=limit, allow_extra_data=False
                )
                if len(decoded) == limit or not exact:
                    return decoded
        except zstandard.ZstdError:
            pass  # several frames, a skippable one, or damage: decoded frame by frame
        return self._decode_frames(memoryview(encoded), limit, exact=exact)

    def decode_range(
        self,
        encoded: HostBytes,
        nbytes: int,
        start: int,  # noqa: ARG002 - blocks need those before them
        stop: int,
    ) -> HostBytes | None:
        """Decoded bytes of one frame, of which only those up to `stop` are valid.

        None if that gains nothing, or if the frame is less simple or damaged; `decode`
        then reads it or says what is wrong.
        """
        if nbytes < libzstd.LARGE_NBYTES or stop > nbytes - libzstd.BLOCK_NBYTES:
            return None
        data: Any = encoded  # as in `decode`
        try:
            told = zstandard.get_frame_parameters(data)
            first = zstandard.frame_header_size(data)
        except zstandard.ZstdError:
            return None
        # A checksum covers all decoded bytes, and may be the part that is cut off.
        if told.content_size != nbytes or told.has_checksum:
            return None
        ends = _ends_of_blocks(memoryview(encoded), first)
        if ends is None or ends[-1] != len(data):
            return None
        return libzstd.decode_first(encoded, nbytes, stop, ends)

    def _decode_frames(
        self, encoded: memoryview, limit: int, *, exact: bool
    ) -> HostBytes:
        parts: list[bytes] = []
        remaining = limit
        try:
            for frame in _walk_frames(encoded):
                part = self._decode_frame(encoded, frame, remaining, limit, exact)
                remaining -= len(part)
                if part:  # a single frame is not copied, even if empty frames follow
                    parts.append(part)
        except zstandard.ZstdError as error:
            raise self._error(error) from error
        except _TruncatedError as error:
            raise stream_error(self.name, error) from error
        if exact and remaining:
            raise size_error(self.name, limit, limit - remaining, exact=True)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _decode_frame(
        self,
        encoded: memoryview,
        frame: _Frame,
        remaining: int,
        limit: int,
        exact: bool,
    ) -> bytes:
        data = encoded[frame.start : frame.stop]
        parameters = zstandard.get_frame_parameters(data)
        if parameters.dict_id:
            raise stream_error(
                self.name, f"a frame asks for dictionary {parameters.dict_id}"
            )
        claimed = parameters.content_size
        if claimed == zstandard.CONTENTSIZE_UNKNOWN:
            claimed = 0 if frame.decoded_bound == 0 else 1
        elif claimed > frame.decoded_bound or (not claimed and frame.decoded_bound):
            raise stream_error(self.name, "a frame's blocks contradict its size")
        if claimed > remaining:
            raise size_error(
                self.name, limit, f"{limit - remaining + claimed} or more", exact=exact
            )
        if frame.decoded_bound == 0:  # the library looks no further than the header
            if parameters.has_checksum and data[-4:] != _EMPTY_CHECKSUM:
                raise self._checksum_error()
            return b""
        return _decompressors.one.decompress(
            data,
            max_output_size=min(remaining, frame.decoded_bound),
            allow_extra_data=False,
        )

    def _error(self, error: zstandard.ZstdError) -> CorruptShardError:
        if "checksum" in str(error):
            return self._checksum_error()
        return stream_error(self.name, error)

    def _checksum_error(self) -> ChecksumError:
        return ChecksumError(
            "decoded bytes contradict the checksum of their zstd frame",
            codec=self.name,
            hint=DAMAGED_HINT,
        )


def _has_room(data: Any, claimed: int) -> bool:
    """Whether zstandard would accept the window of a frame without a size."""
    if claimed >= 0:
        return True
    return zstandard.get_frame_parameters(data).window_size <= _WINDOW_MAX_NBYTES


def _is_alone(encoded: HostBytes) -> bool:
    """Whether the first frame is the only one, with nothing behind it."""
    nbytes = libzstd.frame_nbytes(encoded)
    if nbytes is None:
        try:
            nbytes, _ = _walk_blocks(memoryview(encoded), 0)
        except (zstandard.ZstdError, _TruncatedError):
            return False
    return nbytes == len(encoded)


def _walk_frames(encoded: memoryview) -> Iterator[_Frame]:
    """Each zstd frame in turn; skippable frames are skipped."""
    start = 0
    if not len(encoded):
        raise _TruncatedError("there are no bytes")
    while start < len(encoded):
        if len(encoded) - start < _MAGIC_AND_SIZE.size:
            raise _TruncatedError("it ends inside a frame header")
        magic, size = _MAGIC_AND_SIZE.unpack_from(encoded, start)
        if magic & ~0xF == _SKIPPABLE_MAGIC:
            stop = start + _MAGIC_AND_SIZE.size + size
        elif magic == _FRAME_MAGIC:
            stop, bound = _walk_blocks(encoded, start)
            if stop <= len(encoded):
                yield _Frame(start, stop, bound)
        else:
            raise _TruncatedError(f"at byte {start} begins no frame")
        if stop > len(encoded):
            raise _TruncatedError("it ends inside a frame")
        start = stop


def _ends_of_blocks(encoded: memoryview, position: int) -> list[int] | None:
    """Where each block of a frame ends; the first block begins at `position`.

    None if the frame is cut off, also if it is cut off between two blocks.
    """
    ends: list[int] = []
    is_last = False
    while not is_last and position + 3 <= len(encoded):
        header = int.from_bytes(encoded[position : position + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _RLE_BLOCK else size)
        ends.append(position)
    return ends if is_last else None


def _walk_blocks(encoded: memoryview, start: int) -> tuple[int, int]:
    """Where the frame at `start` ends, and the most bytes that it decodes to."""
    frame = encoded[start:]
    position = start + zstandard.frame_header_size(frame)
    has_checksum = bool(frame[4] & 4)
    decoded_bound = 0
    last = False
    while not last:
        if position + 3 > len(encoded):
            raise _TruncatedError("it ends inside a frame")
        header = int.from_bytes(encoded[position : position + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED_BLOCK:
            raise _TruncatedError("a block is of the reserved type")
        decoded_bound += _BLOCK_MAX_NBYTES if kind == _COMPRESSED_BLOCK else size
        position += 3 + (1 if kind == _RLE_BLOCK else size)
    return position + 4 * has_checksum, decoded_bound


def from_spec(spec: CodecSpec) -> ZstdCodec:
    """Decoder for one entry of `codecs`; level and checksum do not affect decoding."""
    label = library_label("zstandard")
    lib = libzstd.find()
    if lib is not None:
        label += f", {libzstd.label(lib)} from {libzstd.LARGE_NBYTES // KIB} KiB on"
    return ZstdCodec(spec.name, label)
