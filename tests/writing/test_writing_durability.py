"""Which writes to files wait until the disk has the bytes."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.rolling import RollingArray
from gpushard.write_options import WriteOptions

VALUES = np.arange(64, dtype="u2").reshape(8, 8)
STRATEGIES = ("append_only", "random_write", "fixed_order")


@pytest.fixture
def calls(monkeypatch):
    """Names of the calls that make something durable or visible, in order."""
    noted = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)

        def noting(*arguments, name=name, call=call, **named):
            noted.append(name)
            return call(*arguments, **named)

        monkeypatch.setattr(os, name, noting)
    return noted


def new(path, strategy="rewrite", **write):
    return gpushard.create_array(
        path,
        shape=VALUES.shape,
        dtype=VALUES.dtype,
        chunks=(2, 2),
        shards={
            "shape": (4, 8),
            "index_location": "start" if strategy == "random_write" else "end",
        },
        options=gpushard.Options(write=WriteOptions(strategy=strategy, **write)),
    )


def test_bytes_are_durable_before_the_shard_has_its_name(tmp_path, calls):
    a = new(tmp_path / "a")
    (tmp_path / "a" / "c" / "0").mkdir(parents=True)
    calls.clear()
    a[:4] = VALUES[:4]
    assert calls == ["fsync", "replace", "fsync"]


def test_a_write_that_need_not_be_durable_waits_for_no_disk(tmp_path, calls):
    a = new(tmp_path / "a", durable=False)
    calls.clear()
    a[...] = VALUES
    a[1, 1] = 7
    assert calls == ["replace"] * 3
    written = VALUES.copy()
    written[1, 1] = 7
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], written)


def test_a_large_shard_that_need_not_be_durable_waits_for_no_disk(tmp_path, calls):
    """Its encoded inner chunks go to the new file before all of them are there."""
    write = WriteOptions(durable=False)
    a = gpushard.create_array(
        tmp_path / "a",
        shape=48 << 20,
        dtype="u1",
        chunks=1 << 20,
        shards=48 << 20,
        compressors=None,
        options=gpushard.Options(write=write, memory_limit=64 << 20, threads=1),
    )
    calls.clear()
    a[...] = np.ones(48 << 20, "u1")
    assert calls == ["replace"]
    assert (a[:: 1 << 20] == 1).all()


def test_a_quota_that_only_closing_tells_of_leaves_a_large_shard_as_it_was(
    tmp_path, monkeypatch
):
    options = gpushard.Options(write=WriteOptions(durable=False), memory_limit=1 << 20)
    a = gpushard.create_array(
        tmp_path / "a",
        shape=4 << 20,
        dtype="u1",
        chunks=1 << 16,
        shards=4 << 20,
        compressors=None,
        options=options,
    )
    a[...] = np.ones(4 << 20, "u1")
    close, refused = os.close, []

    def closing(fd):
        status = os.fstat(fd)
        close(fd)
        if status.st_size >= 4 << 20 and not refused:
            refused.append(fd)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", closing)
    with pytest.raises(gpushard.StoreError, match="cannot write"):
        a[...] = np.full(4 << 20, 2, "u1")
    assert refused
    assert (a[:: 1 << 16] == 1).all()
    assert os.listdir(tmp_path / "a" / "c") == ["0"]


def test_a_deleted_shard_need_not_be_durable(tmp_path, calls):
    a = new(tmp_path / "a", durable=False)
    a[...] = VALUES
    calls.clear()
    a[4:] = 0
    assert not calls
    assert not (tmp_path / "a" / "c" / "1").joinpath("0").exists()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_writes_in_place_are_durable_whatever_is_asked_for(tmp_path, calls, strategy):
    """A note on the disk could not undo what got there before the note."""
    counts = []
    for durable in (True, False):
        a = new(tmp_path / str(durable), strategy, durable=durable)
        a[...] = VALUES
        calls.clear()
        a[1, 1] = 7
        counts.append(calls.count("fsync"))
    assert counts[0] == counts[1] > 0


def test_what_is_compacted_is_durable_whatever_is_asked_for(tmp_path, calls):
    """Most of a shard was written, and durable, before."""
    a = new(tmp_path / "a", "append_only")
    a[:4] = VALUES[:4]
    a[1, 1] = 7
    options = gpushard.Options(write=WriteOptions(durable=False))
    calls.clear()
    assert gpushard.compact(gpushard.open_array(tmp_path / "a", options=options)) > 0
    assert calls == ["fsync", "replace", "fsync"]


def test_conversions_are_durable_whatever_is_asked_for(tmp_path, calls):
    """One that is resumed takes shards that are there for written."""
    new(tmp_path / "a")[...] = VALUES
    counts = []
    for durable in (True, False):
        options = gpushard.Options(threads=1, write=WriteOptions(durable=durable))
        calls.clear()
        gpushard.convert(
            tmp_path / "a",
            tmp_path / f"to-{durable}",
            chunks=(2, 2),
            shards=(8, 4),
            options=options,
        )
        counts.append(calls.count("fsync"))
    assert counts[0] == counts[1] > 0


def test_writes_to_rolling_arrays_are_durable_whatever_is_asked_for(tmp_path, calls):
    """The window moves to them, and shards that it has left are deleted."""
    counts = []
    for durable in (True, False):
        a = RollingArray.create(
            tmp_path / str(durable),
            shape=VALUES.shape,
            dtype=VALUES.dtype,
            chunks=(2, 2),
            shards=(8, 8),
            options=gpushard.Options(write=WriteOptions(durable=durable)),
        )
        calls.clear()
        a.roll(VALUES)
        rolled = calls.count("fsync")
        a[1, 1] = 7
        counts.append((rolled, calls.count("fsync") - rolled))
    assert counts[0] == counts[1]
    assert min(counts[0]) > 0


def test_only_a_truth_value_says_whether_writes_are_durable():
    with pytest.raises(gpushard.OptionError, match="durable"):
        WriteOptions(durable="no")
