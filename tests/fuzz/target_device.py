"""One stored object, read to the emulated device and by the plain way of the host.

Input: as of the target `shards`. Both read the same elements, or both refuse. Device
memory can be touched only by what runs on the device (see cuda_host/device.py), and the
stand-in for the vendor's library complains about what contradicts itself.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import gpushard
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated, on_host
from fuzz.mutations import damaged
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import CHAINS, OneObject, cases
from gpushard import Options
from gpushard.errors import CorruptShardError
from zarr_oracle import assert_same_bits

if TYPE_CHECKING:
    import random

NAME = "device"
# The kernels' threads are threads here, each with a stack of 8 MiB that it hardly uses.
ROOM_NBYTES = 8 << 30

_AS_IT_IS, _SELECTION = 1, 2
PLAIN = Options(threads=1, small_read_chunks=0, compile_nbytes=2**62)
_DEVICE = PLAIN.but(placement="device")
KEYS: tuple[Any, ...] = (..., np.s_[::-3, 5:30:2], np.s_[3:9, 20], np.s_[15:0:-1, :])


def seeds() -> list[bytes]:
    for case in arrays():  # compiles kernels: seconds that no input is to blame for
        _on_device(case.opened(None, _DEVICE), ..., seed=1)
    return [
        bytes([k, _SELECTION * nth]) + case.object
        for k, case in enumerate(arrays())
        for nth in range(len(KEYS))
    ]


@cache
def arrays() -> tuple[Any, ...]:
    """Cases of every chain in a shard."""
    return cases()[: len(CHAINS)]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another entry in the index, or other bytes."""
    if len(data) < 3 or rng.random() < 0.5:
        return damaged(data, rng)
    case = arrays()[data[0] % len(arrays())]
    return data[:2] + case.with_other_entry(data[2:], rng)


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    case, flags = arrays()[data[0] % len(arrays())], data[1]
    stored = data[2:] if flags & _AS_IT_IS else case.repaired(data[2:])
    held = OneObject.room.hold(stored)
    key = KEYS[flags // _SELECTION % len(KEYS)]
    want = outcome(case.opened(held, PLAIN), key)
    got = _on_device(case.opened(held, _DEVICE), key, seed=len(data))
    return agreed(got, want)


def _on_device(a: gpushard.Array, key: Any, seed: int) -> Any:
    """Outcome of a read to a new device, which does things in an order by `seed`."""
    device = EmulatedDevice(*emulated(), seed=seed)
    got = outcome(gpushard.Array(a.source, device=device), key)
    assert device.standin.complaints == []
    return got


def outcome(a: Any, key: Any) -> Any:
    try:
        return on_host(a[key])
    except CorruptShardError as error:
        assert_is_told(error)
        return error


def agreed(got: Any, want: Any) -> bool:
    """Whether both outcomes are values, which must be the same; or both are errors."""
    if isinstance(want, CorruptShardError):
        assert isinstance(got, CorruptShardError), (want, got)
        return False
    assert not isinstance(got, CorruptShardError), got
    assert_same_bits(got, want)
    return True
