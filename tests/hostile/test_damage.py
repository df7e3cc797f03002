"""``errors=``: who must get through a damaged archive gets the rest, and a report."""

from __future__ import annotations

import os
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import gpushard
from array_strategies import codec
from cuda_host.device import EmulatedDevice
from damaged_arrays import WAYS, emulated, on_host, opened
from forked import answers_in_a_fork
from gpushard import Options
from gpushard.damage import Damage, DamagePolicy, Replaced
from gpushard.errors import (
    ChecksumError,
    CorruptShardError,
    DamageWarning,
    ObjectChangedError,
    OptionError,
    StoreError,
)
from gpushard.options import KIB
from spec_shards import CRC, EMPTY, LITTLE, document, index_of, sharding
from zarr_oracle import StoredArray, held, write

ZSTD = codec("zstd", level=3, checksum=False)
VALUES = (np.add.outer(np.arange(32) ** 2, np.arange(32) * 3) % 97 + 1).astype("i4")
FILL = -5
CHAINS = {"raw": [LITTLE], "zstd": [LITTLE, ZSTD], "crc32c": [LITTLE, CRC]}
IN_FIRST_SHARD = [(0, 0), (0, 1), (1, 0), (1, 1)]


def stored(*codecs) -> StoredArray:
    meta = document((32, 32), (16, 16), *codecs, dtype="int32", fill_value=FILL)
    return write(meta, [((slice(None),) * 2, VALUES)])


@cache
def sound(chain: str) -> StoredArray:
    return stored(sharding((8, 8), codecs=CHAINS[chain]))


def with_shard(whole: StoredArray, shard: bytes) -> dict[str, bytes]:
    return {**whole.objects, "c/0/0": shard}


def entries_of(shard: bytes) -> np.ndarray:
    return np.frombuffer(shard[-68:-4], "<u8").reshape(4, 2)


def with_entry(shard: bytes, k: int, offset: int, nbytes: int) -> bytes:
    entries = entries_of(shard).copy()
    entries[k] = offset, nbytes
    return shard[:-68] + index_of(entries.tolist())


# Damage -> the shard, and the inner chunks that it costs.


def no_stream(shard: bytes) -> bytes:
    offset, nbytes = entries_of(shard)[1].tolist()
    return shard[:offset] + bytes(nbytes) + shard[offset + nbytes :]


def no_index(shard: bytes) -> bytes:
    return shard[:-40] + b"\xaa" + shard[-39:]


def shared(shard: bytes) -> bytes:
    """An inner chunk cut short, and another one in the same bytes."""
    offset, nbytes = entries_of(shard)[1].tolist()
    return with_entry(with_entry(shard, 1, offset, nbytes - 1), 2, offset, nbytes - 1)


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], list[tuple[int, int]]]] = {
    "stream": (no_stream, [(0, 1)]),
    "index": (no_index, IN_FIRST_SHARD),
    "truncated": (lambda shard: shard[:50], IN_FIRST_SHARD),
    "empty": (lambda _: b"", IN_FIRST_SHARD),
    "one sentinel": (lambda s: with_entry(s, 2, EMPTY, 4), [(1, 0)]),
    "beyond the end": (lambda s: with_entry(s, 3, 10**6, 64), [(1, 1)]),
    "wraps": (lambda s: with_entry(s, 3, 2**64 - 50, 100), [(1, 1)]),
    "too large": (lambda s: with_entry(s, 0, 0, 2**62), [(0, 0)]),
    "shared": (shared, [(0, 1), (1, 0)]),
    "too short": (lambda s: with_entry(s, 0, 0, 3), [(0, 0)]),
}
CASES = [(c, d) for c in CHAINS for d in DAMAGES if (c, d) != ("raw", "stream")]
STORES = ("local", "memory", "remote")
# Each case on each way, by one of the stores in turn: each damage meets all of them.
CASES_OF_STORES = [
    (*case, way, STORES[(k + n) % 3])
    for k, case in enumerate(CASES)
    for n, way in enumerate(WAYS)
]


def filled(costs: list[tuple[int, int]]) -> np.ndarray:
    want = VALUES.copy()
    for i, j in costs:
        want[8 * i : 8 * i + 8, 8 * j : 8 * j + 8] = FILL
    return want


@pytest.mark.parametrize(("chain", "damage", "way", "where"), CASES_OF_STORES)
def test_damaged_inner_chunks_are_filled_and_reported_once(
    chain, damage, way, where, tmp_path
):
    damaged, costs = DAMAGES[damage]
    whole = sound(chain)
    objects = with_shard(whole, damaged(whole.objects["c/0/0"]))
    if where == "memory" and damage in ("truncated", "empty"):
        where = "local"  # zarr 3.1's memory store miscounts a suffix that is too long
    a = opened(StoredArray(objects, VALUES).placed(where, tmp_path), way)
    found: list[CorruptShardError] = []
    for key in (..., np.s_[3:14, ::-1]):
        found.clear()
        got = on_host(a.read(key, errors=found.append))
        assert np.array_equal(got, filled(costs)[key])
        assert sorted(e.inner_chunk for e in found) == costs
        assert {e.shard_key for e in found} == {"c/0/0"}
        assert all(e.hint or e.codec for e in found)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inner", [False, True])
def test_a_damaged_nested_shard_costs_what_lies_in_it(way, inner, tmp_path):
    """Of the 2 x 2 nested shards of 8 x 8, each of 2 x 2 inner chunks."""
    nested = sharding((4, 4), codecs=[LITTLE])
    whole = stored(sharding((8, 8), codecs=[nested]))
    shard = bytearray(whole.objects["c/0/0"])
    offset, nbytes = entries_of(bytes(shard))[1].tolist()
    index = offset + nbytes - 68
    if inner:  # one entry of the nested shard points into its neighbour
        own = np.frombuffer(shard[index : index + 64], "<u8").reshape(4, 2).copy()
        own[2] = nbytes, 64
        shard[index : index + 68] = index_of(own.tolist())
        costs = [(1, 2)]
    else:
        shard[index] ^= 1
        costs = [(0, 2), (0, 3), (1, 2), (1, 3)]
    place = StoredArray(with_shard(whole, bytes(shard)), VALUES).placed(
        "local", tmp_path
    )
    found: list[CorruptShardError] = []
    got = on_host(opened(place, way).read(errors=found.append))
    want = VALUES.copy()
    for i, j in costs:
        want[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] = FILL
    assert np.array_equal(got, want)
    assert sorted(e.inner_chunk for e in found) == costs
    assert {type(e) for e in found} == {CorruptShardError if inner else ChecksumError}


@pytest.mark.parametrize(
    ("way", "change", "where"),
    [
        (way, change, STORES[(k + change // 3) % 3])
        for k, way in enumerate(WAYS)
        for change in (-3, 3)
    ],
)
@pytest.mark.parametrize(
    "codecs",
    [[LITTLE], [LITTLE, ZSTD], [sharding((16, 16)), ZSTD]],
    ids=["raw", "zstd", "a shard inside zstd"],
)
def test_a_damaged_object_that_is_one_inner_chunk_is_filled(
    codecs, where, way, change, tmp_path
):
    whole = stored(*codecs)
    shard = whole.objects["c/0/0"]
    objects = with_shard(whole, shard[:change] if change < 0 else shard + bytes(change))
    a = opened(StoredArray(objects, VALUES).placed(where, tmp_path), way)
    found: list[CorruptShardError] = []
    got = on_host(a.read(errors=found.append))
    assert np.array_equal(got, filled(IN_FIRST_SHARD))
    assert [e.inner_chunk for e in found] == [(0, 0)]
    with pytest.raises(CorruptShardError) as caught:
        a[...]
    is_shard = len(codecs) == 2 and codecs[0] is not LITTLE  # all of it is damaged
    cell = None if is_shard else (0, 0)
    assert (caught.value.shard_key, caught.value.inner_chunk) == ("c/0/0", cell)


def test_an_object_that_ends_early_costs_only_what_lies_beyond_its_end():
    """A zarr store does not tell sizes: the end shows when the bytes come."""
    whole = stored(sharding((8, 8), index_location="start"))
    shard = whole.objects["c/0/0"]
    a = gpushard.open_array(held(with_shard(whole, shard[:-20])))
    found: list[CorruptShardError] = []
    got = a.read(errors=found.append)
    last = int(np.argmax(np.frombuffer(shard[:64], "<u8").reshape(4, 2)[:, 0]))
    costs = [IN_FIRST_SHARD[last]]
    assert np.array_equal(got, filled(costs))
    assert [e.inner_chunk for e in found] == costs


@pytest.fixture
def one_damaged():
    whole = stored(sharding((8, 8), codecs=CHAINS["crc32c"]))
    return held(with_shard(whole, no_stream(whole.objects["c/0/0"])))


@pytest.mark.parametrize("way", WAYS)
def test_fill_warns_of_how_many_inner_chunks_it_replaced(one_damaged, way):
    a = opened(one_damaged, way)
    with pytest.warns(DamageWarning, match=r"1 damaged .*c/0/0") as caught:
        got = on_host(a.read(errors="fill"))
    assert np.array_equal(got, filled([(0, 1)]))
    assert caught[0].filename == __file__
    with pytest.warns(DamageWarning, match="1 damaged"):
        a.read_many([np.s_[:9], np.s_[0, 9]], errors="fill")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a.read(np.s_[16:], errors="fill")


def test_fill_warns_of_the_first_of_several_damaged_inner_chunks():
    def read(damage: Damage) -> str:
        for k in (2, 0, 3, 2):
            damage.note(CorruptShardError(f"damage {k}", inner_chunk=(k,)))
        return "read"

    with pytest.warns(DamageWarning, match="^3 damaged .*because: damage 2"):
        assert DamagePolicy("fill", (4,)).over(read) == "read"


@pytest.mark.parametrize("way", WAYS)
def test_the_default_is_to_raise(one_damaged, way):
    a = opened(one_damaged, way)
    for read in (lambda: a[...], lambda: a.read(errors="raise")):
        with pytest.raises(ChecksumError) as caught:
            read()
        assert caught.value.inner_chunk == (0, 1)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_callable_raises_ends_the_read(one_damaged, way):
    class StopHereError(Exception):
        pass

    def refuse(error: CorruptShardError) -> None:
        raise StopHereError from error

    with pytest.raises(StopHereError) as caught:
        opened(one_damaged, way).read(errors=refuse)
    assert isinstance(caught.value.__cause__, ChecksumError)


def test_an_inner_chunk_that_many_selections_want_is_reported_once(one_damaged):
    found: list[CorruptShardError] = []
    a = gpushard.open_array(one_damaged)
    keys = [np.s_[:9], np.s_[0, 9], np.s_[7:20, 8:12]]
    results = a.read_many(keys, errors=found.append)
    for got, key in zip(results, keys, strict=True):
        assert np.array_equal(got, filled([(0, 1)])[key])
    assert [e.inner_chunk for e in found] == [(0, 1)]


class Failing(MemoryStore):
    async def get(self, key, prototype, byte_range=None):
        if key == "c/0/0":
            raise OSError("the disk is gone")
        return await super().get(key, prototype, byte_range)


def test_damage_in_arrays_that_are_read_together_is_reported_one_at_a_time():
    now: list[CorruptShardError] = []
    most: list[int] = []

    def report(error: CorruptShardError) -> None:
        now.append(error)
        time.sleep(0.05)
        most.append(len(now))
        now.pop()

    damage = Replaced(report, (4,))
    both = [damage.of_array(url, (4,)) for url in ("memory://a", "memory://b")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.note(CorruptShardError("torn")), both))
    assert most == [1, 1]


def test_a_store_that_fails_is_not_filled_over():
    whole = stored(sharding((8, 8)))
    a = gpushard.open_array(Failing(held(whole.objects)._store_dict))
    found: list[CorruptShardError] = []
    with pytest.raises(StoreError, match="the disk is gone"):
        a.read(errors=found.append)
    assert not found


@pytest.mark.parametrize("errors", ["ignore", "", None, 1])
def test_another_way_to_treat_damage_is_refused(one_damaged, errors):
    a = gpushard.open_array(one_damaged)
    with pytest.raises(OptionError, match="errors="):
        a.read(errors=errors)


def test_a_damaged_archive_is_read_to_its_end():
    """Every inner chunk but one of a large shard is damaged."""
    n = 2000
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE, CRC]), fill_value=9)
    whole = write(meta, [((slice(None),), np.ones(n, "u1"))])
    shard = bytearray(whole.objects["c/0"])
    shard[0 : 5 * (n - 1) : 5] = bytes(n - 1)
    found: list[CorruptShardError] = []
    a = gpushard.open_array(held({**whole.objects, "c/0": bytes(shard)}))
    got = a.read(errors=found.append)
    assert (np.count_nonzero(got == 9), np.count_nonzero(got == 1)) == (n - 1, 1)
    assert len({e.inner_chunk for e in found}) == len(found) == n - 1


class Vanishing(MemoryStore):
    """A shard is gone as soon as its index was read."""

    async def get(self, key, prototype, byte_range=None):
        found = await super().get(key, prototype, byte_range)
        if key == "c/0/0":
            self._store_dict.pop(key, None)
        return found


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_that_vanishes_after_its_index_is_never_filled(way):
    whole = stored(sharding((8, 8)))
    a = opened(Vanishing(held(whole.objects)._store_dict), way)
    with pytest.raises(ObjectChangedError, match="deleted") as caught:
        a.read(np.s_[:9, :9], errors="fill")
    assert caught.value.shard_key == "c/0/0"


@pytest.mark.parametrize("damage", ["too short", "index", "wraps"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.usefixtures("device_begins_at_once")
def test_a_failed_read_leaves_nothing_queued_on_the_device(chain, damage, tmp_path):
    damaged, _ = DAMAGES[damage]
    whole = stored(sharding((8, 8), codecs=CHAINS[chain]))
    objects = with_shard(whole, damaged(whole.objects["c/0/0"]))
    device = EmulatedDevice(*emulated(), seed=1)
    place = StoredArray(objects, VALUES).placed("local", tmp_path)
    a = gpushard.open_array(place, device=device, options=Options(memory_limit=4096))
    with pytest.raises(CorruptShardError):
        a[...]
    assert not any(device._streams.values())
    assert np.array_equal(a[16:].get(), VALUES[16:])


GRID = (7, 2, 3000)


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(*(st.sampled_from((0, 1, n - 1)) for n in GRID)))
    )
)
def test_each_inner_chunk_is_told_once_whatever_others_are(coordinates):
    told: list[tuple[int, ...] | None] = []
    damage = Replaced(lambda error: told.append(error.inner_chunk), GRID)
    for coordinate in coordinates:
        damage.note(CorruptShardError("damaged", inner_chunk=coordinate))
    assert told == list(dict.fromkeys(coordinates))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_damaged_inner_chunks_side_by_side_are_remembered_in_a_bit_each():
    """Of an index with a wrong checksum: an object each takes 10 MiB for 65,536.

    In a fork, because threads that other tests left are traced, too.
    """
    error = CorruptShardError("damaged")
    n_told = 0

    def count(_: CorruptShardError) -> None:
        nonlocal n_told
        n_told += 1

    def is_small() -> bool:
        damage = Replaced(count, (2**20, 1))
        tracemalloc.start()
        for k in range(2**16):
            error.inner_chunk = (k, 0)
            damage.note(error)
        _, peak = tracemalloc.get_traced_memory()
        return n_told == 2**16 and peak < 64 * KIB

    assert answers_in_a_fork(is_small)
