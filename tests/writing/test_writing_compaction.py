"""Compaction drops what a shard does not use, and nothing else."""

from __future__ import annotations

import pytest
from zarr.storage import MemoryStore

import gpushard
from gpushard.stores.local.handles import file_version
from test_writing_strategies import (
    Killed,
    cut_off_after,
    new,
    noise,
    shard_path,
)
from zarr_oracle import assert_same_bits


def test_compaction_drops_unused_space_and_copies_the_rest(tmp_path):
    a = new(tmp_path / "a", "append_only", "end")
    a[...] = noise()
    compact_nbytes = shard_path(tmp_path / "a").stat().st_size
    for _ in range(3):
        a[:8] = noise(2)[:8]
    grown_nbytes = shard_path(tmp_path / "a").stat().st_size
    want = a[...]
    assert gpushard.compact(a) == grown_nbytes - compact_nbytes
    assert shard_path(tmp_path / "a").stat().st_size == compact_nbytes
    compacted = file_version(shard_path(tmp_path / "a").stat())
    assert gpushard.compact(a) == 0
    again = file_version(shard_path(tmp_path / "a").stat())
    assert again == compacted, "it was not written again"
    assert_same_bits(a[...], want)
    a[...] = 0
    gpushard.compact(a)
    assert not shard_path(tmp_path / "a").exists()


def test_compaction_undoes_a_torn_write_first(tmp_path, monkeypatch):
    a = new(tmp_path / "a", "fixed_order", "end", compressors=None)
    a[...] = want = noise()
    with monkeypatch.context() as patch:
        cut_off_after(3, patch)
        with pytest.raises(Killed):
            a[2:6, 2:6] = 9
    with pytest.raises(gpushard.CorruptShardError):
        a[...]
    assert gpushard.compact(a) == 0
    assert_same_bits(a[...], want)
    shard_path(tmp_path / "a").unlink()
    note = shard_path(tmp_path / "a").with_name(".0.undo")
    note.touch()  # of a shard that somebody has deleted since
    assert gpushard.compact(a) == 0
    assert not note.exists()


@pytest.mark.parametrize("maintain", [gpushard.compact, gpushard.repair])
@pytest.mark.parametrize("left", [".0.lock", ".0.new", ".0.undo.new"])
def test_what_killed_writers_left_half_written_takes_no_room_afterwards(
    left, maintain, tmp_path
):
    """It may be as large as a shard, and perhaps nobody writes there again."""
    a = new(tmp_path / "a", "fixed_order", "end")
    a[...] = want = noise()
    shard_path(tmp_path / "a").with_name(left).write_bytes(b"half of a shard")
    assert not maintain(a)
    names = sorted(path.name for path in shard_path(tmp_path / "a").parent.iterdir())
    assert names == ["0"]
    assert_same_bits(a[...], want)
    shard_path(tmp_path / "a").rename(shard_path(tmp_path / "a").with_name(left))
    assert not maintain(a)
    assert not any(shard_path(tmp_path / "a").parent.iterdir())


@pytest.mark.parametrize("maintain", [gpushard.compact, gpushard.repair])
def test_arrays_that_need_no_maintenance_are_refused_by_what_they_lack(
    tmp_path, maintain
):
    how = {"shape": (4,), "chunks": (2,), "dtype": "i4"}
    plain = gpushard.create_array(tmp_path / "a", **how)
    with pytest.raises(gpushard.UnsupportedError, match="got an array without shards"):
        maintain(plain)
    held = gpushard.create_array(MemoryStore(), shards=(4,), **how)
    with pytest.raises(gpushard.UnsupportedError, match="got memory://"):
        maintain(held)
