"""Builds gpushard by hatchling; wheels also ship the compiled loops.

Whoever installs such a wheel needs no compiler: the machine code in it runs with every
Python, on Linux on x86-64. Elsewhere nothing uses it. Checkouts that are installed with
``-e`` have none, and compile the loops when they read (extra `fast`).
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)
from hatchling.build import get_requires_for_build_wheel as _get_requires
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

_COMPILER = (
    "numba>=0.61; sys_platform == 'linux' and platform_machine == 'x86_64'"
    " and implementation_name == 'cpython' and python_version < '3.15'"
)
_PROGRAM = """
import sys
root, target = sys.argv[1:]
sys.path.insert(0, root)
from gpushard.fused.code import compiler_process, elf, machine_code
compiler_process.set_numba()
from gpushard.fused.code import compiling
if not machine_code.can_run():
    raise SystemExit("they are compiled on Linux and x86-64")
function = compiling.compiled(0, keeps=False)
code = elf.movable_code(compiling.object_of(function), function.name)
with open(target, "wb") as out:
    out.write(machine_code.content_of(code))
"""


def get_requires_for_build_wheel(
    config_settings: dict[str, Any] | None = None,
) -> list[str]:
    """What hatchling asks for, and the compiler, where it compiles the loops."""
    return [*_get_requires(config_settings), *([_COMPILER] if _has_wheels() else [])]


def _has_wheels() -> bool:
    """Whether the compiler has wheels for this Python, as far as markers cannot tell.

    Else pip would build it, and fail: that takes LLVM.
    """
    is_free = sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14)
    return platform.libc_ver()[0] == "glibc" and not is_free


class ShippedLoops(BuildHookInterface):
    """Adds the machine code of the loops to a wheel, if it can be made here."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the loops, and tell hatchling where the file belongs."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name, "loops.bin")
        command = [sys.executable, "-B", "-c", _PROGRAM, self.root, str(target)]
        self.app.display_info("compiling the loops: some 20 seconds")
        done = subprocess.run(  # noqa: S603 - fixed
            command, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            build_data["force_include"][str(target)] = "gpushard/fused/code/loops.bin"
        else:
            why = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            self.app.display_warning(f"the wheel is without compiled loops: {why}")

    def finalize(self, *_: Any, **_named: Any) -> None:
        """Remove the file, which is in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
