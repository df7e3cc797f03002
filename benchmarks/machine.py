"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gpushard.machine import usable_cpu_count


def machine() -> dict[str, Any]:
    """Facts about this machine; nothing that names it."""
    return {
        "cpu": _cpu_model(),
        "cpus": usable_cpu_count(),
        "memory_nbytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def load() -> float:
    """Processes that wanted a CPU in the last minute, this suite's among them."""
    return round(os.getloadavg()[0], 2)


def commit() -> str | None:
    """State of the checkout that was measured, "-dirty" with changes; None outside."""
    git = shutil.which("git")
    if git is None:
        return None
    root = Path(__file__).parents[1]
    done = subprocess.run(  # noqa: S603 - a fixed command
        [git, "-C", str(root), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.processor()
