"""Small files that a write makes together keep the promises of those made alone."""

from __future__ import annotations

import errno
import fcntl
import os
from itertools import count

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import TransposeCodec
from zarr.storage import LocalStore as ZarrStore

import gpushard
from call_counts import n_calls
from gpushard import Options
from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.options import DEFAULT
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore
from gpushard.write_options import WriteOptions
from gpushard.writing import assign
from interrupts import is_cut_off_at_call

NEW = [np.arange(8, dtype=np.uint8)]
VALUES = np.arange(1, 97, dtype="i4").reshape(8, 12)


def new(place, *, threads=1, durable=False, **how) -> gpushard.Array:
    """Array of 4 x 3 objects of 2 x 4 elements each."""
    write = WriteOptions(durable=durable)
    how = {"shape": VALUES.shape, "dtype": "i4", "chunks": (2, 4), **how}
    return gpushard.create_array(
        place / "a", options=Options(threads=threads, write=write), **how
    )


def files_of(array) -> set[str]:
    """Names of all files, those that a write leaves among them."""
    below = array / "c"
    files = (p for p in below.rglob("*") if not p.is_dir())
    return {p.relative_to(below).as_posix() for p in files}


def slices(n: int):
    bounds = st.integers(0, n)
    return st.builds(slice, bounds, bounds, st.sampled_from([1, 1, 1, 2])) | st.builds(
        slice, bounds, st.none(), st.just(-1)
    )


@given(
    key=st.tuples(slices(7), slices(11)),
    threads=st.sampled_from([1, 3]),
    memory_limit=st.sampled_from([1, 300, 1 << 20]),
    is_turned=st.booleans(),
    keeps_empty=st.booleans(),
)
def test_boxes_of_files_get_the_values_of_any_other_way(
    tmp_path_factory, key, threads, memory_limit, is_turned, keeps_empty
):
    place = tmp_path_factory.mktemp("a")
    turned = [TransposeCodec(order=(1, 0))] if is_turned else None
    write = WriteOptions(durable=False, write_empty_chunks=keeps_empty)
    a = gpushard.create_array(
        place,
        shape=(7, 11),  # the last objects reach beyond
        dtype="i4",
        chunks=(2, 4),
        filters=turned,
        options=Options(threads=threads, memory_limit=memory_limit, write=write),
    )
    expected = np.zeros((7, 11), "i4")
    for number in (5, 0, 9):
        expected[key] = np.arange(expected[key].size).reshape(expected[key].shape)
        expected[key] *= number
        a[key] = expected[key]
    z = zarr.open_array(ZarrStore(place), mode="r")
    np.testing.assert_array_equal(z[...], expected)
    if not keeps_empty:
        is_there = [
            (place / "c" / str(i) / str(j)).exists() for i, j in np.ndindex(4, 3)
        ]
        cells = np.pad(expected, ((0, 1), (0, 1))).reshape(4, 2, 3, 4)
        assert is_there == cells.any((1, 3)).reshape(-1).tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_files_that_become_empty_are_deleted_among_others(tmp_path, threads):
    a = new(tmp_path, threads=threads)
    a[...] = VALUES
    values = VALUES.copy()
    values[2:4, 4:8] = values[6:, :4] = 0
    a[...] = values
    there = {
        p.relative_to(tmp_path / "a/c").as_posix() for p in tmp_path.glob("a/c/*/*")
    }
    assert there == {f"{i}/{j}" for i, j in np.ndindex(4, 3)} - {"1/1", "3/0"}
    np.testing.assert_array_equal(a[...], values)


def test_values_that_are_broadcast_get_to_all_files(tmp_path):
    a = new(tmp_path, shape=(40, 40))
    a[...] = 7
    assert (zarr.open_array(tmp_path / "a")[...] == 7).all()


@pytest.fixture
def in_one_thread(monkeypatch):
    """Also writes that wait for the disk."""
    monkeypatch.setattr(assign, "n_waiting_at_once", lambda _: 1)


@pytest.fixture
def calls(monkeypatch):
    """Calls that make something durable or visible, in order, and the names given."""
    noted = []

    def noting(name):
        call = getattr(os, name)

        def noted_call(*arguments, **named):
            noted.append(name if name == "fsync" else f"{name} {arguments[1]}")
            return call(*arguments, **named)

        monkeypatch.setattr(os, name, noted_call)

    for name in ("fsync", "replace"):
        noting(name)
    return noted


@pytest.mark.usefixtures("in_one_thread")
def test_each_file_is_durable_before_it_has_its_name_and_all_names_at_the_end(
    tmp_path, calls
):
    a = new(tmp_path, durable=True)
    a[...] = VALUES
    calls.clear()
    a[:4] = VALUES[:4] + 1
    row = ["fsync", "replace 0", "fsync", "replace 1", "fsync", "replace 2", "fsync"]
    assert calls == row * 2
    calls.clear()
    a[1] = VALUES[0]
    assert calls == row


@pytest.mark.usefixtures("in_one_thread")
def test_names_before_the_file_that_fails_are_durable_all_the_same(
    tmp_path, calls, monkeypatch
):
    a = new(tmp_path, durable=True)
    a[...] = VALUES
    opening = os.open

    def full(path, *arguments, **named):
        if path == ".2.lock":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opening(path, *arguments, **named)

    calls.clear()
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(gpushard.StoreError, match="No space") as caught:
        a[...] = VALUES + 1
    assert caught.value.shard_key == "c/0/2"
    assert calls == ["fsync", "replace 0", "fsync", "replace 1", "fsync"]
    expected = VALUES.copy()
    expected[:2, :8] += 1
    np.testing.assert_array_equal(a[...], expected)
    assert files_of(tmp_path / "a") == {f"{i}/{j}" for i, j in np.ndindex(4, 3)}


@pytest.mark.usefixtures("in_one_thread")
def test_names_that_the_disk_refuses_are_an_error(tmp_path, monkeypatch):
    a = new(tmp_path, durable=True)
    a[...] = VALUES
    fsync, directory = os.fsync, os.stat(tmp_path / "a/c/2")

    def failing(fd):
        if os.path.samestat(os.fstat(fd), directory):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(gpushard.StoreError, match="Input/output") as caught:
        a[...] = VALUES + 1
    assert caught.value.shard_key == "c/2/2"


def test_the_error_of_values_that_cannot_be_encoded_names_their_file(
    tmp_path, monkeypatch
):
    a = new(tmp_path)
    encode = ChainEncoder.encode

    def refusing(self, arrays, n_threads=1):
        if (arrays == VALUES[2, 4]).any():
            raise gpushard.UnsupportedError("no such values")
        return encode(self, arrays, n_threads)

    monkeypatch.setattr(ChainEncoder, "encode", refusing)
    with pytest.raises(gpushard.UnsupportedError) as caught:
        a[...] = VALUES
    assert caught.value.shard_key == "c/1/1"
    assert files_of(tmp_path / "a") == {"0/0", "0/1", "0/2", "1/0"}


def test_a_directory_that_was_moved_between_two_files_is_refused(tmp_path):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    with files.visit() as visit:
        with visit.locked("c/0") as file:
            file.replace(NEW)
        (tmp_path / "c").rename(tmp_path / "was c")
        (tmp_path / "c").mkdir()
        with pytest.raises(gpushard.StoreError, match="was moved"), visit.locked("c/1"):
            pass
    assert os.listdir(tmp_path / "c") == []
    assert os.listdir(tmp_path / "was c") == ["0"]


def test_a_directory_that_a_link_out_of_the_store_replaced_is_refused(tmp_path):
    root, outside = tmp_path / "a", tmp_path / "outside"
    root.mkdir()
    with FileWriter(LocalStore(str(root), DEFAULT)).visit() as visit:
        with visit.locked("c/0") as file:
            file.replace(NEW)
        (root / "c").rename(outside)
        (root / "c").symlink_to(outside)
        refused = pytest.raises(gpushard.StoreError, match="out of the store's root")
        with refused as caught, visit.locked("c/1"):
            pass
    assert caught.value.shard_key == "c/1"
    assert os.listdir(outside) == ["0"]


def test_a_directory_that_was_removed_between_two_files_is_made_again(tmp_path):
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    with files.visit(names_later=True) as visit:
        with visit.locked("c/0") as file:
            file.replace(NEW)
        (tmp_path / "c" / "0").unlink()
        (tmp_path / "c").rmdir()
        with visit.locked("c/1") as file:
            file.replace(NEW)
    assert os.listdir(tmp_path / "c") == ["1"]


def test_a_store_that_is_gone_between_two_files_is_not_made_again(tmp_path):
    root = tmp_path / "a"
    root.mkdir()
    with FileWriter(LocalStore(str(root), DEFAULT)).visit() as visit:
        with visit.locked("c/0/0") as file:
            file.replace(NEW)
        root.rename(tmp_path / "b")
        with pytest.raises(gpushard.StoreError, match="is gone"), visit.locked("c/1/0"):
            pass
    assert not root.exists()


def test_a_link_that_leads_out_between_two_files_is_refused(tmp_path):
    root, outside = tmp_path / "a", tmp_path / "b"
    for place in (root, outside / "1"):
        place.mkdir(parents=True)
    with FileWriter(LocalStore(str(root), DEFAULT)).visit() as visit:
        with visit.locked("c/0/0") as file:
            file.replace(NEW)
        (root / "c" / "1").symlink_to(outside / "1")
        refused = pytest.raises(gpushard.StoreError, match="leads out")
        with refused as caught, visit.locked("c/1/0"):
            pass
        assert caught.value.shard_key == "c/1/0"
    assert not os.listdir(outside / "1")


def test_other_writers_need_not_wait_for_files_that_are_done(tmp_path, monkeypatch):
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))
    with files.visit(names_later=True) as visit:
        for key in ("c/0", "c/1"):
            with visit.locked(key) as file:
                file.replace(NEW)
        files.put("c/0", None)
    assert os.listdir(tmp_path / "c") == ["1"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_no_lock_outlives_a_visit_wherever_that_is_interrupted(tmp_path, monkeypatch):
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    files = FileWriter(LocalStore(str(tmp_path), DEFAULT))

    def write() -> None:
        with files.visit(names_later=True) as visit:
            for key in ("c/0", "d/0"):
                with visit.locked(key) as file:
                    file.replace(NEW)

    for n_call in count(1):
        if not is_cut_off_at_call(write, n_call, ["gpushard/stores", "contextlib"]):
            break
        assert not [*tmp_path.rglob("*.new")]  # it would take room
        write()
        assert sorted(p.name for p in tmp_path.rglob("*.*")) == []
    assert n_call > 100


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_of_many_is_written_with_few_calls(tmp_path, durable):
    # Each costs 0.1 to 0.3 us, a call of the system some us.
    n_each = {}
    for n in (16, 48):
        place = tmp_path / str(n)
        place.mkdir()
        a = new(place, shape=(n, 64), chunks=(1, 64), durable=durable)
        values = np.arange(1, n * 64 + 1, dtype="i4").reshape(n, 64)
        a[...] = values
        n_each[n] = n_calls(lambda a=a, values=values: a.__setitem__(..., values))
    # Each in a directory of its own, which is opened and checked, too.
    assert (n_each[48] - n_each[16]) / 32 < 250
