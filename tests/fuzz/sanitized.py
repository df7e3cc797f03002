"""The target `tables` in a process whose kernels have ASan and UBSan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cuda_host.deaths import Death, deaths_of
from cuda_host.launch import sanitized_environment

_TESTS = Path(__file__).resolve().parents[1]
# Forks inherit what is imported, and one input has the kernels loaded.
_PRELUDE = f"""
import sys
sys.path.insert(0, {str(_TESTS)!r})
from fuzz import running
running.short_run("tables", 5, 0)
"""
_RUN = """
{before}
counts = running.short_run("tables", {n}, {seed})
print(counts[True], counts[False], file=sys.stderr)
"""


def explored(
    runs: Sequence[tuple[int, int, str]], timeout_s: float | None = 120
) -> list[Death]:
    """How runs end: each of a number of inputs, from a seed, behind a planted bug.

    A sanitizer ends a run by a signal, a finding leaves no counts.
    """
    calls = [_RUN.format(n=n, seed=seed, before=before) for n, seed, before in runs]
    return deaths_of(calls, _PRELUDE, sanitized_environment(), timeout_s)


def counts_in(death: Death) -> tuple[int, int]:
    """How many inputs were accepted and refused; `ValueError`: the run found one."""
    accepted, refused = map(int, death.said.split())
    return accepted, refused


def fuzz_tables(n: int, seed: int) -> None:
    """Run the target and tell what came out."""
    (death,) = explored([(n, seed, "")], timeout_s=None)
    try:
        accepted, refused = counts_in(death)
    except ValueError:
        sys.exit(death.said)
    sys.stderr.write(f"{n} inputs: {accepted} accepted, {refused} refused\n")
