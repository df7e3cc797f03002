"""`python -m benchmarks.loaders`: check, time in turns, write JSON, draw a chart."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loaders import chart, data
from benchmarks.loaders.contenders import CONTENDERS
from benchmarks.machine import commit, load, machine

WORKLOADS = ("rows", "patches")
INSTALL = "pip install '.[bench,torch,xarray]' annbatch xbatcher"
_ROOT = Path(__file__).parents[2]


class Process:
    """A loader in a process of its own."""

    def __init__(self, python: str, name: str, workload: str, path: Path) -> None:
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        search = os.pathsep.join(p for p in paths if p)
        self._process = subprocess.Popen(  # noqa: S603 - a loader, by a chosen Python
            [python, "-m", "benchmarks.loaders.worker", name, workload, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": search},
        )
        self.told = self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        return {"absent": f"its process ended with status {self._process.wait()}"}

    def ask(self, command: str) -> dict[str, Any]:
        """Answer to a command."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._receive() if command != "end" else {}

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self.ask("end")
        self._process.communicate(timeout=60)


def measure(
    workload: str, path: Path, pythons: dict[str, str], repetitions: int
) -> dict[str, Any]:
    """Times of all contenders, taken in turns."""
    processes = {
        name: Process(python, name, workload, path) for name, python in pythons.items()
    }
    absent = {
        name: process.told["absent"]
        for name, process in processes.items()
        if "absent" in process.told
    }
    running = {n: p for n, p in processes.items() if n not in absent}
    times: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for repetition in range(repetitions):
        names = list(running)
        # Whoever comes first finds the machine as the last one left it.
        names = names[repetition % len(names) :] + names[: repetition % len(names)]
        for name in names:
            times[name].append(running[name].ask("epoch"))
    for process in processes.values():
        process.close()
    return {
        "absent": absent,
        "contenders": {
            name: {**running[name].told, **_figures(taken)}
            for name, taken in times.items()
        },
    }


def _figures(taken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    samples = taken[0]["samples"]
    walls = [one["wall_s"] for one in taken]
    return {
        "samples": samples,
        "wall_s": [round(wall, 4) for wall in walls],
        "cpu_s": [round(one["cpu_s"], 3) for one in taken],
        "samples_per_second": round(samples / median(walls), 1),
        "best_samples_per_second": round(samples / min(walls), 1),
        "cpu_ms_per_sample": round(
            1000 * median(one["cpu_s"] for one in taken) / samples, 4
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loaders",
        description="Time data loaders side by side, those that are installed.",
        epilog=f"For all of them: {INSTALL}",
    )
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    add("--repetitions", type=int, default=5)
    add("--python", nargs="*", default=[], metavar="NAME=PATH", help="for a contender")
    add("--memory", action="store_true", help="also measure memory over an epoch")
    add("--out", type=Path, required=True, help="result file; the chart lies beside it")
    given = parser.parse_args(arguments)
    pythons = dict.fromkeys(given.contenders, sys.executable)
    pythons |= dict(entry.split("=", 1) for entry in given.python)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "commit": commit(),
        "machine": machine(),
        "load": [load()],
        "workloads": {},
    }
    with tempfile.TemporaryDirectory(prefix="gpushard-loaders-") as directory:
        for workload in given.workloads:
            path = data.write(workload, Path(directory))
            found = measure(workload, path, pythons, given.repetitions)
            result["workloads"][workload] = found
            sys.stdout.write(table(workload, found) + "\n")
            sys.stdout.flush()
    if given.memory:
        result["memory"] = _memory()
        sys.stdout.write(f"memory: {result['memory']}\n")
    result["load"].append(load())
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    chart.draw(result, given.out.with_suffix(".svg"))
    return 0


def _memory() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loaders.memory"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def table(workload: str, found: dict[str, Any]) -> str:
    """Figures in words."""
    lines = [f"{workload}:"]
    for name, one in found["contenders"].items():
        lines.append(
            f"  {name:24}{one['samples_per_second']:>12,.0f} samples/s,"
            f"{one['best_samples_per_second']:>12,.0f} at best"
            f"{one['cpu_ms_per_sample']:>10.4f} ms of CPU a sample  ({one['setting']})"
        )
    lines += [f"  {name:24}{why}" for name, why in found["absent"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
