"""Memory limit -> how much a batch may hold, so that a whole read stays within it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpushard.devices.decoding.chain import DeviceChain, StepKind
from gpushard.options import DEFAULT, KIB, MIB, ReadOptions

# Two batches are queued on a device, so that it always has one to decode, while a third
# lane is settled and given its next batch.
N_LANES = 3
# Scratch that nvCOMP's zstd decoder asks for each stream, in addition to three times
# the decoded bytes (its answer on a machine without a driver).
_STREAM_NBYTES = 8 * KIB
# Rows of an arena start at multiples of this, and the first one behind so many bytes.
LEAD_NBYTES = 256
# Canaries around a row: 16 bytes before it, and 16 from the next multiple of 16 behind
# its end on (kernels/canaries.cuh).
_CANARIES_NBYTES = 3 * 16
# Memory behind the rows of an arena, if the vendor's decoder may get damaged streams.
# It ignores where a row ends, and the last row shall not reach memory of others. This
# is no bound: an LZ4 stream may decode to 255 times its size, a deflate stream to 1032
# times, and a zstd block of a few bytes to 128 KiB. So archives of strangers are to be
# decoded on the host (`placement="host"`, docs/damaged.md).
_TAIL_NBYTES = MIB
# The tails of both arenas take at most one part in eight of a small limit.
_TAIL_SHARE = 16
# Size of the tables of a row.
_TABLES_NBYTES = 512
# Blocks of Blosc frames are rarely smaller: the default is 128 KiB or more.
_LEAST_BLOCK_NBYTES = 32 * KIB
# Larger batches would only overlap less: this one takes a bus 2.4 milliseconds, and the
# host as long to read (docs/decisions/2026-11-27-first-run-on-a-gpu.md).
MAX_ENCODED_NBYTES = 128 * MIB
# If a single inner chunk is more than a batch, all slots take one part in this many.
_SLOTS_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Shares of the memory limit.

    Attributes
    ----------
    encoded_nbytes
        Encoded bytes of a batch. Each slot and each lane has room for them.
    rows_nbytes
        Memory of a lane for the inner chunks of a batch, without their encoded bytes
        and the tails.
    row_nbytes
        Memory that one inner chunk takes of `rows_nbytes`, without its streams.
    row_streams_nbytes
        Memory that the streams of one inner chunk usually take: tables and scratch.
    n_slots, n_lanes
        Slots and lanes; fewer than usual if one inner chunk is more than a batch.
    pinned_nbytes
        Host memory of all slots, and of inner chunks that the host has decoded.
    assembled_nbytes
        The part of it that a lane has for inner chunks that the host has decoded.
    home_nbytes
        Share of a slot, and of a lane, for encoded bytes: more than `encoded_nbytes` if
        batches are as large as they may be.
    tail_nbytes
        Memory behind the rows of each arena that a decoder may overwrite.
    """

    encoded_nbytes: int
    rows_nbytes: int
    row_nbytes: int
    row_streams_nbytes: int
    n_slots: int = DEFAULT.pinned_slots
    n_lanes: int = N_LANES
    pinned_nbytes: int = 0
    tail_nbytes: int = 0
    home_nbytes: int = 0
    assembled_nbytes: int = 0

    @classmethod
    def of(
        cls,
        chain: DeviceChain,
        options: ReadOptions,
        *,
        decodes: bool,
        stored_nbytes: int | None = None,
    ) -> Budget:
        """Shares of `options.memory_limit` for a read.

        `stored_nbytes` is the usual size of the largest stored inner chunk.

        Encoded bytes lie in the slots and on the lanes. A lane also has two arenas, and
        scratch of three times the decoded bytes. What the host decodes is assembled in
        pinned memory.
        """
        row_nbytes, row_streams_nbytes = _TABLES_NBYTES, 0
        encoded_share = options.memory_limit * 3 // 4
        if not decodes:
            row_nbytes += 2 * chain.decoded_nbytes  # one copy pinned, one on the device
            encoded_share = options.memory_limit // 4
        elif chain.steps:
            row_nbytes += 2 * row_pitch(chain.largest_nbytes)
            row_streams_nbytes = 3 * chain.largest_nbytes
            row_streams_nbytes += _STREAM_NBYTES * _usual_streams(chain)
            encoded_share = options.memory_limit // 3
        n_homes = options.pinned_slots + N_LANES
        share = (options.memory_limit - encoded_share) // N_LANES
        tail_nbytes = 0
        if decodes and chain.guards_rows:
            tail_nbytes = min(_TAIL_NBYTES, share // _TAIL_SHARE)
        home_nbytes = max(1, encoded_share // n_homes)
        usual = cls(
            encoded_nbytes=min(home_nbytes, MAX_ENCODED_NBYTES),
            rows_nbytes=share - 2 * tail_nbytes,
            row_nbytes=row_nbytes,
            row_streams_nbytes=row_streams_nbytes,
            n_slots=options.pinned_slots,
            tail_nbytes=tail_nbytes,
            home_nbytes=home_nbytes,
        )
        stored = stored_nbytes or chain.encoded_nbytes or chain.decoded_nbytes
        bound = max(options.memory_limit, options.bound_nbytes)
        n_assembled = 0 if decodes and not chain.steps else usual.n_rows
        return usual._holding_one(stored, n_assembled * chain.decoded_nbytes, bound)

    def _holding_one(self, stored: int, assembled: int, bound: int) -> Budget:
        """The same with fewer slots and lanes, if a batch of one row needs it.

        `stored` and `assembled` are bytes of a stored inner chunk, and of those that
        the host decodes for a lane.
        """
        slot_nbytes = max(stored, self.encoded_nbytes)
        n_slots, n_lanes = self.n_slots, self.n_lanes
        if stored > self.encoded_nbytes:
            n_slots = min(n_slots, max(1, bound // (_SLOTS_SHARE * stored)))
        alone = self.row_nbytes + self.row_streams_nbytes
        if n_lanes * (slot_nbytes + alone) > bound // 2 and self.n_rows == 1:
            n_lanes = 1
        pinned_nbytes = n_slots * slot_nbytes + n_lanes * assembled
        return replace(
            self,
            n_slots=n_slots,
            n_lanes=n_lanes,
            pinned_nbytes=pinned_nbytes,
            assembled_nbytes=assembled,
        )

    def of_plain_relays(self) -> Budget:
        """The same with larger batches, twice as large if they fit, in half the slots.

        For plain elements that are relayed (`device_reading.relayed`). Nothing waits
        for their first batch to be decoded, and half as many batches take the host
        half as long.
        """
        n_slots = self.n_slots // 2
        room_nbytes = self.home_nbytes * (self.n_slots + self.n_lanes)
        # Those that are not relayed lie on the lanes, beside the slots on the device.
        most_nbytes = room_nbytes // (n_slots + self.n_lanes)
        encoded_nbytes = min(2 * self.encoded_nbytes, most_nbytes)
        return replace(self, encoded_nbytes=encoded_nbytes, n_slots=n_slots)

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


def row_pitch(nbytes: int) -> int:
    """Bytes from one row of an arena to the next, if each has `nbytes` bytes."""
    return -(-(nbytes + _CANARIES_NBYTES) // LEAD_NBYTES) * LEAD_NBYTES


def _usual_streams(chain: DeviceChain) -> int:
    """Usual number of streams of an inner chunk; Blosc's is known only by counting."""
    if any(step.kind is StepKind.BLOSC for step in chain.steps):
        return 1 + chain.decoded_nbytes // _LEAST_BLOCK_NBYTES
    return 1
