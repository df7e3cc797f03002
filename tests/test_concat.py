"""`concat`: several arrays read as one."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

import gpushard
from gpushard import expressions
from selection_strategies import (
    basic_keys,
    masks,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from zarr_oracle import assert_same_bits


def stored(values, chunks, shards=None, compressors=None) -> gpushard.Array:
    objects: dict = {}
    z = zarr.create_array(
        MemoryStore(objects),
        shape=values.shape,
        chunks=chunks,
        shards=shards,
        dtype=values.dtype,
        compressors=compressors,
    )
    z[...] = values
    return gpushard.open_array(MemoryStore(objects))


@functools.cache
def pieces(axis: int) -> tuple[gpushard.ConcatArray, np.ndarray]:
    """Three arrays of other lengths, chunks and codecs, and NumPy's concatenation."""
    kinds = [
        (5, (2, 3), (4, 6), ZstdCodec()),
        (1, (2, 2), None, None),
        (8, (3, 1), (3, 4), GzipCodec()),
    ]
    arrays, parts = [], []
    for k, (length, chunks, shards, codec) in enumerate(kinds):
        shape = [6, 6]
        shape[axis] = length
        part = np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1000 * k
        parts.append(part)
        arrays.append(stored(part, chunks, shards, codec))
    return gpushard.concat(arrays, axis), np.concatenate(parts, axis)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_it_looks_like_numpys_concatenation(axis):
    c, full = pieces(axis)
    assert (c.shape, c.ndim, c.size, c.nbytes) == (
        full.shape,
        2,
        full.size,
        full.nbytes,
    )
    assert (c.dtype, len(c)) == (full.dtype, len(full))
    assert_same_bits(c[...], full)
    assert "3 along axis" in repr(c)
    assert str(full.shape) in repr(c)


@given(st.sampled_from([0, 1]), st.data())
def test_any_selection_equals_that_of_numpys_concatenation(axis, data):
    c, full = pieces(axis)
    for _ in range(3):
        key = data.draw(basic_keys(full.shape))
        note(f"{key=}")
        assert_same_bits(c[key], full[key])
    key = data.draw(orthogonal_keys(full.shape))
    note(f"{key=}")
    got = c.read(expressions.orthogonal(key, full.shape))
    assert_same_bits(got, np.asarray(take_orthogonal(full, key)))
    mask = data.draw(masks(full.shape))
    assert_same_bits(c[mask], full[mask])
    points = data.draw(point_keys(full.shape))
    assert_same_bits(c.read(expressions.points(points, full.shape)), full[points])


def test_it_reads_into_your_array_and_casts():
    c, full = pieces(0)
    out = np.empty((14, 3), "f8", order="F")
    assert c.read(np.s_[:, ::2], out=out) is out
    assert_same_bits(out, full[:, ::2].astype("f8"))
    assert_same_bits(c.read(3, dtype="i8"), full[3].astype("i8"))
    with pytest.raises(gpushard.SelectionError, match="cast"):
        c.read(dtype="u1")
    with pytest.raises(gpushard.SelectionError, match="shape"):
        c.read(out=np.empty((13, 6), "i4"))


def test_arrays_without_elements_take_part():
    a = stored(np.empty((0, 3), "f4"), (2, 2))
    b = stored(np.ones((2, 3), "f4"), (2, 2))
    assert_same_bits(gpushard.concat([a, b, a])[...], np.ones((2, 3), "f4"))
    assert_same_bits(gpushard.concat([a, a])[...], np.empty((0, 3), "f4"))
    assert_same_bits(gpushard.concat([a, b])[0, 1], np.float32(1))


def test_one_array_is_enough():
    values = np.arange(5)
    assert_same_bits(gpushard.concat([stored(values, (2,))])[::-1], values[::-1])


def test_what_does_not_fit_together_is_refused():
    a = stored(np.zeros((4, 3), "i4"), (2, 2))
    other_shape = stored(np.zeros((4, 2), "i4"), (2, 2))
    other_type = stored(np.zeros((4, 3), "f4"), (2, 2))
    flat = stored(np.zeros(4, "i4"), (2,))
    scalar = stored(np.zeros((), "i4"), ())
    for arrays, axis in [
        ([], 0),
        ([a], 2),
        ([a], -3),
        ([a, other_shape], 0),
        ([a, other_type], 0),
        ([a, flat], 0),
        ([scalar, scalar], 0),
    ]:
        with pytest.raises(gpushard.SelectionError) as caught:
            gpushard.concat(arrays, axis)
        assert str(caught.value).endswith(".")
    assert gpushard.concat([a, other_shape], axis=1).shape == (4, 5)


def test_damage_is_told_with_the_array_it_is_in(tmp_path):
    root = zarr.create_group(tmp_path / "g")
    for name in "ab":
        root.create_array(name, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")[
            ...
        ] = 1
    path = tmp_path / "g" / "b" / "c" / "1"
    path.write_bytes(path.read_bytes()[:10])
    g = gpushard.open_group(tmp_path / "g")
    c = gpushard.concat([g["a"], g["b"]])
    assert (c[:12] == 1).all()
    with pytest.raises(gpushard.CorruptShardError) as caught:
        c[...]
    assert (caught.value.array_path, caught.value.shard_key) == ("b", "b/c/1")
