"""`numcodecs.bz2` and `numcodecs.lzma`: one or several streams, capped in size."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from platform import python_version
from typing import Any

from gpushard.codecs.base import (
    PIECE_NBYTES,
    BytesCodec,
    GatheredBytes,
    HostBytes,
    configuration_error,
    stream_error,
)
from gpushard.errors import UnsupportedError
from gpushard.layout import CodecSpec
from gpushard.options import MIB

# Preset 9 of xz takes 65 MiB to decompress (xz(1)); a header may claim 4 GiB.
_LZMA_MEMORY_NBYTES = 256 * MIB
# bzip2(1): 100 kB and four times the block, of 900 kB at most.
_BZ2_MEMORY_NBYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class StreamCodec(BytesCodec):
    """Decoder over one of Python's incremental decompressors."""

    open_stream: Callable[[], Any]
    least_nbytes: int = 0

    def beside_nbytes(
        self,
        decoded_nbytes: int,  # noqa: ARG002 - it needs as much for little
        encoded: HostBytes | None = None,  # noqa: ARG002
    ) -> int:
        """Working memory, which a codec needs however little it decodes."""
        return self.least_nbytes

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of all streams (see `BytesCodec.decode`)."""
        source, decoded = (
            memoryview(encoded),
            GatheredBytes(self.name, limit, exact=exact),
        )
        start = 0
        while True:
            start = self._decode_stream(source, start, decoded)
            if start == len(source):
                return decoded.all()

    def _decode_stream(
        self, source: memoryview, start: int, decoded: GatheredBytes
    ) -> int:
        """Add the decoded bytes of the stream at `start`; returns where it ends."""
        try:
            stream = self.open_stream()
            while not stream.eof:
                piece = b""
                if stream.needs_input:
                    piece = source[start : start + PIECE_NBYTES]
                    if not piece:
                        raise stream_error(self.name, "it ends inside a stream")
                    start += len(piece)
                decoded.add(stream.decompress(piece, decoded.room))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise stream_error(self.name, error) from error
        return start - len(stream.unused_data)


def bz2_from_spec(spec: CodecSpec) -> StreamCodec:
    """Decoder of bzip2 streams for one entry of `codecs`."""
    open_stream = bz2.BZ2Decompressor
    return StreamCodec(spec.name, _library(), open_stream, _BZ2_MEMORY_NBYTES)


def lzma_from_spec(spec: CodecSpec) -> StreamCodec:
    """Decoder of LZMA streams for one entry of `codecs`."""
    stream_format = spec.configuration.get("format", lzma.FORMAT_XZ)
    filters = spec.configuration.get("filters")
    # A raw stream's memory follows from the filters in the metadata, and no limit of
    # the library holds for it.
    _refuse_large_dictionaries(spec, filters)
    memory_nbytes = None if stream_format == lzma.FORMAT_RAW else _LZMA_MEMORY_NBYTES
    open_stream = partial(lzma.LZMADecompressor, stream_format, memory_nbytes, filters)
    try:
        open_stream()
    except (ValueError, TypeError, OverflowError, lzma.LZMAError) as error:
        raise configuration_error(spec, error) from error
    # LZMA has another copy of what it decoded, its dictionary.
    return StreamCodec(spec.name, _library(), open_stream, n_copies=2)


def _refuse_large_dictionaries(spec: CodecSpec, filters: Any) -> None:
    for item in filters if isinstance(filters, Sequence) else ():
        dict_size = item.get("dict_size") if isinstance(item, Mapping) else None
        if isinstance(dict_size, int) and dict_size > _LZMA_MEMORY_NBYTES:
            raise UnsupportedError(
                "the codec needs too much memory to decode",
                codec=spec.name,
                json_path=f"{spec.json_path}.configuration",
                expected=f"a dict_size of at most {_LZMA_MEMORY_NBYTES} bytes",
                got=dict_size,
            )


def _library() -> str:
    return f"Python {python_version()}"
