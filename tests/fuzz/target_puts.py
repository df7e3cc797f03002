"""Writes to an object store that fails on the way, and that others write to meanwhile.

Input: three bytes that choose the array and what is written where, then steps of three:
what becomes of the next request and its answer. A put may not happen, or happen and be
told to have failed; another writer may get in between; every other answer may be any
of the target `answers`. A bit says that the last step is repeated.

A write that returns is there. One that is refused has written each shard or has not.
What others wrote, and all else, is as it was; and the same write then succeeds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gpushard
from fuzz.answer_steps import STEPS, Answer, stepped
from fuzz.answering import Answers, Asked, Reply, missing, says_missing, served
from fuzz.mutations import damaged, damaged_steps
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import CRC, LITTLE, ZSTD, document, sharding
from fuzz.target_answers import BUCKET, no_pauses, reader, server
from gpushard import GpushardError, Options
from zarr_oracle import held, write

if TYPE_CHECKING:
    import random

NAME = "puts"

_SHAPE, _SHARD = (16, 32), (16, 16)
_FILL_VALUE = -3
BASE = np.arange(16 * 32, dtype="i4").reshape(_SHAPE)
_CHAINS: tuple[list[Any], ...] = (
    [sharding([LITTLE, ZSTD, CRC], chunk_shape=[8, 8])],
    [sharding([LITTLE, CRC], chunk_shape=[8, 8], index_location="start")],
    [sharding([LITTLE], chunk_shape=[8, 8]), CRC],
    [LITTLE, ZSTD, CRC],
)
KEYS: tuple[Any, ...] = (
    *(np.s_[0:5, 4:20], np.s_[3, ::3], np.s_[0:8, 0:8], np.s_[:, 0:16], np.s_[2:9, 20]),
    *(np.s_[:, 16:], np.s_[:, :20], np.s_[:, :]),
)
OTHERS, OTHERS_VALUE = np.s_[6:12, 0:3], -1000
"""What another writer writes to: inner chunks of the first shard, in part."""

_OPTIONS = Options(threads=1, small_read_chunks=0, compile_nbytes=2**62)
_MOST_STEPS = 16
_MOST_REQUESTS = 500
_OTHER_WRITER, _NOT_DONE = len(STEPS), len(STEPS) + 1
_N_KINDS = len(STEPS) + 2
# Those that meet the most are drawn more often.
_KINDS = (*range(_N_KINDS), *(_OTHER_WRITER, _NOT_DONE) * 6)
_FAILURES = (500, 503, 400, 403, 404, 409, 412, 429, 501, 0)


class _Case(NamedTuple):
    """What the first three bytes of an input say."""

    array: int
    empties: bool
    asks_first: bool
    begins_empty: bool
    repeats: bool
    key: Any

    @classmethod
    def of(cls, data: bytes) -> _Case:
        bits = [bool(data[1] >> k & 1) for k in range(4)]
        return cls(data[0] % len(_CHAINS), *bits, KEYS[data[2] % len(KEYS)])

    def value(self) -> NDArray[np.int32]:
        """Elements that are written, for the whole array."""
        return np.full_like(BASE, _FILL_VALUE) if self.empties else BASE + 5000


def seeds() -> list[bytes]:
    plain = [bytes([k, k, k + 4 * (k % 2)]) for k in range(4)]
    steps = [
        bytes([k % 4, 8 + k % 8, k, *(0, 0, 0) * (k % 3), k, k, k])
        for k in range(1, _N_KINDS)
    ]
    # Between what is read and what is put in its place.
    between = [bytes([k, 0, k, 0, 0, 0, _OTHER_WRITER, 0, 0]) for k in range(4)]
    return [*plain, *steps, *between]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A step more, fewer, twice or another; or other bytes."""
    if len(data) < 3 or rng.random() < 0.2:
        return damaged(data, rng)
    return damaged_steps(data, rng, 3, _KINDS)


class _Bucket(Answers):
    """A bucket with conditional puts, for one input.

    Attributes
    ----------
    objects
        What lies there.
    others_wrote
        Whether another writer has written.
    denied_objects
        Whether an object was said not to be there, which it may have been.
    """

    def __init__(self, objects: dict[str, bytes], *, repeats: bool) -> None:
        self.objects = dict(objects)
        self.steps: list[bytes] = []
        self._repeats = repeats
        self.n_requests = 0
        self.others_wrote = False
        self.denied_objects = False
        self._tags = dict.fromkeys(objects, 0)
        self._n_puts = 0

    def reply(self, asked: Asked) -> Reply:
        self.n_requests += 1
        kind, a, b = self._next_step()
        if kind == _OTHER_WRITER:
            self._write_as_another()
        key = asked.key.removeprefix("elsewhere/").removeprefix(f"{BUCKET}/")
        if asked.method == "POST":  # S3's way to delete
            return self._deleted(asked, kind, a, b)
        if asked.method == "PUT":
            return self._changed(asked, key, kind, a, b)
        return self._got(asked, key, kind, a, b)

    def _next_step(self) -> bytes:
        if not self.steps:
            return bytes(3)
        if len(self.steps) == 1 and self._repeats:
            return self.steps[0]
        return self.steps.pop(0)

    def _got(self, asked: Asked, key: str, kind: int, a: int, b: int) -> Reply:
        """Answer to a get; bytes that another writer would copy are none but right."""
        data, told = self.objects.get(key), self._told(key)
        reply = missing() if data is None else served(asked, data, told)
        reply = self._stepped(Answer(asked, reply, data, False, told), kind, a, b)
        # Also where a redirect has led to.
        self.denied_objects |= says_missing(reply.sent(asked.method))
        return reply

    def _changed(self, asked: Asked, key: str, kind: int, a: int, b: int) -> Reply:
        """Answer to a put, which happens or fails."""
        if kind == _NOT_DONE:
            return _failed(_FAILURES[a % len(_FAILURES)])
        if self._is_refused(asked, key):
            return Reply(412, [("Content-Length", "0")])
        self._put(key, asked.body)
        reply = Reply(200, [*self._told(key), ("Content-Length", "0")])
        return self._stepped(Answer(asked, reply, None, True, []), kind, a, b)

    def _deleted(self, asked: Asked, kind: int, a: int, b: int) -> Reply:
        """Answer to a deletion of one object, which happens or fails."""
        key = asked.body.partition(b"<Key>")[2].partition(b"</Key>")[0].decode()
        if kind == _NOT_DONE:
            status = _FAILURES[a % len(_FAILURES)]
            # There is nothing in a bucket that is not there.
            return _told_deleted("Error", key) if status == 404 else _failed(status)
        self.objects.pop(key, None)
        reply = _told_deleted("Deleted", key)
        return self._stepped(Answer(asked, reply, None, True, []), kind, a, b)

    def _stepped(self, answer: Answer, kind: int, a: int, b: int) -> Reply:
        return stepped(answer, kind if kind < len(STEPS) else 0, a, b)

    def _put(self, key: str, data: bytes) -> None:
        self._n_puts += 1
        self.objects[key], self._tags[key] = data, self._n_puts

    def _told(self, key: str) -> list[tuple[str, str]]:
        date = "Mon, 01 Jan 2024 00:00:00 GMT"
        return [("ETag", f'"t{self._tags.get(key)}"'), ("Last-Modified", date)]

    def _is_refused(self, asked: Asked, key: str) -> bool:
        is_there, tag = key in self.objects, self._told(key)[0][1]
        if asked.headers.get("if-none-match") == "*":
            return is_there
        wanted = asked.headers.get("if-match")
        return wanted is not None and not (is_there and wanted == tag)

    def _write_as_another(self) -> None:
        self.others_wrote = True
        store = held(self.objects)
        gpushard.open_array(store, options=_OPTIONS)[OTHERS] = OTHERS_VALUE
        key = next(key for key in store._store_dict if key.endswith("0/0"))
        self._put(key, store._store_dict[key].to_bytes())


def _failed(status: int) -> Reply:
    """Answer of that status, and a reset for 0."""
    length = [("Content-Length", "0")]
    return Reply(status, length, is_reset=status == 0, is_last=True)


def _told_deleted(what: str, key: str) -> Reply:
    why = "<Code>AccessDenied</Code><Message>no</Message>" if what == "Error" else ""
    told = f"<{what}><Key>{key}</Key>{why}</{what}>"
    name = 'DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    body = f"<{name}>{told}</DeleteResult>".encode()
    return Reply(200, [("Content-Length", str(len(body)))], body)


@cache
def _stored(array: int, *, begins_empty: bool) -> dict[str, bytes]:
    layout = document(_CHAINS[array], _SHAPE, _SHARD)
    found = write(layout, [(..., BASE)]).objects
    return {"zarr.json": found["zarr.json"]} if begins_empty else found


def check(data: bytes) -> bool:
    if len(data) < 3:
        return False
    case = _Case.of(data)
    steps = [data[i : i + 3] for i in range(3, len(data) - 2, 3)][:_MOST_STEPS]
    objects = _stored(case.array, begins_empty=case.begins_empty)
    bucket = _Bucket(objects, repeats=case.repeats)
    server().answers = bucket
    store = reader(is_s3=True)
    store.puts_conditionally = None if case.asks_first else True
    with no_pauses():
        a = gpushard.open_array(store, options=_OPTIONS)
        bucket.steps = [bytes([step[0] % _N_KINDS]) + step[1:] for step in steps]
        accepted = _writes(a, case, bucket)
        bucket.steps = []
        _assert_told_what_is_there(a, case, bucket, is_written=accepted)
        a[case.key] = case.value()[case.key]
    _assert_all_there(case, bucket)
    server().raise_error()
    return accepted


def _writes(a: gpushard.Array, case: _Case, bucket: _Bucket) -> bool:
    try:
        a[case.key] = case.value()[case.key]
    except GpushardError as error:
        assert_is_told(error)
        accepted = False
    else:
        accepted = True
    server().raise_error()
    assert bucket.n_requests <= _MOST_REQUESTS, bucket.n_requests
    return accepted


def _elements(bucket: _Bucket) -> NDArray[np.int32]:
    return gpushard.open_array(held(bucket.objects), options=_OPTIONS)[...]


def _before(case: _Case) -> NDArray[np.int32]:
    return np.full_like(BASE, _FILL_VALUE) if case.begins_empty else BASE


def _masks(case: _Case, bucket: _Bucket) -> tuple[NDArray[np.bool_], ...]:
    """What this write writes to, and what another one has written to."""
    ours, others = np.zeros_like(BASE, bool), np.zeros_like(BASE, bool)
    ours[case.key] = True
    others[OTHERS] = bucket.others_wrote
    return ours, others


def _assert_told_what_is_there(
    a: gpushard.Array, case: _Case, bucket: _Bucket, *, is_written: bool
) -> None:
    """Old or new by shard; what others wrote is there, or written over by this one."""
    got, value, before = _elements(bucket), case.value(), _before(case)
    ours, others = _masks(case, bucket)
    assert np.array_equal(got[~ours & ~others], before[~ours & ~others]), case
    assert np.all(got[others & ~ours] == OTHERS_VALUE), case
    both = ours & others
    # Nothing has to be done to make what is not there the fill value.
    is_done = is_written and not (case.empties and bucket.denied_objects)
    assert np.all((got == value)[both] | (got == OTHERS_VALUE)[both]), case
    for shard in (np.s_[:, :16], np.s_[:, 16:]):
        mine = (ours & ~others)[shard]
        is_new = np.array_equal(got[shard][mine], value[shard][mine])
        is_old = np.array_equal(got[shard][mine], before[shard][mine])
        assert is_new or (is_old and not is_done), (case, shard)
    assert np.array_equal(a[...], got), case


def _assert_all_there(case: _Case, bucket: _Bucket) -> None:
    ours, others = _masks(case, bucket)
    want = np.where(others, OTHERS_VALUE, _before(case))
    assert np.array_equal(_elements(bucket), np.where(ours, case.value(), want)), case
