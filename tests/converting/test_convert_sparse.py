"""Sparse arrays: what a source does not store is neither read nor written."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard import Options, StoreError
from gpushard.array import Array
from gpushard.options import WriteOptions

STORED = [(0, 0), (0, 37), (39, 0), (39, 37), (5, 20)]


@pytest.fixture
def read(monkeypatch):
    """Boxes that a conversion reads, of its source and of what it has written."""
    found = []
    real = Array.read

    def noted(array, box, **how):
        found.append(box)
        return real(array, box, **how)

    monkeypatch.setattr(Array, "read", noted)
    return found


def sparse(store, **given):
    """Array of 40 x 38 objects of 4 x 4 elements, of which five are stored."""
    form = {"chunks": (4, 4), "dtype": "u2", "fill_value": 7, **given}
    z = zarr.create_array(store, shape=(159, 150), **form)
    for i, k in STORED:
        z[4 * i : 4 * i + 4, 4 * k : 4 * k + 4] = 10 + i + k
    return z


@pytest.mark.parametrize("target", [(4, 4), (12, 20), (2, 2), (1, 150), (6, 3)])
@pytest.mark.parametrize(
    "given", [{}, {"zarr_format": 2}, {"chunks": (2, 2), "shards": (4, 4)}]
)
def test_shards_of_which_nothing_is_stored_are_not_read(tmp_path, target, given, read):
    z = sparse(tmp_path / "src", **given)
    told = []
    report = gpushard.convert(
        tmp_path / "src",
        tmp_path / "dst",
        shards=target,
        chunks=1,
        progress=lambda n, _: told.append(n),
    )
    assert 0 < len(read) <= report.arrays[""].n_written <= 5 * 16
    assert report.arrays[""].n_resumed == 0
    assert max(told) == z.nbytes
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "dst")[:], z[:])


def test_what_neither_array_stores_is_not_compared(tmp_path, read):
    z = sparse(tmp_path / "src")
    told = []
    gpushard.convert(
        tmp_path / "src",
        tmp_path / "dst",
        shards=4,
        chunks=4,
        verify=True,
        progress=lambda n, _: told.append(n),
    )
    assert len(read) == 5 + 2 * 5
    assert max(told) == 2 * z.nbytes


def test_what_a_source_does_not_store_is_compared_with_the_fill_value(tmp_path, read):
    z = sparse(tmp_path / "src")
    report = gpushard.convert(
        tmp_path / "src", tmp_path / "dst", shards=(12, 20), chunks=4, verify=True
    )
    n_written = report.arrays[""].n_written
    # The grid of the copy is too small to be listed.
    assert len(read) == 2 * n_written + 14 * 8
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "dst")[:], z[:])


def test_a_store_that_lists_is_not_asked_for_what_it_does_not_have(read):
    store = MemoryStore()
    z = sparse(store)
    gpushard.convert(store, there := MemoryStore(), shards=4, chunks=4)
    np.testing.assert_array_equal(zarr.open_array(there)[:], z[:])
    assert len(read) == 5


def test_fill_values_are_stored_everywhere_if_they_are_to_be(tmp_path):
    sparse(tmp_path / "src")
    write = Options(write=WriteOptions(write_empty_chunks=True))
    gpushard.convert(
        tmp_path / "src", tmp_path / "dst", shards=4, chunks=4, options=write
    )
    assert len([*(tmp_path / "dst" / "c").rglob("*")]) == 40 + 40 * 38


def test_a_link_that_leads_nowhere_is_no_missing_shard(tmp_path):
    sparse(tmp_path / "src")
    (tmp_path / "src" / "c" / "5" / "21").symlink_to(tmp_path / "not mounted")
    with pytest.raises(StoreError):
        gpushard.convert(tmp_path / "src", tmp_path / "dst", shards=4, chunks=4)


def test_a_source_that_has_gone_is_not_taken_for_fill_value(tmp_path):
    sparse(tmp_path / "src")
    a = gpushard.open_array(tmp_path / "src", device="cpu")
    shutil.rmtree(tmp_path / "src")
    with pytest.raises((StoreError, gpushard.NotFoundError)):
        gpushard.convert(a, tmp_path / "dst", shards=4, chunks=4)


@pytest.mark.parametrize("shards", [4, (12, 20)])
def test_a_shard_that_only_the_copy_has_is_found_by_a_verification(tmp_path, shards):
    sparse(tmp_path / "src")
    real = gpushard.converting.copying.Copy.run

    def spoiling(copy, advance):
        n = real(copy, advance)
        zarr.open_array(tmp_path / "dst")[80, 80] = 9
        return n

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpushard.converting.copying.Copy, "run", spoiling)
        with pytest.raises(gpushard.CorruptShardError, match="other elements"):
            gpushard.convert(
                tmp_path / "src",
                tmp_path / "dst",
                shards=shards,
                chunks=4,
                verify=True,
            )
