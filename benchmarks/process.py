"""The other end of a worker: a fresh process per contender and array."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Process:
    """A running contender. Starting does not wait for it to be ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        search = os.pathsep.join(path for path in paths if path)
        self._process = subprocess.Popen(  # noqa: S603 - this very suite, by this Python
            [sys.executable, "-m", "benchmarks.worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": search},
        )

    def receive(self) -> dict[str, Any]:
        """Next answer; a process that is gone refuses.

        The first one, unasked, holds ``versions`` or says why it is ``absent``.
        """
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        return {"refused": f"its process ended with status {self._process.wait()}"}

    def send(self, **command: Any) -> None:
        """Have it answer a command; `receive` waits for that."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        with suppress(BrokenPipeError):  # which `receive` tells of
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Answer to a command."""
        self.send(**command)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
