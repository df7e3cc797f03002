"""The process of one task.

    python -m benchmarks.gpu.worker DEVICE SIZES DIRECTORY TASK <<< '["done row", ...]'

Rows are printed as JSON, one a line, as soon as they are there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.run import Run, Skipped
from benchmarks.gpu.tasks import tasks


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Exit status: 0 if the task came to its end."""
    device, sizes, root, name = arguments
    done = frozenset(json.loads(sys.stdin.read() or "[]"))
    run = Run(device, sizes, Path(root), done, _print)
    task = next(task for task in tasks(run.sizes) if task.name == name)
    try:
        task.function(run)
    except Skipped as reason:
        run.put(name, skipped=str(reason))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
