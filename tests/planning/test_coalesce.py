"""Byte ranges -> requests -> batches: what every result must keep, whatever goes in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked_store import opened, put
from gpushard.options import MIB
from gpushard.planning.coalesce import coalesce, cut_batches
from gpushard.stores.base import FetchCosts
from spec_shards import LITTLE, document, sharding


def requests_for(ranges, gap_nbytes=0, max_request_nbytes=10**9, is_bound=False):
    """Coalesced ``(source, start, stop)`` triples, ascending by source."""
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    return coalesce(
        *columns,
        gap_nbytes=gap_nbytes,
        max_request_nbytes=max_request_nbytes,
        is_bound=is_bound,
    )


def spelled(requests):
    """``(source, start, stop, rows)`` of each request."""
    bounds = requests.bounds.tolist()
    return [
        (*row, requests.order[a:b].tolist())
        for *row, a, b in zip(
            requests.source.tolist(),
            requests.start.tolist(),
            requests.stop.tolist(),
            bounds[:-1],
            bounds[1:],
            strict=True,
        )
    ]


byte_ranges = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(0, 30)), max_size=25
).map(lambda rows: [(s, a, a + n) for s, a, n in sorted(rows, key=lambda row: row[0])])


@given(byte_ranges, st.integers(0, 12), st.integers(1, 80), st.booleans())
def test_every_range_is_served_once_and_lies_inside_its_request(
    ranges, gap, largest, is_bound
):
    served = []
    requests = requests_for(ranges, gap, largest, is_bound)
    for source, start, stop, rows in spelled(requests):
        served += rows
        assert {ranges[row][0] for row in rows} == {source}
        assert start == min(ranges[row][1] for row in rows)
        assert stop == max(ranges[row][2] for row in rows)
    assert sorted(served) == list(range(len(ranges)))


def test_ranges_that_together_have_the_largest_size_are_one_request():
    ranges = [(0, 3, 8), (0, 8, 13), (0, 13, 14)]
    requests = requests_for(ranges, 0, 10, is_bound=True)
    assert spelled(requests) == [(0, 3, 13, [0, 1]), (0, 13, 14, [2])]


@given(byte_ranges, st.integers(0, 12), st.integers(1, 80))
def test_no_request_spans_a_larger_gap_than_allowed(ranges, gap, largest):
    for source, start, stop, _ in spelled(requests_for(ranges, gap, largest)):
        # Bytes that anyone wants of the object, in this request or the next to it.
        wanted = sorted(
            (max(a, start), min(b, stop))
            for s, a, b in ranges
            if s == source and start <= b and a <= stop
        )
        reach = start
        for a, b in wanted:
            assert a - reach <= gap
            reach = max(reach, b)
        assert reach == stop


def runs_of(ranges, gap):
    """Start of the first and of the last range of each run without a larger gap."""
    runs = []
    for source, a, b in sorted(ranges):
        if not runs or runs[-1][0] != source or a > runs[-1][3] + gap:
            runs.append([source, a, a, b])
        runs[-1][2] = a
        runs[-1][3] = max(runs[-1][3], b)
    return [(first, last) for _, first, last, _ in runs]


@given(byte_ranges, st.integers(0, 12), st.integers(1, 80))
def test_there_are_no_more_requests_than_runs_and_cuts_of_long_runs(
    ranges, gap, largest
):
    runs = runs_of(ranges, gap)
    assert len(requests_for(ranges, gap).source) == len(runs)
    n_most = sum(1 + (last - first) // largest for first, last in runs)
    assert len(requests_for(ranges, gap, largest).source) <= n_most


@given(byte_ranges, st.integers(0, 12), st.integers(1, 80))
def test_a_request_is_smaller_than_the_largest_plus_one_range(ranges, gap, largest):
    longest = max((b - a for _, a, b in ranges), default=0)
    requests = requests_for(ranges, gap, largest)
    assert np.all(requests.nbytes < largest + max(longest, 1))


@given(byte_ranges, st.integers(0, 12), st.integers(1, 80))
def test_a_request_of_several_ranges_keeps_to_the_largest_where_that_is_a_bound(
    ranges, gap, largest
):
    for _, start, stop, rows in spelled(requests_for(ranges, gap, largest, True)):
        assert len(rows) == 1 or stop - start <= largest


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(1, 30)), min_size=1),
    st.integers(0, 12),
    st.integers(1, 80),
)
def test_requests_that_could_be_one_within_the_bound_are_one(steps, gap, largest):
    ends = np.cumsum(steps)  # of each gap and each range, in turn
    ranges = [(0, a, b) for a, b in ends.reshape(-1, 2).tolist()]
    requests = requests_for(ranges, gap, largest, is_bound=True)
    made = spelled(requests)
    for (_, start, stop, _), (_, after, _, rows) in itertools.pairwise(made):
        assert after - stop > gap or ranges[rows[0]][2] - start > largest


@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))))
def test_contiguous_ranges_in_any_order_make_one_request(order):
    requests = requests_for([(0, 10 * i, 10 * i + 10) for i in order])
    assert spelled(requests) == [(0, 0, 10 * len(order), np.argsort(order).tolist())]


def test_ranges_that_repeat_and_contain_one_another_make_one_request():
    ranges = [(0, 50, 60), (0, 0, 100), (0, 50, 60), (0, 99, 105), (0, 0, 100)]
    (request,) = spelled(requests_for(ranges))
    assert request[:3] == (0, 0, 105)


def test_a_range_within_an_earlier_one_does_not_shorten_its_reach():
    ranges = [(0, 0, 100), (0, 10, 20), (0, 95, 110), (1, 0, 5), (1, 30, 40)]
    made = [request[:3] for request in spelled(requests_for(ranges, gap_nbytes=4))]
    assert made == [(0, 0, 110), (1, 0, 5), (1, 30, 40)]


def test_the_reach_in_one_object_does_not_carry_over_to_the_next():
    ranges = [(0, 0, 1000), (1, 10, 20), (1, 900, 910)]
    made = [request[:3] for request in spelled(requests_for(ranges))]
    assert made == [(0, 0, 1000), (1, 10, 20), (1, 900, 910)]


@pytest.mark.parametrize(("gap", "n_requests"), [(9, 2), (10, 1)])
def test_a_gap_is_bridged_up_to_the_size_given(gap, n_requests):
    ranges = [(0, 0, 10), (0, 20, 30)]
    assert len(requests_for(ranges, gap).source) == n_requests


def test_a_long_run_is_cut_and_a_single_large_range_is_not():
    tens = [(0, 10 * i, 10 * i + 10) for i in range(10)]
    cut = requests_for(tens, max_request_nbytes=30)
    assert cut.nbytes.tolist() == [30, 30, 30, 10]
    assert requests_for([(0, 5, 500)], max_request_nbytes=30).nbytes.tolist() == [495]


def test_objects_are_never_joined():
    assert len(requests_for([(0, 0, 10), (1, 10, 20)], gap_nbytes=100).source) == 2


def test_no_ranges_make_no_requests():
    requests = requests_for([])
    assert spelled(requests) == []
    assert requests.bounds.tolist() == [0]


def test_ranges_beyond_four_gigabytes_do_not_wrap_around():
    far = 2**62
    requests = requests_for([(0, far, far + 10), (0, far + 12, far + 20)], gap_nbytes=2)
    assert [request[:3] for request in spelled(requests)] == [(0, far, far + 20)]


def test_offsets_beyond_what_a_sum_can_hold_are_sorted_too():
    far = 2**62
    ranges = [(0, far, far + 1), (0, 5, 6), (3, far + 7, far + 9), (3, far, far + 7)]
    assert spelled(requests_for(ranges)) == [
        (0, 5, 6, [1]),
        (0, far, far + 1, [0]),
        (3, far, far + 9, [3, 2]),
    ]


def test_small_reads_join_neighbours_whose_gap_is_small(tmp_path):
    n = 64
    meta = document((n,), (n,), sharding((1,), codecs=[LITTLE], index_codecs=[LITTLE]))
    entries = np.stack([np.arange(n), np.ones(n)], axis=1).astype("<u8")
    shard = np.arange(n, dtype="u1").tobytes() + entries.tobytes()
    costs = FetchCosts(2, MIB, 4, prefers_whole_objects=False)
    a, store = opened(put(tmp_path, meta, c_0=shard), costs)
    key = [40, 0, 3, 7]
    assert a.oindex[key].tolist() == key
    asked = [(r.start, r.stop) for r in store.calls[-1]]
    assert asked == [(0, 4), (7, 8), (40, 41)]


# Batches


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 120))
def test_batches_cover_all_requests_in_order_within_the_budget(sizes, budget):
    batches = cut_batches(np.array(sizes, np.int64), budget)
    covered = [i for first, last in batches for i in range(first, last)]
    assert covered == list(range(len(sizes)))
    for first, last in batches:
        assert last - first == 1 or sum(sizes[first:last]) <= budget


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 120))
def test_no_batch_could_take_the_next_request_too(sizes, budget):
    batches = cut_batches(np.array(sizes, np.int64), budget)
    for first, last in batches[:-1]:
        assert sum(sizes[first : last + 1]) > budget


def test_a_request_larger_than_the_budget_is_a_batch_of_its_own():
    assert cut_batches(np.array([1, 99, 1, 1]), 10) == [(0, 1), (1, 2), (2, 4)]


def test_no_requests_make_no_batches():
    assert cut_batches(np.empty(0, np.int64), 10) == []
