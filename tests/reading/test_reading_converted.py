"""Reads that cast once they have read: what the loops do not cast, and little."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from fused_cases import (
    FUSED,
    LITTLE,
    SHAPE,
    ZSTD,
    kind_of_sink,
    need_fast_packages,
    stored,
)
from gpushard.fused.sink import FusedSink
from gpushard.placing.place import HostSink
from gpushard.reading import converted
from gpushard.selecting import expressions
from zarr_oracle import assert_same_bits, held, native

need_fast_packages()

BIG = codec("bytes", endian="big")
KEY = np.array([3, 99, 3, 50]), np.array([80, 0, 17])


def assert_cast(got, values, into):
    """As NumPy casts values, bit for bit."""
    assert got.dtype == np.dtype(into)
    assert_same_bits(native(got), values.astype(into))


@pytest.fixture(autouse=True)
def nothing_is_little(monkeypatch):
    monkeypatch.setattr(converted, "_LITTLE_NBYTES", 0)


def test_little_is_read_in_a_short_way_whatever_it_is_cast_into(
    monkeypatch, seen, tmp_path
):
    monkeypatch.setattr(converted, "_LITTLE_NBYTES", 1 << 16)
    array = stored([ZSTD], "float32")
    short = FUSED.but(small_read_chunks=8)
    a = gpushard.open_array(array.placed("local", tmp_path), options=short)
    a[...]  # the loops are loaded now
    n_before = seen.n_short
    seen.sinks.clear()
    for into in ("f4", "f8", ">f8", "c16"):
        assert_cast(
            a.read(np.s_[30:40, 10:70], dtype=into), array.full[30:40, 10:70], into
        )
    assert (seen.n_short - n_before, seen.sinks) == (4, [])


CAST_BY_NUMPY = [
    ("float32", [BIG], "f8"),
    ("float32", [BIG], ">f8"),
    ("int16", [BIG], "f4"),
    ("float64", [LITTLE], "c8"),
    ("uint8", [LITTLE], ">f4"),
]


@pytest.mark.parametrize(("dtype", "before", "into"), CAST_BY_NUMPY)
def test_casts_that_the_loops_lack_follow_a_read_in_the_loops(
    dtype, before, into, seen
):
    array = stored([ZSTD], dtype, before)
    a = gpushard.open_array(held(array.objects), options=FUSED)
    assert_cast(a.read(dtype=into), array.full, into)
    assert kind_of_sink(seen) is FusedSink
    assert_cast(
        a.read(expressions.orthogonal(KEY, SHAPE), dtype=into), a.oindex[KEY], into
    )


def test_joined_arrays_are_cast_after_a_read_in_the_loops(seen):
    array = stored([ZSTD], "float64")
    a = gpushard.open_array(held(array.objects), options=FUSED)
    both = gpushard.concat([a, a])
    want = np.concatenate([array.full, array.full])
    for limit in (None, 1 << 24):
        assert_cast(both.read(dtype="c8", memory_limit=limit), want, "c8")
        assert kind_of_sink(seen) is FusedSink
        assert kind_of_sink(seen) is FusedSink
    limit = 2 * want.nbytes - 1  # no room for the elements
    assert_cast(both.read(dtype="c8", memory_limit=limit), want, "c8")
    assert kind_of_sink(seen) is HostSink


def test_casts_that_the_loops_lack_take_no_memory_beyond_the_limit(seen):
    array = stored([ZSTD], "float64")
    options = FUSED.but(memory_limit=2 * array.full.nbytes - 1)
    a = gpushard.open_array(held(array.objects), options=options)
    assert_cast(a.read(dtype="c8"), array.full, "c8")
    assert kind_of_sink(seen) is HostSink


def test_the_read_has_what_is_left_of_the_limit_beside_its_own_array(monkeypatch):
    source = gpushard.open_array(held(stored([ZSTD], "float64").objects)).source
    out = np.zeros((1 << 10, 1 << 12), "c8")
    limits = []

    def read(beside, own):
        limits.append(beside.options.memory_limit)
        own[0][...] = 3

    assert converted.read_converted(source, [out], read)
    assert limits == [source.options.memory_limit - 8 * out.size]
    assert (out == 3).all()


def test_a_read_that_finds_no_room_beside_its_own_array_is_not_done():
    source = gpushard.open_array(held(stored([ZSTD], "float64").objects)).source
    out = np.zeros(SHAPE, "c8")

    def read(_source, _own):
        raise gpushard.LimitError("no room")

    assert not converted.read_converted(source, [out], read)
    assert (out == 0).all()


def test_a_cast_of_a_read_that_fails_raises_as_without_a_cast(seen):
    objects = dict(stored([ZSTD], "float64").objects)
    objects["c/0/0"] = b"\xff" * 40 + objects["c/0/0"][40:]
    a = gpushard.open_array(held(objects), options=FUSED)
    with pytest.raises(gpushard.CorruptShardError) as native:
        a.read()
    with pytest.raises(gpushard.CorruptShardError) as cast_too:
        a.read(dtype="c8")
    assert str(cast_too.value) == str(native.value)
