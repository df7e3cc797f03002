"""An index behind a file of another format makes a shard of it."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest
import zarr

import gpushard
from zarr_oracle import quiet_zarr

NUMBERS = np.arange(8 * 12, dtype="<i4").reshape(8, 12)


def new_array(place, compressors) -> gpushard.Array:
    with quiet_zarr():
        return gpushard.create_array(
            place,
            shape=(8, 12),
            dtype="i4",
            chunks=(4, 4),
            shards=(8, 12),
            compressors=compressors,
            fill_value=-1,
        )


def shard_of(place, file):
    """Let the array's only shard be a copy of `file`."""
    shard = place / "c" / "0" / "0"
    shard.parent.mkdir(parents=True)
    return shutil.copy(file, shard)


@pytest.mark.parametrize("filter_name", [None, "gzip"])
def test_a_chunked_hdf5_file_becomes_a_shard_and_stays_hdf5(filter_name, tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "t", (8, 12), "<i4", chunks=(4, 4), compression=filter_name, fillvalue=-1
        )
        made[:, 4:] = NUMBERS[:, 4:]  # the first column of chunks is never stored
    offsets, nbytes = np.full((2, 2, 3), -1)
    with h5py.File(path) as file:
        chunks = file["t"].id
        for info in map(chunks.get_chunk_info, range(chunks.get_num_chunks())):
            cell = tuple(at // 4 for at in info.chunk_offset)
            offsets[cell], nbytes[cell] = info.byte_offset, info.size
    before = path.read_bytes()
    assert gpushard.append_index(path, offsets, nbytes) == 6 * 16 + 4
    assert path.read_bytes()[: len(before)] == before

    want = NUMBERS.copy()
    want[:, :4] = -1
    with h5py.File(path) as file:
        assert np.array_equal(file["t"][...], want)
    with quiet_zarr():
        zlib = {"name": "numcodecs.zlib", "configuration": {"level": 4}}
        a = new_array(tmp_path / "a", zlib if filter_name else None)
        shard = shard_of(tmp_path / "a", path)
        assert np.array_equal(a[...], want)
        assert np.array_equal(zarr.open_array(tmp_path / "a")[...], want)
        a[0, 0] = want[0, 0] = 5  # from here on the shard is ours
        assert np.array_equal(zarr.open_array(tmp_path / "a")[...], want)
        assert shard.read_bytes() != path.read_bytes()


def test_tensorstore_reads_such_a_shard(tmp_path):
    reason = "tensorstore is not installed"
    tensorstore = pytest.importorskip("tensorstore", reason=reason)
    path = tmp_path / "other.bin"
    cells = [NUMBERS[i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4, 8)]
    path.write_bytes(b"HEAD" + b"".join(cell.tobytes() for cell in cells))
    offsets = 4 + 64 * np.arange(6).reshape(2, 3)
    gpushard.append_index(path, offsets, np.full((2, 3), 64))
    new_array(tmp_path / "a", None)
    shard_of(tmp_path / "a", path)
    kvstore = {"driver": "file", "path": str(tmp_path / "a")}
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
    assert np.array_equal(theirs.read().result(), NUMBERS)


@pytest.mark.parametrize(
    ("offsets", "nbytes", "reason"),
    [
        ([0, 90], [10, 11], "inner chunk 1 leads out"),
        ([0, -2], [10, 1], "inner chunk 1 leads out"),
        ([0, -1], [10, 1], "inner chunk 1 leads out"),
        ([0, 1], [10], "one shape"),
        ([0.5], [1], "no integers"),
        ([0.5, 2**64 - 1], [1, 2**64 - 1], "no integers"),
        ([0, 2**64 - 1], [10, 2**64], "no integers"),
        ([0.0, 1.0], [1, 1], "no integers"),
    ],
)
def test_ranges_that_cannot_be_are_refused_and_nothing_is_written(
    offsets, nbytes, reason, tmp_path
):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with pytest.raises(gpushard.OptionError, match=reason):
        gpushard.append_index(path, offsets, nbytes)
    assert path.read_bytes() == bytes(100)


@pytest.mark.parametrize(
    ("offsets", "nbytes"),
    [
        ([7, -1], [93, -1]),
        ([7, 2**64 - 1], [93, 2**64 - 1]),  # NumPy makes floats of such a list
        (np.array([7, 2**64 - 1], "u8"), np.array([93, 2**64 - 1], "u8")),
    ],
    ids=["-1", "list", "array"],
)
def test_a_missing_inner_chunk_has_either_number(offsets, nbytes, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    gpushard.append_index(path, offsets, nbytes)
    entries = np.frombuffer(path.read_bytes()[100:-4], "<u8")
    assert entries.tolist() == [7, 93, 2**64 - 1, 2**64 - 1]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path, writev = tmp_path / "file", os.writev
    path.write_bytes(bytes(100))

    def full(fd, pieces):
        if os.fstat(fd).st_size > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(fd, [pieces[0][:9]])

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(gpushard.StoreError, match="No space left"):
        gpushard.append_index(path, [0], [10])
    assert path.read_bytes() == bytes(100)


def test_an_appended_index_is_on_the_disk_when_the_call_returns(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(b"\7" * 16)
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), fsync(fd))
    )
    appended = gpushard.append_index(path, [0], [16])
    assert synced == [16 + appended]
    assert path.stat().st_size == synced[-1]


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(gpushard.NotFoundError):
        gpushard.append_index(tmp_path / "file", [0], [0])
    assert not (tmp_path / "file").exists()


def test_a_directory_is_no_container(tmp_path):
    with pytest.raises(gpushard.StoreError, match="cannot write"):
        gpushard.append_index(tmp_path, [0], [0])
