"""Machine code of the loops: shipped with the package, in a file, and for which CPU."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpushard
from gpushard.fused import choice
from gpushard.fused.code import loading, machine_code
from gpushard.fused.code.elf import MachineCode
from places import ROOT

HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
CODE = MachineCode(b"\0" * 16 + b"\xc3", 16, ("memcpy", "memset"))
OLD = "fpu cx16 lahf_lm popcnt pni ssse3 sse4_1"
# The first of all CPUs of level 2, of 2008.
FIRST = f"{OLD} sse4_2"
CAN_RUN = machine_code.can_run


@pytest.fixture
def shipped(tmp_path, monkeypatch) -> Path:
    """Where the shipped code would be."""
    path = tmp_path / "loops.bin"
    monkeypatch.setattr(machine_code, "SHIPPED", path)
    monkeypatch.setattr(machine_code, "can_run", lambda: True)
    return path


def test_a_checkout_ships_no_code():
    assert not machine_code.SHIPPED.exists()
    assert machine_code.SHIPPED.parent == ROOT / "gpushard" / "fused" / "code"


def test_shipped_code_is_found_before_any_that_was_kept(shipped, monkeypatch):
    monkeypatch.setattr(loading.kept_code, "find", lambda: "kept")
    assert machine_code.find_shipped() is None
    assert loading.ready_code() == "kept"
    shipped.write_bytes(machine_code.content_of(CODE))
    assert machine_code.find_shipped() == CODE
    assert loading.ready_code() == CODE


@pytest.mark.skipif(not CAN_RUN(), reason="no code is shipped for this system")
@pytest.mark.parametrize("is_changed", [False, True])
def test_shipped_code_is_found_in_a_package_that_is_a_zip_file(tmp_path, is_changed):
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in (ROOT / "gpushard").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT))
        content = machine_code.content_of(CODE)[: -1 if is_changed else None]
        archive.writestr("gpushard/fused/code/loops.bin", content)
    program = (
        "from gpushard.fused.code import machine_code as m;"
        "assert '.zip' in m.__file__; print(m.find_shipped())"
    )
    told = {"PYTHONPATH": str(tmp_path / "package.zip")}
    command = [sys.executable, "-c", program]
    output = subprocess.check_output(
        command, cwd=tmp_path, env=os.environ | told, text=True
    )
    assert output == f"{None if is_changed else CODE}\n"


def test_shipped_code_of_other_sources_is_not_run(shipped, monkeypatch):
    """Somebody has changed the installed package."""
    shipped.write_bytes(machine_code.content_of(CODE))
    monkeypatch.setattr(machine_code, "sources", lambda: b"changed")
    assert machine_code.find_shipped() is None


def test_a_package_without_sources_runs_no_shipped_code(shipped, monkeypatch):
    shipped.write_bytes(machine_code.content_of(CODE))

    def sources():
        raise FileNotFoundError("only byte code is there")

    monkeypatch.setattr(machine_code, "sources", sources)
    assert machine_code.find_shipped() is None


@pytest.mark.skipif(not HERE, reason="no CPU is looked at on this system")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_code_is_looked_for_again_where_no_descriptor_was_left(
    number, shipped, monkeypatch
):
    shipped.write_bytes(machine_code.content_of(CODE))

    def no_descriptor(*_, **__):
        raise OSError(number, "too many open files")

    cpu_info = SimpleNamespace(open=no_descriptor)
    for name, stand_in in (("_content", no_descriptor), ("_CPU_INFO", cpu_info)):
        with monkeypatch.context() as patches:
            patches.setattr(machine_code, name, stand_in)
            patches.setattr(machine_code, "can_run", CAN_RUN)
            CAN_RUN.cache_clear()
            with pytest.raises(OSError, match="too many open files"):
                machine_code.find_shipped()
            CAN_RUN.cache_clear()
    assert machine_code.find_shipped() == CODE


def test_another_cpu_or_system_runs_no_shipped_code(shipped, monkeypatch):
    shipped.write_bytes(machine_code.content_of(CODE))
    monkeypatch.setattr(machine_code, "can_run", lambda: False)
    assert machine_code.find_shipped() is None


@pytest.mark.parametrize(
    "change",
    [lambda d: d[:-1], lambda d: d[:-1] + b"\xcc", lambda d: b"x" + d, lambda d: b""],
    ids=["cut short", "a byte", "another kind", "empty"],
)
def test_damaged_content_has_no_code(change):
    content = machine_code.content_of(CODE)
    assert machine_code.code_in(content) == CODE
    assert machine_code.code_in(change(content)) is None


@pytest.mark.skipif(not HERE, reason="code is made for Linux and x86-64")
@pytest.mark.parametrize(
    ("flags", "told"), [(FIRST, True), (OLD, False), (f"{FIRST} avx2", True)]
)
def test_code_runs_on_cpus_that_have_its_instructions(
    flags, told, tmp_path, monkeypatch
):
    info = tmp_path / "cpuinfo"
    text = f"processor\t: 0\nmodel\t\t: 7\nflags\t\t: {flags}\n\n"
    info.write_text(text + f"processor\t: 1\nflags\t: {FIRST}\n", encoding="ascii")
    monkeypatch.setattr(machine_code, "_CPU_INFO", info)
    assert machine_code.can_run.__wrapped__() is told


@pytest.mark.parametrize("text", ["processor\t: 0\nmodel\t\t: 7\n", None])
def test_code_runs_on_no_cpu_of_which_nothing_is_told(text, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text, encoding="ascii")
    monkeypatch.setattr(machine_code, "_CPU_INFO", info)
    assert not machine_code.can_run.__wrapped__()


@pytest.mark.parametrize("other", [("darwin", "x86_64"), ("linux", "aarch64")])
def test_code_runs_on_no_other_system(other, monkeypatch):
    platform, machine = other
    monkeypatch.setattr(sys, "platform", platform)
    told = os.uname_result(("", "", "", "", machine))
    monkeypatch.setattr(os, "uname", lambda: told)
    assert not machine_code.can_run.__wrapped__()


def test_everything_that_is_compiled_tells_one_code_from_another():
    compiled = {name for name in machine_code.SOURCES if name.startswith("fused/")}
    imported = set()
    others = {"fused/code/elf", "fused/code/machine_code"}
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
        imported | others | {"fused/code/compiling"}
        == set(machine_code.SOURCES) | {"fused/code/compiling", "fused/code/elf"}
        == set(machine_code.SOURCES)
    )


def test_the_loops_are_not_compiled_for_cpus_of_the_other_byte_order(monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ImportError, match="little-endian"):
        loading.import_numba()


def test_where_numba_cannot_compile_the_loops_reads_go_on_without(
    tmp_path, monkeypatch
):
    errors = pytest.importorskip("numba.core.errors", reason="`fast` is not installed")
    compiling = pytest.importorskip("gpushard.fused.code.compiling")

    def failing(stamp, *, keeps):
        raise errors.LoweringError("no such instruction\non this CPU")

    monkeypatch.setattr(compiling, "compiled", failing)
    monkeypatch.setattr(loading, "load_ready", lambda: None)
    with pytest.raises(ImportError, match=r"compile the loops \(LoweringError"):
        loading.load()
    for name, value in (("_loaded", []), ("_compiler", SimpleNamespace(wait=int))):
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(choice, "_ready_loops", lambda: None)
    a = gpushard.create_array(tmp_path, shape=(64,), dtype="i4", shards=64, chunks=8)
    a[...] = np.arange(64)
    options = gpushard.Options(compile_nbytes=0, small_read_chunks=0)
    read = gpushard.open_array(tmp_path, options=options)
    assert read[...].tolist() == list(range(64))
    assert choice._loaded == [None]
