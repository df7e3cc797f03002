"""Answers of a server, step by step, to a reader of a sharded array behind HTTP or S3.

Input: three bytes that choose the array, its server and what is read, then steps of
three: what becomes of the next answer, and two numbers for it. Behind the last step the
server is honest, or repeats that step.

The elements of each shard are those of one version of it, or the read is refused, after
a bounded number of requests; where the server told versions apart, the next read gives
what lies there. Arrays without checksums meet only what can be told without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import zarr
from numpy.typing import NDArray

import gpushard
from fuzz.answer_steps import STEPS, Answer, stepped
from fuzz.answering import (
    AnsweringServer,
    Answers,
    Asked,
    Reply,
    missing,
    says_missing,
    served,
)
from fuzz.mutations import damaged, damaged_steps
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import CRC, LITTLE, ZSTD, document, sharding
from gpushard import GpushardError, Options
from gpushard.stores import patience
from gpushard.stores.ranged import RangedStore
from gpushard.stores.remote import RemoteStore
from gpushard.stores.remote_url import open_url
from zarr_oracle import assert_same_bits, held, write

if TYPE_CHECKING:
    import random

NAME = "answers"

_SHAPE, _SHARD = (16, 64), (16, 32)
_FILL_VALUE = -3
_VALUES = np.arange(16 * 64, dtype="i4").reshape(_SHAPE)
VERSIONS = (_VALUES.copy(), _VALUES + 5000)
# Objects of one size, whose inner chunks lie elsewhere.
VERSIONS[0][8:, 16:32] = VERSIONS[0][8:, 48:] = _FILL_VALUE
VERSIONS[1][:8, :16] = VERSIONS[1][:8, 32:48] = _FILL_VALUE
_CHAINS: tuple[list[Any], ...] = (
    [sharding([LITTLE, ZSTD, CRC])],
    [sharding([LITTLE, CRC], index_location="start")],
    [sharding([LITTLE, CRC]), ZSTD],
    [sharding([LITTLE])],
    [sharding([LITTLE], index_location="start")],
    [LITTLE],
)
# The last of them cannot tell other bytes of the right number.
_N_WITH_CHECKSUMS = 3
KEYS: tuple[Any, ...] = (
    *(..., np.s_[0:8, 0:16], np.s_[3:9, 20], np.s_[::-3, 5:60:2], np.s_[15, 40:50]),
)
_TAGS = ("strong", "weak", "date", None)
BUCKET = "bucket"
_MOST_STEPS = 16
# The steps, each with its repetition by obstore, and as many for pauses in between.
_MOST_REQUESTS = 300
_SWITCH, _DELETE = len(STEPS), len(STEPS) + 1
_N_KINDS = len(STEPS) + 2
# Those that meet the most are drawn more often.
_KINDS = (*range(_N_KINDS), *(_SWITCH,) * 6)


class _Case(NamedTuple):
    """What the first three bytes of an input say."""

    array: int
    tags: str | None
    is_s3: bool
    checks_if_match: bool
    is_small: bool
    from_opening: bool
    repeats: bool
    fetches_wholes: bool
    key: Any

    @classmethod
    def of(cls, data: bytes) -> _Case:
        bits = [bool(data[1] >> k & 1) for k in range(2, 8)]
        tags = _TAGS[data[1] % 4]
        return cls(data[0] % len(_CHAINS), tags, *bits, KEYS[data[2] % len(KEYS)])


def seeds() -> list[bytes]:
    plain = [bytes([k, flags, k]) for k in range(len(_CHAINS)) for flags in (0, 129)]
    steps = [
        bytes([kind % len(_CHAINS), flags, nth, *(0, 0, 0) * nth, kind, a, a])
        for kind in range(1, _N_KINDS)
        for nth, flags, a in ((0, 8, 1), (1, 0x80, 130), (2, 0x22, 3))
    ]
    # Between an index and the inner chunks that it says where they are.
    between = [bytes([k, flags, 2, 0, 0, 0, _SWITCH, 0, 0]) for k, flags in _SWITCHED]
    return [*plain, *steps, *between]


_SWITCHED = ((0, 0), (1, 1), (3, 1), (3, 2), (4, 0), (4, 2))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A step more, fewer, twice or another; or other bytes."""
    if len(data) < 3 or rng.random() < 0.2:
        return damaged(data, rng)
    return damaged_steps(data, rng, 3, _KINDS)


class _Scene(Answers):
    """A server's objects and steps, for one input.

    Attributes
    ----------
    n_requests
        How many were answered.
    is_honest
        Whether every answer told its version as it is.
    said_missing
        Whether one said that there is no object.
    version
        Which of the two lies there.
    is_gone
        Whether the shards were deleted.
    """

    def __init__(self, case: _Case, steps: list[bytes]) -> None:
        self.steps = steps
        self.n_requests = 0
        self.is_honest = case.tags is not None
        self.said_missing = False
        self.version = 0
        self._case = case
        self._objects = _stored(case.array)
        self.is_gone = False

    def reply(self, asked: Asked) -> Reply:
        self.n_requests += 1
        kind, a, b = self._next_step()
        if kind == _SWITCH:
            self.version = 1 - self.version
        self.is_gone |= kind == _DELETE
        kind = 0 if kind >= len(STEPS) else kind
        answer = self._answer(asked)
        reply = stepped(answer, kind, a, b)
        self.is_honest &= not answer.hides_version
        self.said_missing |= says_missing(reply.sent(asked.method))
        return reply

    def _next_step(self) -> bytes:
        if not self.steps:
            return bytes(3)
        if len(self.steps) == 1 and self._case.repeats:
            return self.steps[0]
        return self.steps.pop(0)

    def _answer(self, asked: Asked) -> Answer:
        """What an honest server answers."""
        key = asked.key.removeprefix("elsewhere/").removeprefix(f"{BUCKET}/")
        data = self._objects[self.version].get(key)
        is_shard = key != "zarr.json"
        if is_shard and self.is_gone:
            data = None
        headers = self._told()
        if data is None:
            reply = missing()
        elif self._is_refused(asked, headers):
            reply = Reply(412, [*headers, ("Content-Length", "0")])
        else:
            reply = served(asked, data, headers)
        shows_damage = is_shard and self._case.array < _N_WITH_CHECKSUMS
        return Answer(asked, reply, data, shows_damage, headers)

    def _told(self) -> list[tuple[str, str]]:
        """Headers that tell the version."""
        tags = {"strong": f'"{self.version}"', "weak": f'W/"{self.version}"'}
        told = [("ETag", tags[str(t)]) for t in [self._case.tags] if t in tags]
        if self._case.tags == "date" or self._case.is_s3:
            date = f"Mon, 01 Jan 2024 00:00:0{self.version} GMT"
            told.append(("Last-Modified", date))
        return told

    def _is_refused(self, asked: Asked, headers: list[tuple[str, str]]) -> bool:
        wanted = asked.headers.get("if-match")
        known = (None, dict(headers).get("ETag"))
        return self._case.checks_if_match and wanted not in known


@cache
def _stored(array: int) -> tuple[dict[str, bytes], ...]:
    """Objects of both versions of an array."""
    found: list[dict[str, bytes]] = []
    for version in VERSIONS:
        # Not by zarr 3.1.0, which cannot leave inner chunks out of a shard.
        store = held(write(document(_CHAINS[array], _SHAPE, _SHARD), []).objects)
        gpushard.open_array(store)[...] = version
        objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
        assert_same_bits(zarr.open_array(store)[...], version)
        found.append(objects)
    return tuple(found)


@cache
def server() -> AnsweringServer:
    return AnsweringServer()


def _settings() -> dict[str, Any]:
    """Settings of a client that repeats what fails at once, and not often."""
    at_once = timedelta(microseconds=1)
    backoff = {"init_backoff": at_once, "max_backoff": at_once}
    return {"retry_config": {"max_retries": 1, "backoff": backoff}}


@cache
def _object_store() -> Any:
    """Client of the server, as of one that speaks S3."""
    place = {"endpoint": server().url, "anon": True, "region": "us-east-1"}
    store: Any = open_url(f"s3://{BUCKET}", _settings() | place)
    return store.object_store


def reader(*, is_s3: bool) -> RangedStore:
    """Store of one request at a time, so that an input says which answer is which."""
    if is_s3:
        store: RangedStore = RemoteStore(_object_store(), f"s3://{BUCKET}")
    else:
        store = open_url(server().url, _settings())
    store.costs = replace(store.costs, concurrency=1)
    return store


def _options(case: _Case) -> Options:
    return Options(
        threads=1,
        small_read_chunks=8 if case.is_small else 0,
        compile_nbytes=2**62,
        whole_object_fraction=0.1 if case.fetches_wholes else 1,
    )


@contextmanager
def no_pauses() -> Iterator[None]:
    """Let pauses pass at once, and each request take a moment."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def monotonic() -> float:
        now[0] += 0.05
        return now[0]

    clock = SimpleNamespace(sleep=sleep, monotonic=monotonic)
    with mock.patch.object(patience, "time", clock):
        yield


def check(data: bytes) -> bool:
    if len(data) < 3:
        return False
    case = _Case.of(data)
    steps = [data[i : i + 3] for i in range(3, len(data) - 2, 3)][:_MOST_STEPS]
    steps = [bytes([step[0] % _N_KINDS]) + step[1:] for step in steps]
    scene = _Scene(case, steps if case.from_opening else [])
    server().answers = scene
    with no_pauses():
        accepted = _reads(case, scene, steps)
    server().raise_error()
    return accepted


def _reads(case: _Case, scene: _Scene, steps: list[bytes]) -> bool:
    """Whether a read among the steps was answered; then, the next one has to be."""
    try:
        a = gpushard.open_array(reader(is_s3=case.is_s3), options=_options(case))
    except GpushardError as error:
        assert_is_told(error)
        return False
    scene.steps = scene.steps or list(steps)
    try:
        got = a[case.key]
    except GpushardError as error:
        assert_is_told(error)
        accepted = False
    else:
        accepted = True
        _assert_one_version(got, case, scene)
    assert scene.n_requests <= _MOST_REQUESTS, scene.n_requests
    if scene.is_honest:
        _assert_reads_what_is_there(a, case, scene)
    return accepted


def _assert_one_version(got: NDArray[Any], case: _Case, scene: _Scene) -> None:
    """Elements are of one version of each shard, as far as that could be told."""
    shard = np.broadcast_to(np.arange(_SHAPE[1]) // _SHARD[1], _SHAPE)[case.key]
    wanted = [version[case.key] for version in VERSIONS]
    for number in (0, 1):
        here = shard == number
        if scene.said_missing and np.all(got[here] == _FILL_VALUE):
            continue
        same = [got[here] == want[here] for want in wanted]
        if scene.is_honest:
            assert any(s.all() for s in same), (case, number)
        else:  # the one's index may say where inner chunks of the other lie
            assert np.all(np.isin(got[here], VERSIONS)), (case, number)


def _assert_reads_what_is_there(a: gpushard.Array, case: _Case, scene: _Scene) -> None:
    """Nothing is remembered that a fault left behind."""
    scene.steps = []
    want = VERSIONS[scene.version][case.key]
    want = np.full_like(want, _FILL_VALUE) if scene.is_gone else want
    assert np.array_equal(a[case.key], want), case
