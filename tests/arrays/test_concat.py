"""`concat`: several arrays read as one."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import zarr
from hypothesis import given, note
from hypothesis import strategies as st
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

import gpushard
from gpushard.reading import joined
from gpushard.selecting import expressions
from rolling_arrays import rolling
from selection_strategies import (
    basic_keys,
    masks,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from spec_shards import LITTLE, document
from tiny_bounds import tiny_bounds
from zarr_oracle import assert_same_bits, held


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


def test_what_is_planned_is_read_before_elements_that_are_listed(monkeypatch):
    c, full = pieces(0)
    steps: list[object] = []
    execute, in_rounds = joined.execute, joined.read_in_rounds
    monkeypatch.setattr(
        joined, "execute", lambda jobs: (steps.append(len(jobs)), execute(jobs))
    )
    monkeypatch.setattr(
        joined,
        "read_in_rounds",
        lambda *given: (steps.append("rounds"), in_rounds(*given)),
    )
    monkeypatch.setattr(joined, "read_little", lambda *_: False)
    with tiny_bounds():
        index = np.array([5, 7, 5, 13])  # none in the first array
        listed = expressions.orthogonal((index, slice(None)), full.shape)
        first, second = c.read_many([np.s_[1:3], listed])
    assert_same_bits(first, full[1:3])
    assert_same_bits(second, full[index])
    assert steps == [1, "rounds", "rounds", 0]


def uneven(*lengths) -> gpushard.Array:
    """Array of no elements that are stored; chunks of a list of lengths differ."""
    meta = document([sum(n) if isinstance(n, list) else 4 for n in lengths], (), LITTLE)
    shapes = {"kind": "inline", "chunk_shapes": lengths}
    meta["chunk_grid"] = {"name": "rectilinear", "configuration": shapes}
    return gpushard.open_array(held({"zarr.json": json.dumps(meta).encode()}))


def test_the_block_of_joined_arrays_is_a_shard_that_all_have_in_line():
    a, b, c = (
        stored(np.zeros((n, 4), "u1"), (1, 2), shards)
        for n, shards in ((6, (3, 4)), (5, (3, 4)), (3, (3, 2)))
    )
    assert gpushard.concat([a, b]).block_shape == (3, 4)
    for arrays in ([b, a], [a, c], [uneven([2, 1], 4)], [uneven(4, [1, 2])]):
        assert gpushard.concat(arrays).block_shape is None


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


@given(st.sampled_from([0, 1]), st.data())
def test_many_selections_are_read_in_one_batch(axis, data):
    c, full = pieces(axis)
    keys = data.draw(st.lists(basic_keys(full.shape), max_size=4))
    note(f"{keys=}")
    for key, result in zip(keys, c.read_many(keys), strict=True):
        assert_same_bits(result, np.asarray(full[key]))


def test_many_results_land_in_your_arrays():
    c, full = pieces(0)
    outs = [np.empty((14, 6), "f8"), np.empty(6, "i8")]
    results = c.read_many([np.s_[...], np.s_[7]], out=outs)
    assert all(r is o for r, o in zip(results, outs, strict=True))
    assert np.array_equal(outs[0], full)
    assert np.array_equal(outs[1], full[7])


def test_a_report_counts_all_arrays_that_take_part():
    c, full = pieces(0)
    report = c.explain(np.s_[4:6])
    assert report.n_shards == 1 + 3
    assert report.n_inner_chunks == 2 + 3
    assert report.out_nbytes == full[4:6].nbytes
    assert [codec.codec for codec in report.codecs] == ["zstd", "bytes"]
    assert str(report).startswith("array         concat of 3, from memory://")
    assert [codec.codec for codec in c.explain().codecs] == ["zstd", "bytes", "gzip"]
    assert c.explain(np.s_[:0]).n_shards == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda c: c[99],
        lambda c: c.oindex[[99]],
        lambda c: c.vindex[[99], [0]],
        lambda c: c.read(dtype="no such type"),
        lambda c: c.read(dtype="?"),
        lambda c: c.read(out=np.empty(3)),
        lambda c: c.read(stream=1),
        lambda c: c.read_many([0, 1], out=[None]),
        lambda c: c.explain(99),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_arrays(read):
    with pytest.raises(gpushard.SelectionError) as caught:
        read(pieces(0)[0])
    assert caught.value.array_path.startswith("concat of 3, from memory://")


@pytest.mark.parametrize(
    "indexer", [lambda c: c, lambda c: c.oindex, lambda c: c.vindex]
)
def test_nothing_is_written_to_arrays_that_were_joined(indexer):
    with pytest.raises(gpushard.UnsupportedError, match="write to each of them"):
        indexer(pieces(0)[0])[0, 0] = 1


def test_a_failing_store_is_told_with_the_array_it_failed(tmp_path):
    root = zarr.create_group(tmp_path / "g")
    for name in "ab":
        root.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    (tmp_path / "g" / "b" / "c" / "1").unlink()
    (tmp_path / "g" / "b" / "c" / "1").mkdir()
    g = gpushard.open_group(tmp_path / "g")
    with pytest.raises(gpushard.StoreError) as caught:
        gpushard.concat([g["a"], g["b"]])[...]
    assert caught.value.array_path == "b"


def test_arrays_of_several_stores_are_told_by_their_addresses(tmp_path):
    arrays = []
    for name in "ab":
        z = zarr.create_array(
            tmp_path / name, shape=(64,), chunks=(2,), shards=(4,), dtype="i4"
        )
        z[...] = 1
        arrays.append(gpushard.open_array(tmp_path / name))
    damaged = tmp_path / "b" / "c" / "1"
    damaged.write_bytes(damaged.read_bytes()[:10])
    for read in (lambda c: c[...], lambda c: c.explain()):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            read(gpushard.concat(arrays))
        assert caught.value.store_url == (tmp_path / "b").as_uri()
    damaged.unlink()
    damaged.mkdir()
    with pytest.raises(gpushard.StoreError) as caught:
        gpushard.concat(arrays)[...]
    assert caught.value.store_url == (tmp_path / "b").as_uri()
    with pytest.raises(gpushard.SelectionError, match=str(tmp_path / "b")):
        gpushard.concat([arrays[0], flat_array(tmp_path / "b" / "flat")])


def flat_array(path):
    """Array of another data type."""
    zarr.create_array(path, shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    return gpushard.open_array(path)


def test_what_gpushard_did_not_open_is_refused_at_once(tmp_path):
    z = zarr.create_array(tmp_path, shape=(4,), dtype="i4")
    a = gpushard.open_array(z)
    for wrong, words in (
        (a, "a list of arrays"),
        ([a, z], "gpushard opened"),
        ([np.zeros(4, "i4")], "gpushard opened"),
        ([rolling(tmp_path / "rolling", 0, 2)], "a rolling one has view"),
        (iter([]), "at least one"),
    ):
        with pytest.raises(gpushard.SelectionError, match=words):
            gpushard.concat(wrong)
    assert gpushard.concat(iter([a, a])).shape == (8,)


def test_what_was_joined_is_refused_with_what_to_do(tmp_path):
    made = zarr.create_array(tmp_path / "a", shape=(2,), chunks=(2,), dtype="i4")
    made[...] = 1
    a = gpushard.open_array(tmp_path / "a")
    joined = gpushard.concat([a, a])
    with pytest.raises(gpushard.UnsupportedError, match="all arrays at once"):
        gpushard.concat([joined, a])


def damaged_pair(tmp_path):
    """Two arrays in stores of their own, the same inner chunk damaged in both."""
    arrays = []
    for name in "ab":
        z = zarr.create_array(
            tmp_path / name,
            shape=(8,),
            chunks=(2,),
            shards=(4,),
            dtype="i4",
            fill_value=-1,
        )
        z[...] = np.arange(8)
        shard = tmp_path / name / "c" / "0"
        data = bytearray(shard.read_bytes())
        index = np.frombuffer(data[-36:-4], "<u8").reshape(2, 2)
        data[int(index[1, 0])] ^= 0xFF
        shard.write_bytes(data)
        arrays.append(gpushard.open_array(tmp_path / name))
    return gpushard.concat(arrays)


def test_damage_in_each_array_is_replaced_and_told_with_its_store(tmp_path):
    joined, found = damaged_pair(tmp_path), []
    expected = np.tile(np.arange(8), 2)
    expected[[2, 3, 10, 11]] = -1
    np.testing.assert_array_equal(joined.read(errors=found.append), expected)
    assert [error.inner_chunk for error in found] == [(1,), (1,)]
    assert {error.store_url for error in found} == {
        (tmp_path / name).as_uri() for name in "ab"
    }
    with pytest.warns(gpushard.DamageWarning, match="2 damaged inner chunks") as told:
        joined.read_many([np.s_[:4], np.s_[6:12]], errors="fill")
    assert told[0].filename == __file__
    with pytest.raises(gpushard.CorruptShardError):
        joined.read()
    with pytest.raises(gpushard.OptionError):
        joined.read(errors="ignore")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_arrays_that_are_too_long_together_are_refused(n):
    a = gpushard.open_array(
        held({"zarr.json": json.dumps(document((2**62,), (2**20,), LITTLE)).encode()})
    )
    with pytest.raises(gpushard.SelectionError, match=f"got {n * 2**62}"):
        gpushard.concat([a] * n)
    assert gpushard.concat([a])[2**62 - 2 :].tolist() == [0, 0]


@pytest.mark.parametrize("shards", [None, (4, 2)])
@pytest.mark.parametrize(
    "key",
    [np.s_[:], np.s_[8:20, 3:5], np.s_[10:14, 4], np.s_[::-3, 1]],
    ids=["all", "box", "column", "steps"],
)
def test_a_part_that_is_missing_fills_no_elements_of_the_others(key, shards, tmp_path):
    """Each part is read into the output of all, and the short ways fill it at once."""
    parts = []
    for name, fill_value in ("stored", 0), ("missing", 7):
        how = {"chunks": (4, 2), "shards": shards, "fill_value": fill_value}
        gpushard.create_array(tmp_path / name, shape=(12, 20), dtype="i4", **how)
        now = gpushard.Options(compile_nbytes=0)
        parts.append(gpushard.open_array(tmp_path / name, device="cpu", options=now))
    values = np.arange(240).reshape(12, 20)
    parts[0][...] = values
    want = np.concatenate([values, np.full((12, 20), 7), values])
    joined = gpushard.concat([*parts, parts[0]])
    for part in parts:
        part[...]  # the loops are loaded, and the short ways found
    assert np.array_equal(joined[key], want[key])
    rows = [3, 11, 12, 25]
    assert np.array_equal(joined.oindex[rows, 2:4], want[rows, 2:4])
    assert np.array_equal(joined.vindex[rows, [2] * 4], want[rows, 2])
