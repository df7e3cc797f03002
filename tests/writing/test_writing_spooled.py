"""Encoded inner chunks that memory has no room for go to the new file at once."""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

import gpushard
from asked_store import put
from gpushard import Options
from gpushard.options import KIB
from gpushard.stores.local import file_bytes, spool
from gpushard.stores.local.file_bytes import FileSlice
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.local.spool import Spool
from gpushard.write_options import WriteOptions
from gpushard.writing import encode
from hostile_shards import ZSTD
from spec_shards import LITTLE, document, sharding

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


def nested(place, location="end", outer="end", limit=LIMIT, depth=2, shape=SHAPE):
    """Shards in a shard, which hold shards themselves at a depth of three."""
    codecs = [sharding((64, 128), codecs=[LITTLE, ZSTD], index_location=location)]
    for _ in range(depth - 2):
        codecs = [sharding((128, 256), codecs=codecs, index_location=location)]
    codecs = [sharding((256, 256), codecs=codecs, index_location=outer)]
    put(place, document(shape, SHAPE, *codecs))
    options = Options(memory_limit=limit, threads=2)
    return gpushard.open_array(place, device="cpu", options=options)


@pytest.fixture
def large(monkeypatch):
    """Nested shards of any size are large."""
    monkeypatch.setattr(encode, "_BATCH_NBYTES", KIB)


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


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("depth", [2, 3])
def test_of_a_whole_shard_of_shards_no_byte_is_written_twice(
    tmp_path, taken, copied, depth
):
    nested(tmp_path, depth=depth)[...] = NOISE
    assert sum(taken) > NOISE.nbytes // 2
    assert max(taken) <= LIMIT // 2
    assert not copied
    check(tmp_path, NOISE)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("outer", ["start", "end"])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("depth", [2, 3])
def test_a_file_of_nested_shards_is_the_same_as_of_one_that_memory_holds(
    tmp_path, taken, depth, location, outer
):
    expected = NOISE.copy()
    expected[10:300, 5:1000] = NOISE[20:310, 5:1000]
    expected[256:, 256:512] = 0
    expected[400:] = 0

    def written(place, limit):
        a = nested(place, location, outer, limit, depth)
        a[...] = NOISE
        a[10:300, 5:1000] = expected[10:300, 5:1000]
        a[256:, 256:512] = 0
        a[400:] = 0
        check(place, expected)
        return (place / "c/0/0").read_bytes()

    one, n = written(tmp_path / "spooled", LIMIT), len(taken)
    other = written(tmp_path / "held", 64 * KIB * KIB)
    assert 0 < n == len(taken)
    assert one == other


@pytest.mark.parametrize("key", [np.s_[::3, 5], np.s_[[5, 300, 70], ::2]])
def test_listed_elements_of_nested_shards_are_written(tmp_path, key, large):
    a, expected = nested(tmp_path), NOISE.copy()
    a[...] = NOISE
    a.oindex[key] = expected[key] = 7
    check(tmp_path, expected)


def test_small_nested_shards_are_held_in_one_piece_each(tmp_path, taken):
    nested(tmp_path)[...] = NOISE
    index_nbytes = 16 * 8 + 4
    assert min(taken) > 256 * 256 > index_nbytes
    check(tmp_path, NOISE)


@pytest.mark.usefixtures("large")
def test_of_a_nested_shard_that_is_written_in_part_only_what_changes_is_read(
    tmp_path, monkeypatch
):
    a = nested(tmp_path)
    a[...] = NOISE
    read, replace, sizes = FileSlice.read, LockedFile.replace, []

    def noted(self):
        sizes.append(len(self))
        return read(self)

    def replaced(*given):
        assert max(sizes) < 64 * 128 + KIB
        sizes.clear()
        replace(*given)

    monkeypatch.setattr(FileSlice, "read", noted)
    monkeypatch.setattr(LockedFile, "replace", replaced)
    expected = NOISE.copy()
    a[70, 130] = expected[70, 130] = NOISE[70, 130] ^ 1
    assert sizes  # of what the kernel does not copy
    check(tmp_path, expected)


def test_bytes_that_are_held_are_found_in_memory_and_in_the_file(tmp_path):
    path = tmp_path / "new"
    one = Spool(lambda: os.open(path, os.O_RDWR | os.O_CREAT), 4)
    first = one.hold(np.arange(3, dtype=np.uint8))
    assert [*spool.pieces_by_now([first.part(1, 3)])[0]] == [1, 2]
    assert not path.exists()
    second = one.hold(np.arange(3, 6, dtype=np.uint8))
    assert path.read_bytes() == bytes(range(6))
    pieces = spool.pieces_by_now(
        [first, second.part(0, 3).part(1, 2), second.part(2, 2)]
    )
    assert [(p.start, p.stop) for p in pieces] == [(0, 3), (4, 5), (5, 5)]
    third = one.hold(np.arange(6, 9, dtype=np.uint8))
    rest = one.rest_of(spool.pieces_by_now([first, second, third]))
    assert [piece.tolist() for piece in rest] == [[6, 7, 8]]
    one.close()
