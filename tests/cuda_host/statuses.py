"""What the device reports about each inner chunk, as in ``kernels/common.cuh``."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Outcome for one inner chunk; the first status other than `OK` is kept."""

    OK = 0
    """It was decoded to exactly as many bytes as the metadata promises."""
    CHECKSUM = 1
    """The stored checksum differs from that of the stored bytes."""
    FORMAT = 2
    """The encoded bytes contradict themselves or end early."""
    SIZE = 3
    """The encoded bytes claim another decoded size than the metadata does."""
    HOST = 4
    """It may be valid, but the device cannot decode it: the host does."""
    DECODER = 5
    """The vendor's decoder refused the bytes."""
    SHORT = 6
    """The vendor's decoder wrote another number of bytes than the metadata says."""
    OVERRUN = 7
    """Bytes around the row were overwritten: by its stream, or by that of another."""
