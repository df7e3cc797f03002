"""Byte ranges of files, read by kvikio straight into device memory.

kvikio is imported here and nowhere else, and only when a read goes to a device. In its
compatibility mode it copies through host memory, one task after another, and waits for
each: slower than the ring of pinned slots, so that nothing is read with it then.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, NamedTuple

from gpushard.errors import StoreError, UnsupportedError

# What kvikio raises, whatever went wrong: C++ exceptions and NumPy's way to say no.
_ERRORS = (RuntimeError, ValueError, OSError)
# Unless the user has chosen: kvikio's own default of one thread reads one piece at a
# time, and eight keep an NVMe disk busy.
_THREADS = 8
_THREAD_VARIABLES = ("KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS")


class FileRange(NamedTuple):
    """Where a range of a file goes: `nbytes` bytes from byte `offset` on.

    `file` is an open file of `KvikioFiles`, `address` one of device memory.
    """

    file: Any
    offset: int
    nbytes: int
    address: int


class _DeviceBytes:
    """Device memory as kvikio takes it (CUDA Array Interface, version 3)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


class KvikioFiles:
    """Files that kvikio holds open, by what they are a version of.

    Parameters
    ----------
    kvikio
        The module.
    """

    def __init__(self, kvikio: Any) -> None:
        self._kvikio = kvikio
        self._open: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        _use_threads(kvikio)

    @property
    def label(self) -> str:
        """What reads, for reports: "kvikio 26.10.0"."""
        return f"kvikio {self._kvikio.__version__}"

    def file_of(self, fd: int, version: Hashable, limit: int) -> Any:
        """The file behind an open descriptor; `limit` are kept for later reads.

        It is the very same file, whatever its path leads to by now.

        Raises
        ------
        UnsupportedError
            kvikio cannot open it.
        """
        # Both of the descriptors that kvikio opens must be of the file that is held.
        path = f"/proc/self/fd/{fd}"
        return self._kept(version, limit, lambda: self._kvikio.CuFile(path, "r"))

    def remote_file(self, url: str, version: Hashable, limit: int) -> Any:
        """The object at an HTTP or S3 URL; `limit` are kept for later reads.

        Raises
        ------
        UnsupportedError
            kvikio cannot open it.
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
                # Closed when the last of those who read from it drops it.
                self._open.popitem(last=False)
        return found

    def read(self, ranges: Sequence[FileRange]) -> None:
        """Read all ranges side by side; when it returns or raises, nothing is written.

        Raises
        ------
        StoreError
            kvikio failed, or read another number of bytes than asked.
        """
        # kvikio's futures do not keep the file open: `ranges` does.
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
            while under_way:
                with suppress(*_ERRORS):
                    under_way.popleft()[1].get()


def find_kvikio() -> KvikioFiles:
    """What reads files into device memory, where GPUDirect Storage is really active.

    Raises
    ------
    UnsupportedError
        It is not; the message says why, in words.
    """
    kvikio = _imported()
    if kvikio.defaults.is_compat_mode_preferred():
        raise UnsupportedError("kvikio is in its compatibility mode")
    if not kvikio.cufile_driver.get("is_gds_available"):
        raise UnsupportedError("cuFile finds no GPUDirect Storage")
    return _files_of(kvikio)


def kvikio_facts() -> dict[str, Any]:
    """What kvikio says about itself, for a diagnosis; empty where it is not there."""
    try:
        kvikio = _imported()
    except UnsupportedError:
        return {}
    questions: dict[str, Callable[[], Any]] = {
        "compat_mode": lambda: kvikio.defaults.get("compat_mode").name,
        "is_compat_mode_preferred": kvikio.defaults.is_compat_mode_preferred,
        "is_gds_available": lambda: kvikio.cufile_driver.get("is_gds_available"),
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
    """What reads HTTP and S3 objects into device memory.

    Raises
    ------
    UnsupportedError
        It is not there.
    """
    kvikio = _imported()
    if not kvikio.is_remote_file_available():
        raise UnsupportedError("this kvikio reads no remote files")
    return _files_of(kvikio)


def _imported() -> Any:
    # What a failed import leaves undone is done again each time, which takes a while.
    if "kvikio" not in sys.modules and (failure := _failure()):
        raise UnsupportedError(failure)
    return _import()


@cache
def _failure() -> str:
    """Why kvikio cannot be imported; empty if it can."""
    try:
        _import()
    except UnsupportedError as error:
        return error.what
    return ""


def _import() -> Any:
    try:
        # Its submodules are not there by themselves.
        import kvikio.cufile_driver  # pyright: ignore[reportMissingImports]  an extra
        import kvikio.defaults  # pyright: ignore[reportMissingImports]  so too
    except ModuleNotFoundError as error:
        raise UnsupportedError("kvikio is not installed") from error
    except (ImportError, OSError, RuntimeError) as error:
        # Without cuFile's library its loader raises an error of its own kind.
        raise UnsupportedError(f"kvikio cannot be imported ({error})") from error
    return kvikio


@lru_cache(maxsize=1)
def _files_of(kvikio: Any) -> KvikioFiles:
    return KvikioFiles(kvikio)


def _use_threads(kvikio: Any) -> None:
    """Let several threads read, unless somebody said how many."""
    is_chosen = any(name in os.environ for name in _THREAD_VARIABLES)
    if not is_chosen and kvikio.defaults.get("num_threads") == 1:
        kvikio.defaults.set("num_threads", _THREADS)


def _refuse_short(part: FileRange, nbytes: int) -> None:
    if nbytes != part.nbytes:
        raise StoreError(
            "kvikio read another number of bytes than asked",
            expected=part.nbytes,
            got=nbytes,
            hint="read again; if it stays so, the file is truncated",
        )
