"""Little of each of many joined arrays is read without columns and tasks."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard import CorruptShardError, Options
from gpushard.fused import choice, opening
from gpushard.reading import joined, results
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.stores.base import NETWORK_COSTS
from gpushard.stores.local.store import LocalStore
from selection_strategies import (
    basic_keys,
    orthogonal_keys,
    point_keys,
    take_orthogonal,
)
from zarr_oracle import assert_same_bits

KINDS = [
    (5, {"chunks": (2, 3), "shards": (4, 6)}),
    (1, {"chunks": (2, 2), "compressors": None}),
    (8, {"chunks": (3, 1), "shards": (3, 4), "compressors": None}),
    (3, {"chunks": (3, 5)}),
]


def put(folder, axis):
    """Arrays of other lengths and layouts, and NumPy's concatenation of them."""
    parts = []
    for k, (length, kept) in enumerate(KINDS):
        shape = [6, 6]
        shape[axis] = length
        part = np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1000 * k
        made = zarr.create_array(folder / str(k), shape=shape, dtype="i4", **kept)
        made[...] = part
        parts.append(part)
    return np.concatenate(parts, axis)


def opened(folder, axis, **options):
    arrays = [
        gpushard.open_array(folder / str(k), device="cpu", options=Options(**options))
        for k in range(len(KINDS))
    ]
    return gpushard.concat(arrays, axis)


@pytest.fixture(scope="module", params=[0, 1])
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("little")
    return folder, request.param, put(folder, request.param)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def way(request):
    if request.param == "plain":
        yield {"compile_nbytes": 1 << 60}
        return
    pytest.importorskip("numba", reason="the compiled loops are an extra")
    choice._load()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results, "_LEAST_NBYTES", 0)
        patched.setattr(opening, "_SLOW_US", 1e9)
        yield {"compile_nbytes": 0}


@pytest.fixture
def jobs(monkeypatch):
    """Arrays that columns were made for."""
    seen, host_job = [], joined.host_job
    monkeypatch.setattr(
        joined, "host_job", lambda *given: seen.append(given[0]) or host_job(*given)
    )
    return seen


def test_a_few_inner_chunks_of_each_array_take_no_columns(place, way, jobs):
    folder, axis, full = place
    c = opened(folder, axis, small_read_chunks=64, **way)
    for key in (np.s_[...], np.s_[2:, 1::2], np.s_[::-3, 4], np.s_[3, 5]):
        assert_same_bits(c[key], full[key])
    assert jobs == []


@given(data=st.data())
def test_any_selection_lands_where_it_would_with_numpy(place, way, data):
    folder, axis, full = place
    c = opened(folder, axis, small_read_chunks=64, **way)
    for _ in range(3):
        key = data.draw(basic_keys(full.shape))
        assert_same_bits(c[key], full[key])
    key = data.draw(orthogonal_keys(full.shape))
    got = c.read(expressions.orthogonal(key, full.shape))
    assert_same_bits(got, np.asarray(take_orthogonal(full, key)))
    points = data.draw(point_keys(full.shape))
    assert_same_bits(c.read(expressions.points(points, full.shape)), full[points])


def test_yours_are_cast_into_and_may_have_any_strides(place, way, jobs):
    folder, axis, full = place
    c = opened(folder, axis, small_read_chunks=64, **way)
    out = np.full((2 * full.shape[0], full.shape[1]), -1.0, order="F")
    c.read(..., out=out[::2])
    assert_same_bits(out[::2], full.astype("f8"))
    assert (out[1::2] == -1).all()
    assert jobs == []


def test_much_of_an_array_and_several_selections_are_planned(place, way, jobs):
    folder, axis, full = place
    c = opened(folder, axis, small_read_chunks=2, **way)
    assert_same_bits(c[...], full)
    c = opened(folder, axis, small_read_chunks=64, **way)
    del jobs[:]
    first, second = c.read_many([np.s_[1:3], np.s_[:2, ::2]])
    assert_same_bits(first, full[1:3])
    assert_same_bits(second, full[:2, ::2])
    assert jobs


def test_a_report_counts_what_is_read(place, way):
    folder, axis, _ = place
    report = opened(folder, axis, small_read_chunks=64, **way).explain()
    assert report.n_inner_chunks > len(KINDS)


def test_servers_are_asked_for_all_arrays_at_once(place, jobs, monkeypatch):
    folder, axis, full = place
    c = opened(folder, axis)
    monkeypatch.setattr(LocalStore, "costs", NETWORK_COSTS)
    assert_same_bits(c[1], full[1])
    assert jobs


@pytest.fixture
def damaged(tmp_path):
    full = put(tmp_path, 0)
    (tmp_path / "3/c/0/0").write_bytes(b"no zstd")
    return tmp_path, full


def test_damage_names_its_array(damaged, way):
    folder, full = damaged
    c = opened(folder, 0, small_read_chunks=64, **way)
    with pytest.raises(CorruptShardError) as raised:
        _ = c[...]
    assert raised.value.store_url == (folder / "3").as_uri()
    assert_same_bits(c[:14], full[:14])


def test_damage_is_filled_and_reported_as_in_other_reads(damaged, way):
    folder, full = damaged
    c = opened(folder, 0, small_read_chunks=64, **way)
    expected = full.copy()
    expected[14:, :5] = 0
    seen = []
    found = c.read(..., errors=lambda error: seen.append(error.store_url))
    assert_same_bits(found, expected)
    assert seen == [(folder / "3").as_uri()]


def test_nothing_is_counted_where_nobody_asks(place, way, jobs, monkeypatch):
    folder, axis, full = place
    tallies = []
    real = joined.read_little
    monkeypatch.setattr(
        joined, "read_little", lambda *given: tallies.append(given) or real(*given)
    )
    c = opened(folder, axis, small_read_chunks=64, **way)
    assert_same_bits(c[...], full)
    assert len(tallies) == len(KINDS)
    assert not any(isinstance(one, Tally) for given in tallies for one in given)
