"""Compiles the loops in a separate process, for which this one need not wait."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from gpushard.fused.code import kept_code

# The new process imports what this one does, and does not look at `PYTHONPATH` again.
# It must not keep open what this process inherited, such as a shell's lock or a pipe,
# because it may run for longer.
_PROGRAM = """
import os, sys
for fd in map(int, os.listdir("/proc/self/fd")):
    if fd > 2:
        try:
            os.close(fd)
        except OSError:
            pass
sys.path[:] = sys.argv[1:]
from gpushard.fused.code import compiler_process, kept_code, loading
compiler_process.set_numba()
with kept_code.compile_lock():
    loading.load()
"""
# In a program that embeds Python, `sys.executable` may be that program.
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?[a-z]?")
# After so long it is taken for stuck: on a busy machine it takes less than a minute.
_MOST_WAIT_S, _LOOK_EVERY_S = 180.0, 0.02


class CompilerProcess:
    """A process that compiles the loops and keeps their code, where that is possible.

    It takes 10 to 20 seconds of an idle core, and 450 MiB. It runs to its end even if
    this process ends before. The next process then finds the code.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._is_over = False

    def run_once(self) -> bool:
        """Start the process, unless a call has done so; whether it is over.

        It is if it has ended, or cannot be started at all.
        """
        if self._pid is None and not self._is_over:
            self._pid = _start()
            self._is_over = self._pid is None
        if self._pid is not None and not self._is_over:
            self._is_over = _has_ended(self._pid)
        return self._is_over

    def wait(self) -> None:
        """Return when it is over, or so late that it is taken for stuck."""
        until = time.monotonic() + _MOST_WAIT_S
        while not self.run_once() and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)


def set_numba() -> None:
    """Have numba compile the loops alike whatever users have told it about their code.

    It must not be loaded yet. Some of its variables lead to code that cannot be kept
    (`NUMBA_BOUNDSCHECK`, `NUMBA_DEBUGINFO`) or to none at all (`NUMBA_DISABLE_JIT`). It
    optimises each function by itself before `compiling.object_of` optimises all of them
    together. Not to do so halves the time.
    """
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        del os.environ[name]
    os.environ["NUMBA_OPT"] = "0"


def _start() -> int | None:
    """Number of a process that compiles; None if none can, or none could keep code."""
    if kept_code.kept_file() is None or getattr(sys, "frozen", False):
        return None
    if not _PYTHON.fullmatch(Path(sys.executable or "").name):
        return None
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    # Imports ignore all entries of `sys.path` that are not strings.
    folders = [path for path in sys.path if isinstance(path, str)]
    command = [sys.executable, *_options(), "-c", _PROGRAM, *folders]
    try:
        # The process group is new, so that Ctrl-C does not reach it. The reading thread
        # may have blocked signals, which must not stay blocked in the new process.
        return os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=nothing,
            setpgroup=0,
            setsigmask=(),
        )
    except (OSError, ValueError):  # ValueError: a null byte in a folder's name
        return None


def _options() -> list[str]:
    """Options for keeping byte code of imports like this process, or not at all."""
    options = ["-I"]
    if sys.dont_write_bytecode:
        options.append("-B")
    if sys.pycache_prefix is not None:
        options += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return options


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # others waited for it, or it is a child of our parent
        return not _may_still_compile(pid)


def _may_still_compile(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return kept_code.find() is None
