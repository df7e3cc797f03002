"""An array, its documents or one of its objects damaged, converted with any options.

Input: ten bytes that choose the array, the options and which change of the destination
fails, then a stored object, as of the target `shards`, or the text of a document, as of
`metadata`.

What is converted reads as the source, bit for bit, and nothing of the conversion is
left beside it. What is refused leaves nothing, or the mark of an unfinished conversion,
beside shards that are right. One that is cut off and called again makes the same
objects as one that was not.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from zarr.storage import MemoryStore

import gpushard
from fuzz import target_metadata
from fuzz.mutations import damaged
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import Case, OneObject, cases
from gpushard import GpushardError, Options
from gpushard.converting.copying import same_bits
from gpushard.converting.mark import NAME as MARK
from gpushard.errors import StoreError

if TYPE_CHECKING:
    import random

NAME = "conversion"

_N_CHOICES = 10
_OPTIONS = Options(threads=1, compile_nbytes=2**62)
# An array may claim to have any number of shards, and each takes its time.
_MOST_NBYTES, _MOST_SHARDS = 1 << 16, 64
_COMPRESSORS: tuple[Any, ...] = (
    *("keep", "keep", None, "auto"),
    ({"name": "gzip", "configuration": {"level": 1}},),
    ({"name": "crc32c"},),
)
_FILTERS: tuple[Any, ...] = ("keep", "keep", "keep", None)
_LENGTHS = (None, 1, 2, 3, 4, 5, 7, 8, 16, 32, 0, -1)
_LIMITS = (None, None, None, 1 << 30, 1 << 26, 1 << 20, 1 << 12, 1)


class CutOffError(OSError):
    """What a destination fails with."""


class _Destination(dict[str, Any]):
    """Objects of a zarr store in memory, one of whose changes fails."""

    def __init__(self, n_left: int) -> None:
        super().__init__()
        self.n_left = n_left

    def __setitem__(self, key: str, value: Any) -> None:
        self._fail_in_turn()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._fail_in_turn()
        super().__delitem__(key)

    def _fail_in_turn(self) -> None:
        self.n_left -= 1
        if self.n_left == 0:
            raise CutOffError("no room")

    def held(self) -> dict[str, bytes]:
        """Its objects."""
        return {key: buffer.to_bytes() for key, buffer in self.items()}


@dataclass(frozen=True)
class _Choice:
    """What the first bytes of an input say.

    Attributes
    ----------
    case
        The array; None: it is the one of the document that follows.
    arguments
        Of `gpushard.convert`.
    n_before
        Changes of the destination up to the one that fails; 0: none does.
    """

    case: Case | None
    arguments: dict[str, Any]
    n_before: int

    @classmethod
    def of(cls, data: bytes) -> _Choice:
        number, flags, codecs, limit, cut, *lengths = data[:_N_CHOICES]
        is_document = number == 255
        arguments = {
            "shards": _lengths(lengths[:2]),
            "chunks": _lengths(lengths[2:4]),
            "compressors": _COMPRESSORS[codecs % len(_COMPRESSORS)],
            "filters": _FILTERS[codecs // 16 % len(_FILTERS)],
            "index_location": "start" if flags & 1 else "end",
            "verify": bool(flags & 2),
            "memory_limit": _LIMITS[limit % len(_LIMITS)],
        }
        case = None if is_document else cases()[number % len(cases())]
        return cls(case, arguments, cut % 16)


def _lengths(chosen: list[int]) -> tuple[int, ...] | int | None:
    """A shape of one or two axes, a length for all, or none."""
    first, second = (_LENGTHS[k % len(_LENGTHS)] for k in chosen)
    if first is None or second is None:
        return first if second is None else second
    return first, second


def seeds() -> list[bytes]:
    plain = bytes(_N_CHOICES - 1)
    objects = [bytes([k]) + plain + case.object for k, case in enumerate(cases())]
    shapes = [(k, bytes([k, k, 17 * k, k % 3, k, 7, 8, 4, 5, k])) for k in range(14)]
    chosen = [choice + cases()[k].object for k, choice in shapes]
    documents = [b"\xff" + plain + text for text in target_metadata.seeds()]
    return [*objects, *chosen, *documents]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another choice, another entry of an index, or a change of a document."""
    if len(data) < _N_CHOICES or rng.random() < 0.2:
        return damaged(data, rng)
    head, rest = bytearray(data[:_N_CHOICES]), data[_N_CHOICES:]
    if rng.random() < 0.4:
        head[rng.randrange(1, _N_CHOICES)] = rng.randrange(256)
    elif head[0] == 255:
        rest = target_metadata.mutate(rest, rng)
    else:
        rest = cases()[head[0] % len(cases())].with_other_entry(rest, rng)
    return bytes(head) + rest


def check(data: bytes) -> bool:
    if len(data) < _N_CHOICES:
        return False
    choice, rest = _Choice.of(data), data[_N_CHOICES:]
    try:
        source = _opened(choice, rest)
    except GpushardError as error:
        assert_is_told(error)
        return False
    if not _is_small(source, choice.arguments["shards"]):
        return False
    values = _outcome(lambda: source[...])
    whole = _Destination(0)
    report = _outcome(lambda: _convert(source, whole, choice))
    if isinstance(report, GpushardError):
        _assert_unfinished(whole, values)
        return False
    assert not isinstance(values, GpushardError), values
    _assert_converted(whole, source, values)
    if choice.n_before:
        _resumes(source, choice, whole)
    return True


def _opened(choice: _Choice, rest: bytes) -> gpushard.Array:
    if choice.case is not None:
        held = OneObject.room.hold(choice.case.repaired(rest))
        a = choice.case.opened(held, _OPTIONS)
    else:
        store = OneObject(target_metadata.objects_of(rest))
        a = gpushard.open_array(store, options=_OPTIONS)
    a.source.store.url = "source:"  # zarr's stores in memory are all below "memory:"
    return a


def _is_small(a: gpushard.Array, shards: Any) -> bool:
    """Whether a conversion of all of it takes but a moment."""
    if a.size * a.dtype.itemsize > _MOST_NBYTES:
        return False
    lengths = shards if isinstance(shards, tuple) else (shards,) * a.ndim
    if None in lengths or len(lengths) != a.ndim or min(lengths, default=1) < 1:
        lengths = a.shards or a.shape  # those are kept, or refused
    counts = (-(-n // max(1, m)) for n, m in zip(a.shape, lengths, strict=True))
    return prod(counts) <= _MOST_SHARDS


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except GpushardError as error:
        assert_is_told(error)
        return error


def _convert(source: gpushard.Array, to: _Destination, choice: _Choice) -> Any:
    # numcodecs has gzip write down when it was: two shards are alike but for that.
    with mock.patch.object(gzip, "time", SimpleNamespace(time=lambda: 0.0)):
        return gpushard.convert(
            source, MemoryStore(to), options=_OPTIONS, **choice.arguments
        )


def _read(there: _Destination) -> gpushard.Array:
    return gpushard.open_array(MemoryStore(there), options=_OPTIONS)


def _assert_converted(there: _Destination, source: gpushard.Array, values: Any) -> None:
    assert MARK not in there
    a = _read(there)
    assert same_bits(np.asarray(a[...]), np.asarray(values))
    assert a.dimension_names == source.dimension_names
    assert same_bits(np.asarray(a.fill_value), np.asarray(source.fill_value))


def _assert_unfinished(there: _Destination, values: Any) -> None:
    """Nothing is there, or it is marked, and its shards are right or yet to come."""
    assert not there or MARK in there, [*there]
    if "zarr.json" in there and not isinstance(values, GpushardError):
        a = _read(there)
        got, fill = np.asarray(a[...]), np.full_like(values, a.fill_value)
        assert np.all((got == values) | (got == fill) | np.isnan(values))


def _resumes(source: gpushard.Array, choice: _Choice, whole: _Destination) -> None:
    """Cut off at a change, and called again, it makes what one in one go makes."""
    cut = _Destination(choice.n_before)
    stopped = _outcome(lambda: _convert(source, cut, choice))
    if isinstance(stopped, GpushardError):
        assert isinstance(stopped, StoreError), stopped
        is_marked = not cut or MARK in cut
        assert is_marked, [*cut]
        _convert(source, cut, choice)
    assert cut.held() == whole.held()
