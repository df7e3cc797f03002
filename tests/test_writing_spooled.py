"""Encoded inner chunks that memory has no room for go to the new file at once."""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Options
from gpushard.options import KIB
from gpushard.stores import file_bytes, spool
from gpushard.stores.file_bytes import FileSlice
from gpushard.stores.spool import Spool
from gpushard.write_options import WriteOptions

LIMIT = 256 * KIB
SHAPE, CHUNK = (512, 1024), (64, 256)
NOISE = np.random.default_rng(1).integers(0, 256, SHAPE, "u1")


@pytest.fixture
def taken(monkeypatch):
    """Sizes of what spools took."""
    sizes = []
    take = Spool.take

    def noted(self, data):
        sizes.append(len(data))
        return take(self, data)

    monkeypatch.setattr(Spool, "take", noted)
    return sizes


@pytest.fixture
def copied(monkeypatch):
    """Slices that were copied between files."""
    slices = []
    copy = FileSlice.copy_to

    def noted(self, fd, at=None):
        slices.append(self)
        copy(self, fd, at)

    monkeypatch.setattr(FileSlice, "copy_to", noted)
    return slices


def created(place, location="end", order="morton", limit=LIMIT, chunks=CHUNK):
    return gpushard.create_array(
        place,
        shape=SHAPE,
        dtype="u1",
        chunks=chunks,
        shards={"shape": SHAPE, "index_location": location},
        options=Options(memory_limit=limit, threads=2, write=WriteOptions(order=order)),
    )


def check(place, expected):
    assert np.array_equal(zarr.open_array(place, mode="r")[...], expected)
    assert np.array_equal(gpushard.open_array(place, device="cpu")[...], expected)
    assert not list(place.rglob(".*"))


@pytest.mark.parametrize("order", ["morton", "c"])
def test_of_a_whole_shard_no_byte_is_written_twice(tmp_path, taken, copied, order):
    created(tmp_path, order=order)[...] = NOISE
    assert sum(taken) > NOISE.nbytes // 2
    assert max(taken) <= LIMIT // 2
    assert not copied
    check(tmp_path, NOISE)


def test_behind_an_index_at_the_start_inner_chunks_are_copied(tmp_path, taken, copied):
    created(tmp_path, location="start")[...] = NOISE
    assert sum(map(len, copied)) == sum(taken)
    check(tmp_path, NOISE)


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_part_of_a_shard_is_put_among_what_is_stored(tmp_path, taken, location):
    a = created(tmp_path, location=location)
    a[...] = NOISE
    before = len(taken)
    expected = NOISE.copy()
    expected[10:300, 5:1000] = NOISE[20:310, 5:1000]
    a[10:300, 5:1000] = expected[10:300, 5:1000]
    assert len(taken) > before
    check(tmp_path, expected)


def test_inner_chunks_that_become_fill_value_are_not_kept(tmp_path, taken):
    a = created(tmp_path)
    expected = NOISE.copy()
    expected[64:192] = 0
    a[...] = expected
    check(tmp_path, expected)
    a[:] = 0
    assert taken
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.parent != tmp_path]


def test_the_file_is_the_same_as_of_one_that_memory_holds(tmp_path, taken):
    created(tmp_path / "spooled")[...] = NOISE
    n = len(taken)
    created(tmp_path / "held", limit=64 * KIB * KIB)[...] = NOISE
    assert 0 < n == len(taken)
    one, other = (
        (tmp_path / name / "c/0/0").read_bytes() for name in ("spooled", "held")
    )
    assert one == other


def test_a_write_that_fails_leaves_the_old_shard_and_nothing_else(
    tmp_path, taken, monkeypatch
):
    a = created(tmp_path)
    a[...] = NOISE
    old, n = (tmp_path / "c/0/0").read_bytes(), len(taken)
    write = file_bytes.write_all

    def fail_later(fd, pieces):
        if len(taken) > n + 3:
            raise OSError(28, "No space left on device")
        write(fd, pieces)

    monkeypatch.setattr(spool, "write_all", fail_later)
    with pytest.raises(gpushard.StoreError, match="No space"):
        a[...] = NOISE[::-1]
    assert (tmp_path / "c/0/0").read_bytes() == old
    assert not list(tmp_path.rglob(".*"))
    monkeypatch.undo()
    check(tmp_path, NOISE)


def test_a_spool_that_took_nothing_has_no_file(tmp_path):
    one = Spool(lambda: pytest.fail("opened"), 4)
    assert one.rest_of([np.zeros(3, np.uint8)]) is None
    one.close()


def test_a_file_begins_with_a_spool_only_if_all_of_it_comes_first(tmp_path):
    path = tmp_path / "new"
    one = Spool(lambda: os.open(path, os.O_RDWR | os.O_CREAT), 4)
    first, second = (one.take(np.full(3, i, np.uint8)) for i in (1, 2))
    behind = np.full(2, 3, np.uint8)
    assert one.rest_of([first, second, behind]) == [behind]
    assert one.rest_of([second, first, behind]) is None
    assert one.rest_of([first, behind]) is None
    assert one.rest_of([behind, first, second]) is None
    assert path.read_bytes() == bytes([1, 1, 1, 2, 2, 2])
    one.close()
