"""Damaged shard indexes on their way to the kernels, each range memory of its own.

Input: as of the target `device`, as a rule with damage in the index alone. The host
parses the index; the kernels are told the addresses and sizes that come of it. Here the
bytes of every inner chunk are an allocation of exactly their size, and so are tables,
arenas and the output: what reads or writes beside them is seen where the kernels have
the sanitizers (`fuzz/sanitized.py`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from cuda_host.device import JUNK, EmulatedDevice, Memory
from damaged_arrays import emulated
from fuzz import target_device
from fuzz.shard_cases import OneObject
from fuzz.target_device import KEYS, PLAIN, agreed, arrays, outcome
from gpushard.device_reading.payload.ring import PinnedPayload
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.output import DeviceOutput
from gpushard.errors import CorruptShardError
from gpushard.report import Tally
from gpushard.selecting import expressions

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from cuda_host.arrays import EmulatedBuffer
    from gpushard.device_reading.payload.answers import FetchedChunks
    from gpushard.devices.lane import Lane

NAME = "tables"
ROOM_NBYTES = target_device.ROOM_NBYTES
_DEVICE = PLAIN.but(placement="device")


class HeapMemory(Memory):
    """Memory that the sanitizer guards: exactly so many bytes, open to everybody."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._view = np.full(nbytes, JUNK, np.uint8)
        self.address = self._view.ctypes.data

    def protect(self, access: int) -> None:
        pass

    def behind(self) -> NDArray[np.uint8]:
        return self._view[:0]

    def __del__(self) -> None:
        pass


class HeapDevice(EmulatedDevice):
    """Its memory is of the heap."""

    memory_kind = HeapMemory

    def restart(self, seed: int) -> None:
        """Forget what was, and do things in an order by `seed`."""
        self.log.clear()
        self.standin.complaints.clear()
        self._random.seed(seed)

    def copied(self, data: NDArray[np.uint8], misalignment: int) -> EmulatedBuffer:
        """Memory that ends with `data`, which begins at `misalignment`."""
        buffer = self.allocate(misalignment + len(data))
        to = buffer.address + misalignment
        ctypes.memmove(to, data.ctypes.data, len(data))
        return buffer


def seeds() -> list[bytes]:
    return target_device.seeds()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three other fields in the index."""
    if len(data) < 3:
        return data
    case = arrays()[data[0] % len(arrays())]
    stored = data[2:]
    for _ in range(rng.choice((1, 1, 2, 3))):
        stored = case.with_other_entry(stored, rng)
    return data[:2] + stored


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    case, flags = arrays()[data[0] % len(arrays())], data[1]
    stored = OneObject.room.hold(case.repaired(data[2:]))
    key = KEYS[flags // 2 % len(KEYS)]
    want = outcome(case.opened(stored, PLAIN), key)
    got = _on_heap(case.opened(stored, _DEVICE), key, seed=len(data))
    return agreed(got, want)


def _on_heap(a: Any, key: Any, seed: int) -> Any:
    """What a read to a device gives whose memory the sanitizers look at."""
    device = _device()
    device.restart(seed)
    selection = expressions.basic(key, a.shape)
    out = np.empty(selection.shape, a.dtype)
    buffer = device.allocate(out.nbytes)
    output = DeviceOutput(buffer.address, out.shape, out.strides, out.dtype)
    kept: list[EmulatedBuffer] = []

    def bring(landing: PinnedPayload, lane: Lane, encoded: FetchedChunks) -> Any:
        """Addresses of the bytes of each inner chunk, as far from a 16 as in a slot."""
        skews = encoded.offset % 16
        memory, at = landing.on_host(lane, encoded)
        ranges = zip(at.tolist(), (at + encoded.nbytes).tolist(), strict=True)
        pieces = [memory[first:last] for first, last in ranges]
        made = list(map(device.copied, pieces, skews.tolist()))
        kept.extend(made)
        landing.slot.note_copy(lane)
        return np.array([b.address for b in made], np.uint64) + skews.astype(np.uint64)

    try:
        with mock.patch.object(PinnedPayload, "bring", bring):
            read_to_device(DeviceRead(a.source, [selection], [output], device, Tally()))
    except CorruptShardError as error:
        return error
    assert device.standin.complaints == []
    return buffer.read().view(out.dtype).reshape(out.shape)


@cache
def _device() -> HeapDevice:
    return HeapDevice(*emulated())
