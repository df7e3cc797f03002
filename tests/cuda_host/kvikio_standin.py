"""What of kvikio gpushard uses, on the memory of an emulated device, with bad manners.

* What is read into is junk from the call on, and read at last when somebody asks.
* Reads may be short, fail, or be refused when a file is opened.
* A read that nobody waited for is told by `under_way`.

`install` puts it where ``import kvikio`` finds it.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import urllib.request
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpushard.device_reading.payload import kvikio_file

if TYPE_CHECKING:
    from cuda_host.device import EmulatedDevice

JUNK = 0x99


class CompatMode(IntEnum):
    """Of kvikio, where it is printed as its number."""

    OFF, ON, AUTO = range(3)


class Standin:
    """A stand-in for the module.

    Attributes
    ----------
    answer
        Called as a read completes, with its size: what `IOFuture.get` gives or raises.
    before_bytes
        Called just before the bytes of a read are taken from the file.
    is_gds, has_driver
        Whether GPUDirect Storage is there, and whether cuFile's driver opens.
    refuses
        Whether files cannot be opened.
    n_preads, n_opened
        Reads that were asked for, and files that were opened.
    """

    __version__ = "26.10.0"
    CompatMode = CompatMode

    def __init__(self, device: EmulatedDevice, *, seed: int = 0) -> None:
        self.device = device
        self.random = random.Random(seed)
        # A device that several threads use has a lock: one order for both.
        self.lock = getattr(device, "lock", None) or threading.RLock()
        self.is_gds, self.is_compat, self.refuses = True, False, False
        self.has_driver = True
        self.answer: Callable[[int], int] = lambda nbytes: nbytes
        self.before_bytes: Callable[[], None] = lambda: None
        self.under_way: list[IOFuture] = []
        self.n_preads = self.n_opened = 0
        self.settings: dict[str, Any] = {
            "num_threads": 1,
            "compat_mode": CompatMode.AUTO,
        }
        self.defaults = SimpleNamespace(
            get=self.settings.__getitem__,
            set=self.settings.__setitem__,
            is_compat_mode_preferred=lambda: (
                self.is_compat or self.settings.get("compat_mode") is CompatMode.ON
            ),
        )
        self.cufile_driver = CufileDriver(self)
        self.CuFile = self._bound(CuFile)
        self.RemoteFile = self._bound(RemoteFile)

    def _bound(self, kind: type) -> type:
        return type(kind.__name__, (kind,), {"module": self})

    def is_remote_file_available(self) -> bool:
        return True

    def opened(self, name: str) -> None:
        if self.refuses:
            raise RuntimeError(f"Unable to open file {name}")
        self.n_opened += 1

    def start(self, buf: Any, size: int | None, offset: int, take: Any) -> IOFuture:
        """Begin a read; it may be over before anybody asks, or not."""
        interface = buf.__cuda_array_interface__
        address, (room,) = interface["data"][0], interface["shape"]
        assert interface["typestr"] == "|u1"
        nbytes = room if size is None else size
        if nbytes > room:
            raise ValueError("Size is greater than the size of the buffer")
        assert self.device.holds(address, nbytes), "not the device's memory"
        with self.device.open_memory():
            ctypes.memset(address, JUNK, nbytes)
        future = IOFuture(self, address, lambda: take(offset, nbytes))
        with self.lock:
            self.n_preads += 1
            self.device.log.append((-1, "pread", f"{offset}+{nbytes}"))
            self.under_way.append(future)
            if self.random.random() < 0.3:
                self.random.choice(self.under_way).run()
        return future


class CufileDriver:
    """``kvikio.cufile_driver``: cuFile knows what is there once its driver is open.

    kvikio asks it once, and keeps what it was told.
    """

    def __init__(self, module: Standin) -> None:
        self._module = module
        self._told: bool | None = None
        self.n_opened = 0

    def driver_open(self) -> None:
        if not self._module.has_driver:
            raise RuntimeError("Unable to open GDS file driver: 5001")
        self.n_opened += 1

    def get(self, name: str) -> bool:
        assert name == "is_gds_available"
        if self._told is None:
            self._told = self.n_opened > 0 and self._module.is_gds
        return self._told

    def libcufile_version(self) -> tuple[int, int]:
        return 1, 16


class IOFuture:
    """A read under way."""

    def __init__(self, module: Standin, address: int, take: Callable[[], bytes]):
        self._module, self._address, self._take = module, address, take
        self._result: Any = None

    def run(self) -> None:
        with self._module.lock:
            if self._result is None:
                self._run(self._module)

    def _run(self, module: Standin) -> None:
        try:
            module.before_bytes()
            data = self._take()
            self._result = module.answer(len(data))
        except (RuntimeError, OSError) as error:
            self._result = RuntimeError(str(error))
            return
        with module.device.open_memory():
            ctypes.memmove(self._address, data, self._result)

    def get(self) -> int:
        self.run()
        with self._module.lock:
            self._module.under_way.remove(self)  # once
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def done(self) -> bool:
        return self._result is not None


class CuFile:
    """A file; the signatures are kvikio's."""

    module: Standin

    def __init__(self, file: str, flags: str = "r"):
        assert flags == "r"
        self.module.opened(file)
        self._fd = os.open(file, os.O_RDONLY)

    def __del__(self, close=os.close):  # which outlives the module
        if hasattr(self, "_fd"):
            close(self._fd)

    def pread(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        address = buf.__cuda_array_interface__["data"][0]
        assert address % 4096 == file_offset % 4096, "pages are read to pages"
        fd = self._fd  # and not the file: whoever reads has to keep it open

        def take(offset: int, nbytes: int) -> bytes:
            data = os.pread(fd, nbytes, offset)
            if len(data) < nbytes:
                raise RuntimeError("POSIX error on pread: EOF")
            return data

        return self.module.start(buf, size, file_offset, take)


class RemoteFile:
    """An object behind HTTP; the signatures are kvikio's."""

    module: Standin

    def __init__(self, handle: str):
        self.module.opened(handle)
        self._url = handle

    @classmethod
    def open_http(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        return cls(url)

    def pread(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
    ) -> IOFuture:
        return self.module.start(buf, size, file_offset, self._take)

    def _take(self, offset: int, nbytes: int) -> bytes:
        span = f"bytes={offset}-{offset + nbytes - 1}"
        request = urllib.request.Request(self._url, headers={"Range": span})
        with urllib.request.urlopen(request) as answer:
            return answer.read()


def install(monkeypatch: Any, device: EmulatedDevice, *, seed: int = 0) -> Standin:
    """Let ``import kvikio`` give a stand-in that reads into `device`."""
    module = Standin(device, seed=seed)
    monkeypatch.setattr(kvikio_file, "_NVIDIA_FS", Path("/proc/self"))
    monkeypatch.setitem(sys.modules, "kvikio", module)
    for name in ("defaults", "cufile_driver"):
        monkeypatch.setitem(sys.modules, f"kvikio.{name}", getattr(module, name))
    return module
