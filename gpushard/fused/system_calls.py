"""Addresses of functions of the C library, which the compiled loops call."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import function_address
from gpushard.fused.words import OPENAT2

# More than a `pthread_mutex_t` has anywhere: 40 bytes on Linux, or 48.
_MUTEX_NBYTES = 128
# Where `OPENAT2` is its number, and the first release of Linux that has it.
_MACHINES = {"x86_64", "aarch64", "ppc64le", "riscv64", "loongarch64"}
_FIRST_RELEASE = (5, 6)


@cache
def pread_address() -> int:
    """Address of the C library's `pread` with 64-bit offsets; 0 if there is none."""
    if ctypes.sizeof(ctypes.c_long) != 8:
        return 0
    return function_address(ctypes.CDLL(None).pread)


@cache
def usleep_address() -> int:
    """Address of the C library's `usleep`; 0 if there is none."""
    return function_address(getattr(ctypes.CDLL(None), "usleep", None))


class FileCalls(NamedTuple):
    """Addresses of the C library's functions that open and close files by path."""

    syscall: int
    statx: int
    close: int
    errno: int


@cache
def file_calls() -> FileCalls | None:
    """Functions that open files as loops must; None if the system lacks one."""
    if not _may_ask_for_openat2():
        return None
    lib = ctypes.CDLL(None, use_errno=True)
    names = ("syscall", "statx", "close", "__errno_location")
    if not pread_address() or not all(hasattr(lib, name) for name in names):
        return None
    # Many sandboxes do not have openat2. Where it is, it refuses a `struct open_how` of
    # no bytes before it looks at anything else.
    lib.syscall(*map(ctypes.c_long, (OPENAT2, 0, 0, 0, 0)))
    if ctypes.get_errno() != errno.EINVAL:
        return None
    return FileCalls(*(function_address(getattr(lib, name)) for name in names))


def _may_ask_for_openat2() -> bool:
    """Whether a call of this number is openat2(2), or none.

    On other systems it is another call. Sandboxes as old as older kernels may end a
    process that makes a call that they do not know (systemd).
    """
    if sys.platform != "linux":
        return False
    system = os.uname()
    release = re.match(r"(\d+)\.(\d+)", system.release)
    if release is None or system.machine not in _MACHINES:
        return False
    return (int(release[1]), int(release[2])) >= _FIRST_RELEASE


class ThreadCalls(NamedTuple):
    """Addresses of the system's functions for threads and mutexes (POSIX)."""

    create: int
    join: int
    lock: int
    unlock: int


@cache
def thread_calls() -> ThreadCalls:
    """Functions by which loops begin threads of their own, and wait for them."""
    lib = ctypes.CDLL(None)
    names = ("create", "join", "mutex_lock", "mutex_unlock")
    return ThreadCalls(
        *(function_address(getattr(lib, f"pthread_{name}")) for name in names)
    )


def new_mutex() -> NDArray[np.uint8]:
    """Memory of a mutex that nobody has, which must not move."""
    memory = np.zeros(_MUTEX_NBYTES, np.uint8)
    ctypes.CDLL(None).pthread_mutex_init(ctypes.c_void_p(memory.ctypes.data), None)
    return memory
