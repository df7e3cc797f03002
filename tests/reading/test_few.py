"""Small reads over a network: which there are, what they ask for, how often they wait.

`test_small_reads` has those of local files.
"""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from call_counts import n_calls
from gpushard import CorruptShardError
from gpushard.options import KIB, MIB, Options
from gpushard.reading import few, ranges, small
from range_server import RangeServer
from spec_shards import LITTLE, document, index_of, sharding
from zarr_oracle import assert_same_bits

# Four shards of 8 x 8 x 4 inner chunks of 4 KiB, more than is ever fetched whole.
SHAPE, CELL = (128, 128, 64), (8, 16, 16)
VALUES = np.random.default_rng(7).integers(0, 2**31, SHAPE).astype("i4")
LARGE = Options(whole_object_max_nbytes=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("few")
    z = zarr.create_array(
        place / "a", shape=SHAPE, chunks=CELL, shards=(64, 128, 64), dtype="i4"
    )
    z[...] = VALUES
    with RangeServer(place) as server:
        yield server


def opened(server, options=LARGE):
    a = gpushard.open_array(f"{server.url}/a", device="cpu", options=options)
    server.requests.clear()
    return a


def n_asked(server) -> int:
    n = len(server.requests)
    server.requests.clear()
    return n


@pytest.mark.parametrize("key", [np.s_[5, 3], np.s_[:, 5, 9], np.s_[40:80, :16, :16]])
def test_a_small_read_over_a_network_asks_for_indexes_and_then_for_inner_chunks(
    served, key
):
    a = opened(served)
    assert_same_bits(a[key], VALUES[key])
    n_first = n_asked(served)
    assert_same_bits(a[key], VALUES[key])
    shards = {at // 64 for at in np.arange(SHAPE[0])[key[0]].reshape(-1).tolist()}
    assert n_first == n_asked(served) + len(shards)


def test_a_small_read_over_a_network_takes_neither_tasks_nor_columns(served):
    a = opened(served)
    assert_same_bits(a[3, 4], VALUES[3, 4])
    # Some 150 for each request that this thread makes, and 900 of the general path.
    assert n_calls(lambda: a[3, 4, 5]) < 500


def test_requests_of_a_small_read_over_a_network_are_under_way_together(served):
    a = opened(served)
    key = np.s_[:, 20, 30]
    a[key]
    n_asked(served)
    a[key]
    n = n_asked(served)
    assert n > 2
    gate = threading.Barrier(n)  # which one after the other would never pass
    served.before_answer = lambda *_: gate.wait(10)
    try:
        assert_same_bits(a[key], VALUES[key])
    finally:
        served.before_answer = None


def test_a_gap_is_read_over_only_if_it_takes_less_than_a_request(tmp_path):
    row_nbytes, n_rows = 4 * KIB, 64
    inner = sharding((1, row_nbytes), codecs=[LITTLE])
    shape = (n_rows, row_nbytes)
    (tmp_path / "a/c/0").mkdir(parents=True)
    about = json.dumps(document(shape, shape, inner))
    (tmp_path / "a/zarr.json").write_text(about)
    entries = [(i * row_nbytes, row_nbytes) for i in range(n_rows)]
    rows = np.repeat(np.arange(n_rows, dtype="u1"), row_nbytes)
    (tmp_path / "a/c/0/0").write_bytes(rows.tobytes() + index_of(entries))
    with RangeServer(tmp_path) as server:
        a = opened(server)
        a[0, 0]
        n_asked(server)
        for wanted, n in (([0, 1], 1), ([0, 4], 1), ([0, 5], 2), ([0, 4, 40], 2)):
            assert a.oindex[wanted, 0].tolist() == wanted
            assert n_asked(server) == n


def test_more_inner_chunks_than_requests_side_by_side_are_no_small_read(
    served, monkeypatch
):
    a = opened(served)
    taken = []

    def touched(*given):
        taken.append(few.few_chunks(*given))
        return taken[-1]

    monkeypatch.setattr(small, "few_chunks", touched)
    for key, n in ((np.s_[:16], 64), (np.s_[:17], None)):
        assert_same_bits(a[key], VALUES[key])
        found = taken.pop()
        assert (None if found is None else len(found)) == n


def test_a_shard_of_which_most_is_wanted_is_fetched_whole(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=(64, 64), chunks=(32, 64), shards=(64, 64), dtype="i4"
    )
    z[...] = VALUES[0, :64, :64]
    with RangeServer(tmp_path) as server:
        a = opened(server, Options())
        assert_same_bits(a[:, 3], VALUES[0, :64, 3])
        assert n_asked(server) == 1
        b = opened(server)
        assert_same_bits(b[:, 3], VALUES[0, :64, 3])
        assert n_asked(server) == 2


# zarr 3.1.0 warns of its own codec for text.
@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_text_over_a_network_is_no_small_read(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=(64,), chunks=(4,), shards=(64,), dtype="str"
    )
    z[...] = [str(i) for i in range(64)]
    with RangeServer(tmp_path) as server:
        assert opened(server).source.few == 0
    assert gpushard.open_array(tmp_path / "a").source.few == 8


def test_gaps_of_a_small_read_over_a_network_are_few_whatever_the_options_say(served):
    # Each may have 16 KiB.
    assert opened(served, LARGE.but(small_read_chunks=1024)).source.few == 64


def test_no_read_over_a_network_is_small_if_the_options_say_so(served):
    assert opened(served, LARGE.but(small_read_chunks=0)).source.few == 0


def test_damage_in_a_small_read_over_a_network_names_its_inner_chunk(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=SHAPE, chunks=CELL, shards=(64, 128, 64), dtype="i4"
    )
    z[...] = VALUES
    path = tmp_path / "a/c/0/0/0"
    data = bytearray(path.read_bytes())
    data[0] ^= 0xFF  # the magic number of the first inner chunk
    path.write_bytes(data)
    with RangeServer(tmp_path) as server:
        a = opened(server)
        with pytest.raises(CorruptShardError) as raised:
            a[0, 0]
        assert raised.value.inner_chunk == (0, 0, 0)
        assert raised.value.shard_key == "c/0/0/0"
        assert_same_bits(a[100, 100], VALUES[100, 100])


axis = st.one_of(
    st.integers(0, 63),
    st.tuples(st.integers(0, 63), st.integers(0, 64), st.integers(1, 9)).map(
        lambda t: slice(*t)
    ),
    st.lists(st.integers(0, 63), max_size=5),
)


@given(st.tuples(axis, axis, axis), st.sampled_from([0, 8 * MIB]))
def test_small_reads_over_a_network_have_the_elements_that_are_stored(
    served, key, most
):
    a = opened(served, Options(whole_object_max_nbytes=most, memory_limit=64 * KIB))
    listed = tuple([k] if isinstance(k, int) else k for k in key)
    expected = VALUES[:64, :64, :64]
    for dimension, k in enumerate(listed):
        expected = expected[(slice(None),) * dimension + (k,)]
    shown = tuple(slice(*k.indices(64)) if isinstance(k, slice) else k for k in listed)
    assert_same_bits(a.oindex[shown], expected)


def test_small_answers_of_other_reads_are_placed_together(tmp_path, monkeypatch):
    values = np.arange(4096 * 64, dtype="i4").reshape(4096, 64)
    chunks, shape = (1, 64), values.shape
    z = zarr.create_array(
        tmp_path / "a",
        shape=shape,
        chunks=chunks,
        shards=shape,
        dtype="i4",
        compressors=None,
    )
    z[...] = values
    placed = []

    def place(job, ranged, found):
        placed.append(len(found))
        ranges_place(job, ranged, found)

    ranges_place = ranges._place
    monkeypatch.setattr(ranges, "_place", place)
    with RangeServer(tmp_path) as server:
        a = opened(server, LARGE.but(small_read_chunks=0))
        a[0]
        placed.clear()
        n_asked(server)
        assert_same_bits(a[::512], values[::512])
        assert placed == [n_asked(server)] == [8]
