"""A library with nvCOMP's symbols, which decodes and encodes with Python's codecs.

    standin = load_standin()
    nvcomp = Nvcomp(standin.path)
    ... nvcomp.decompress_async(...)         # decodes at once, or through `enqueue`
    assert standin.complaints == []

There is one in a process: `load_standin` gives it back in its initial state.
"""

from __future__ import annotations

import ctypes
import gzip
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cramjam
import zstandard

from cuda_host.build import BUILD, build_shared_object

SOURCE = Path(__file__).with_name("nvcomp_standin.cpp")
TYPES = SOURCE.with_name("nvcomp_types.h")

SUCCESS = 0
CANNOT_DECOMPRESS = 12
OUTPUT_BUFFER_TOO_SMALL = 15
CANNOT_COMPRESS = 19

ALGORITHMS = ("zstd", "lz4", "snappy", "deflate", "gzip")

_Decode = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
)
_Enqueue = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Complain = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class RefusedError(Exception):
    """The stream is not decoded."""


class Standin:
    """The stand-in library and what it does.

    Attributes
    ----------
    path
        The shared object: what `gpushard.devices.nvcomp.Nvcomp` loads.
    complaints
        What callers did that nvCOMP forbids, one sentence each.
    decoded
        Algorithm of every stream handed to a decoder, in order.
    intercept
        Called with algorithm and encoded bytes before a stream is decoded; the status
        it gives, unless None, is that stream's.
    shorten
        Whether a stream that it is called for (algorithm, encoded bytes) comes out one
        byte short, with a good status.
    overrun_nbytes
        Most bytes that a stream may write behind the capacity of its output. nvCOMP
        6.0.0 ignores the capacity: it writes whatever a stream decodes to.
    encoded
        Algorithm of every stream handed to an encoder, in order.
    intercept_encoding
        Called with algorithm and bytes before they are encoded; as `intercept`.
    enqueue
        Called with a stream handle and the work to do once that stream gets there.
        None: work is done at once.
    """

    def __init__(self) -> None:
        self.path = build_shared_object(
            "nvcomp_standin", SOURCE.read_text(), build=BUILD, dependencies=(TYPES,)
        )
        self._library = ctypes.CDLL(str(self.path))
        self._library.standin_run.argtypes = [ctypes.c_void_p]
        self._library.standin_set_overread.argtypes = [ctypes.c_size_t]
        self._callbacks: tuple[Any, ...] = ()
        self.reset()

    def reset(self) -> None:
        """Back to decoding at once, refusing nothing and reading past nothing."""
        self.complaints: list[str] = []
        self.decoded: list[str] = []
        self.intercept: Callable[[str, bytes], int | None] = lambda *_: None
        self.shorten: Callable[[str, bytes], bool] = lambda *_: False
        self.overrun_nbytes = 0
        self.encoded: list[str] = []
        self.intercept_encoding: Callable[[str, bytes], int | None] = lambda *_: None
        self.set_enqueue(None)
        self.set_overread(0)
        self.set_version(6000)

    def set_overread(self, nbytes: int) -> None:
        """Let it read so many bytes past each input, as a decoder may."""
        self._library.standin_set_overread(nbytes)

    def set_version(self, number: int) -> None:
        """Let it claim a version: 6000 is 6.0.0."""
        self._library.standin_set_version(number)

    def set_enqueue(
        self, enqueue: Callable[[int, Callable[[], None]], None] | None
    ) -> None:
        """Give work to `enqueue` instead of doing it at once."""

        def put(stream: int | None, work: int) -> None:
            assert enqueue is not None
            enqueue(stream or 0, lambda: self._library.standin_run(work))

        # Kept: ctypes does not hold on to callbacks.
        self._callbacks = (
            _Decode(self._decode),
            _Decode(self._encode),
            _Enqueue(put) if enqueue else _Enqueue(),
            _Complain(lambda what: self.complaints.append(what.decode())),
        )
        self._library.standin_set_callbacks(*self._callbacks)

    def _decode(
        self,
        algorithm: int,
        src: int,
        src_nbytes: int,
        dst: int,
        capacity: int,
        actual_nbytes: Any,
    ) -> int:
        name = ALGORITHMS[algorithm]
        encoded = ctypes.string_at(src, src_nbytes)
        self.decoded.append(name)
        status = self.intercept(name, encoded)
        if status is not None:
            return status
        room = capacity + self.overrun_nbytes
        if name == "zstd" and self.overrun_nbytes:
            encoded = _without_content_size(encoded)
        try:
            decoded = DECODERS[name](encoded, room)
        except RefusedError:
            return CANNOT_DECOMPRESS
        except Exception as error:  # noqa: BLE001 - ctypes would swallow it
            self.complaints.append(f"{name} decoder failed: {error!r}")
            return CANNOT_DECOMPRESS
        if capacity < len(decoded) and self.overrun_nbytes:
            ctypes.memmove(dst, decoded, min(len(decoded), room))
            is_told = name in ("zstd", "snappy")  # the size is that of the header
            actual_nbytes[0] = capacity if is_told else len(decoded)
            return SUCCESS
        if len(decoded) > capacity:
            ctypes.memmove(dst, decoded, capacity)
            return OUTPUT_BUFFER_TOO_SMALL
        if self.shorten(name, encoded):
            decoded = decoded[:-1]
        ctypes.memmove(dst, decoded, len(decoded))
        actual_nbytes[0] = len(decoded)
        return SUCCESS

    def _encode(
        self,
        algorithm: int,
        src: int,
        src_nbytes: int,
        dst: int,
        capacity: int,
        actual_nbytes: Any,
    ) -> int:
        name = ALGORITHMS[algorithm]
        data = ctypes.string_at(src, src_nbytes)
        self.encoded.append(name)
        status = self.intercept_encoding(name, data)
        if status is not None:
            return status
        try:
            encoded = ENCODERS[name](data)
        except Exception as error:  # noqa: BLE001 - ctypes would swallow it
            self.complaints.append(f"{name} encoder failed: {error!r}")
            return CANNOT_COMPRESS
        if len(encoded) > capacity:
            return OUTPUT_BUFFER_TOO_SMALL
        ctypes.memmove(dst, encoded, len(encoded))
        actual_nbytes[0] = len(encoded)
        return SUCCESS


@cache
def _standin() -> Standin:
    return Standin()


def load_standin() -> Standin:
    """The stand-in of this process, in its initial state."""
    standin = _standin()
    standin.reset()
    return standin


# ---- decoders: at most one byte more than `capacity`, RefusedError for damaged streams


# Checksums of decoded bytes are not looked at: the vendor promises nothing there.


def _decode_zstd(encoded: bytes, capacity: int) -> bytes:
    if encoded[4] & 4:
        encoded = encoded[:4] + bytes([encoded[4] & ~4]) + encoded[5:-4]
    decoder = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
    try:
        decoded = decoder.decompress(encoded)
    except zstandard.ZstdError as error:
        raise RefusedError from error
    if not decoder.eof or decoder.unused_data:
        raise RefusedError
    return decoded


def _without_content_size(frame: bytes) -> bytes:
    """The same frame with a window instead of a content size (RFC 8878 3.1.1.1)."""
    flag, is_single = frame[4] >> 6, frame[4] & 0x20
    size_nbytes = 1 << flag if flag else int(bool(is_single))
    window = b"\x70" if is_single else frame[5:6]
    blocks = frame[5 + (not is_single) + size_nbytes :]
    return frame[:4] + bytes([frame[4] & 4]) + window + blocks


def _decode_lz4(encoded: bytes, capacity: int) -> bytes:
    room = bytearray(capacity)
    try:
        # With the room in front, older releases of cramjam understand it, too.
        sized = capacity.to_bytes(4, "little") + encoded
        nbytes = cramjam.lz4.decompress_block_into(sized, room)
    except cramjam.DecompressionError as error:
        raise RefusedError from error
    return bytes(room[:nbytes])


def _decode_snappy(encoded: bytes, capacity: int) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress_raw(encoded))
    except cramjam.DecompressionError as error:
        raise RefusedError from error


def _inflate(encoded: bytes, capacity: int, wbits: int) -> bytes:
    decoder = zlib.decompressobj(wbits)
    try:
        decoded = decoder.decompress(encoded, capacity + 1)
    except zlib.error as error:
        raise RefusedError from error
    if len(decoded) <= capacity and (not decoder.eof or decoder.unused_data):
        raise RefusedError
    return decoded


def _decode_deflate(encoded: bytes, capacity: int) -> bytes:
    return _inflate(encoded, capacity, -zlib.MAX_WBITS)


def _decode_gzip(encoded: bytes, capacity: int) -> bytes:
    extra, name, comment = encoded[3] & 4, encoded[3] & 8, encoded[3] & 16
    start = 10
    if extra:
        start += 2 + int.from_bytes(encoded[start : start + 2], "little")
    for _ in filter(None, (name, comment)):
        start = encoded.index(0, start) + 1
    return _inflate(encoded[start:-8], capacity, -zlib.MAX_WBITS)


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "zstd": _decode_zstd,
    "lz4": _decode_lz4,
    "snappy": _decode_snappy,
    "deflate": _decode_deflate,
    "gzip": _decode_gzip,
}


# ---- encoders, for what it encodes and for tests that feed it


def _encode_deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return encoder.compress(data) + encoder.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "lz4": lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "deflate": _encode_deflate,
    "gzip": lambda data: gzip.compress(data, mtime=0),
}
