"""Kept machine code in folders that others had a hand in, and where none may be run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpushard.fused.code import kept_code
from gpushard.fused.code.elf import MachineCode
from places import ROOT

HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
pytestmark = [
    pytest.mark.skipif(not HERE, reason="code is kept on Linux and x86-64"),
    pytest.mark.usefixtures("folder"),
]
CODE = MachineCode(b"\0" * 16 + b"\xc3", 16, ("memcpy", "memset"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where nothing is kept yet, on a machine without a folder for temporary files."""
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    kept_code.kept_file.cache_clear()
    yield tmp_path / "gpushard" / "loops"
    kept_code.kept_file.cache_clear()


@pytest.mark.parametrize("level", [0, 1, 2], ids=["file", "folder", "folder above"])
def test_what_a_link_leads_to_is_neither_run_nor_written(level, folder, tmp_path):
    """Who may write above the folder may put there a link to anything of ours."""
    kept_code.keep(CODE)
    (path,) = folder.iterdir()
    link = [path, folder, folder.parent][level]
    there = tmp_path / "elsewhere"
    link.rename(there)
    link.symlink_to(there)
    assert kept_code.find() is None
    before = path.read_bytes()
    kept_code.keep(CODE._replace(entry=15))
    is_replaced = level == 0  # the link is, not what it leads to
    assert (path.read_bytes() != before) == is_replaced
    if is_replaced:
        assert there.read_bytes() == before


def test_a_link_in_the_place_of_a_file_that_is_written_is_not_followed(folder):
    path = kept_code.kept_file()
    assert path is not None
    mine = folder.parent / "mine"
    mine.write_bytes(b"mine")
    path.with_name(f"{path.name}.{os.getpid()}.part").symlink_to(mine)
    for _ in range(2):  # the first time it is only taken away
        kept_code.keep(CODE)
    assert mine.read_bytes() == b"mine"
    assert kept_code.find() == CODE


def test_a_pipe_in_the_place_of_kept_code_is_not_waited_for(folder):
    path = kept_code.kept_file()
    assert path is not None
    os.mkfifo(path, 0o600)
    assert kept_code.find() is None


def test_folders_that_depend_on_where_a_process_runs_are_ignored(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    (tmp_path / "home").mkdir()
    for home, is_kept in ((str(tmp_path / "home"), True), ("home", False)):
        monkeypatch.setenv("HOME", home)
        kept_code.kept_file.cache_clear()
        path = kept_code.kept_file()
        assert (path is not None) == is_kept
        assert path is None or path.is_relative_to(home)
    assert not (tmp_path / "here").exists()


def test_code_in_the_working_directory_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "HOME", "TMPDIR"):
        monkeypatch.setenv(name, ".")
    kept_code.kept_file.cache_clear()
    path = kept_code.kept_file()
    assert path is None or not path.is_relative_to(tmp_path)


@pytest.mark.parametrize("given", [None, "", "here", "/elsewhere"])
def test_temporary_files_are_never_looked_for_where_a_process_runs(given, monkeypatch):
    if given is None:
        monkeypatch.delenv("TMPDIR")
    else:
        monkeypatch.setenv("TMPDIR", given)
    *_, last = kept_code._folders()
    assert str(last.parent) == ("/elsewhere" if given == "/elsewhere" else "/tmp")


REFUSED = """
import ctypes, sys, warnings
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit(77)
from gpushard.fused.code import loading, machine_code
from gpushard.fused.code.elf import MachineCode
assert machine_code.map_code(MachineCode(bytes(8), 0, ())) is None
assert loading.load() is None
assert "numba" not in sys.modules
"""


def test_a_system_that_runs_nothing_that_was_written_compiles_nothing():
    """There numba cannot even be imported, which was the error of a read."""
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    if done.returncode == 77:
        pytest.skip("Linux before 6.3 cannot be asked to refuse")
    assert done.returncode == 0
