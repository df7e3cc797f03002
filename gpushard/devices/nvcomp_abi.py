"""The C interface of nvCOMP 6, as its headers declare it.

It has the algorithms, statuses, structures (most are passed by value) and functions
that gpushard uses. They are declared in
``nvcomp/{zstd,lz4,snappy,deflate,gzip,shared_types}.h`` of 6.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any, ClassVar

MAJOR = 6
"""The only major version supported: others have other argument layouts."""


class Algorithm(Enum):
    """Stream formats that nvCOMP decodes; the value is the format's name in its API."""

    ZSTD = "Zstd"
    """One zstd frame (RFC 8878)."""
    LZ4 = "LZ4"
    """One LZ4 block, without a frame."""
    SNAPPY = "Snappy"
    """One raw Snappy stream, without framing."""
    DEFLATE = "Deflate"
    """One raw DEFLATE stream (RFC 1951), without a zlib header."""
    GZIP = "Gzip"
    """One gzip member (RFC 1952)."""

    @property
    def max_encodable_nbytes(self) -> int:
        """Largest input that is encoded as one stream.

        If a header states two limits (``CompressionMaxAllowedChunkSize`` and a smaller
        one where it describes ``CompressAsync``), this is the smaller one.
        """
        return _MAX_ENCODABLE_NBYTES[self]


_MAX_ENCODABLE_NBYTES = {
    Algorithm.ZSTD: 2**24,
    Algorithm.LZ4: 2**24,
    Algorithm.SNAPPY: 0,
    Algorithm.DEFLATE: 2**16,
    Algorithm.GZIP: 2**31 - 1,
}


MAX_STREAM_NBYTES = 2**31 - 1
"""Largest decoded stream of every algorithm (``DecompressionMaxAllowedChunkSize``)."""


class NvcompStatus(IntEnum):
    """``nvcompStatus_t``."""

    SUCCESS = 0
    INVALID_VALUE = 10
    NOT_SUPPORTED = 11
    CANNOT_DECOMPRESS = 12
    BAD_CHECKSUM = 13
    CANNOT_VERIFY_CHECKSUMS = 14
    OUTPUT_BUFFER_TOO_SMALL = 15
    WRONG_HEADER_LENGTH = 16
    ALIGNMENT = 17
    CHUNK_SIZE_TOO_LARGE = 18
    CANNOT_COMPRESS = 19
    WRONG_INPUT_LENGTH = 20
    BATCH_SIZE_TOO_LARGE = 21
    SUB_CHUNK_COUNT_TOO_LARGE = 22
    SUB_CHUNK_COUNT_TOO_SMALL = 23
    OUTPUT_BUFFER_ALIGNMENT_TOO_SMALL = 24
    CUDA_ERROR = 1000
    INTERNAL = 10000


def status_name(status: int) -> str:
    """Name and number of an nvCOMP status, for messages: "BAD_CHECKSUM (13)"."""
    try:
        return f"{NvcompStatus(status).name} ({status})"
    except ValueError:  # a later 6.x may add statuses
        return f"status {status}"


_CUDA_BACKEND = 2


class DecompressOptions(ctypes.Structure):
    """``nvcompBatched*DecompressOpts_t``: 64 bytes.

    The fields after the backend differ between algorithms. All of them stay zero.
    """

    _fields_: ClassVar[Any] = (
        ("backend", ctypes.c_int32),
        ("others", ctypes.c_uint8 * 60),
    )

    @classmethod
    def with_kernels(cls) -> DecompressOptions:
        """Options to decode by CUDA kernels, never by a decompression engine.

        The engine of some GPUs says of a damaged LZ4 stream that all is well, and
        needs memory that was allocated for it, which a caller's may not be.
        """
        return cls(backend=_CUDA_BACKEND)


class CompressOptions(ctypes.Structure):
    """``nvcompBatched*CompressOpts_t``: 64 bytes.

    The first field is the algorithm for Deflate and Gzip (1 is their default), the data
    type for LZ4 (0 means bytes), and reserved for Zstd.
    """

    _fields_: ClassVar[Any] = (
        ("algorithm", ctypes.c_int32),
        ("others", ctypes.c_uint8 * 60),
    )

    @classmethod
    def defaults(cls, algorithm: Algorithm) -> CompressOptions:
        """The vendor's defaults for `algorithm`."""
        return cls(algorithm in (Algorithm.DEFLATE, Algorithm.GZIP))


class Properties(ctypes.Structure):
    """``nvcompProperties_t``, 8 bytes."""

    _fields_: ClassVar[Any] = (
        ("version", ctypes.c_uint32),
        ("cudart_version", ctypes.c_uint32),
    )


class AlignmentRequirements(ctypes.Structure):
    """``nvcompAlignmentRequirements_t``, 24 bytes."""

    _fields_: ClassVar[Any] = (
        ("input", ctypes.c_size_t),
        ("output", ctypes.c_size_t),
        ("temp", ctypes.c_size_t),
    )


_ADDRESS = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_SIGNATURES = {
    "DecompressGetRequiredAlignments": (DecompressOptions, _ADDRESS),
    "DecompressGetTempSize": (
        *(_SIZE, _SIZE, DecompressOptions),
        *(_ADDRESS, _SIZE, _ADDRESS),
    ),
    "DecompressAsync": (
        *(_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _SIZE),
        *(_ADDRESS, _SIZE, _ADDRESS),
        *(DecompressOptions, _ADDRESS, _ADDRESS),
    ),
}
_COMPRESS_SIGNATURES = {
    "CompressGetRequiredAlignments": (CompressOptions, _ADDRESS),
    "CompressGetTempSize": (
        *(_SIZE, _SIZE, CompressOptions),
        *(_ADDRESS, _SIZE, _ADDRESS),
    ),
    "CompressGetMaxOutputChunkSize": (_SIZE, CompressOptions, _ADDRESS),
    "CompressAsync": (
        *(_ADDRESS, _ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE),
        *(_ADDRESS, _ADDRESS, CompressOptions, _ADDRESS, _ADDRESS),
    ),
}


def bound_symbols() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Name and argument types of every function that gpushard calls."""
    for algorithm in Algorithm:
        for name, arguments in _SIGNATURES.items():
            yield symbol_of(algorithm, name), arguments
        if algorithm.max_encodable_nbytes:
            for name, arguments in _COMPRESS_SIGNATURES.items():
                yield symbol_of(algorithm, name), arguments


def symbol_of(algorithm: Algorithm, name: str) -> str:
    """Name of the function `name` of `algorithm`: "nvcompBatchedLZ4DecompressAsync"."""
    return f"nvcompBatched{algorithm.value}{name}"
