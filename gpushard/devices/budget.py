"""What a batch may hold, so that all of a read stays in `memory_limit`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpushard.devices.decoding.chain import DeviceChain, StepKind
from gpushard.options import KIB, ReadOptions

# Two lanes: one copies while the other decodes.
N_LANES = 2
# What nvCOMP's zstd decoder asks for a stream, beside three times the decoded bytes (as
# it answered without a driver), and what the tables of a row take.
_STREAM_NBYTES = 8 * KIB
_TABLES_NBYTES = 512
# Blocks of Blosc frames are no smaller, as a rule: the default is 128 KiB or more.
_LEAST_BLOCK_NBYTES = 32 * KIB


@dataclass(frozen=True, slots=True)
class Budget:
    """Shares of the memory limit.

    Attributes
    ----------
    encoded_nbytes
        Encoded bytes of a batch: there is room for them in each slot and on each lane.
    rows_nbytes
        What the inner chunks of a batch may take on their lane, beside these.
    row_nbytes
        What one of them does, but for its streams.
    row_streams_nbytes
        What its streams do, as a rule: their tables, and scratch of the decoder.
    """

    encoded_nbytes: int
    rows_nbytes: int
    row_nbytes: int
    row_streams_nbytes: int

    @classmethod
    def of(cls, chain: DeviceChain, options: ReadOptions, *, decodes: bool) -> Budget:
        """Budget of a read.

        Encoded bytes lie in the slots and on the lanes; a lane has two arenas as well,
        and scratch of three times the decoded bytes.
        """
        row_nbytes, row_streams_nbytes = _TABLES_NBYTES, 0
        encoded_share = options.memory_limit * 3 // 4
        if not decodes:
            row_nbytes += 2 * chain.decoded_nbytes  # pinned, and on the device
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
        """Whether a device may hold what it takes to decode one inner chunk."""
        budget = cls.of(chain, options, decodes=True)
        needed = budget.row_nbytes + budget.row_streams_nbytes + chain.decoded_nbytes
        return needed <= max(options.bound_nbytes, options.memory_limit)

    @property
    def n_rows(self) -> int:
        """Inner chunks of a batch."""
        return max(1, self.rows_nbytes // (self.row_nbytes + self.row_streams_nbytes))

    def streams_nbytes(self, n_rows: int) -> int:
        """What the streams of a batch may take; never less than they do as a rule."""
        left = self.rows_nbytes - n_rows * self.row_nbytes
        return max(left, n_rows * self.row_streams_nbytes)


def _usual_streams(chain: DeviceChain) -> int:
    """Streams of an inner chunk; only counting tells how many Blosc made."""
    if any(step.kind is StepKind.BLOSC for step in chain.steps):
        return 1 + chain.decoded_nbytes // _LEAST_BLOCK_NBYTES
    return 1
