"""What each write strategy does to a stored shard, and what a torn write leaves."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace

import crc32c
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import gpushard
from gpushard.options import Options
from gpushard.planning.index import MISSING, PRESENT
from gpushard.stores.local.file_bytes import FileBytes
from gpushard.write_options import WriteOptions
from gpushard.writing.assign import WriteSession
from gpushard.writing.shard import Region, StoredShard
from spec_shards import CRC, LITTLE, document, sharding
from zarr_oracle import assert_same_bits

LOCATIONS = {
    "rewrite": ["start", "end"],
    "fixed_order": ["start", "end"],
    "append_only": ["end"],
    "random_write": ["start"],
}
PAIRS = [(name, place) for name, places in LOCATIONS.items() for place in places]
IN_PLACE = [pair for pair in PAIRS if pair[0] != "rewrite"]
each_pair = pytest.mark.parametrize(("strategy", "location"), PAIRS)
each_in_place = pytest.mark.parametrize(("strategy", "location"), IN_PLACE)


def new(place, strategy, location, **changed) -> gpushard.Array:
    """One shard of 4 x 4 inner chunks, whose encoded size depends on the values."""
    write = WriteOptions(strategy=strategy, max_unused_fraction=1)
    given = {
        "shape": (16, 16),
        "dtype": "u4",
        "chunks": (4, 4),
        "shards": {"shape": (16, 16), "index_location": location},
        "options": Options(write=write),
    }
    return gpushard.create_array(place, **given | changed)


def noise(seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**32, (16, 16), "u4")


def shard_path(place):
    return place / "c" / "0" / "0"


def stored_shard(a, place) -> StoredShard:
    data = np.fromfile(shard_path(place), np.uint8)
    return StoredShard.parse(Region.of_object(a.source, (0, 0)), data)


@each_pair
def test_every_strategy_writes_what_zarr_python_reads(strategy, location, tmp_path):
    a = new(tmp_path / "a", strategy, location, fill_value=7)
    want = np.full((16, 16), 7, "u4")
    keys = [np.s_[2:3, 2:3], np.s_[...], np.s_[5:11, ::3], np.s_[4:8, 4:8], np.s_[::-2]]
    for seed, key in enumerate(keys):
        a[key] = noise(seed)[key]
        want[key] = noise(seed)[key]
        assert_same_bits(a[...], want)
        assert_same_bits(zarr.open_array(tmp_path / "a")[...], want)
    a[...] = want[...] = 7
    assert_same_bits(zarr.open_array(tmp_path / "a")[...], want)
    a[0, 0] = want[0, 0] = 1
    assert_same_bits(zarr.open_array(tmp_path / "a")[...], want)


def test_append_only_keeps_every_byte_and_adds_behind(tmp_path):
    a = new(tmp_path / "a", "append_only", "end")
    a[...] = noise()
    before = shard_path(tmp_path / "a").read_bytes()
    a[0, 0] = 1
    after = shard_path(tmp_path / "a").read_bytes()
    assert after[: len(before)] == before
    shard = stored_shard(a, tmp_path / "a")
    assert int(shard.index.offset[0]) == len(before)
    index_nbytes = 16 * 16 + 4
    assert len(after) == len(before) + int(shard.index.nbytes[0]) + index_nbytes


@each_pair
def test_shards_written_whole_are_not_read(strategy, location, tmp_path, monkeypatch):
    a = new(tmp_path / "a", strategy, location)
    a[...] = noise()
    monkeypatch.setattr(FileBytes, "__getitem__", None)
    a[...] = want = noise(1)
    assert_same_bits(zarr.open_array(tmp_path / "a")[...], want)


def test_random_write_lays_inner_chunks_down_as_they_come(tmp_path):
    a = new(tmp_path / "a", "random_write", "start")
    for i, j in [(3, 1), (0, 0), (2, 2)]:
        key = np.s_[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
        a[key] = noise()[key]
    shard = stored_shard(a, tmp_path / "a")
    assert shard.present() == [13, 0, 10]
    assert int(shard.index.offset[13]) == 16 * 16 + 4


@pytest.mark.parametrize("location", ["start", "end"])
def test_fixed_order_replaces_in_place_what_fits(location, tmp_path):
    a = new(tmp_path / "a", "fixed_order", location)
    a[...] = noise()
    path = shard_path(tmp_path / "a")
    inode, nbytes = path.stat().st_ino, path.stat().st_size
    before = stored_shard(a, tmp_path / "a")
    a[:4, :4] = 5  # compresses to less than noise
    after = stored_shard(a, tmp_path / "a")
    assert (path.stat().st_ino, path.stat().st_size) == (inode, nbytes)
    assert after.index.offset.tolist() == before.index.offset.tolist()
    assert after.index.nbytes[0] < before.index.nbytes[0]
    a[:4, :4] = noise(1)[:4, :4]  # the room it had is still its own
    assert path.stat().st_ino == inode


def test_fixed_order_lays_a_shard_out_anew_for_what_does_not_fit(tmp_path):
    a = new(tmp_path / "a", "fixed_order", "end")
    a[...] = 5
    inode = shard_path(tmp_path / "a").stat().st_ino
    a[:4, :4] = noise()[:4, :4]
    assert shard_path(tmp_path / "a").stat().st_ino != inode
    want = np.full((16, 16), 5, "u4")
    want[:4, :4] = noise()[:4, :4]
    assert_same_bits(a[...], want)


def test_fixed_order_leaves_shared_bytes_alone(tmp_path):
    a = new(tmp_path / "a", "fixed_order", "end", compressors=None)
    a[...] = noise()
    # Two entries for the same bytes: valid, and not to be overwritten.
    place = tmp_path / "a"
    shard = stored_shard(a, place)
    entries = shard.entries()
    entries[1] = entries[0]
    set_index(a, place, entries)
    want = a[...]
    a[:4, 4:8] = want[:4, 4:8] = 1
    assert_same_bits(a[...], want)


@each_pair
def test_an_inner_chunk_whose_entry_is_damaged_is_written_whole(
    strategy, location, tmp_path
):
    a = new(tmp_path / "a", strategy, location)
    a[...] = want = noise()
    shard = stored_shard(a, tmp_path / "a")
    entries = shard.entries()
    entries[5] = 2**40, 1
    set_index(a, tmp_path / "a", entries)
    with pytest.raises(gpushard.CorruptShardError):
        a[4, 4] = 1
    a[4:8, 4:8] = want[4:8, 4:8] = 1
    assert_same_bits(a[...], want)


def set_index(a, place, entries) -> None:
    """Let the shard have another index, of the same size."""
    region = Region.of_object(a.source, (0, 0))
    index = WriteSession(a.source).encoder.index_bytes(region, entries)
    data = bytearray(shard_path(place).read_bytes())
    start, stop = region.index_range(len(data))
    data[start:stop] = index.tobytes()
    shard_path(place).write_bytes(data)


@pytest.mark.parametrize(
    ("strategy", "location"), [("random_write", "start"), ("fixed_order", "end")]
)
def test_unused_space_is_bounded(strategy, location, tmp_path):
    write = WriteOptions(strategy=strategy, max_unused_fraction=0.3)
    a = new(tmp_path / "a", strategy, location, options=Options(write=write))
    a[...] = noise()
    path = shard_path(tmp_path / "a")
    for seed in range(12):
        a[4:] = noise(seed)[4:] if seed % 2 else 3
        shard = stored_shard(a, tmp_path / "a")
        present = shard.index.state == PRESENT
        used = int(shard.index.nbytes[present].sum()) + 16 * 16 + 4
        assert used >= 0.7 * path.stat().st_size


class Killed(BaseException):
    """Stands for the end of the process: nothing is tidied up after it."""


def cut_off_after(n_calls, monkeypatch):
    """Let the process end before its n-th write to a file, one byte of it written."""
    left = [n_calls]
    pwrite = os.pwrite

    def stop(fd, data, offset):
        left[0] -= 1
        if left[0] == 0:
            pwrite(fd, bytes(data)[: max(1, len(data) // 2)], offset)
            raise Killed
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", stop)


@each_in_place
@pytest.mark.parametrize("n_calls", [1, 2, 3, 4, 5])
def test_a_torn_write_is_told_and_undone(
    n_calls, strategy, location, tmp_path, monkeypatch
):
    place = tmp_path / "a"
    a = new(place, strategy, location, compressors=None)
    a[...] = want = noise()
    published = shard_path(place).read_bytes()
    with monkeypatch.context() as patch:
        cut_off_after(n_calls, patch)
        try:
            a[2:6, 2:6] = 9
            was_cut = False
            want = want.copy()
            want[2:6, 2:6] = 9
        except Killed:
            was_cut = True
    reader = gpushard.open_array(place)
    try:
        assert_same_bits(reader[...], want)
        is_told = False
    except gpushard.CorruptShardError:
        is_told = True
    restored = gpushard.repair(a)
    assert restored == (["c/0/0"] if is_told else [])
    assert was_cut or not is_told
    assert_same_bits(reader[...], want)
    if is_told:
        assert shard_path(place).read_bytes() == published
    assert not list(place.rglob(".*.undo"))


@each_in_place
def test_the_next_write_undoes_a_torn_one_first(
    strategy, location, tmp_path, monkeypatch
):
    place = tmp_path / "a"
    a = new(place, strategy, location, compressors=None)
    a[...] = want = noise()
    with monkeypatch.context() as patch:
        cut_off_after(2, patch)
        with pytest.raises(Killed):
            a[2:6, 2:6] = 9
    again = gpushard.open_array(place)  # by another strategy, too
    again[15, 15] = want[15, 15] = 4
    assert_same_bits(again[...], want)
    assert_same_bits(zarr.open_array(place)[...], want)


def test_a_torn_first_write_leaves_no_shard(tmp_path, monkeypatch):
    place = tmp_path / "a"
    a = new(place, "random_write", "start")
    with monkeypatch.context() as patch:
        cut_off_after(3, patch)
        with pytest.raises(Killed):
            a[...] = noise()
    with pytest.raises(gpushard.ChecksumError):
        gpushard.open_array(place)[...]
    assert gpushard.repair(a) == ["c/0/0"]
    assert (a[...] == 0).all()


def test_a_torn_write_over_an_empty_file_leaves_it_empty(tmp_path, monkeypatch):
    place = tmp_path / "a"
    a = new(place, "random_write", "start")
    shard_path(place).parent.mkdir(parents=True)
    shard_path(place).touch()
    with monkeypatch.context() as patch:
        cut_off_after(2, patch)
        with pytest.raises(Killed):
            a[...] = noise()
    assert gpushard.repair(a) == ["c/0/0"]
    assert shard_path(place).stat().st_size == 0


def test_a_shard_that_another_library_replaced_is_not_undone(tmp_path, monkeypatch):
    place = tmp_path / "a"
    a = new(place, "append_only", "end")
    a[...] = noise()
    with monkeypatch.context() as patch:
        cut_off_after(1, patch)
        with pytest.raises(Killed):
            a[0, 0] = 9
    theirs = zarr.create_array(
        tmp_path / "b", shape=(16, 16), dtype="u4", chunks=(4, 4), shards=(16, 16)
    )
    theirs[...] = 3
    os.replace(shard_path(tmp_path / "b"), shard_path(place))
    assert gpushard.repair(a) == []
    assert (a[...] == 3).all()


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_shard_whose_inner_chunks_are_all_missing_is_written_in_place(
    location, tmp_path
):
    a = new(tmp_path / "a", "fixed_order", location)
    path = shard_path(tmp_path / "a")
    path.parent.mkdir(parents=True)
    entries = b"\xff" * (16 * 16)
    path.write_bytes(entries + struct.pack("<I", crc32c.crc32c(entries)))
    assert (a[...] == a.fill_value).all()
    a[1, 2] = a.fill_value
    assert (a[...] == a.fill_value).all()
    a[1, 2] = 9
    assert a[1, 2] == 9
    assert (zarr.open_array(tmp_path / "a")[...] == 9).sum() == 1


NO_CHECKSUM = ShardingCodec(
    chunk_shape=(4, 4), codecs=[BytesCodec()], index_codecs=[BytesCodec()]
)
AROUND = {"serializer": ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec()])}
AROUND |= {"compressors": Crc32cCodec(), "chunks": (16, 16), "shards": None}


@pytest.mark.parametrize(
    ("strategy", "changed", "reason"),
    [
        (
            "append_only",
            {"shards": {"shape": (16, 16), "index_location": "start"}},
            "end",
        ),
        ("random_write", {}, "index_location 'start'"),
        ("fixed_order", {"shards": None}, "a sharded array"),
        ("append_only", AROUND, "no codecs around"),
        (
            "append_only",
            {
                "serializer": NO_CHECKSUM,
                "chunks": (16, 16),
                "shards": None,
                "compressors": None,
            },
            "crc32c",
        ),
    ],
)
def test_strategies_that_do_not_suit_are_refused(strategy, changed, reason, tmp_path):
    with pytest.raises(gpushard.OptionError, match=reason):
        new(tmp_path / "a", strategy, "end", **changed)
    assert not (tmp_path / "a" / "zarr.json").exists()


def test_an_index_with_another_checksum_is_not_written_in_place(tmp_path):
    options = Options(write=WriteOptions(strategy="append_only"))
    codecs = [LITTLE, CRC, {"name": "numcodecs.adler32"}]
    meta = document((4,), (4,), sharding((2,), index_codecs=codecs))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    a = gpushard.open_array(tmp_path, device="cpu", options=options)
    with pytest.raises(gpushard.OptionError, match=r"crc32c, got numcodecs\.adler32"):
        a[...] = 3


def test_writes_in_place_are_for_local_files():
    with pytest.raises(gpushard.OptionError, match="local directory"):
        new(zarr.storage.MemoryStore(), "append_only", "end")


@pytest.mark.parametrize(
    "changed",
    [
        {"strategy": "fast"},
        {"order": "z"},
        {"write_empty_chunks": 2},
        {"max_unused_fraction": 1.5},
        {"max_unused_fraction": "half"},
        {"max_unused_fraction": float("nan")},
    ],
)
def test_write_options_without_a_possible_value_are_refused(changed):
    with pytest.raises(gpushard.OptionError, match=next(iter(changed))):
        replace(WriteOptions(), **changed)


def test_missing_inner_chunks_stay_missing(tmp_path):
    a = new(tmp_path / "a", "append_only", "end")
    a[:4, :4] = 1
    a[4:8, :4] = 1
    state = stored_shard(a, tmp_path / "a").index.state
    assert (state != MISSING).nonzero()[0].tolist() == [0, 4]
