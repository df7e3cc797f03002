"""Machine code of the loops, kept on disk for later processes.

Only checkouts and machines that the shipped code is not for have any
(`gpushard.fused.code.machine_code`). As with everything that Python caches, whoever can
write to the folder can run code as you. Folders and files that others could have
written are therefore ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from gpushard.cached_files import cache_directory
from gpushard.fused.code import machine_code
from gpushard.fused.code.elf import MachineCode
from gpushard.fused.code.machine_code import CPU_LEVEL


@cache
def kept_file() -> Path | None:
    """File for code of these sources and compilers; None if none is kept.

    It is in a folder to which nobody else can write.
    """
    if not machine_code.can_run():
        return None
    try:
        parts = [_installation("numba"), _installation("llvmlite"), CPU_LEVEL]
        digest = sha256("\n".join(parts).encode() + machine_code.sources())
    except OSError:
        return None
    folder = next(filter(_is_usable, _folders()), None)
    return folder and folder / f"{digest.hexdigest()}.bin"


def _folders() -> Iterator[Path]:
    """The user's folder for what can be made again, and one for temporary files.

    In many containers there is no home, or nobody can write to it. Each process would
    compile the loops in the middle of a read.
    """
    with suppress(FileNotFoundError):  # the user has no home
        yield cache_directory() / "loops"
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
    return machine_code.code_in(data)


def keep(code: MachineCode) -> None:
    """Keep code for later processes; a full disk is no error."""
    path = kept_file()
    if path is None:
        return
    with suppress(OSError), _opened(path.parent) as folder:
        _write(path.name, folder, machine_code.content_of(code))


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
