"""Loads are larger where samples share inner chunks, smaller where they decode much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard import Loader, Ragged
from gpushard.loader import reading, sizes
from gpushard.loader.arguments import laid_fields
from loader_data import handed_out, stored

N = 256
VALUES = np.arange(N * 8, dtype="u1").reshape(N, 8)
USUAL = 16
"""Samples of a load that is not larger than others."""


def fields_of(arrays: Any, window: Any = None) -> Any:
    conversions: dict[str, Any] = dict.fromkeys(("dtype", "scale", "offset"))
    _, fields = laid_fields(
        arrays, num_threads=None, window=window, lead=None, conversions=conversions
    )
    return fields


def sparse(shape: Any, chunks: Any) -> gpushard.Array:
    """An array of bytes of which nothing is stored."""
    z = zarr.create_array(MemoryStore({}), shape=shape, chunks=chunks, dtype="u1")
    return gpushard.open_array(z.store)


def usual(arrays: Any, n: int, n_samples: int, *, is_scattered: bool = True) -> int:
    fields = fields_of(arrays)
    return sizes.usual_samples(fields, n, n_samples, is_scattered=is_scattered)


def most(arrays: Any, n: int = USUAL, window: Any = None) -> int:
    return sizes.most_samples(fields_of(arrays, window), n, is_scattered=True)


def test_rows_of_few_inner_chunks_are_read_in_larger_loads():
    assert most(stored(VALUES, (16, 8))) == 4 * USUAL


def test_rows_of_many_inner_chunks_are_not():
    """Sixteen of 65,536 rows meet in one of 4,096 inner chunks nearly never."""
    assert most(stored(np.zeros((65_536, 2), "u1"), (16, 2))) == USUAL


def test_rows_that_are_inner_chunks_share_none():
    assert most(stored(VALUES, (1, 8))) == USUAL


def test_patches_that_overlap_are_read_in_larger_loads():
    volume = stored(np.zeros((32, 32, 32), "u1"), (4, 4, 4))
    assert most(volume, 64, window=(6, 6, 6)) == 128  # as many bytes as the volume
    assert most(volume, 64, window=(32, 32, 32)) == 64  # as many bytes as are decoded


def test_ragged_samples_go_by_their_mean_length():
    values = stored(np.zeros(4096, "u1"), (64,))
    short = Ragged(values, np.arange(0, 4097, 4))
    assert most(short, 64) == 256
    assert most(Ragged(values, np.arange(0, 4097, 512)), 4) == 4


def test_an_array_without_samples_has_no_load():
    assert most(stored(np.zeros((0, 4), "u1"), (2, 4))) == USUAL


@pytest.mark.parametrize("is_scattered", [True, False])
@pytest.mark.parametrize("n_samples", [2**24, 2**52])
def test_samples_in_inner_chunks_of_their_own_are_read_by_the_thousand(
    n_samples, is_scattered
):
    a = sparse((n_samples,), (1,))
    assert usual(a, 2**20, n_samples, is_scattered=is_scattered) == 2**14


def test_samples_that_decode_much_each_are_read_by_what_they_decode():
    a = sparse((2**50,), (2**24,))
    assert usual(a, 2**20, 2**50) == 64
    assert usual(a, 2**20, 2**50, is_scattered=False) == 2**20  # in one inner chunk


def test_samples_that_share_what_they_decode_are_read_together():
    """A million of 2**32 in 2**16 inner chunks: sixteen in each."""
    assert usual(sparse((2**32,), (2**16,)), 2**20, 2**32) == 2**20


def test_a_load_has_a_batch_at_least_even_if_it_takes_more_than_its_room():
    fields = fields_of(stored(VALUES, (1, 8)))
    found = sizes.load_samples(fields, 3 * 8, N, 5, is_scattered=True)
    assert found == (5, 5)
    assert sizes.load_samples(fields, 3 * 8, N, 2, is_scattered=True) == (3, 3)


def test_a_first_batch_of_small_samples_looks_for_no_more_shards_than_its_load():
    loader = Loader(sparse((2**52,), (1,)), batch_size=4, shuffle=True)
    with loader:
        assert next(iter(loader)).tolist() == [0] * 4
    # What is planned and read ahead as well: 2**11 first, then 2**13, then 2**14.
    assert 0 < loader._settings.fields[0].tally.counts["loaded_samples"] < 2**17


@pytest.mark.parametrize(
    ("options", "is_larger"),
    [
        ({"shuffle": True}, True),
        ({"replacement": True}, True),
        ({"sampler": np.random.default_rng(0).permutation(N)}, True),
        ({"shuffle": True, "block": "chunk", "buffer_blocks": 1}, False),
        ({}, False),
    ],
)
def test_only_samples_from_anywhere_are_read_in_larger_loads(
    options, is_larger, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", USUAL * 8)
    loader = Loader(stored(VALUES, (16, 8)), **options)
    fields, order = loader._settings.fields, loader._settings.shuffling.order(0)
    n = sizes.most_samples(fields, USUAL, is_scattered=order.is_scattered)
    assert (n > USUAL) == is_larger


def test_larger_loads_decode_less_and_give_the_same(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", USUAL * 8)
    found, stored_nbytes = [], []
    for times in (1, 4):
        monkeypatch.setattr(sizes, "_MOST_TIMES", times)
        loader = Loader(stored(VALUES, (16, 8)), shuffle=True, return_index=True)
        found.append(handed_out(loader))
        stored_nbytes.append(loader.stats()["stored_bytes_read"])
    assert found[0] == found[1]
    assert stored_nbytes[1] < 0.6 * stored_nbytes[0]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "block": "chunk", "buffer_blocks": 1}]
)
def test_windows_that_overlap_are_not_read_until_the_end_of_an_inner_chunk(
    options, monkeypatch
):
    """2,197 windows take 34 times the array, and 1,352 begin in its first half."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 4096)
    rng = np.random.default_rng(0)
    volume = rng.integers(0, 255, (16, 16, 16)).astype("u1")
    windows = np.lib.stride_tricks.sliding_window_view(volume, (4, 4, 4))
    loader = Loader(
        stored(volume, (8, 16, 16)),
        batch_size=13,
        window=(4, 4, 4),
        stride=1,
        prefetch_factor=0,
        return_index=True,
        **options,
    )
    counts = loader._settings.fields[0].tally.counts
    loaded, found = [0], {}
    for batch, index in loader:
        found |= dict(zip(index.tolist(), batch, strict=True))
        loaded.append(counts["loaded_samples"])
    # Four times 1,352 of 2,197 parts of the array's 4,096 bytes.
    assert 0 < max(np.diff(loaded)) <= 157
    expected = windows.reshape(-1, 4, 4, 4)
    assert sorted(found) == list(range(len(expected)))
    assert all(np.array_equal(found[k], expected[k]) for k in found)


def test_a_large_block_of_rows_is_read_to_its_end(monkeypatch):
    """Else each inner chunk of it would be decoded for two loads."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 8)
    loader = Loader(
        stored(VALUES, (16, 8)),
        batch_size=5,
        shuffle=True,
        block=128,
        buffer_blocks=1,
        prefetch_factor=0,
    )
    counts = loader._settings.fields[0].tally.counts
    assert {counts["loaded_samples"] for _ in loader} == {128, 256}
