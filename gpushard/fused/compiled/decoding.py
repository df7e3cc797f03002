"""Encoded bytes of an inner chunk -> its decoded bytes, in compiled loops."""

from __future__ import annotations

from typing import Any

from gpushard.fused.columns import BLOSC, BLOSC_ZLIB, INFLATE, LZ4, RAW, ZSTD
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.blosc_frames import decode_frame
from gpushard.fused.compiled.lz4 import decode_lz4
from gpushard.fused.compiled.shuffling import unshuffle
from gpushard.fused.compiled.zstd_frames import decode_first, is_one_frame
from gpushard.fused.words import Decoder

# zlib counts bytes in 32 bits.
_LARGEST_DEFLATED = (1 << 32) - 1
_Z_FINISH, _Z_STREAM_END = 4, 1
# Magic number and the flag FHCRC, in the first four bytes.
_GZIP_WITH_FHCRC = 0x02008B1F
# Offsets of next_in, avail_in, next_out and avail_out in zlib.h's `z_stream`.
_NEXT_IN, _AVAIL_IN, _NEXT_OUT, _AVAIL_OUT = 0, 8, 24, 32


@calls.inner
def decode(d: Decoder, source: int, nbytes: int, target: int, wanted: Any) -> int:
    """Address of the decoded bytes, in `target` or in the source; 0 on failure.

    Bytes outside the range `wanted` may be missing.
    """
    if not d.shuffle_itemsize:
        return _decode_stream(d, source, nbytes, target, wanted)
    planes = _decode_stream(d, source, nbytes, d.planes, (0, d.chunk_nbytes))
    if planes == 0:
        return 0
    unshuffle(planes, target, d.chunk_nbytes, d.shuffle_itemsize, (0, d.chunk_nbytes))
    return target


@calls.inner
def _decode_stream(
    d: Decoder, source: int, nbytes: int, target: int, wanted: Any
) -> int:
    """Address of the decoded bytes, in `target` or in the source; 0 on failure.

    Bytes outside the range `wanted` may be missing.
    """
    if d.has_crc:
        nbytes -= 4
        if nbytes < 0 or calls.crc32c(source, nbytes) != calls.load_32(source + nbytes):
            return 0
    if d.kind == RAW:
        return source if nbytes == d.chunk_nbytes else 0
    if d.kind in (BLOSC, BLOSC_ZLIB):
        used = d.scratch - 16 if d.kind == BLOSC_ZLIB else 0
        library, how = (d.decode, d.context, used), (wanted, d.staging)
        return decode_frame(library, source, nbytes, target, d.chunk_nbytes, how)
    if d.kind == ZSTD:
        is_whole = _decode_zstd(d, source, nbytes, target, wanted[1])
    elif d.kind == LZ4:
        # The size precedes the block (numcodecs.lz4).
        is_whole = (
            nbytes > 4
            and calls.load_32(source) == d.chunk_nbytes
            and decode_lz4(source + 4, nbytes - 4, target, d.chunk_nbytes, wanted[1])
        )
    elif d.kind == INFLATE:
        is_whole = _inflate(d, source, nbytes, target)
    else:
        is_whole = _libdeflate(d, source, nbytes, target)
    return target if is_whole else 0


@calls.inner
def _decode_zstd(d: Decoder, source: int, nbytes: int, target: int, n: int) -> bool:
    """Whether one frame decodes to exactly an inner chunk, checked up to byte `n`."""
    if not is_one_frame(source, nbytes):
        return False
    if d.decode_part:
        library = (d.reset, d.decode_part, d.context, d.staging)
        if decode_first(library, source, target, (d.chunk_nbytes, n)):
            return True
    call = (d.context, target, d.chunk_nbytes, source, nbytes)
    return calls.call_zstd(d.decode, call) == d.chunk_nbytes


@calls.inner
def decode_to_keep(d: Decoder, source: int, nbytes: int, target: int) -> int:
    """Like `decode` for all decoded bytes, which are always at `target`."""
    decoded = decode(d, source, nbytes, target, (0, d.chunk_nbytes))
    if decoded not in (0, target):
        calls.copy_bytes(target, decoded, d.chunk_nbytes)
        return target
    return decoded


@calls.inner
def _inflate(d: Decoder, source: int, nbytes: int, target: int) -> bool:
    """Whether one stream, and nothing else, decodes to exactly an inner chunk."""
    stream = d.context
    if nbytes > _LARGEST_DEFLATED or calls.call_reset(d.reset, (stream,)) != 0:
        return False
    calls.store_int64(stream + _NEXT_IN, source)
    calls.store_int32(stream + _AVAIL_IN, nbytes)
    calls.store_int64(stream + _NEXT_OUT, target)
    calls.store_int32(stream + _AVAIL_OUT, d.chunk_nbytes)
    return (
        calls.call_inflate(d.decode, (stream, _Z_FINISH)) == _Z_STREAM_END
        and calls.load_32(stream + _AVAIL_IN) == 0
        and calls.load_32(stream + _AVAIL_OUT) == 0
    )


@calls.inner
def _libdeflate(d: Decoder, source: int, nbytes: int, target: int) -> bool:
    """Whether one stream, and nothing else, decodes to exactly an inner chunk."""
    # RFC 1952: a checksum of the header, which libdeflate does not check.
    if nbytes > 3 and calls.load_32(source) & _GZIP_WITH_FHCRC == _GZIP_WITH_FHCRC:
        return False
    used = d.scratch - 16
    call = (d.context, source, nbytes, target, d.chunk_nbytes, used, 0)
    # Given no address for the decoded size, libdeflate requires the exact size.
    return calls.call_libdeflate(d.decode, call) == 0 and calls.load_64(used) == nbytes
