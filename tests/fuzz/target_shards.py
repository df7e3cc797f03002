"""One stored object of an array, read whole and in part, against zarr-python.

Input: a byte that chooses the array, one of flags, then the object. Where both readers
read, they read the same; gpushard may refuse what zarr-python reads, as an error of its
own, and the other way around.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import gpushard
from fuzz.mutations import damaged
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import Case, OneObject, cases
from gpushard import Options
from gpushard.errors import CorruptShardError
from zarr_oracle import assert_same_bits, quiet_zarr

if TYPE_CHECKING:
    import random

NAME = "shards"

# Bits of the second byte.
_AS_IT_IS, _COLUMNS, _FAR, _AT_START, _IN_PART, _UNTOLD = 1, 2, 4, 8, 16, 32

# Not the compiled loops, which have a target of their own: what compiles them, once
# enough was read, takes longer than an input may.
_SMALL = Options(threads=1, compile_nbytes=2**62)
_LARGE = _SMALL.but(small_read_chunks=0)


def seeds() -> list[bytes]:
    return [
        bytes([k, flags]) + case.object
        for k, case in enumerate(cases())
        for flags in (0, _COLUMNS, _FAR | _COLUMNS, _UNTOLD | _IN_PART)
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another entry in the index, or other bytes."""
    if len(data) < 3 or rng.random() < 0.5:
        return damaged(data, rng)
    case = cases()[data[0] % len(cases())]
    return data[:2] + case.with_other_entry(data[2:], rng)


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    k, flags = data[0] % len(cases()), data[1]
    case = cases()[k]
    stored = data[2:] if flags & _AS_IT_IS else case.repaired(data[2:])
    held = OneObject.room.hold(stored, at_end=not flags & _AT_START)
    key = _part(case.shape) if flags & _IN_PART else ...
    _soil(case.chunk_nbytes, 0x5A)
    try:
        got = _opened(case, held, flags)[key]
    except CorruptShardError as error:
        assert_is_told(error, shard_key=case.key)
        return False
    want = _by_zarr(k, stored, key)
    if want is None:
        # Nothing says what is right, but it must not depend on the way taken there,
        # as what was in memory before would.
        _soil(case.chunk_nbytes, 0xA5)
        want = _opened(case, held, flags ^ _COLUMNS)[key]
    assert_same_bits(got, want)
    return True


def _soil(nbytes: int, value: int) -> None:
    """Leave a value in the memory that the next allocations of a size are given."""
    soiled = [np.full(nbytes, value, np.uint8) for _ in range(4)]
    del soiled


def _opened(case: Case, held: Any, flags: int) -> gpushard.Array:
    return case.opened(
        held,
        _LARGE if flags & _COLUMNS else _SMALL,
        is_far=bool(flags & _FAR),
        tells_sizes=not flags & _UNTOLD,
    )


def _part(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(n // 3, n - n // 4, 2) for n in shape)


def _by_zarr(k: int, stored: bytes, key: Any) -> Any:
    """What zarr-python reads; None where it raises anything."""
    opened = _zarr_array(k)
    if opened is None:
        return None
    array, objects = opened
    case: Case = cases()[k]
    buffer = default_buffer_prototype().buffer
    objects[case.key] = buffer.from_bytes(stored)
    try:
        with quiet_zarr(), np.errstate(all="ignore"):
            read = np.asarray(array[key], array.dtype)
    except Exception:  # noqa: BLE001 - whatever it raises, it did not read
        return None
    # A byte that is neither 0 nor 1 stays as it is there, which NumPy has no word for.
    return read.view(np.uint8) != 0 if read.dtype == np.bool_ else read


@cache
def _zarr_array(k: int) -> tuple[Any, dict[str, Any]] | None:
    """zarr-python's array of a case, and the objects that it reads.

    None where this release does not know something that the metadata asks for.
    """
    buffer = default_buffer_prototype().buffer
    objects = {name: buffer.from_bytes(b) for name, b in cases()[k].objects.items()}
    try:
        with quiet_zarr():
            return zarr.open_array(MemoryStore(objects), mode="r"), objects
    except (NotImplementedError, ValueError):
        return None
