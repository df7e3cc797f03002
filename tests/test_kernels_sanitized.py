"""Every kernel, and the vendor's stand-in, once more on the ASan and UBSan build.

The tests of each run again in another process, those of several in one: it takes
seconds to start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_host.launch import assert_sanitized_run_passes

HERE = Path(__file__).parent
TOGETHER = {
    "frames": {"blosc", "blosc_damage", "crc32c", "gate", "gate_damage"},
    "streams": {"filters", "shim", "streams", "trailers", "unfilter"},
    "scatters": {"scatter", "scatter_cast", "scatter_structs"},
    "planes and turns": {"scatter_planes", "scatter_turn"},
}
# These look at machine code, or build sources of their own.
APART = {"barriers", "compile", "sanitized"}


def test_every_file_of_kernels_runs_on_the_sanitized_build():
    stems = {path.stem for path in HERE.glob("test_kernels_*.py")}
    named = set().union(*TOGETHER.values()) | APART
    assert stems == {f"test_kernels_{name}" for name in named}


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER)
def test_kernels_are_clean_under_sanitizers(names):
    files = [f"test_kernels_{name}.py" for name in sorted(TOGETHER[names])]
    if names == "streams":
        files.append("test_nvcomp.py")
    assert_sanitized_run_passes(*files)
