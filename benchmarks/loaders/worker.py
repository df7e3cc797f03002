"""One loader in a process of its own: checks an epoch, then times as many as asked."""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contenders import CONTENDERS, PACKAGES, Epochs
from benchmarks.loaders.data import Check


def main() -> None:
    """Answer commands of standard input, a line of JSON each."""
    name, workload, path = sys.argv[1:]
    try:
        settings = CONTENDERS[name](Path(path), workload)
        tried = {key: _tried(epochs, workload) for key, epochs in settings.items()}
    except (ImportError, NotImplementedError) as error:
        _say(absent=str(error))
        return
    best = min(tried, key=lambda key: tried[key])
    epochs = settings[best]
    _say(setting=best, tried=tried, versions=_versions(), python=sys.version.split()[0])
    for line in sys.stdin:
        if json.loads(line) == "end":
            break
        begin, cpu = time.perf_counter(), cpu_seconds()
        n = sum(len(batch) for batch in epochs())
        wall = time.perf_counter() - begin
        _say(samples=n, wall_s=wall, cpu_s=cpu_seconds() - cpu)


def _tried(epochs: Epochs, workload: str) -> float:
    """Seconds of an epoch whose every sample is looked at first, in another."""
    check = Check(workload)
    for batch in epochs():
        check.see(np.asarray(batch))
    check.end()
    sys.stderr.write(f"checked {workload} of {sys.argv[1]}\n")
    begin = time.perf_counter()
    for _ in epochs():
        pass
    return round(time.perf_counter() - begin, 3)


def cpu_seconds() -> float:
    """CPU time of this process and of all below it, those that are gone included."""
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + gone.ru_utime + gone.ru_stime
    return used + sum(_cpu_seconds_of(child) for child in _below("self"))


def _below(process: str) -> list[str]:
    path = Path(f"/proc/{process}/task")
    children = [
        child
        for task in path.glob("*/children")
        for child in task.read_text(encoding="ascii").split()
    ]
    return children + [below for child in children for below in _below(child)]


def _cpu_seconds_of(process: str) -> float:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        if package not in sys.modules:
            continue
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "of this checkout"
    return found


def _say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
