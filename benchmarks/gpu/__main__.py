"""`python -m benchmarks.gpu`: do what is left to do, and print the ratios."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.gpu import ratios
from benchmarks.gpu.apart import begun, ended, kill
from benchmarks.gpu.checks import verdicts
from benchmarks.gpu.gpu import REAL
from benchmarks.gpu.record import Record
from benchmarks.gpu.sizes import SIZES
from benchmarks.gpu.tasks import STAGES, Task, tasks

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "results"
# A task that has less than this is not begun.
_LEAST_S = 15.0
# As often a task is taken up whose process dies of a question.
_MOST_DEATHS = 10
# Of what a task said before it failed: a hanging test tells where its threads are.
_TOLD = 3000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Test and measure on a GPU; repeat it until nothing is left.",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file, taken up if it is there")
    add("--log", type=Path, help="log; else beside the result file")
    add("--budget", type=float, default=520.0, metavar="SECONDS")
    add("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    add("--only", nargs="+", metavar="TASK", help="these tasks, by how names begin")
    add("--dir", type=Path, help="where arrays are kept between invocations")
    add("--sizes", choices=SIZES, default="full")
    add("--device", default=REAL, metavar="MODULE:FUNCTION", help="stands in for a GPU")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if nothing is left to do, 3 if something is, 1 if it failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    is_emulated = given.device != REAL
    if is_emulated and given.out.resolve().is_relative_to(_RESULTS):
        parser.error("what no GPU gave does not belong to the results")
    refused = "" if is_emulated else _lacking()
    if refused:
        parser.error(refused)
    every = tasks(SIZES[given.sizes])
    unknown = [name for name in given.only or () if not _begins_any(name, every)]
    if unknown:
        parser.error(f"no task begins with {', '.join(unknown)}")
    directory = given.dir or Path(tempfile.gettempdir()) / "gpushard-gpu-benchmark"
    log = given.log or given.out.with_suffix(".log")
    record = Record(given.out, log, is_emulated=is_emulated)
    chosen = [
        task
        for task in every
        if task.stage in given.stages and _is_meant(task, given.only)
    ]
    _work_off(record, chosen, given, directory)
    sys.stdout.write(ratios.render(record.rows, is_emulated=is_emulated))
    left = [task.name for task in chosen if not record.is_done(task.name)]
    failed = [task.name for task in chosen if record.has_failed(task.name)]
    wrong = verdicts(record.rows)
    sys.stdout.write(wrong)
    sys.stdout.write(f"left: {len(left)}; failed: {', '.join(failed) or 'none'}\n")
    return 3 if left else int(bool(failed or wrong))


def _lacking() -> str:
    """What all tasks need and is not installed; empty if nothing is."""
    missing = [name for name in ("cupy", "pytest") if find_spec(name) is None]
    if not missing:
        return ""
    return f"{' and '.join(missing)} missing; run: pip install '.[cuda13,fast,test]'"


def _begins_any(name: str, every: Sequence[Task]) -> bool:
    return any(_is_meant(task, [name]) for task in every)


def _is_meant(task: Task, only: Sequence[str] | None) -> bool:
    return not only or any(task.name.startswith(name) for name in only)


def _work_off(
    record: Record, chosen: list[Task], given: argparse.Namespace, directory: Path
) -> None:
    """Run what is left, until the budget is spent; what failed before comes last."""
    started, n_run = monotonic(), 0
    for task in sorted(chosen, key=lambda task: record.n_failed(task.name) > 0):
        left_s = given.budget - (monotonic() - started)
        if record.is_done(task.name):
            continue
        if n_run and left_s < _LEAST_S:
            record.tell("the budget is spent")
            return
        record.tell(task.name)
        command = [given.device, given.sizes, str(directory), task.name]
        for _ in range(_MOST_DEATHS):
            # Cut by the budget, it may do better in an invocation of its own.
            has_died = _run(record, task, command, left_s, is_first=n_run == 0)
            n_run += 1
            left_s = given.budget - (monotonic() - started)
            if not has_died or left_s < _LEAST_S:
                break


def _run(
    record: Record, task: Task, command: list[str], left_s: float, *, is_first: bool
) -> bool:
    """Run one task in a process, and keep its rows as they come.

    Returns whether the process died of a question that it is not asked again.
    """
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    started, n_rows = monotonic(), len(record.rows)
    limit_s = min(task.limit_s, left_s)
    with (
        tempfile.TemporaryFile("w+") as errors,
        begun(
            [sys.executable, "-m", "benchmarks.gpu.worker", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        ) as process,
    ):
        timer = threading.Timer(limit_s, kill, (process,))
        timer.start()
        try:
            _take_rows(record, process)
            status = ended(process)
        except BaseException:
            kill(process)
            raise
        finally:
            timer.cancel()
        errors.seek(0)
        said = errors.read()[-_TOLD:]
    seconds = monotonic() - started
    error = ""
    if status:
        error = f"status {status} after {seconds:.0f} s: {said}"
        record.tell(f"  {task.name} ended with {error}")
    is_cut = seconds >= limit_s and limit_s < task.limit_s and not is_first
    # A question whose process died is not asked again, so others have their turn.
    has_more = len(record.rows) > n_rows
    is_cut = is_cut or has_more
    record.note(task.name, error=error, seconds=seconds, is_cut=is_cut)
    return bool(status) and has_more and seconds < limit_s


def _take_rows(record: Record, process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None  # noqa: S101 - pipes were asked for
    assert process.stdout is not None  # noqa: S101 - so it was
    with suppress(BrokenPipeError):  # it died already
        process.stdin.write(json.dumps(list(record.rows)))
        process.stdin.close()
    for line in process.stdout:
        row = _row_of(line)
        if "facts" in row:
            record.put_facts(row["facts"])
        elif "id" in row:
            record.put(row)


def _row_of(line: str) -> dict[str, Any]:
    """What a line holds; libraries print, too."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _end(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    # What is under way is ended, too; it is in a group of its own.
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
