"""Every kernel, and the vendor's stand-in, once more on the ASan and UBSan build.

Their tests run again in another process, all in one: it takes seconds to start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_host.launch import assert_sanitized_run_passes

HERE = Path(__file__).parent
# These look at machine code, skip barriers for what comes out, or are this one.
APART = {"barriers", "compile", "sanitized"}


@pytest.mark.slow
def test_kernels_are_clean_under_sanitizers():
    apart = {f"test_kernels_{name}.py" for name in APART}
    found = {path.name for path in HERE.glob("test_kernels_*.py")}
    assert apart < found
    kernels = [f"kernels/{name}" for name in sorted(found - apart)]
    assert_sanitized_run_passes(*kernels, "devices/test_nvcomp.py")
