"""`numcodecs.shuffle`: bytes of the same significance side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numcodecs

from gpushard.codecs.base import (
    BytesCodec,
    HostBytes,
    library_label,
    size_error,
    stream_error,
)
from gpushard.errors import MetadataError
from gpushard.layout import CodecSpec


@dataclass(frozen=True, slots=True)
class ShuffleCodec(BytesCodec):
    """Decoder of `numcodecs.shuffle`."""

    element_nbytes: int
    decoder: Any

    @property
    def shuffled(self) -> int:
        """Size of the elements."""
        return self.element_nbytes

    def encoded_nbytes(self, decoded_nbytes: int) -> int | None:
        """Encoded size: the same."""
        return decoded_nbytes

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Bytes in their own order (see `BytesCodec.decode`)."""
        nbytes = len(encoded)
        if nbytes > limit or (exact and nbytes != limit):
            raise size_error(self.name, limit, nbytes, exact=exact)
        if self.element_nbytes <= 1 or not nbytes:
            return encoded
        if nbytes % self.element_nbytes:
            raise stream_error(
                self.name,
                f"{nbytes} bytes are not whole elements of {self.element_nbytes}",
            )
        return memoryview(self.decoder.decode(encoded))


def from_spec(spec: CodecSpec) -> ShuffleCodec:
    """Decoder for one entry of `codecs`."""
    element_nbytes = spec.configuration.get("elementsize")
    if type(element_nbytes) is not int or element_nbytes < 1:
        raise MetadataError(
            "the element size of a shuffle is not a positive integer",
            json_path=f"{spec.json_path}.configuration.elementsize",
            expected="1 or more",
            got=repr(element_nbytes),
        )
    decoder = numcodecs.Shuffle(elementsize=element_nbytes)
    return ShuffleCodec(spec.name, library_label("numcodecs"), element_nbytes, decoder)
