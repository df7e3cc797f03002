"""Machine code of the loops: laid out, kept for later processes, and left alone."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
pytest.importorskip("cffi", reason="zstandard's C interface needs cffi (extra `fast`)")
pytest.importorskip("blosc2", reason="libblosc2 ships with blosc2 (extra `fast`)")

from llvmlite import binding

from fused_cases import VALUES, ZSTD, stored
from gpushard.fused import choice, compiling, kept_code, loading
from gpushard.fused.addresses import address_of
from gpushard.fused.elf import MachineCode, NotMovableError, movable_code

ROOT = Path(__file__).parents[1]
HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not HERE, reason="code is kept on Linux and x86-64")

# A constant table, a function that is called, and two of the C library's.
MODULE = """
@table = internal constant [4 x i64] [i64 3, i64 1, i64 4, i64 1]
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare ptr @memmove(ptr, ptr, i64)

define internal i64 @nth(i64 %n) noinline {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %value = load i64, ptr %at
  ret i64 %value
}

define i64 @run(ptr %words) {
  %n = load i64, ptr %words
  %found = call i64 @nth(i64 %n)
  %second = getelementptr i64, ptr %words, i64 1
  call void @llvm.memset.p0.i64(ptr %words, i8 9, i64 %n, i1 false)
  %moved = call ptr @memmove(ptr %second, ptr %words, i64 %n)
  ret i64 %found
}
"""


def object_of(assembly: str) -> bytes:
    return compiling.object_of(compiling.Compiled(0, "run", assembly))


@pytest.fixture(scope="module", autouse=True)
def _assembler():
    choice._load()
    binding.initialize_native_asmprinter()


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


def test_code_runs_wherever_it_is_mapped():
    code = movable_code(object_of(MODULE), "run")
    assert code.imports == ("memmove", "memset")
    for _ in range(2):
        mapped = kept_code.map_code(code)
        assert mapped is not None
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(mapped.address)
        for n, want in enumerate([3, 1, 4, 1]):
            words = np.array([n, 0], np.int64)
            assert run(address_of(words)) == want
            assert words.tobytes()[8:] == b"\t" * n + b"\0" * (8 - n)


def test_what_runs_can_no_longer_be_written():
    code = movable_code(object_of(MODULE), "run")
    mapped = kept_code.map_code(code)
    assert mapped is not None
    text = Path("/proc/self/maps").read_text(encoding="ascii")
    rights = []
    for place, given, *_ in map(str.split, text.splitlines()):
        low, high = (int(end, 16) for end in place.split("-"))
        if low <= mapped.address < high:  # neighbours of equal rights are one line
            rights.append(given)
    assert rights == ["r-xp"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("internal constant", "internal global"),
        ("@memmove", "@PyErr_Occurred"),
        ("@table = internal constant [4 x i64]", "@table = external global [4 x i64];"),
        ("i64 @run", "i64 @walk"),
    ],
    ids=["variables", "another function", "another variable", "no entry"],
)
def test_an_object_with_more_than_code_is_not_kept(before, after):
    changed = MODULE.replace(before, after)
    if after.startswith("internal"):
        counted = "%more = add i64 %value, 1\nstore i64 %more, ptr %at\nret i64 %value"
        changed = changed.replace("ret i64 %value", counted)
    assert changed != MODULE
    with pytest.raises(NotMovableError):
        movable_code(object_of(changed), "run")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"MZ" + data[2:],
        lambda data: data[:16] + b"\2" + data[17:],
        lambda data: data[:18] + b"\xb7" + data[19:],
    ],
    ids=["nothing", "no ELF", "an executable", "another machine"],
)
def test_what_is_no_object_of_this_machine_is_not_kept(damage):
    with pytest.raises(NotMovableError):
        movable_code(damage(object_of(MODULE)), "run")


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
    ("what", "other"),
    [("_cpu", "7"), ("_installation", "numba 1 1"), ("sources", b"7")],
)
def test_other_cpus_compilers_and_sources_have_code_of_their_own(
    what, other, folder, monkeypatch
):
    kept_code.keep(CODE)
    monkeypatch.setattr(kept_code, what, lambda *_: other)
    kept_code.kept_file.cache_clear()
    assert kept_code.kept_file() is not None
    assert kept_code.find() is None


def test_a_cpu_is_told_by_what_it_can_do(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    told = []
    for flags, mhz in (("fpu sse4_2", 1), ("fpu sse4_2", 2), ("fpu avx2", 1)):
        text = f"processor\t: 0\nmodel\t\t: 7\ncpu MHz\t: {mhz}\nflags\t\t: {flags}\n\n"
        info.write_text(text + "processor\t: 1\nflags\t: other\n", encoding="ascii")
        monkeypatch.setattr(kept_code, "_CPU_INFO", info)
        told.append(kept_code._cpu())
    assert told[0] == told[1] != told[2]
    assert "sse4_2" in told[0]
    assert "other" not in told[0]


def test_everything_that_is_compiled_tells_one_code_from_another():
    compiled = {name for name in kept_code.SOURCES if name.startswith("fused/")}
    imported = set()
    others = {"fused/elf", "fused/kept_code"}
    for name in compiled - others:
        tree = ast.parse((ROOT / "gpushard" / f"{name}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gpu"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                paths = [n.removeprefix("gpushard.").replace(".", "/") for n in names]
                imported |= {
                    p
                    if (ROOT / "gpushard" / f"{p}.py").is_file()
                    else str(Path(p).parent)
                    for p in paths
                }
    assert (
        imported | others | {"fused/compiling"}
        == set(kept_code.SOURCES) | {"fused/compiling", "fused/elf"}
        == set(kept_code.SOURCES)
    )


def test_a_function_that_numba_keeps_is_not_looked_into(monkeypatch):
    """It warns, of one that it has loaded."""

    class Loaded:
        address, native_name = 7, "run"

        def inspect_llvm(self):
            pytest.fail("numba warns of this")

    monkeypatch.setattr(compiling, "cfunc", lambda *_, **__: lambda _: Loaded())
    assert compiling.compiled(1, keeps=True) == (7, "run", "")


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
    monkeypatch.setattr(kept_code, "map_code", lambda _: None)
    monkeypatch.setattr(compiling, "compiled", lambda *_, **__: pytest.fail("compiled"))
    assert loading.load_kept() is None
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
