"""Runs calls that end their process: each in a fork of a process that is made for them.

To start one and to import what they need takes a second, to fork it a millisecond; who
forks has no threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from places import ROOT

_RUN = """
import json, os, sys, tempfile, traceback
prelude, calls = json.load(sys.stdin)
exec(prelude)
deaths = []
for call in calls:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 2)
            try:
                exec(call)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        deaths.append([os.waitstatus_to_exitcode(status), said.read().decode()])
json.dump(deaths, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Death:
    """How a call ended its process.

    Attributes
    ----------
    status
        Exit status, or the number of the signal, negative; 0: it lived.
    said
        What stood on stderr.
    """

    status: int
    said: str


def deaths_of(
    calls: Sequence[str],
    prelude: str,
    environment: Mapping[str, str] = os.environ,
    timeout_s: float | None = 120,
) -> list[Death]:
    """What becomes of each of the statements `calls`, all behind the same `prelude`."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps([prelude, list(calls)]),
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))},
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return [Death(status, said) for status, said in json.loads(done.stdout)]
