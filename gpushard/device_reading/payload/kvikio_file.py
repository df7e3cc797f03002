"""Byte ranges of files -> device memory, read by kvikio without a copy on the host.

Only this module imports kvikio, and only when a read goes to a device. In its
compatibility mode kvikio copies through host memory, one task after another, and waits
for each task. That is slower than the ring of pinned slots, so kvikio is not used then.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gpushard.errors import StoreError, UnsupportedError
from gpushard.threads.stop_flag import to_the_end

# kvikio raises these for any failure: C++ exceptions, and NumPy's refusals.
_ERRORS = (RuntimeError, ValueError, OSError)
# Used unless the user has chosen a number. kvikio's default of one thread reads one
# piece at a time; eight threads keep an NVMe disk busy.
_THREADS = 8
_THREAD_VARIABLES = ("KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS")
# Made by the kernel module nvidia-fs.
_NVIDIA_FS = Path("/proc/driver/nvidia-fs")


class FileRange(NamedTuple):
    """A range of a file to read: `nbytes` bytes from byte `offset`, and where they go.

    `file` is an open file of `KvikioFiles`; `address` is in device memory.
    """

    file: Any
    offset: int
    nbytes: int
    address: int


class _DeviceBytes:
    """Device memory in the form that kvikio takes (CUDA Array Interface, version 3)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


class KvikioFiles:
    """Files that `kvikio` has open, by the version of the file that they are."""

    def __init__(self, kvikio: Any) -> None:
        self._kvikio = kvikio
        self._open: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        _use_threads(kvikio)

    @property
    def label(self) -> str:
        """Name and version of the reader, for reports: "kvikio 26.10.0"."""
        return f"kvikio {self._kvikio.__version__}"

    def file_of(self, fd: int, version: Hashable, limit: int) -> Any:
        """File of an open descriptor; the last `limit` files stay open for later reads.

        It is the same file even if its path leads to another one by now. Raises
        `UnsupportedError` if kvikio cannot open it.
        """
        # kvikio opens two descriptors; both must be of the file that is held open.
        path = f"/proc/self/fd/{fd}"
        return self._kept(version, limit, lambda: self._kvikio.CuFile(path, "r"))

    def remote_file(self, url: str, version: Hashable, limit: int) -> Any:
        """Object at an HTTP or S3 URL; the last `limit` stay open for later reads.

        Raises `UnsupportedError` if kvikio cannot open it.
        """
        remote: Any = self._kvikio.RemoteFile
        is_s3 = url.startswith("s3://")
        open_url = remote.open_s3_url if is_s3 else remote.open_http
        return self._kept((url, version), limit, lambda: open_url(url))

    def _kept(self, identity: Hashable, limit: int, open_one: Callable[[], Any]) -> Any:
        with self._lock:
            found = self._open.pop(identity, None)
            try:
                self._open[identity] = found = found or open_one()
            except _ERRORS as error:
                raise UnsupportedError(f"kvikio cannot open it ({error})") from error
            while len(self._open) > limit:
                # It is closed when its last reader drops it.
                self._open.popitem(last=False)
        return found

    def read(self, ranges: Sequence[FileRange]) -> None:
        """Read all ranges in parallel; on return or error, nothing writes any more.

        Raises `StoreError` if kvikio failed, or read another number of bytes than
        requested.
        """
        # kvikio's futures do not keep a file open, but `ranges` does.
        under_way: deque[tuple[FileRange, Any]] = deque()
        try:
            for part in ranges:
                memory = _DeviceBytes(part.address, part.nbytes)
                under_way.append(
                    (part, part.file.pread(memory, part.nbytes, part.offset))
                )
            while under_way:
                part, answer = under_way.popleft()
                _refuse_short(part, answer.get())
        except _ERRORS as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"kvikio failed to read ({error})",
                hint="read again, or turn it off with Options(gds=False)",
            ) from error
        finally:
            to_the_end(lambda: _wait_for(under_way))


def find_kvikio() -> KvikioFiles:
    """Reader of files into device memory, if GPUDirect Storage is really active.

    kvikio cannot tell whether cuFile reads without the kernel module nvidia-fs, peer to
    peer over PCI. Users who know that say so by ``KVIKIO_COMPAT_MODE=OFF``. Raises
    `UnsupportedError`, which says why, if GPUDirect Storage is not active.
    """
    kvikio = _imported()
    if kvikio.defaults.is_compat_mode_preferred():
        raise UnsupportedError("kvikio is in its compatibility mode")
    is_off = kvikio.defaults.get("compat_mode").name == "OFF"
    if not (is_off or _has_gds(kvikio)):
        raise UnsupportedError("cuFile finds no GPUDirect Storage")
    return _files_of(kvikio)


def _has_gds(kvikio: Any) -> bool:
    """Whether cuFile reads through the kernel module nvidia-fs."""
    # Without the module cuFile only leaves a log of complaints where the process runs.
    if not (_NVIDIA_FS.exists() and _opens_driver(kvikio)):
        return False
    return bool(kvikio.cufile_driver.get("is_gds_available"))


@lru_cache(maxsize=1)
def _opens_driver(kvikio: Any) -> bool:
    """Whether cuFile's driver opens: before, cuFile tells of no machine what it has.

    kvikio keeps the first answer that it gets. Nobody closes the driver, as nobody does
    where cuFile opens it by itself for the first read.
    """
    try:
        kvikio.cufile_driver.driver_open()
    except RuntimeError:
        return False
    return True


def kvikio_facts() -> dict[str, Any]:
    """What kvikio reports about itself, for a diagnosis; empty if not installed."""
    try:
        kvikio = _imported()
    except UnsupportedError:
        return {}
    questions: dict[str, Callable[[], Any]] = {
        "compat_mode": lambda: kvikio.defaults.get("compat_mode").name,
        "is_compat_mode_preferred": kvikio.defaults.is_compat_mode_preferred,
        "is_gds_available": lambda: _has_gds(kvikio),
        "libcufile_version": lambda: kvikio.cufile_driver.libcufile_version(),
        "num_threads": lambda: kvikio.defaults.get("num_threads"),
        "is_remote_file_available": kvikio.is_remote_file_available,
    }
    return {name: _answered(question) for name, question in questions.items()}


def _answered(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - a diagnosis tells of any failure
        return f"unknown ({error})"


def find_kvikio_remote() -> KvikioFiles:
    """Reader of HTTP and S3 objects into device memory.

    Raises `UnsupportedError` if kvikio is not installed, or reads no remote files.
    """
    kvikio = _imported()
    if not kvikio.is_remote_file_available():
        raise UnsupportedError("this kvikio reads no remote files")
    return _files_of(kvikio)


def _imported() -> Any:
    # A failed import would be tried again on each call, which takes a while.
    if "kvikio" not in sys.modules and (failure := _failure()):
        raise UnsupportedError(failure)
    return _import()


@cache
def _failure() -> str:
    """Why kvikio cannot be imported; empty if it can be."""
    try:
        _import()
    except UnsupportedError as error:
        return error.what
    return ""


def _import() -> Any:
    try:
        # Importing kvikio does not import its submodules.
        import kvikio.cufile_driver  # an extra
        import kvikio.defaults  # so too
    except ModuleNotFoundError as error:
        raise UnsupportedError("kvikio is not installed") from error
    except (ImportError, OSError, RuntimeError) as error:
        # Without cuFile's library kvikio's loader raises an error of its own kind.
        raise UnsupportedError(f"kvikio cannot be imported ({error})") from error
    return kvikio


@lru_cache(maxsize=1)
def _files_of(kvikio: Any) -> KvikioFiles:
    return KvikioFiles(kvikio)


def _use_threads(kvikio: Any) -> None:
    """Let several threads read, unless the user chose a number."""
    is_chosen = any(name in os.environ for name in _THREAD_VARIABLES)
    if not is_chosen and kvikio.defaults.get("num_threads") == 1:
        kvikio.defaults.set("num_threads", _THREADS)


def _wait_for(answers: deque[tuple[FileRange, Any]]) -> None:
    """Wait until all of these reads are over; none is left then."""
    while answers:
        with suppress(*_ERRORS):
            answers.popleft()[1].get()  # of which an interrupt is raised at its end


def _refuse_short(part: FileRange, nbytes: int) -> None:
    if nbytes != part.nbytes:
        raise StoreError(
            "kvikio read another number of bytes than asked",
            expected=part.nbytes,
            got=nbytes,
            hint="read again; if it stays so, the file is truncated",
        )
