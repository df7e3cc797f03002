"""`gpushard doctor`: whether reads run in the compiled loops, and what keeps them."""

from __future__ import annotations

import sys

import pytest

from cli_runs import run, run_json
from gpushard.cli import diagnosis
from gpushard.devices import find
from gpushard.fused.code import kept_code, machine_code
from gpushard.fused.code.elf import MachineCode


@pytest.fixture(autouse=True)
def _without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    find._usable_gpu.cache_clear()
    yield
    find._usable_gpu.cache_clear()


@pytest.mark.skipif(not machine_code.can_run(), reason="no code is kept on this system")
def test_doctor_tells_where_loops_are_kept_or_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis, "installed", {"numba": "1.0"}.get)
    monkeypatch.setattr(diagnosis, "import_numba", lambda: None)
    for place, told in ((tmp_path / "code.bin", str(tmp_path)), (None, None)):
        monkeypatch.setattr(kept_code, "kept_file", lambda place=place: place)
        facts = run_json("doctor")
        assert facts["loops are kept in"] == told
        assert any("XDG_CACHE_HOME" in a for a in facts["advice"]) == (place is None)


@pytest.mark.skipif(not machine_code.can_run(), reason="no code is kept on this system")
def test_doctor_tells_whether_the_loops_are_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis, "installed", lambda _: "1.0")
    monkeypatch.setattr(diagnosis, "import_numba", lambda: None)
    monkeypatch.setattr(kept_code, "kept_file", lambda: tmp_path / "code.bin")
    assert run_json("doctor")["loops are compiled"] is False
    assert f"{tmp_path}, not compiled yet" in run("doctor").stdout
    kept_code.keep(MachineCode(b"code", 0, ()))
    assert run_json("doctor")["loops are compiled"] is True
    assert "not compiled yet" not in run("doctor").stdout


@pytest.mark.skipif(not machine_code.can_run(), reason="no code is kept on this system")
def test_doctor_tells_that_the_compiler_cannot_be_imported(monkeypatch, tmp_path):
    (tmp_path / "numba.py").write_text("raise RuntimeError('of another NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setattr(diagnosis, "installed", {"numba": "1.0"}.get)
    monkeypatch.setattr(kept_code, "kept_file", lambda: tmp_path / "code.bin")
    monkeypatch.setattr(machine_code, "SHIPPED", tmp_path / "loops.bin")
    facts = run_json("doctor")
    assert facts["loops are kept in"] is None
    (told,) = facts["advice"]
    assert "numba 1.0 cannot be imported (RuntimeError: of another NumPy)" in told
    assert "not compiled yet" not in run("doctor").stdout
    kept_code.keep(MachineCode(b"code", 0, ()))
    assert run_json("doctor")["advice"] == []


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """Loops came with the package, and no compiler is installed."""
    monkeypatch.setattr(diagnosis, "installed", lambda _: None)
    monkeypatch.setattr(kept_code, "kept_file", lambda: None)
    monkeypatch.setattr(machine_code, "SHIPPED", tmp_path / "loops.bin")
    monkeypatch.setattr(machine_code, "can_run", lambda: True)
    code = machine_code.content_of(MachineCode(b"code", 0, ()))
    machine_code.SHIPPED.write_bytes(code)


@pytest.mark.usefixtures("shipped")
def test_shipped_loops_need_no_compiler_and_no_folder():
    facts = run_json("doctor")
    assert facts["advice"] == []
    assert facts["loops are shipped"]
    assert facts["loops are compiled"]
    assert facts["compilers"] == {}
    assert "come with the package" in run("doctor").stdout
    assert "\n  compiler " not in run("doctor").stdout
    machine_code.SHIPPED.unlink()
    (told,) = run_json("doctor")["advice"]
    assert "without numba" in told
    assert "\n  compiler " in run("doctor").stdout


@pytest.mark.usefixtures("shipped")
def test_doctor_tells_that_shipped_loops_are_damaged():
    machine_code.SHIPPED.write_bytes(machine_code.SHIPPED.read_bytes()[:-1])
    facts = run_json("doctor")
    assert not facts["loops are shipped"]
    assert not facts["loops are compiled"]
    (told,) = facts["advice"]
    assert "install gpushard again" in told


@pytest.mark.usefixtures("shipped")
def test_doctor_tells_that_the_system_forbids_loops(monkeypatch):
    monkeypatch.setattr(machine_code, "may_run", lambda: False)
    facts = run_json("doctor")
    assert facts["loops are compiled"] is False
    (told,) = facts["advice"]
    assert "MemoryDenyWriteExecute" in told
    assert "may not run here" in run("doctor").stdout


def test_the_loops_are_missed_on_a_gpu_too(monkeypatch):
    monkeypatch.setattr(diagnosis, "installed", lambda name: None)
    facts = run_json("doctor")
    (told,) = facts["advice"]
    (more,) = diagnosis._advice(facts | {"device": "cuda:0"})
    assert told.startswith("large reads on the CPU run in Python without numba")
    assert more == f"files take a longer way to the GPU, and {told}"
