"""The contract of a codec on the host.

Each codec has a module. A codec is made once per array from its `CodecSpec`, holds no
per-read state and may be called from several threads at once.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import CorruptShardError, MetadataError
from gpushard.layout import CodecSpec
from gpushard.options import KIB, MIB
from gpushard.pages import enlarged, mapped_pages

if TYPE_CHECKING:
    import mmap

DAMAGED_HINT = "the stored bytes are damaged, restore or rewrite the shard"

COUNTED = frozenset(["vlen-utf8", "vlen-bytes"])
"""Codecs whose streams claim a number of items, for which numcodecs allocates pointers.
"""
FILTERS_OF_NUMCODECS = frozenset(
    [
        "numcodecs.astype",
        "numcodecs.bitround",
        "numcodecs.delta",
        "numcodecs.fixedscaleoffset",
        "numcodecs.quantize",
    ]
)
"""Array-to-array codecs that encode each element to one element."""

REGISTERED = "numcodecs:"
"""Prefix of the names of codecs of Zarr v2 that only numcodecs' registry knows.

Zarr v3 has no such codecs; those that it takes over from numcodecs are "numcodecs.lz4".
"""

PART_SHARE = 4
"""A part of at most one in so many bytes of an inner chunk is decoded alone."""

_NO_BYTES = np.empty(0, np.uint8)
# Streams are decoded in pieces of this size if a library would hold all of them twice.
PIECE_NBYTES = 256 * KIB
# Address space reserved first for bytes of unknown size; most need no more.
_UNTOLD_NBYTES = 256 * MIB

HostBytes = bytes | bytearray | memoryview | NDArray[np.uint8]
"""Bytes on the host: contiguous, one dimension, item size 1."""


class GatheredBytes:
    """Decoded bytes collected piece by piece, and held once.

    Untouched pages cost nothing, so as much memory is reserved as most bytes need. If
    their size is unknown and larger, the system moves the pages to where there is room.

    Parameters
    ----------
    codec, limit, exact
        The codec's name, and how many bytes it may decode, as for `BytesCodec.decode`.
    """

    __slots__ = ("_codec", "_exact", "_limit", "_memory", "_nbytes", "_pages")

    def __init__(self, codec: str, limit: int, *, exact: bool) -> None:
        self._codec = codec
        self._limit = limit
        self._exact = exact
        self._nbytes = 0
        self._pages: mmap.mmap | None = None
        if exact or limit <= _UNTOLD_NBYTES:
            with suppress(MemoryError):  # damaged bytes may decode to less
                self._memory = np.empty(limit, np.uint8)
                return
        self._pages = mapped_pages(min(limit, _UNTOLD_NBYTES))
        self._memory = np.frombuffer(self._pages, np.uint8)

    @property
    def room(self) -> int:
        """Bytes that a decoder may return at once: one more than may still come."""
        # A byte of room beyond the limit lets the stream run to its end.
        return min(self._limit - self._nbytes + 1, PIECE_NBYTES)

    def add(self, piece: bytes) -> None:
        """Append `piece`, or refuse it beyond the limit; not once `all` was called."""
        stop = self._nbytes + len(piece)
        if stop > self._limit:
            got = f"{self._limit + 1} or more"
            raise size_error(self._codec, self._limit, got, exact=self._exact)
        if self._pages is not None and stop > len(self._pages):
            self._memory = _NO_BYTES
            self._pages = enlarged(self._pages, min(2 * stop, self._limit))
            self._memory = np.frombuffer(self._pages, np.uint8)
        self._memory[self._nbytes : stop] = np.frombuffer(piece, np.uint8)
        self._nbytes = stop

    def all(self) -> NDArray[np.uint8]:
        """All bytes added, if they are enough: uint8, shape (n_bytes,), host."""
        if self._exact and self._nbytes != self._limit:
            raise size_error(self._codec, self._limit, self._nbytes, exact=True)
        return self._memory[: self._nbytes]


@dataclass(frozen=True, slots=True)
class BytesCodec(ABC):
    """Bytes to bytes, one inner chunk at a time.

    Attributes
    ----------
    name
        Name of the codec in the metadata.
    library
        Library that decodes, for reports: "zstandard 0.25.0".
    n_copies
        Copies of the decoded bytes that decoding holds; 0 for a view.
    """

    name: str
    library: str
    n_copies: int = field(default=1, kw_only=True)

    @property
    def shuffled(self) -> int:
        """Size of elements whose bytes of the same significance it had side by side.

        0 if it does anything else.
        """
        return 0

    def encoded_nbytes(self, decoded_nbytes: int) -> int | None:  # noqa: ARG002
        """Encoded size of `decoded_nbytes` bytes; None if it depends on the bytes."""
        return None

    def beside_nbytes(
        self,
        decoded_nbytes: int,  # noqa: ARG002 - most take a negligible amount
        encoded: HostBytes | None = None,  # noqa: ARG002
    ) -> int:
        """Working memory that libraries take besides these copies.

        Without a stream, what usual streams take. Rare streams take more.

        Raises
        ------
        CorruptShardError
            `encoded` has no valid head.
        """
        return 0

    @abstractmethod
    def decode(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        """Decoded bytes of `encoded`.

        Never allocates much more than `limit` bytes, whatever the bytes claim.

        Parameters
        ----------
        encoded
            Exactly one encoded stream.
        limit
            Size of the decoded bytes (`exact`), or the largest size accepted.
        exact
            Whether another size than `limit` is an error.

        Raises
        ------
        CorruptShardError
            The bytes are not a valid stream, or decode to another size than allowed.
        ChecksumError
            The bytes contradict their checksum.
        """


@dataclass(frozen=True, slots=True)
class ArrayCodec(ABC):
    """Array to array, one inner chunk at a time.

    Attributes
    ----------
    name
        Name of the codec in the metadata.
    library
        Library that decodes, for reports: "numcodecs 0.17.1".
    keeps_elements
        Whether the elements that it encodes to are those to decode, in some order.
    """

    name: str
    library: str
    keeps_elements: ClassVar[bool] = False

    def encoded_spec(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and data type that an array of `shape` and `dtype` is encoded to."""
        return shape, dtype

    def working_nbytes(self, n_elements: int, dtype: np.dtype[Any]) -> int:  # noqa: ARG002
        """Memory that decoding `n_elements` of `dtype` takes; 0 for a view."""
        return 0

    @abstractmethod
    def decode(
        self, encoded: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Decoded array of `shape` and `dtype`; possibly a view of `encoded`."""


@dataclass(frozen=True, slots=True)
class ElementCodec(ArrayCodec):
    """Array to array, each element to one of another data type.

    Attributes
    ----------
    encoded_dtype
        Data type of the encoded elements.
    """

    encoded_dtype: np.dtype[Any]

    def encoded_spec(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Same shape, the data type of the encoded elements."""
        return shape, self.encoded_dtype


class ArrayPart(Protocol):
    """Array-to-array codecs and the array-to-bytes codec of a chain."""

    def encoded_nbytes(self, shape: tuple[int, ...]) -> int | None:
        """Encoded size of an inner chunk; None if it depends on the elements."""
        ...

    def working_nbytes(self, shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk of `shape` takes besides its bytes.

        For strings, the memory of each string besides its text.
        """
        ...

    def decoder(self, shape: tuple[int, ...]) -> Callable[[HostBytes], NDArray[Any]]:
        """Function from bytes of the right size to an inner chunk of `shape`."""
        ...

    @property
    def labels(self) -> Sequence[tuple[str, str]]:
        """Name and library of each codec, in encoding order."""
        ...


def library_label(package: str) -> str:
    """Name and version of an imported package, for reports."""
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version or _installed_version(package)}".rstrip()


@cache
def _installed_version(distribution: str) -> str:
    """Version of a package that does not tell its own; "" if nothing else does."""
    # It takes longer to import than most codecs.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:  # vendored or frozen installations carry no metadata
        return ""


def size_error(
    codec: str, limit: int, got: int | str, *, exact: bool
) -> CorruptShardError:
    """Error for a stream whose decoded size is not the allowed one."""
    error = CorruptShardError(
        "stored bytes decode to a wrong size",
        codec=codec,
        expected=f"{limit} bytes" if exact else f"at most {limit} bytes",
        got=f"{got} bytes",
        hint=DAMAGED_HINT,
    )
    error.limit_nbytes = None if exact else limit
    return error


def configuration_error(spec: CodecSpec, reason: object) -> MetadataError:
    """Error for a configuration in the metadata that a codec cannot have."""
    return MetadataError(
        f"the codec cannot be configured, {reason}",
        codec=spec.name,
        json_path=f"{spec.json_path}.configuration",
    )


def stream_error(codec: str, reason: object) -> CorruptShardError:
    """Error for bytes that are not a valid stream of `codec`."""
    return CorruptShardError(
        f"stored bytes are no valid stream: {reason}",
        codec=codec,
        hint=DAMAGED_HINT,
    )
