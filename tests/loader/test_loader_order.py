"""The order of samples: each once, as random as it says, the same wherever made."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.layout import GridAxis
from gpushard.loader import order as orders
from gpushard.loader import permutation as permutations
from gpushard.loader.order import Shuffling
from gpushard.loader.permutation import permutation, ranked, uniform
from gpushard.loader.sample_grid import SampleGrid

small = st.integers(0, 400)
seeds = st.integers(0, 2**70)


def rows(n, cell, bounds=None):
    return SampleGrid((GridAxis(n, cell, bounds),))


def whole(order):
    return order.at(np.arange(order.n))


@given(n=st.integers(1, 3000), seed=seeds, is_long=st.booleans())
def test_a_permutation_has_every_element_once(n, seed, is_long):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutations, "LONGEST_LIST", 0 if is_long else n)
        drawn = permutation(n, seed, 3)(np.arange(n))
    assert np.array_equal(np.sort(drawn), np.arange(n))


def test_a_long_permutation_computes_any_element_alone():
    n = permutations.LONGEST_LIST * 40 + 17
    draw = permutation(n, 5, 1)
    some = np.array([0, 1, 2, n // 2, n - 1])
    together = draw(some)
    assert [int(draw(some[i : i + 1])[0]) for i in range(5)] == together.tolist()
    assert len(set(together.tolist())) == 5
    assert (together < n).all()


def shuffled(n, epoch=0, **options):
    grid = options.pop("grid", rows(n, 10))
    return Shuffling(grid=grid, shuffle=True, **options).order(epoch)


@given(n=small, block=st.integers(1, 50), mixed=st.integers(0, 9), seed=seeds)
def test_a_shuffled_epoch_has_every_sample_once(n, block, mixed, seed):
    order = shuffled(n, grid=rows(n, block), buffer_blocks=mixed, seed=seed)
    assert np.array_equal(np.sort(whole(order)), np.arange(n))


@given(n=st.integers(1, 400), block=st.integers(1, 50), mixed=st.integers(0, 9))
def test_any_part_of_an_epoch_can_be_asked_for_alone(n, block, mixed):
    order = shuffled(n, grid=rows(n, block), buffer_blocks=mixed)
    again = shuffled(n, grid=rows(n, block), buffer_blocks=mixed)
    everything = whole(order)
    backwards = np.arange(n)[::-1]
    assert np.array_equal(again.at(backwards), everything[backwards])
    assert np.array_equal(again.at(np.arange(n // 2, n)), everything[n // 2 :])
    some = slice(n // 3, n // 2 + 1)
    assert np.array_equal(again.at(np.arange(n)[some]), everything[some])


def test_no_more_groups_are_in_memory_than_a_read_may_lie_in():
    order = shuffled(40, grid=rows(40, 2), buffer_blocks=2)
    whole(order)
    assert order._members.cache_info().currsize == 2


@pytest.mark.parametrize("group", [4, 1])
def test_samples_of_large_groups_are_computed_and_not_listed(group):
    """Windows at every token, or every voxel, of a few shards."""
    block = 1 << 28
    grid = rows(4 * block - 5, block)
    tracemalloc.start()
    try:
        order = shuffled(grid.n, grid=grid, buffer_blocks=group)
        run = order.at(np.arange(100, 5100))
        some = order.at(np.array([grid.n - 1, 0, 100]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # 5 GiB and more if all samples of a group are listed
    assert some[2] == run[0]
    assert len({*run.tolist(), *some.tolist()}) == 5002
    assert len(set((run // block).tolist())) == group
    assert np.ptp(run) > group * block * 0.99


def test_groups_have_each_sample_once_whether_they_are_listed_or_not(monkeypatch):
    monkeypatch.setattr(orders, "LONGEST_LIST", 0)
    monkeypatch.setattr(permutations, "LONGEST_LIST", 0)
    bounds = np.array([0, 3, 4, 30, 41])
    grids = rows(41, 0, bounds), rows(50, 7), rows(3, 9)
    grids += (SampleGrid((GridAxis(7, 3), GridAxis(5, 5), GridAxis(11, 4))),)
    for grid in grids:
        for mixed in range(1, 6):
            order = shuffled(grid.n, grid=grid, buffer_blocks=mixed)
            found = whole(order)
            assert np.array_equal(np.sort(found), np.arange(grid.n))
            borders = [order.cut(k, grid.n) for k in range(grid.n)]
            for first, stop in pairwise(sorted({0, *borders})):
                every = np.arange(grid.n_blocks)
                several = [set(grid.of_blocks(every[b : b + 1])) for b in every]
                group = set(found[first:stop].tolist())
                assert all(b <= group or not b & group for b in several)


def test_a_state_of_the_lists_that_large_groups_had_is_told_apart(monkeypatch):
    listed = Shuffling(grid=rows(40, 2), shuffle=True, buffer_blocks=3)
    before = listed.fingerprint(0)
    monkeypatch.setattr(orders, "LONGEST_LIST", 5)
    assert listed.fingerprint(0) == before | {"mixed": "unlisted"}


def test_an_epoch_of_very_many_blocks_keeps_a_number_for_each_group(monkeypatch):
    n, mixed = 1 << 20, 16
    monkeypatch.setattr(orders, "permutation", lambda n, *_: lambda place: place)
    tracemalloc.start()
    try:
        order = shuffled(n, grid=rows(n, 1), buffer_blocks=mixed)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 9 * n // mixed
    assert peak < 6 << 20  # 40 MiB if columns are made of all blocks
    assert [order.cut(k, order.n) for k in (0, 1, n - 1)] == [0, mixed, n]


@given(n=small, mixed=st.integers(1, 9), n_counted=st.integers(1, 30))
def test_groups_begin_where_they_do_if_all_blocks_are_counted_at_once(
    n, mixed, n_counted
):
    grid = rows(n, 7)
    expected = whole(shuffled(n, grid=grid, buffer_blocks=mixed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_COUNTED_BLOCKS", n_counted)
        found = whole(shuffled(n, grid=grid, buffer_blocks=mixed))
    assert np.array_equal(found, expected)


def test_an_epoch_of_very_many_blocks_begins_before_all_are_counted(monkeypatch):
    asked = []

    def counted(place):
        asked.append(len(place))
        return place

    monkeypatch.setattr(orders, "permutation", lambda n, *_: counted)
    order = shuffled(10**9, grid=rows(10**9, 10), buffer_blocks=8)
    first = order.at(np.arange(300))
    assert np.array_equal(np.sort(first[:240]), np.arange(240))
    assert order.cut(300, 300) == 320
    assert sum(asked) < 70_000


def test_blocks_may_differ_in_length():
    bounds = np.array([0, 3, 4, 30, 41])
    order = shuffled(41, grid=rows(41, 0, bounds), buffer_blocks=1)
    samples = whole(order)
    assert np.array_equal(np.sort(samples), np.arange(41))
    block = np.searchsorted(bounds, samples, side="right")
    assert np.count_nonzero(np.diff(block)) == 3


@pytest.mark.parametrize("options", [{}, {"buffer_blocks": 3}, {"replacement": True}])
def test_order_depends_on_seed_and_epoch_and_on_nothing_else(options):
    first = whole(shuffled(200, 4, seed=9, **options))
    assert np.array_equal(first, whole(shuffled(200, 4, seed=9, **options)))
    assert not np.array_equal(first, whole(shuffled(200, 5, seed=9, **options)))
    assert not np.array_equal(first, whole(shuffled(200, 4, seed=8, **options)))


def test_order_is_the_same_in_every_version():
    """Found with the first version: a stored state would resume wrongly otherwise."""
    assert whole(shuffled(8, 1, seed=2)).tolist() == GOLDEN["global"]
    mixed = shuffled(8, 1, seed=2, grid=rows(8, 3), buffer_blocks=2)
    assert whole(mixed).tolist() == GOLDEN["blocks"]
    drawn = shuffled(8, 1, seed=2, replacement=True)
    assert whole(drawn).tolist() == GOLDEN["drawn"]
    network = permutation(2**21, 2, 1)(np.arange(4))
    assert network.tolist() == GOLDEN["network"]
    square = permutation(2**22, 2, 1)(np.arange(4))
    assert square.tolist() == GOLDEN["network of a power of four"]


GOLDEN = {
    "global": [5, 1, 7, 6, 4, 0, 2, 3],
    "blocks": [7, 6, 5, 3, 4, 0, 1, 2],
    "drawn": [4, 2, 5, 2, 3, 5, 0, 3],
    "network": [984097, 1113025, 1826153, 2004417],
    "network of a power of four": [984097, 2712080, 3968065, 3861744],
}


@pytest.mark.parametrize("mixed", [1, 3, 8])
def test_a_read_ends_between_groups_of_blocks(mixed):
    order = shuffled(103, grid=rows(103, 10), buffer_blocks=mixed)
    samples = whole(order)
    cut = 0
    while cut < order.n:
        stop = order.cut(cut + 1, order.n)
        assert len(np.unique(samples[cut:stop] // 10)) <= mixed
        assert order.cut(stop, order.n) == stop
        cut = stop
    assert order.cut(0, order.n) == 0


@pytest.mark.parametrize(
    "options", [{}, {"replacement": True}, {"sampler": lambda epoch: np.arange(99)}]
)
def test_a_read_of_scattered_samples_may_end_anywhere(options):
    order = shuffled(99, **options)
    assert [order.cut(position, order.n) for position in (0, 7, 99, 120)] == [
        0,
        7,
        99,
        99,
    ]


def test_a_sequential_read_ends_between_inner_chunks():
    order = Shuffling(grid=rows(25, 10)).order(0)
    assert [order.cut(p, order.n) for p in (0, 1, 10, 11, 24, 25)] == [
        0,
        10,
        10,
        20,
        25,
        25,
    ]
    assert whole(order).tolist() == list(range(25))


def rank_correlation(samples):
    return np.corrcoef(np.arange(len(samples)), samples)[0, 1]


def neighbour_distance(samples):
    """Mean distance of samples that follow one another, 1 in a perfect shuffle."""
    return np.abs(np.diff(samples)).mean() / (len(samples) / 3)


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_global_shuffle_is_as_random_as_a_permutation(seed, is_long, monkeypatch):
    if is_long:
        monkeypatch.setattr(permutations, "LONGEST_LIST", 0)
    n = 20_000
    samples = whole(shuffled(n, seed=seed))
    reference = np.random.default_rng(seed).permutation(n)
    # Four standard deviations of either figure under a perfect shuffle.
    assert abs(rank_correlation(samples)) < 4 / np.sqrt(n)
    assert abs(rank_correlation(reference)) < 4 / np.sqrt(n)
    assert abs(neighbour_distance(samples) - 1) < 4 * 0.71 / np.sqrt(n) * 1.5
    # Where each tenth of the samples goes is uniform: chi-square, 81 free counts.
    counts = np.histogram2d(np.arange(n), samples, bins=10)[0]
    chi_square = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert 81 - 5 * np.sqrt(162) < chi_square < 81 + 5 * np.sqrt(162)


def test_shuffled_blocks_are_nearly_as_random_and_more_so_the_more_are_mixed():
    n, distances = 20_000, []
    for mixed in (1, 4, 16):
        order = shuffled(n, grid=rows(n, 50), buffer_blocks=mixed, seed=3)
        samples = whole(order)
        # 400 blocks are shuffled as units.
        assert abs(rank_correlation(samples)) < 4 / np.sqrt(n / 50)
        distances.append(neighbour_distance(samples))
    assert distances[0] < 0.05
    assert distances == sorted(distances)
    assert distances[-1] > 0.85


def test_the_network_avalanches():
    n = permutations.LONGEST_LIST + 1
    drawn = permutation(n, 0)(np.arange(50_000))
    assert abs(rank_correlation(drawn)) < 0.02
    assert abs(np.abs(np.diff(drawn)).mean() / (n / 3) - 1) < 0.02
    again = permutation(n, 1)(np.arange(50_000))
    assert np.mean(drawn == again) < 0.001


@given(positions=st.lists(st.integers(0, 50_000), max_size=30), seed=seeds)
def test_a_random_number_depends_on_its_position_alone(positions, seed):
    at = np.array(positions, np.int64)
    drawn = uniform(at, seed, 1)
    alone = [float(uniform(at[i : i + 1], seed, 1)[0]) for i in range(len(at))]
    assert drawn.tolist() == alone
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_draws_are_uniform_and_repeat():
    order = shuffled(1000, replacement=True, num_samples=100_000)
    counts = np.bincount(whole(order), minlength=1000)
    assert counts.sum() == 100_000
    assert abs(((counts - 100) ** 2 / 100).sum() - 999) < 5 * np.sqrt(2 * 999)


def test_draws_follow_their_weights():
    weights = np.array([0.0, 1.0, 0.0, 3.0])
    order = shuffled(
        4, replacement=True, num_samples=40_000, cumulated=np.cumsum(weights)
    )
    counts = np.bincount(whole(order), minlength=4)
    assert counts[0] == counts[2] == 0
    assert abs(counts[3] - 30_000) < 5 * np.sqrt(40_000 * 0.25 * 0.75)


def test_a_sample_without_weight_is_never_drawn(monkeypatch):
    at_the_edges = np.array([0.0, np.nextafter(1, 0)])
    monkeypatch.setattr("gpushard.loader.order.uniform", lambda *_: at_the_edges)
    order = shuffled(4, replacement=True, cumulated=np.cumsum([0, 0.3, 0.6, 0]))
    assert order.at(np.arange(2)).tolist() == [1, 2]
    assert shuffled(4, replacement=True).at(np.arange(2)).tolist() == [0, 3]


def test_fewer_positions_than_samples_are_the_first_of_the_order():
    for options in ({}, {"grid": rows(100, 7), "buffer_blocks": 2}):
        some = shuffled(100, num_samples=30, **options)
        assert some.n == 30
        assert whole(some).tolist() == whole(shuffled(100, **options))[:30].tolist()
        assert some.cut(29, 30) <= 30


def test_equal_words_keep_their_order():
    words = np.array([3, 1, 3, 0, 1, 1], "u8")
    assert ranked(words).tolist() == [3, 1, 4, 5, 0, 2]
    many = np.repeat(np.arange(100, dtype="u8")[::-1], 40)
    assert np.array_equal(ranked(many), np.argsort(many, kind="stable"))
