"""The target `tables` in a process whose kernels have ASan and UBSan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cuda_host.launch import sanitized_environment

_TESTS = Path(__file__).resolve().parents[1]
_RUN = """
import sys
from fuzz import running
{before}
counts = running.short_run("tables", int(sys.argv[1]), int(sys.argv[2]))
print(counts[True], counts[False])
"""


def explored(n: int, seed: int, before: str = "") -> tuple[int, int]:
    """How many of `n` inputs were accepted and refused.

    `before` runs first: a test's planted bug.

    Raises
    ------
    subprocess.CalledProcessError
        A sanitizer or a finding ended the run; what it says is in `stderr`.
    """
    done = subprocess.run(
        [sys.executable, "-c", _RUN.format(before=before), str(n), str(seed)],
        check=True,
        capture_output=True,
        text=True,
        cwd=_TESTS,
        env=sanitized_environment() | {"PYTHONPATH": str(_TESTS.parent)},
    )
    accepted, refused = map(int, done.stdout.split())
    return accepted, refused


def fuzz_tables(n: int, seed: int) -> None:
    """Run the target and tell what came out."""
    try:
        accepted, refused = explored(n, seed)
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)
    sys.stderr.write(f"{n} inputs: {accepted} accepted, {refused} refused\n")
