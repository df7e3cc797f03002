"""`numcodecs.bz2` and `numcodecs.lzma`: one or several streams, capped in size."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from platform import python_version
from typing import Any

from gpushard.codecs.base import Compressor, HostBytes, size_error, stream_error
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.layout import CodecSpec
from gpushard.options import MIB

# Preset 9 of xz takes 65 MiB to decompress (xz(1)); a header may claim 4 GiB.
_LZMA_MEMORY_NBYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class StreamCodec(Compressor):
    """Decoder over one of Python's incremental decompressors."""

    name: str
    library: str
    open_stream: Callable[[], Any]

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of all streams (see `BytesCodec.decode`)."""
        parts: list[bytes] = []
        n_left = limit
        rest: HostBytes = encoded
        while True:
            part, rest = self._decode_stream(rest, n_left, limit, exact=exact)
            parts.append(part)
            n_left -= len(part)
            if not len(rest):
                break
        if exact and n_left:
            raise size_error(self.name, limit, limit - n_left, exact=True)
        return b"".join(parts)

    def _decode_stream(
        self, encoded: HostBytes, n_left: int, limit: int, *, exact: bool
    ) -> tuple[bytes, bytes]:
        try:
            stream = self.open_stream()
            # One byte of room beyond the limit lets the stream run to its end.
            decoded = stream.decompress(encoded, n_left + 1)
        except (OSError, ValueError, lzma.LZMAError) as error:
            raise stream_error(self.name, error) from error
        if len(decoded) > n_left:
            got = f"{limit - n_left + len(decoded)} or more"
            raise size_error(self.name, limit, got, exact=exact)
        if not stream.eof:
            raise stream_error(self.name, "it ends inside a stream")
        return decoded, stream.unused_data


def bz2_from_spec(spec: CodecSpec) -> StreamCodec:
    """Decoder of bzip2 streams for one entry of `codecs`."""
    return StreamCodec(spec.name, _library(), bz2.BZ2Decompressor)


def lzma_from_spec(spec: CodecSpec) -> StreamCodec:
    """Decoder of LZMA streams for one entry of `codecs`.

    Raises
    ------
    MetadataError
        ``format`` and ``filters`` are none that LZMA knows.
    UnsupportedError
        A filter needs more memory than any preset does.
    """
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
        raise MetadataError(
            f"the codec cannot be configured, {error}",
            codec=spec.name,
            json_path=f"{spec.json_path}.configuration",
        ) from error
    return StreamCodec(spec.name, _library(), open_stream)


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
