"""Machine code of the loops: kept for later processes, and left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from fused_cases import VALUES, ZSTD, stored
from gpushard.fused import choice
from gpushard.fused.code import compiling, kept_code, loading, machine_code
from gpushard.fused.code.elf import MachineCode
from loop_objects import MODULE

HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not HERE, reason="code is kept on Linux and x86-64")


@pytest.fixture(scope="module", autouse=True)
def _loops():
    choice._load()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where nothing is kept yet, on a machine without a folder for temporary files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.setenv("TMPDIR", str(no_folder))
    kept_code.kept_file.cache_clear()
    yield tmp_path / "gpushard" / "loops"
    kept_code.kept_file.cache_clear()


CODE = MachineCode(b"\0" * 16 + b"\xc3", 16, ("memcpy", "memset"))


def test_what_was_kept_is_found(folder):
    assert kept_code.find() is None
    kept_code.keep(CODE)
    assert kept_code.find() == CODE
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "change",
    [lambda d: d[:-1], lambda d: d[:-1] + b"\xcc", lambda d: b"x" + d, lambda d: b""],
    ids=["cut short", "a byte", "another kind", "empty"],
)
def test_damaged_code_is_not_run(change, folder):
    kept_code.keep(CODE)
    (path,) = folder.iterdir()
    path.write_bytes(change(path.read_bytes()))
    assert kept_code.find() is None
    kept_code.keep(CODE)
    assert kept_code.find() == CODE


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_left_alone(mode, folder):
    kept_code.keep(CODE)
    (path,) = folder.iterdir()
    path.chmod(mode)
    assert kept_code.find() is None


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o500])
def test_a_folder_that_others_may_write_or_we_may_not_is_left_alone(
    mode, folder, monkeypatch
):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    # Root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, _: path.stat().st_mode & 0o200)
    assert kept_code.kept_file() is None
    kept_code.keep(CODE)
    assert list(folder.iterdir()) == []
    assert kept_code.find() is None


def test_what_somebody_else_owns_is_left_alone(folder, monkeypatch):
    kept_code.keep(CODE)
    (path,) = folder.iterdir()
    # Beside root, who owns what a package brought.
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert (kept_code.find() is None) == (path.stat().st_uid != 0)
    mine, its = path.stat(), list(path.stat())
    its[4] = 54321
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(its))
    assert mine.st_uid != 54321
    assert kept_code.find() is None


@pytest.mark.parametrize(
    ("where", "what", "other"),
    [(kept_code, "_installation", "numba 1 1"), (machine_code, "sources", b"7")],
)
def test_other_compilers_and_sources_have_code_of_their_own(
    where, what, other, folder, monkeypatch
):
    kept_code.keep(CODE)
    monkeypatch.setattr(where, what, lambda *_: other)
    kept_code.kept_file.cache_clear()
    assert kept_code.kept_file() is not None
    assert kept_code.find() is None


def test_a_function_that_numba_keeps_is_not_looked_into(monkeypatch):
    """It warns, of one that it has loaded."""

    class Loaded:
        address, native_name = 7, "run"

        def inspect_llvm(self):
            pytest.fail("numba warns of this")

    monkeypatch.setattr(compiling, "cfunc", lambda *_, **__: lambda _: Loaded())
    assert compiling.compiled(1, keeps=True) == (7, "run", "")


def test_a_program_in_one_file_has_loops_that_are_not_kept(folder, monkeypatch):
    """Its modules have places, but no file is there."""
    elsewhere = str(folder / "gpushard" / "fused" / "code" / "machine_code.py")
    monkeypatch.setattr(machine_code, "__file__", elsewhere)
    machine_code.sources.cache_clear()
    kept = []

    def compiled(_stamp, *, keeps):
        kept.append(keeps)
        return compiling.Compiled(7, "run", "")

    monkeypatch.setattr(compiling, "compiled", compiled)
    assert isinstance(loading.load(), loading.CompiledLoops)
    assert kept == [False]


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_the_loops_do_without_a_folder_to_be_kept_in(error, monkeypatch):
    def compiled(_stamp, *, keeps):
        if keeps:
            raise error("no locator available")
        return compiling.Compiled(7, "run", "")

    monkeypatch.setattr(compiling, "compiled", compiled)
    monkeypatch.setattr(kept_code, "kept_file", lambda: None)
    assert isinstance(loading.load(), loading.CompiledLoops)


def test_code_that_cannot_be_moved_runs_where_it_was_compiled(folder, monkeypatch):
    changed = MODULE.replace("@memmove", "@PyErr_Occurred")
    function = compiling.Compiled(7, "run", changed)
    monkeypatch.setattr(compiling, "compiled", lambda *_, **__: function)
    made = []
    monkeypatch.setattr(loading, "CompiledLoops", lambda *a: made.append(a) or "loops")
    assert loading.load() == "loops"
    assert made == [(7,)]
    assert list(folder.iterdir()) == []


def test_where_nothing_may_be_run_that_was_written_nothing_is(folder, monkeypatch):
    kept_code.keep(CODE)
    monkeypatch.setattr(machine_code, "map_code", lambda _: None)
    monkeypatch.setattr(compiling, "compiled", lambda *_, **__: pytest.fail("compiled"))
    assert loading.load_ready() is None
    assert loading.load() is None


LATER = """
import sys, numpy, gpushard
a = gpushard.open_array(sys.argv[1], options=gpushard.Options(compile_nbytes=64))
values = a[...]
from gpushard.fused import choice
assert choice.are_loaded()
assert "numba" not in sys.modules and "llvmlite" not in sys.modules
print(values.sum())
"""


def test_a_later_process_needs_no_compiler(tmp_path):
    if kept_code.find() is None:
        pytest.skip("code of the loops cannot be kept here")
    place = stored([ZSTD]).placed("local", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LATER, place],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == int(VALUES.sum())


@pytest.fixture
def no_home(folder, monkeypatch):
    """A user without a home."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    kept_code.kept_file.cache_clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where code is kept among temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"gpushard-loops-{os.geteuid()}"


@pytest.mark.usefixtures("no_home")
def test_who_has_no_home_and_no_temporary_files_keeps_nothing():
    assert kept_code.kept_file() is None


@pytest.mark.usefixtures("no_home")
def test_who_has_no_home_keeps_code_among_temporary_files(temporary):
    kept_code.keep(CODE)
    assert len([*temporary.iterdir()]) == 1
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert kept_code.find() == CODE


def test_a_home_that_is_not_there_is_not_made(folder, temporary, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kept_code.kept_file.cache_clear()
    kept_code.keep(CODE)
    assert not (tmp_path / "home").exists()
    assert len([*temporary.iterdir()]) == 1
    (tmp_path / "home").mkdir()
    kept_code.kept_file.cache_clear()
    kept_code.keep(CODE)
    assert len([*(tmp_path / "home/.cache/gpushard/loops").iterdir()]) == 1


def test_who_may_not_write_at_home_keeps_code_among_temporary_files(folder, temporary):
    folder.parent.touch()  # nobody can make a folder there
    kept_code.keep(CODE)
    assert len([*temporary.iterdir()]) == 1
    assert kept_code.find() == CODE


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_folder_that_others_made_among_temporary_files_is_left_alone(
    kind, temporary, tmp_path
):
    other = temporary if kind == "folder" else tmp_path / "other"
    other.mkdir()
    other.chmod(0o777 if kind == "folder" else 0o700)
    if kind == "link":
        temporary.symlink_to(other)
    kept_code.keep(CODE)
    assert [*other.iterdir()] == []
    assert kept_code.find() is None
