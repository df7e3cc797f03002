"""What tests and the sanitizer said on a GPU is told, and told apart from nothing."""

from __future__ import annotations

import re

import pytest

from benchmarks.gpu import checks
from benchmarks.gpu.run import Run

DEVICE = "cuda_host.machine:emulated"


def test_what_is_wrong_is_told_with_what_was_said():
    rows = {
        "tests/contact": {"status": 1, "output": "1 failed"},
        "tests/other": {"status": 0, "passed": 3, "output": "passed"},
        "tests/nothing": {"status": 0, "skipped": 9, "output": "no device"},
        "sanitizer/memcheck": {"is_clean": False, "output": "Invalid write"},
        "sanitizer/initcheck": {"skipped": "not installed"},
        "probes/calls": {"status": 5},
    }
    told = re.findall("WRONG: (.*)\n(.*)\n", checks.verdicts(rows))
    assert told == [
        ("tests/contact", "1 failed"),
        ("tests/nothing", "no device"),
        ("sanitizer/memcheck", "Invalid write"),
    ]


SUMMARIES = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "initcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}


@pytest.mark.parametrize("tool", checks.TOOLS)
def test_each_tool_has_its_own_words_for_nothing_found(tmp_path, monkeypatch, tool):
    found, program = {}, tmp_path / "compute-sanitizer"
    said = f"{RIGHT}========= {SUMMARIES[tool]}"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(checks, "find_sanitizer", lambda: str(program))
    run = Run(DEVICE, "tiny", tmp_path, emit=lambda row: found.update(row))
    checks.run_sanitizer(tool, run)
    assert found["is_clean"]


def test_an_answer_of_the_driver_is_no_error_of_a_kernel(tmp_path, monkeypatch):
    """A wait asks until its work is done; only memcheck reports what calls answer."""
    program = tmp_path / "compute-sanitizer"
    program.write_text('#!/bin/sh\necho "asked: $*"\n')
    program.chmod(0o755)
    monkeypatch.setattr(checks, "find_sanitizer", lambda: str(program))
    asked = {}
    for tool in ("memcheck", "racecheck"):
        run = Run(DEVICE, "tiny", tmp_path, emit=lambda row: asked.update(row))
        checks.run_sanitizer(tool, run)
        is_silent = "--report-api-errors no" in asked["output"]
        assert is_silent is (tool == "memcheck")


# As compute-sanitizer 2026 prints it, with device frames alone.
OURS = """\
========= Uninitialized __global__ memory read of size 8 bytes
=========     at is_decoded(const Outcomes &, unsigned int)+0x330 in streams.cuh:19
=========     by thread ({},0,0) in block (0,0,0)
=========     Address 0x7f87cea99648
=========         Device Frame: fold(const Trailers &)+0x220 in trailers.cu:58
=========         Device Frame: gs_verify_zstd+0x220 in trailers.cu:294
"""
NOT_INLINED = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at gs_fold+0x120 in fold.cu:20
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f87cea99648
"""
THEIRS = """\
========= Uninitialized __global__ memory read of size 1 bytes
=========     at void nvcomp::zstd::decompress_kernel<(int)4>(unsigned char *)+0x1fa0
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f87cea41800
"""
RIGHT = "32 kernels; not launched: []; wrong: []\n"
LEFT_OUT = (
    "========= ERROR SUMMARY: 90 errors were not printed."
    " Use --print-limit option to adjust the number of printed errors\n"
)


def said_by_initcheck(*reports, end=RIGHT, left_out=""):
    summary = f"========= ERROR SUMMARY: {len(reports)} errors\n"
    ended = [f"{report}========= \n" for report in reports]
    return "".join(["========= COMPUTE-SANITIZER\n", *ended, end, summary, left_out])


def test_what_only_the_vendors_kernels_read_is_not_ours():
    found = checks.uninitialized(said_by_initcheck(THEIRS, THEIRS))
    assert found["is_clean"]
    assert (found["n_of_ours"], found["n_of_others"]) == (0, 2)


def test_what_our_kernels_read_is_told_once_for_each_place():
    reports = [OURS.format(4), THEIRS, OURS.format(8), NOT_INLINED]
    found = checks.uninitialized(said_by_initcheck(*reports))
    assert not found["is_clean"]
    assert (found["n_of_ours"], found["n_of_others"]) == (3, 1)
    assert found["output"].startswith("2 times:\n=")
    assert "gs_verify_zstd in trailers.cu:294" in found["output"]
    assert "gs_fold in fold.cu:20" in found["output"]


@pytest.mark.parametrize(
    "said",
    [
        said_by_initcheck(THEIRS, left_out=LEFT_OUT),
        said_by_initcheck(THEIRS, end=RIGHT.replace("wrong: []", "wrong: ['deep']")),
        "========= COMPUTE-SANITIZER\n========= Error: cannot start\n",
    ],
    ids=["not all was printed", "a case came out wrong", "it did not run"],
)
def test_initcheck_is_only_clean_if_it_has_seen_and_told_all(said):
    assert not checks.uninitialized(said)["is_clean"]
