"""Tests on the GPU, and NVIDIA's sanitizer over all kernels."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.apart import heard
from benchmarks.gpu.run import Run, Skipped

_ROOT = Path(__file__).parents[2]
TESTS = {
    "every_chain_is_decoded_on_the_device": "reads",
    "interop_samples_are_read_as_on_the_host": "reads",
    "values_are_cast_on_the_way": "reads",
    "what_no_kernel_scatters_is_read_by_the_host": "reads",
    "what_is_handed_out_and_taken_are_cupys_arrays": "reads",
    "lanes_that_overlap_change_nothing": "reads",
    "damage_is_refused_with_its_place": "reads",
    "any_array_is_read_as_on_the_host": "reads",
    "filters_are_undone_as_on_the_host": "reads",
    "outputs_may_lie_at_any_byte": "reads",
    "damage_before_the_decoder_is_named_and_changes_nothing_else": "damage",
    "a_stream_that_decodes_to_more_changes_nothing_else": "damage",
    "a_loader_skips_damaged_samples_or_names_them": "damage",
    "a_kernel_that_never_ends_ends_the_read_and_not_the_process": "damage",
    "batches_are_those_of_the_host": "loader",
    "tensors_are_on_the_gpu_in_the_same_memory": "loader",
}
"""Tests of `pytest -m gpu`, without the "test", and of which file."""

CONTACT = "contact"
"""The file that goes before all others, in one process: its tests are small."""

# No test takes as long; less than a task may.
_HANGING_S = 100

TOOLS = ("memcheck", "racecheck", "initcheck")
_FOUND = 86
_OWN_KERNELS = ("--kernel-name", "kernel_substring=gs_")
_OPTIONS: Mapping[str, Sequence[str]] = {
    # What calls answer is looked at where they are made: waits ask the driver until
    # their work is done, and libraries ask it for functions that it may lack.
    "memcheck": ("--report-api-errors", "no"),
    # Hazards within the vendor's kernels are not looked for.
    "racecheck": _OWN_KERNELS,
    # Of all kernels: ours read what the vendor's have decoded, and not every version
    # notes what a kernel writes that is left out. Without frames of the host.
    "initcheck": ("--print-limit", "10000", "--show-backtrace", "device"),
}
# In the line that says where, or in that of the kernel which it was inlined into.
_OWN_FRAME = re.compile(r"^=+ +(?:at|Device Frame:).*\bgs_\w+", re.MULTILINE)
_FRAME = re.compile(r"=+ +(?:Uninitialized|at |Device Frame:)")
_BETWEEN = re.compile(r"\n=+ *\n")
_PLACE = re.compile(r"\+0x[0-9a-f]+")
_CLEAN = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards")
_PLACES = (
    "{home}/bin/compute-sanitizer",
    "{home}/compute-sanitizer/compute-sanitizer",
    "/usr/local/cuda*/bin/compute-sanitizer",
    "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
    "/usr/local/cuda*/extras/compute-sanitizer/compute-sanitizer",
)
# Of the wheels nvidia-cuda-sanitizer-api, by CUDA 13 and 12, in an entry of the path.
_WHEEL_PLACES = (
    "nvidia/cu1*/bin/compute-sanitizer",
    "nvidia/cuda_sanitizer_api/bin/compute-sanitizer",
)


def run_tests(name: str, run: Run) -> None:
    """How many cases of one test, or of `CONTACT`, passed, failed and were skipped."""
    test = str(_ROOT / "tests" / "devices" / f"test_gpu_{TESTS.get(name, name)}.py")
    if name != CONTACT:
        test += f"::test_{name}"
    arguments = ["-m", "gpu", "-v", "-p", "no:cacheprovider", "--tb=short", test]
    # A test that hangs until this process is killed tells where.
    arguments += ["-o", f"faulthandler_timeout={_HANGING_S}"]
    # CuPy and torch are of any version here; what they warn of is told.
    arguments += ["-W", "default"]
    if run.sizes_name == "tiny":
        arguments.append("--collect-only")
    status, output = heard([sys.executable, "-m", "pytest", *arguments], _ROOT)
    said = output.splitlines()
    counts = {what: int(n) for n, what in _COUNT.findall(said[-1] if said else "")}
    output = "\n".join(said[-60:])
    run.put(f"tests/{name}", status=status, **counts, output=output)


_COUNT = re.compile(r"(\d+) (?:tests? )?(passed|failed|skipped|error|collected)")


def run_sanitizer(tool: str, run: Run) -> None:
    """What compute-sanitizer finds while every kernel runs once."""
    name = f"sanitizer/{tool}"
    command = [sys.executable, "-m", "benchmarks.gpu.exercise", run.device_name]
    found = find_sanitizer()
    if found is None:
        raise Skipped("compute-sanitizer is not installed, or is not executable")
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), *_OPTIONS[tool]]
    status, said = heard([found, *options, *command], _ROOT)
    if tool == "initcheck":
        run.put(name, status=status, **uninitialized(said))
        return
    run.put(
        name,
        status=status,
        is_clean=status == 0 and any(line in said for line in _CLEAN),
        output=said[-6000:],
    )


def uninitialized(said: str) -> dict[str, Any]:
    """Columns of the row of initcheck: what it says of our kernels.

    It also reports what the vendor's kernels read. It is clean if nothing is of ours,
    nothing was left out, and all cases came out right.
    """
    reports = [r for r in _BETWEEN.split(said) if "Uninitialized" in r]
    own = [report for report in reports if _OWN_FRAME.search(report)]
    left_out = re.search(r"(\d+) errors were not printed", said)
    n_left_out = int(left_out[1]) if left_out else 0
    is_whole = "ERROR SUMMARY" in said and "wrong: []" in said and not n_left_out
    places = Counter(_PLACE.sub("", "\n".join(_frames(report))) for report in own)
    told = [f"{n} times:\n{place}" for place, n in places.most_common(20)]
    return {
        "is_clean": is_whole and not own,
        "n_of_ours": len(own),
        "n_of_others": len(reports) - len(own),
        "n_left_out": n_left_out,
        "output": "\n".join([*told, said[-1000:]]),
    }


def _frames(report: str) -> list[str]:
    """Lines of a report that say what was read, and where in the code."""
    return [line for line in report.splitlines() if _FRAME.match(line)]


def verdicts(rows: Mapping[str, dict[str, Any]]) -> str:
    """What is wrong by these rows: failed tests, and what the sanitizer found."""
    wrong: list[str] = []
    for name, row in rows.items():
        is_test = name.startswith("tests/")
        # Where no device can be used, all tests are skipped.
        n_good = row.get("passed", 0) + row.get("collected", 0)
        is_passed = row.get("status") == 0 and n_good > 0
        is_good = is_passed if is_test else row.get("is_clean", True)
        if (is_test or name.startswith("sanitizer/")) and not is_good:
            wrong.append(f"WRONG: {name}\n{row.get('output', '')[-3000:]}\n")
    return "".join(wrong)


def find_sanitizer() -> str | None:
    """Path of compute-sanitizer, wherever toolkits put it.

    In the wheel of CUDA 12 (12.9.79) it is not executable.
    """
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    home = (
        os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    )
    places = [place.format(home=home) for place in _PLACES]
    places += [f"{root}/{place}" for root in sys.path for place in _WHEEL_PLACES]
    for place in places:
        paths = sorted(path for path in glob.glob(place) if os.access(path, os.X_OK))
        if paths:
            return paths[-1]
    return None
