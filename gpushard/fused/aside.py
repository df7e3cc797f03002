"""The loops, compiled by a process of its own, while this one reads on without them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from gpushard.fused import kept_code

# As this process imports, so does that one: neither looks at `PYTHONPATH` again. What
# this one was started with (a lock that a shell holds for it, a pipe) is not to be held
# for longer than it runs.
_PROGRAM = """
import os, sys
for fd in map(int, os.listdir("/proc/self/fd")):
    if fd > 2:
        try:
            os.close(fd)
        except OSError:
            pass
sys.path[:] = sys.argv[1:]
os.nice(2)
from gpushard.fused import kept_code, loading
with kept_code.turn():
    loading.load()
"""
# `sys.executable` of a program that Python is embedded in may be that program.
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?[a-z]?")


class Aside:
    """A process that compiles the loops and keeps their code, where one can do that.

    It takes some 13 s and 350 MiB, yields to other work, and runs to its end even if
    this one ends before: the next will find the code.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._is_over = False

    def is_over(self) -> bool:
        """Whether there is nothing to wait for: it has ended, or there can be none.

        The first call starts it.
        """
        if self._pid is None and not self._is_over:
            self._pid = _start()
            self._is_over = self._pid is None
        if self._pid is not None and not self._is_over:
            self._is_over = _has_ended(self._pid)
        return self._is_over


def _start() -> int | None:
    """Number of a process that compiles; None where none can, or keeps what it made."""
    if kept_code.place() is None or getattr(sys, "frozen", False):
        return None
    if not _PYTHON.fullmatch(Path(sys.executable or "").name):
        return None
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    # Anything else in there is passed over by imports.
    folders = [path for path in sys.path if isinstance(path, str)]
    command = [sys.executable, *_options(), "-c", _PROGRAM, *folders]
    try:
        # A group of its own: Ctrl-C is for this one. No signal is blocked in it that
        # the thread which reads may have blocked.
        return os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=nothing,
            setpgroup=0,
            setsigmask=(),
        )
    except (OSError, ValueError):  # or a null byte in a folder's name
        return None


def _options() -> list[str]:
    """Those of this process that say where byte code of imports is kept, if it is."""
    options = ["-I"]
    if sys.dont_write_bytecode:
        options.append("-B")
    if sys.pycache_prefix is not None:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return options


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # waited for by others, or of the parent of a fork
        return not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return kept_code.find() is None
