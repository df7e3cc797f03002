"""The real kvikio, where it is installed: its signatures, and a read by it.

Without a GPU it reads into host memory, if anything that calls itself libcuda.so.1
loads; with one this is its compatibility mode, or GPUDirect Storage.
"""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest

from cuda_host import kvikio_standin
from gpushard.device_reading.payload.kvikio_file import FileRange, KvikioFiles
from gpushard.errors import StoreError, UnsupportedError
from range_server import RangeServer


@pytest.fixture
def kvikio():
    try:
        import kvikio.cufile_driver
        import kvikio.defaults
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"kvikio cannot be imported here: {error}")
    return kvikio


@pytest.fixture
def files(kvikio, tmp_path):
    (tmp_path / "probe").write_bytes(bytes(9))
    room = np.ones(9, np.uint8)
    try:
        probe = kvikio.CuFile(str(tmp_path / "probe"))
        probe.pread(room, 9, 0).get()
    except RuntimeError as error:
        pytest.skip(f"kvikio reads nothing without a driver: {error}")
    assert not room.any()
    return KvikioFiles(kvikio)


def test_the_stand_in_has_its_signatures(kvikio):
    for real, other in (
        (kvikio.CuFile.__init__, kvikio_standin.CuFile.__init__),
        (kvikio.CuFile.pread, kvikio_standin.CuFile.pread),
        (kvikio.RemoteFile.open_http, kvikio_standin.RemoteFile.open_http),
        (kvikio.RemoteFile.pread, kvikio_standin.RemoteFile.pread),
    ):
        names = [
            (p.name, p.default) for p in inspect.signature(real).parameters.values()
        ]
        others = inspect.signature(other).parameters.values()
        assert names == [(p.name, p.default) for p in others]
    assert isinstance(kvikio.defaults.is_compat_mode_preferred(), bool)
    assert isinstance(kvikio.cufile_driver.get("is_gds_available"), bool)
    assert callable(kvikio.cufile_driver.driver_open)
    modes = {mode.name for mode in kvikio_standin.CompatMode}
    assert kvikio.defaults.get("compat_mode").name in modes
    assert isinstance(kvikio.is_remote_file_available(), bool)


def test_several_threads_are_asked_for(kvikio, files, monkeypatch):
    assert kvikio.defaults.get("num_threads") > 1


def test_ranges_of_an_open_file_are_read(files, tmp_path):
    content = np.random.default_rng(3).bytes(100_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    path.unlink()  # what is open stays
    room = np.zeros(60_000, np.uint8)
    try:
        file = files.file_of(fd, "a version", 8)
        assert os.fstat(file.fileno()).st_ino == os.fstat(fd).st_ino
        address = room.ctypes.data
        parts = [(0, 20_000), (4096, 8192), (70_001, 29_999)]
        ranges, at = [], 0
        for offset, nbytes in parts:
            ranges.append(FileRange(file, offset, nbytes, address + at))
            at += nbytes
        files.read(ranges)
        wanted = b"".join(content[offset : offset + n] for offset, n in parts)
        assert room[:at].tobytes() == wanted
        with pytest.raises(StoreError, match="kvikio"):
            files.read([FileRange(file, 99_999, 2, address)])
    finally:
        os.close(fd)


@pytest.mark.network
def test_ranges_of_a_remote_object_are_read(files, tmp_path):
    content = np.random.default_rng(4).bytes(50_000)
    (tmp_path / "object").write_bytes(content)
    room = np.zeros(20_000, np.uint8)
    with RangeServer(tmp_path) as server:
        file = files.remote_file(f"{server.url}/object", "a version", 8)
        files.read([FileRange(file, 12_345, 20_000, room.ctypes.data)])
        assert files.remote_file(f"{server.url}/object", "a version", 8) is file
    assert room.tobytes() == content[12_345:32_345]


def test_what_cannot_be_opened_is_unsupported(files):
    with pytest.raises(UnsupportedError, match="kvikio cannot open it"):
        files.file_of(1 << 20, "no version", 8)
