"""Memory limit -> how much a batch may hold, so that a whole read stays within it."""

from __future__ import annotations

from dataclasses import dataclass

from gpushard.devices.decoding.chain import DeviceChain, StepKind
from gpushard.options import KIB, ReadOptions

# Two lanes, so that one copies while the other decodes.
N_LANES = 2
# Scratch that nvCOMP's zstd decoder asks for each stream, in addition to three times
# the decoded bytes (its answer on a machine without a driver).
_STREAM_NBYTES = 8 * KIB
# Size of the tables of a row.
_TABLES_NBYTES = 512
# Blocks of Blosc frames are rarely smaller: the default is 128 KiB or more.
_LEAST_BLOCK_NBYTES = 32 * KIB


@dataclass(frozen=True, slots=True)
class Budget:
    """Shares of the memory limit.

    Attributes
    ----------
    encoded_nbytes
        Encoded bytes of a batch. Each slot and each lane has room for them.
    rows_nbytes
        Memory of a lane for the inner chunks of a batch, without their encoded bytes.
    row_nbytes
        Memory that one inner chunk takes of `rows_nbytes`, without its streams.
    row_streams_nbytes
        Memory that the streams of one inner chunk usually take: tables and scratch.
    """

    encoded_nbytes: int
    rows_nbytes: int
    row_nbytes: int
    row_streams_nbytes: int

    @classmethod
    def of(cls, chain: DeviceChain, options: ReadOptions, *, decodes: bool) -> Budget:
        """Shares of `options.memory_limit` for a read.

        Encoded bytes lie in the slots and on the lanes. A lane also has two arenas, and
        scratch of three times the decoded bytes.
        """
        row_nbytes, row_streams_nbytes = _TABLES_NBYTES, 0
        encoded_share = options.memory_limit * 3 // 4
        if not decodes:
            row_nbytes += 2 * chain.decoded_nbytes  # one copy pinned, one on the device
            encoded_share = options.memory_limit // 4
        elif chain.steps:
            row_nbytes += 2 * chain.decoded_nbytes
            row_streams_nbytes = 3 * chain.decoded_nbytes
            row_streams_nbytes += _STREAM_NBYTES * _usual_streams(chain)
            encoded_share = options.memory_limit // 3
        n_homes = options.pinned_slots + N_LANES
        return cls(
            max(1, encoded_share // n_homes),
            (options.memory_limit - encoded_share) // N_LANES,
            row_nbytes,
            row_streams_nbytes,
        )

    @classmethod
    def fits_one(cls, chain: DeviceChain, options: ReadOptions) -> bool:
        """Whether decoding one inner chunk on a device fits the memory limits."""
        budget = cls.of(chain, options, decodes=True)
        needed = budget.row_nbytes + budget.row_streams_nbytes + chain.decoded_nbytes
        return needed <= max(options.bound_nbytes, options.memory_limit)

    @property
    def n_rows(self) -> int:
        """Number of inner chunks in a batch, at least 1."""
        return max(1, self.rows_nbytes // (self.row_nbytes + self.row_streams_nbytes))

    def streams_nbytes(self, n_rows: int) -> int:
        """Memory for the streams of a batch; at least what they usually take."""
        left = self.rows_nbytes - n_rows * self.row_nbytes
        return max(left, n_rows * self.row_streams_nbytes)


def _usual_streams(chain: DeviceChain) -> int:
    """Usual number of streams of an inner chunk; Blosc's is known only by counting."""
    if any(step.kind is StepKind.BLOSC for step in chain.steps):
        return 1 + chain.decoded_nbytes // _LEAST_BLOCK_NBYTES
    return 1
