"""Machine code of the loops, kept on disk for later processes and mapped to run.

As with everything that Python caches, whoever can write to the folder can run code as
you. Folders and files that others could have written are therefore ignored.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpushard.devices.kernels import cache_directory
from gpushard.fused.addresses import address_of
from gpushard.fused.elf import MachineCode

# Modules, relative to the package, that determine the content of the file.
SOURCES = (
    "codecs/blosc_frame",
    "codecs/libzstd",
    "planning/index",
    "fused/calls",
    "fused/casts",
    "fused/columns",
    "fused/compiling",
    "fused/copies",
    "fused/decoding",
    "fused/elf",
    "fused/blosc_frames",
    "fused/loops",
    "fused/lz4",
    "fused/objects",
    "fused/planning",
    "fused/polling",
    "fused/relaying",
    "fused/words",
    "fused/zstd_frames",
    "fused/kept_code",  # for the layout of the file
)
_MAGIC = b"gpushard loops 1\n"
_HEAD_NBYTES = len(_MAGIC) + sha256().digest_size
_CPU_INFO = Path("/proc/cpuinfo")
# Fields of /proc/cpuinfo that describe a CPU; the flags say what it can do.
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "flags")


class MappedCode(NamedTuple):
    """Machine code in memory: the address of its function, and the memory."""

    address: int
    memory: mmap.mmap


@cache
def sources() -> bytes:
    """Text of all modules that are compiled."""
    package = Path(__file__).parents[1]
    return b"".join((package / f"{name}.py").read_bytes() for name in SOURCES)


def can_keep() -> bool:
    """Whether code is kept on such a system at all."""
    return sys.platform == "linux" and os.uname().machine == "x86_64"


@cache
def kept_file() -> Path | None:
    """File for code of these sources, compilers and CPU; None if none is kept.

    It is in a folder to which nobody else can write.
    """
    if not can_keep():
        return None
    try:
        parts = [_installation("numba"), _installation("llvmlite"), _cpu()]
    except OSError:
        return None
    digest = sha256("\n".join(parts).encode() + sources())
    folder = next(filter(_is_usable, _folders()), None)
    return folder and folder / f"{digest.hexdigest()}.bin"


def _folders() -> Iterator[Path]:
    """The user's folder for what can be made again, and one for temporary files.

    In many containers there is no home, or nobody can write to it. Each process would
    compile the loops in the middle of a read.
    """
    with suppress(FileNotFoundError):  # the user has no home
        yield cache_directory().parent / "loops"
    # Not by `tempfile`, which goes on to the working directory: code that was
    # downloaded there would run.
    temporary = Path(os.environ.get("TMPDIR", ""))
    if not temporary.is_absolute():
        temporary = Path("/tmp")  # noqa: S108 - only we can write to the folder below
    yield temporary / f"gpushard-loops-{os.geteuid()}"


def _is_usable(folder: Path) -> bool:
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(folder):
            return os.access(folder, os.W_OK)
    except OSError:
        return False


def find() -> MachineCode | None:
    """The code that was kept; None if there is none that can be trusted."""
    path = kept_file()
    if path is None:
        return None
    try:
        with _opened(path.parent) as folder:
            data = _content(path.name, folder)
    except OSError:
        return None
    content = data[_HEAD_NBYTES:]
    if data[:_HEAD_NBYTES] != _MAGIC + sha256(content).digest():
        return None  # cut short, or damaged
    head, _, code = content.partition(b"\n")
    fields = json.loads(head)
    return MachineCode(code, fields["entry"], tuple(fields["imports"]))


def keep(code: MachineCode) -> None:
    """Keep code for later processes; a full disk is no error."""
    path = kept_file()
    if path is None:
        return
    head = json.dumps({"entry": code.entry, "imports": code.imports}).encode()
    content = head + b"\n" + code.data
    with suppress(OSError), _opened(path.parent) as folder:
        _write(path.name, folder, _MAGIC + sha256(content).digest() + content)


@contextmanager
def compile_lock() -> Iterator[None]:
    """Lock that others wait for, so that a machine's processes compile only once."""
    path = kept_file()
    if path is None:
        yield
        return
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with _opened(path.parent) as folder:
        lock = os.open(f"{path.stem}.lock", flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def map_code(code: MachineCode) -> MappedCode | None:
    """The code in memory where it can run; None if the system forbids that."""
    library = ctypes.CDLL(None)
    slots = b"".join(
        (ctypes.cast(library[name], ctypes.c_void_p).value or 0).to_bytes(8, "little")
        for name in code.imports
    )
    n = len(code.data)
    memory = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(slots + code.data[len(slots) :])
    start = address_of(np.frombuffer(memory, np.uint8))
    may = mmap.PROT_READ | mmap.PROT_EXEC
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(n), may) != 0:
        return None
    return MappedCode(start + code.entry, memory)


def may_run() -> bool:
    """Whether the system lets a process run code that it has written (Linux; W^X)."""
    nothing = MachineCode(b"\0", 0, ())
    return sys.platform != "linux" or map_code(nothing) is not None


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder, opened for use by descriptor, so that nobody can exchange it.

    Whoever can write to the folder above could replace it by a link to a folder of
    ours.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    above = os.open(folder.parent, flags)
    try:
        fd = os.open(folder.name, flags, dir_fd=above)
    finally:
        os.close(above)
    try:
        if not _is_ours(os.fstat(fd)):
            raise PermissionError(folder)
        yield fd
    finally:
        os.close(fd)


def _content(name: str, folder: int) -> bytes:
    """Content of a file; empty if others could have written the file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        found = os.fstat(file.fileno())
        is_ours = stat.S_ISREG(found.st_mode) and _is_ours(found)
        return file.read() if is_ours else b""


def _write(name: str, folder: int, content: bytes) -> None:
    """Write a file whole or not at all; other processes may write it, too."""
    part = f"{name}.{os.getpid()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=folder), "wb") as out:
            out.write(content)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        # It may belong to a process elsewhere, or to an ended one of the same number.
        os.unlink(part, dir_fd=folder)


def _is_ours(found: os.stat_result) -> bool:
    """Whether only this user or root can write a file, or to a folder."""
    for_others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & for_others


def _installation(package: str) -> str:
    """Text that distinguishes one installation of a package from another."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    found = os.stat(spec.origin)
    return f"{package} {found.st_size} {found.st_mtime_ns}"


def _cpu() -> str:
    """Text that distinguishes this CPU from others."""
    fields: dict[str, str] = {}
    with _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if not name.strip():
                break  # the next CPU
            fields[name.strip()] = value.strip()
    if not fields.get("flags"):
        raise FileNotFoundError(_CPU_INFO)  # CPUs could not be told apart
    return "\n".join(fields.get(name, "") for name in _CPU_FIELDS)
