"""Outputs of another data type: the compiled loops cast as NumPy does, bit for bit."""

from __future__ import annotations

import ctypes
import json
import platform
import warnings
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import (
    CHAINS,
    FUSED,
    LITTLE,
    SHAPE,
    VALUES,
    ZSTD,
    assert_all_fused,
    kind_of_sink,
    need_fast_packages,
    stored,
    take_way,
)
from gpushard.formats.data_types import dtype_of_numbers
from gpushard.fused.code import machine_code
from gpushard.fused.code.elf import MachineCode
from gpushard.fused.columns import CASTS
from gpushard.fused.sink import FusedSink
from gpushard.placing.scatter import holds_kind_of
from gpushard.selecting import expressions
from selection_strategies import (
    basic_keys,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from zarr_oracle import StoredArray, assert_same_bits, held, native

need_fast_packages()

DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
CHAINS_HERE = ["raw", "crc32c", "zstd", "blosc lz4 shuffle 512"]
BIG = codec("bytes", endian="big")
WAYS = ["memory", "whole", "requests", "short", "one call"]


@cache
def opened(dtype: str, chain: str) -> gpushard.Array:
    array = stored(CHAINS[chain], np.dtype(dtype).name, negated=dtype[0] in "if")
    return gpushard.open_array(held(array.objects), options=FUSED)


def cast(values, dtype):
    """What NumPy makes of values."""
    out = np.empty(values.shape, dtype)
    with np.errstate(all="ignore"):
        np.copyto(out, values, casting="unsafe")
    return out


def assert_cast(got, values, into):
    assert got.dtype == np.dtype(into)
    assert_same_bits(native(got), cast(values, into))


def spread(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An output with strides of any order, sign and distance."""
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, -1, 2, -3])] * len(shape)))
    wide = [shape[k] * abs(steps[k]) for k in order]
    out = np.zeros(wide, dtype).transpose(np.argsort(order))
    out = out[(*(slice(None, None, step) for step in steps), ...)]
    assert out.shape == shape
    return out


@given(st.data())
def test_any_selection_is_cast_as_numpy_casts_it(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    chain = data.draw(st.sampled_from(CHAINS_HERE))
    outs = [d for d in DTYPES if holds_kind_of(np.dtype(dtype), np.dtype(d))]
    into = data.draw(st.sampled_from(["<", ">"])) + data.draw(st.sampled_from(outs))
    a = opened(dtype, chain)
    kind = data.draw(st.sampled_from(["basic", "orthogonal", "points"]))
    if kind == "basic":
        key = data.draw(basic_keys(SHAPE))
        want, chosen = a[...][key], key
    elif kind == "orthogonal":
        key = data.draw(orthogonal_keys(SHAPE))
        want, chosen = take_orthogonal(a[...], key), expressions.orthogonal(key, SHAPE)
    else:
        key = data.draw(point_keys(SHAPE))
        want, chosen = a[...][key], expressions.points(key, SHAPE)
    out = spread(data, np.shape(want), into)
    a.read(chosen, out=out)
    assert_cast(out, np.asarray(want), into)


def edges(dtype: np.dtype) -> np.ndarray:
    """Elements of many bits: ties, the least and largest numbers, infinities, NaN."""
    size = dtype.itemsize
    rng = np.random.default_rng(3)
    if dtype.kind == "b":
        return rng.integers(0, 2, 4096, dtype="u1").view(bool)
    bits = [rng.integers(0, 256, 4096 * size, dtype="u1").view(f"u{size}")]
    if dtype in ("u8", "i8"):  # in a float64 it would be a tie
        bits.append(np.full(1024, (1 << 62) + (1 << 38) + 1, "u8"))
        bits.append(np.arange(3072, dtype="u8"))
    if dtype == "f2":  # NumPy's own NaN: what it does to others depends on the CPU
        every = np.arange(1 << 16, dtype="u2")
        bits = [every[~np.isnan(every.view("f2"))], np.full(1, np.nan, "f2").view("u2")]
    if dtype == "f4":
        high = np.arange(0, 1 << 19, 7, dtype="u4") << 13
        low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], "u4")
        bits = [np.add.outer(high, low).ravel()]
    found = np.concatenate(bits).view(dtype)
    return (
        found if dtype != "f4" else np.where(np.isnan(found), np.float32("nan"), found)
    )


def written(place, values: np.ndarray) -> None:
    """An uncompressed array; of bfloat16, which zarr has not, as its bits at first."""
    n, dtype = len(values), values.dtype
    bits = values if dtype.isbuiltin == 1 else values.view("u2")
    a = gpushard.create_array(
        place,
        shape=(n,),
        dtype=bits.dtype,
        chunks=(512,),
        shards=(n,),
        compressors=None,
    )
    a[...] = bits
    if bits is not values:
        document = json.loads((place / "zarr.json").read_text())
        document |= {"data_type": dtype.name, "fill_value": 0.0}
        (place / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(("dtype", "into"), CASTS)
def test_every_cast_gives_the_bits_that_numpy_gives(dtype, into, seen, tmp_path):
    dtype, into = dtype_of_numbers(dtype), dtype_of_numbers(into)
    values = edges(dtype)
    n = 1 << int(np.log2(len(values)))
    written(tmp_path, values[:n])
    out = np.empty(n, into)
    with np.errstate(all="raise"):  # the caller asked for the cast
        gpushard.open_array(tmp_path, options=FUSED).read(out=out)
    assert_all_fused(seen)
    assert_cast(out, values[:n], into)


WHOLE = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]


@pytest.mark.parametrize("dtype", ["?", *WHOLE])
def test_integers_of_every_size_are_cast_into_every_other(dtype, seen, tmp_path):
    values = edges(np.dtype(dtype))[:4096]
    written(tmp_path, values)
    a = gpushard.open_array(tmp_path, options=FUSED)
    for into in WHOLE:
        if holds_kind_of(np.dtype(dtype), np.dtype(into)):
            assert_cast(a.read(dtype=into), values, into)
    assert_all_fused(seen)


@pytest.mark.parametrize("into", ["u1", "i2", "i8", "f2", "f8", "?"])
def test_any_byte_but_zero_is_a_true_boolean_of_any_type(into, seen, tmp_path):
    stored_bytes = np.arange(512, dtype="u1")
    written(tmp_path, stored_bytes)
    document = (tmp_path / "zarr.json").read_text()
    document = document.replace('"uint8"', '"bool"')
    document = document.replace('"fill_value": 0', '"fill_value": false')
    (tmp_path / "zarr.json").write_text(document)
    got = gpushard.open_array(tmp_path, options=FUSED).read(dtype=into)
    assert_cast(got, stored_bytes != 0, into)
    assert_all_fused(seen)


@contextmanager
def without_subnormals():
    """The CPU takes subnormal numbers as zero, as `torch.set_flush_denormal` has it."""
    load = MachineCode(bytes.fromhex("0fae17c3"), 0, ())  # ldmxcsr [rdi]; ret
    mapped = machine_code.map_code(load)
    assert mapped is not None
    function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(mapped.address)
    function(ctypes.c_uint32(0x9FC0))
    try:
        yield
    finally:
        function(ctypes.c_uint32(0x1F80))


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="sets a register of that machine"
)
def test_subnormal_halves_are_cast_whatever_the_cpu_does_with_subnormals(tmp_path):
    bits = np.add.outer([0, 0x8000], np.arange(1024)).ravel()
    values = bits.astype("u2").view("f2")
    a = gpushard.create_array(
        tmp_path, shape=(2048,), dtype="f2", chunks=(512,), compressors=None
    )
    a[...] = values
    a = gpushard.open_array(tmp_path, options=FUSED)
    out = np.empty(2048, "f4")
    with without_subnormals():
        a.read(out=out)
    assert_cast(out, values, "f4")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("into", ["f8", "f2", ">f4"])
@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc zstd shuffle 512"])
def test_casts_take_every_way_of_the_loops(
    chain, into, way, seen, monkeypatch, tmp_path
):
    array = stored(CHAINS[chain], "float32", negated=True)
    place = held(array.objects) if way == "memory" else array.placed("local", tmp_path)
    take_way(monkeypatch, way)
    a = gpushard.open_array(place, options=FUSED)
    # Neighbours of halves lie as far apart as those of the elements that are stored.
    out = np.empty((SHAPE[0], 2 * SHAPE[1]), into)[:, ::2]
    a.read(out=out)
    assert_cast(out, array.full, into)
    assert_all_fused(seen)
    assert seen.n_short == (way in ("short", "one call"))


def test_points_of_any_size_take_the_short_way(seen, monkeypatch, tmp_path):
    a = gpushard.open_array(stored([ZSTD]).placed("local", tmp_path), options=FUSED)
    take_way(monkeypatch, "short")
    key = np.array([3, 99, 50, 3]), np.array([80, 0, 17, 80])
    for n_short, into in enumerate((">i4", "f8", "f4"), 1):
        got = a.read(expressions.points(key, SHAPE), dtype=into)
        assert_cast(got, VALUES[key], into)
        assert seen.n_short == n_short


def test_missing_inner_chunks_yield_the_fill_value_cast(seen, tmp_path):
    a = gpushard.create_array(
        tmp_path, shape=(64,), dtype="f4", chunks=(8,), shards=(32,), fill_value=0.1
    )
    a[8:16] = np.arange(8)
    want = a[...].astype("f8")
    assert_same_bits(
        gpushard.open_array(tmp_path, options=FUSED).read(dtype="f8"), want
    )
    assert want[0] == np.float32(0.1)
    assert_all_fused(seen)


def test_damaged_inner_chunks_are_told_of_and_cast(seen):
    objects = dict(stored([ZSTD], "float32").objects)
    key = "c/0/0"
    objects[key] = b"\xff" * 40 + objects[key][40:]
    a = gpushard.open_array(held(objects), options=FUSED)
    found, native = [], []
    got = a.read(dtype="f8", errors=found.append)
    assert_same_bits(got, a.read(errors=native.append).astype("f8"))
    assert list(map(str, found)) == list(map(str, native)) != []
    assert seen.n_left > 0


@pytest.mark.parametrize("is_local", [False, True])
def test_what_the_loops_leave_to_python_is_cast_without_a_warning(
    seen, tmp_path, is_local
):
    objects = dict(stored([ZSTD], "float32").objects)
    objects["zarr.json"] = objects["zarr.json"].replace(
        b'"fill_value": 0', b'"fill_value": 1e20'
    )
    objects["c/0/0"] = b"\xff" * 40 + objects["c/0/0"][40:]
    array = StoredArray(objects, VALUES)
    place = array.placed("local", tmp_path) if is_local else held(objects)
    a = gpushard.open_array(place, options=FUSED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = a.read(dtype="f2", errors=lambda _: None)
    assert np.isinf(got[:32, :16]).all()
    assert seen.n_left > 0


@pytest.mark.usefixtures("settled")
def test_kept_inner_chunks_are_cast(tmp_path, seen):
    array = stored([ZSTD], "float32", negated=True)
    options = FUSED.but(chunk_cache_nbytes=1 << 20)
    a = gpushard.open_array(array.placed("local", tmp_path), options=options)
    for into in ("f8", "f2", ">f4", "f4"):
        assert_cast(a.read(dtype=into), array.full, into)
    assert a.source.chunks
    assert_all_fused(seen)


def test_outputs_of_several_data_types_are_read_in_the_loops_together(seen):
    a = opened("f4", "zstd")
    outs = [np.empty((10, 90), "f8"), np.empty((100, 20), "f8"), np.empty(100, "f2")]
    keys = [np.s_[20:30], np.s_[:, 70:50:-1], np.s_[:, 3]]
    for some in (slice(2), slice(3)):
        for out in outs:
            out[...] = 0
        a.read_many(keys[some], out=outs[some])
        assert kind_of_sink(seen) is FusedSink
        for key, out in zip(keys[some], outs[some], strict=True):
            assert_cast(out, a[...][key], out.dtype)
        seen.sinks.clear()


LINES = [np.s_[:, ::-1], np.s_[::3, 5:80:7], np.s_[::-1, 80:5:-3]]


@pytest.mark.parametrize("key", LINES)
@pytest.mark.parametrize("into", ["f8", "f2", "i2", ">i4", "c8"])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_elements_that_lie_apart_are_cast_as_neighbours_are(order, into, key, seen):
    turned = [codec("transpose", order=order), LITTLE]
    array = stored([ZSTD], "int32", turned, negated=True)
    a = gpushard.open_array(held(array.objects), options=FUSED)
    for step in (1, 2, -1):
        wide = np.zeros(
            (*array.full[key].shape[:1], 2 * array.full[key].shape[1]), into
        )
        out = wide[:, :: 2 if step == 2 else 1][:, : array.full[key].shape[1]]
        out = out[:, ::-1] if step == -1 else out
        a.read(key, out=out)
        assert_cast(out, array.full[key], into)
    assert_all_fused(seen)


@pytest.mark.parametrize("key", LINES)
@pytest.mark.parametrize(
    ("dtype", "before"),
    [("int16", BIG), ("float32", BIG), ("float64", BIG), ("bool", LITTLE)],
)
def test_elements_that_lie_apart_are_reversed_as_neighbours_are(
    dtype, before, key, seen
):
    array = stored([ZSTD], dtype, [before])
    a = gpushard.open_array(held(array.objects), options=FUSED)
    assert_same_bits(a[key], array.full[key])
    assert_all_fused(seen)
