"""Codecs that only numcodecs' registry knows, which arrays of Zarr v2 may name.

zarr lets them decode whatever they were registered for: imagecodecs' image formats, a
laboratory's own compressor. They are given bytes and give a buffer, so their place in
a chain is among the bytes-to-bytes codecs. What they encode may depend on the shape and
the type of the elements, so nothing is encoded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
from numcodecs.compat import ensure_ndarray
from numcodecs.errors import UnknownCodecError

from gpushard.codecs.base import (
    REGISTERED,
    BytesCodec,
    HostBytes,
    configuration_error,
    library_label,
    size_error,
    stream_error,
)
from gpushard.codecs.zarr_objects import missing_package
from gpushard.layout import CodecSpec


@dataclass(frozen=True, slots=True)
class RegisteredCodec(BytesCodec):
    """Decoder of such a codec."""

    decoder: Any

    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes (see `BytesCodec.decode`); nobody bounds a codec's memory."""
        try:
            # As numcodecs takes what a codec gives: bytes may be none, and an array in
            # Fortran order has its elements as they lie in memory.
            decoded = ensure_ndarray(self.decoder.decode(encoded))
            flat = decoded.reshape(-1, order="A")
        except MemoryError:
            raise  # this error is not about the bytes
        except Exception as error:
            raise stream_error(self.name, f"the codec says: {error}") from error
        if flat.dtype.hasobject:
            raise stream_error(self.name, "they decode to Python objects")
        if flat.nbytes > limit or (exact and flat.nbytes != limit):
            raise size_error(self.name, limit, flat.nbytes, exact=exact)
        return np.ascontiguousarray(flat).view(np.uint8)


def is_registered(identifier: str) -> bool:
    """Whether numcodecs' registry has a codec of this id."""
    try:
        numcodecs.get_codec({"id": identifier})
    except UnknownCodecError:
        return False
    except Exception:  # noqa: BLE001  it is there, and may need a configuration
        return True
    return True


def from_spec(spec: CodecSpec) -> RegisteredCodec:
    """Decoder of a codec of numcodecs' registry for one entry of the metadata."""
    identifier = spec.name.removeprefix(REGISTERED)
    try:
        decoder: Any = numcodecs.get_codec({**spec.configuration, "id": identifier})
    except (ImportError, UnknownCodecError) as error:
        raise missing_package(
            error, f"numcodecs.{identifier}", spec.json_path
        ) from error
    except Exception as error:
        raise configuration_error(spec, error) from error
    library = library_label(type(decoder).__module__.partition(".")[0])
    # Usually a codec takes the memory of two copies.
    return RegisteredCodec(spec.name, library, decoder, n_copies=2)
