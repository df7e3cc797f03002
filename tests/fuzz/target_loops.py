"""One stored object, read by the compiled loops and by the plain way of the host.

Input: as of the target `shards`. Both read the same elements or raise the same error.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuzz.mutations import damaged
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import CHAINS, OneObject, cases
from gpushard import Options
from gpushard.errors import CorruptShardError
from gpushard.fused import choice
from zarr_oracle import assert_same_bits

if TYPE_CHECKING:
    import random

NAME = "loops"

_AS_IT_IS, _AT_START, _SELECTION, _AS_FILE = 1, 2, 4, 128
# One thread, so that of several damaged inner chunks the same one is met first.
FUSED = Options(compile_nbytes=0, small_read_chunks=0, threads=1)
PLAIN = FUSED.but(compile_nbytes=2**62)
_KEYS: tuple[Any, ...] = (
    ...,
    np.s_[::-3, 5:30:2],
    np.s_[3:9, 20],
    np.s_[15:0:-1, :],
)


_DECODED_IN_PART = (b'"blosc"', b'"numcodecs.lz4"')
_kept: list[Any] = []


def seeds() -> list[bytes]:
    _load_loops()  # seconds, if they are to be compiled, that no input is to blame for
    return [
        bytes([k, _SELECTION * nth | place]) + case.object
        for k, case in enumerate(cases()[: len(CHAINS)])
        for nth in range(len(_KEYS))
        for place in (0, _AS_FILE)
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another entry in the index, or other bytes."""
    if len(data) < 3 or rng.random() < 0.5:
        return damaged(data, rng)
    case = cases()[data[0] % len(CHAINS)]
    return data[:2] + case.with_other_entry(data[2:], rng)


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    _load_loops()
    case, flags = cases()[data[0] % len(CHAINS)], data[1]
    stored = data[2:] if flags & _AS_IT_IS else case.repaired(data[2:])
    held = OneObject.room.hold(stored, at_end=not flags & _AT_START)
    key = _KEYS[flags // _SELECTION % len(_KEYS)]
    if flags & _AS_FILE:
        arrays = [case.placed(stored, _directory(), way) for way in (PLAIN, FUSED)]
    else:
        arrays = [case.opened(held, way) for way in (PLAIN, FUSED)]
    want, got = (_outcome(a, key) for a in arrays)
    if isinstance(want, CorruptShardError):
        document = case.objects["zarr.json"]
        if key is not ... and any(name in document for name in _DECODED_IN_PART):
            # The loops decode no more than what is wanted.
            return False
        assert isinstance(got, CorruptShardError), (want, got)
        assert _told(got) == _told(want)
        return False
    assert not isinstance(got, CorruptShardError), got
    assert_same_bits(got, want)
    return True


def _told(error: CorruptShardError) -> str:
    """The sentence, with one reason for a zstd block beyond the frame's largest.

    libzstd gives one of these two, by the room that frames before have left it.
    """
    return str(error).replace(
        "Destination buffer is too small", "Data corruption detected"
    )


@cache
def _load_loops() -> None:
    """Make sure that there is something to compare."""
    cases()[0].opened(None, FUSED)[...]
    assert choice.are_loaded(), "there are no compiled loops: pip install '.[fast]'"


@cache
def _directory() -> Path:
    """Place for files, there as long as the process is."""
    made = tempfile.TemporaryDirectory()
    _kept.append(made)
    return Path(made.name)


def _outcome(a: Any, key: Any) -> Any:
    try:
        return a[key]
    except CorruptShardError as error:
        assert_is_told(error)
        return error
