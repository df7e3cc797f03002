"""Processes that can be ended with all that they have begun, and are heard as they go.

A task of a GPU may hang for good. If only its own process ended, a test or a tool that
it had begun would go on, and keep the GPU busy beside every later task.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def begun(command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
    """A process at the head of a group of its own; see `ended`."""
    return subprocess.Popen(  # noqa: S603 - this very suite, by this Python
        command, text=True, start_new_session=True, **how
    )


def kill(process: subprocess.Popen[str]) -> None:
    """End a process of `begun`, and all that it has begun, unless it was waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str]) -> int:
    """Status of a process of `begun` once it has ended; its group ends with it.

    A process that crashed leaves behind what it had begun.
    """
    # Until it is waited for, nobody else gets its number.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    kill(process)
    return process.wait()


def heard(command: Sequence[str], where: Path) -> tuple[int, str]:
    """Status of a command, and what it said on either of its outputs.

    All of it also goes to this process's standard error at once: if this process is
    killed, that tells how far the command came.
    """
    said = bytearray()
    with subprocess.Popen(  # noqa: S603 - this very suite, or a tool over it
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=where,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        while some := os.read(process.stdout.fileno(), 1 << 16):
            said += some
            sys.stderr.write(some.decode(errors="replace"))
            sys.stderr.flush()
    return process.returncode, said.decode(errors="replace")
