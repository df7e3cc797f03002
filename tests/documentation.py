"""Examples of the README and of docs/: found on their pages, and run.

A page's blocks run one after the other, in one module and one directory. A block that
does not run says so to its readers, in a title, with the reason::

    ```python title="not run by the tests: it needs two GPUs"
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from typer.testing import CliRunner

from gpushard.cli import app
from places import ROOT

_BLOCK = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^ *```$", re.M | re.S)
_REASON = re.compile(r'title="not run by the tests: (?P<reason>\S[^"]+)"')
# Each lane has one of the two: they are large.
_OF_ONE_LANE = re.compile(r"^import (torch|jax)$", re.M)
_STATUS = re.compile(r"# exit status (\d)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes
    ----------
    page, line
        Where its text begins, the first line being 1.
    language, title, text
        What stands behind the fence, and between the fences.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def is_run(self) -> bool:
        """Whether the page does not give a reason against it."""
        return not _REASON.search(self.title)

    @property
    def is_of_another_lane(self) -> bool:
        """Whether it needs what only another lane has."""
        needed = _OF_ONE_LANE.findall(self.text)
        return any(find_spec(package) is None for package in needed)

    @property
    def at(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README.md and all below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(4)) + 1, *found.group(2, 3, 4))
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: Path, renamed: dict[str, str]) -> tuple[dict, str]:
    """Run what a page shows, in the current directory.

    Parameters
    ----------
    renamed
        Addresses that pages name, and where they are found in the tests.

    Returns
    -------
    The module that its blocks made, and what they printed.
    """
    module: dict = {"__name__": "__main__"}
    printed = io.StringIO()
    for block in blocks(page):
        text = block.text
        for name, address in renamed.items():
            text = text.replace(name, address)
        if not block.is_run or block.is_of_another_lane:
            continue
        with contextlib.redirect_stdout(printed):
            if block.language == "python":
                # Lines of tracebacks are those of the page.
                code = "\n" * (block.line - 1) + text
                exec(compile(code, str(page), "exec", dont_inherit=True), module)
            elif block.language == "pycon":
                _run_session(block, text, module)
            elif block.language == "sh":
                _run_commands(block, text)
    return module, printed.getvalue()


def _run_session(block: Block, text: str, module: dict) -> None:
    """Compare what an interpreter's session shows with what it gives."""
    name = str(block.page)
    session = doctest.DocTestParser().get_doctest(text, module, name, name, block.line)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    differences: list[str] = []
    runner.run(session, out=differences.append, clear_globs=False)
    assert not differences, "".join(differences)
    module.update(session.globs)


def _run_commands(block: Block, text: str) -> None:
    """Run the lines that call gpushard, and look the others up."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["gpushard"]:
            _look_up(block, words)
            continue
        status = _STATUS.search(line)
        if words[1] == "sample":  # the page may have used it before it tells of it
            shutil.rmtree(words[2], ignore_errors=True)
        run = CliRunner().invoke(app, words[1:])
        sys.stdout.write(run.stdout)
        want = int(status[1]) if status else 0
        assert run.exit_code == want, f"{block.at}: {line}\n{run.output}"


def _look_up(block: Block, words: list[str]) -> None:
    """Whether a command that is not run names what is there."""
    if words[:1] == ["./dev"]:
        commands = re.findall(r"^    ([\w-]+)\)", (ROOT / "dev").read_text(), re.M)
        assert words[1] in commands, f"{block.at}: ./dev has no such command"
    if words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"^(?:\.|gpushard)\[(.*)\]$", words[-1]):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
