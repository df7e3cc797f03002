"""The loops, compiled by a process of its own while reads go on without them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

import gpushard
from fused_cases import VALUES, ZSTD, stored
from gpushard.fused import choice
from gpushard.fused.code import compiler_process, kept_code, loading
from gpushard.fused.code.compiler_process import CompilerProcess
from gpushard.fused.sink import FusedSink
from gpushard.options import Options
from gpushard.placing.place import HostSink
from held_alone import held_by_another_thread
from zarr_oracle import held

HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not HERE, reason="code is kept on Linux and x86-64")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where nothing is kept yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_code.kept_file.cache_clear()
    yield tmp_path / "gpushard" / "loops"
    kept_code.kept_file.cache_clear()


def wait_for(process: CompilerProcess) -> None:
    until = time.monotonic() + 30
    while not process.run_once():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_another_process_takes_its_turn_to_compile(tmp_path, monkeypatch):
    """Here it finds what it would make: compiling takes many seconds."""
    choice._load()
    code = kept_code.kept_file()
    if code is None or not code.exists():
        pytest.skip("code of the loops cannot be kept here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_code.kept_file.cache_clear()
    place = kept_code.kept_file()
    shutil.copy(code, place)
    process = CompilerProcess()
    wait_for(process)
    kept_code.kept_file.cache_clear()
    assert {p.name for p in place.parent.iterdir()} == {
        place.name,
        f"{place.stem}.lock",
    }


def test_reads_go_on_without_the_loops_until_they_are_compiled(seen, monkeypatch):
    loops = choice._load()
    answers = [False, False, True]
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_ready_loops", lambda: None)
    monkeypatch.setattr(choice, "_compiled_loops", lambda: loops)
    monkeypatch.setattr(choice._compiler, "run_once", lambda: answers.pop(0))
    options = Options(small_read_chunks=0, compile_nbytes=1)
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=options)
    kinds = []
    for _ in range(4):
        assert (a[...] == VALUES).all()
        kinds.append(type(seen.sinks.pop()))
    assert kinds == [HostSink, HostSink, FusedSink, FusedSink]


def test_who_asks_for_the_loops_at_once_waits_for_them(seen, monkeypatch):
    loops = choice._load()
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_ready_loops", lambda: None)
    events = []

    def compiled():
        events.append("load")
        return loops

    monkeypatch.setattr(choice, "_compiled_loops", compiled)
    monkeypatch.setattr(choice._compiler, "run_once", lambda: False)
    monkeypatch.setattr(choice._compiler, "wait", lambda: events.append("wait"))
    options = Options(small_read_chunks=0, compile_nbytes=0)
    gpushard.open_array(held(stored([ZSTD]).objects), options=options)[...]
    assert type(seen.sinks.pop()) is FusedSink
    assert events == ["wait", "load"]


def test_who_waits_goes_on_when_the_process_has_ended(folder, monkeypatch):
    monkeypatch.setattr(compiler_process, "_PROGRAM", "import time; time.sleep(0.2)")
    process = CompilerProcess()
    assert not process.run_once()
    process.wait()
    assert process.run_once()


def test_who_waits_goes_on_beside_a_process_that_is_stuck(folder, monkeypatch):
    monkeypatch.setattr(compiler_process, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(compiler_process, "_MOST_WAIT_S", 0.1)
    process = CompilerProcess()
    process.wait()
    assert not process.run_once()
    assert process._pid is not None
    os.kill(process._pid, signal.SIGKILL)
    wait_for(process)


def test_the_process_compiles_as_nobody_told_numba_to(folder, monkeypatch):
    """Nor by its own passes, which take half of the time, and are made once more."""
    for name in ("NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO"):
        monkeypatch.setenv(name, "1")
    program = compiler_process._PROGRAM.partition("with kept_code")[0]
    ends = (
        "from numba import config as c;"
        "told = c.OPT, c.DISABLE_JIT, c.BOUNDSCHECK, c.DEBUGINFO_DEFAULT;"
        "raise SystemExit(any(told))"
    )
    monkeypatch.setattr(compiler_process, "_PROGRAM", program + ends)
    process = CompilerProcess()
    process.run_once()
    assert process._pid is not None
    assert os.waitstatus_to_exitcode(os.waitpid(process._pid, 0)[1]) == 0


def test_reads_do_without_the_loops_where_numba_compiles_nothing(tmp_path):
    program = (
        "from gpushard.fused import choice;"
        "from gpushard.fused.code import kept_code, machine_code;"
        "kept_code.find = machine_code.find_shipped = lambda: None;"
        "raise SystemExit(choice._compiled_loops() is not None)"
    )
    told = {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=os.environ | told, check=True)


CANNOT_BE_IMPORTED = (
    *("ImportError", "RuntimeError('x')", "SystemError", "AttributeError"),
    "OSError('a library is not there')",
)
SAY_NOTHING = {
    "TimeoutError('by a handler')": "TimeoutError",
    "MemoryError": "MemoryError",
    "OSError(24, 'no descriptor')": "[]",
}
# In forks of a process in which numba has not been imported.
LOOKING = """
import os, sys
from gpushard.fused import choice
from gpushard.fused.code import kept_code, machine_code
kept_code.find = machine_code.find_shipped = lambda: None
kept_code.kept_file = lambda: None
assert "numba" not in sys.modules
for folder in sys.argv[1:]:
    if os.fork() == 0:
        sys.path.insert(0, folder)
        told = os.open(f"{folder}/told", os.O_CREAT | os.O_WRONLY)
        os.dup2(told, 1)
        os.dup2(told, 2)
        choice._load()
        print(choice._loaded)
        sys.exit()
    os.wait()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, str]:
    """What a process prints that asks for the loops, by what numba raises."""
    folders = {
        raised: tmp_path_factory.mktemp("numba")
        for raised in (*CANNOT_BE_IMPORTED, *SAY_NOTHING)
    }
    for raised, folder in folders.items():
        (folder / "numba.py").write_text(f"raise {raised}")
    subprocess.run([sys.executable, "-c", LOOKING, *folders.values()], check=True)
    return {raised: (f / "told").read_text() for raised, f in folders.items()}


@pytest.mark.parametrize("raised", CANNOT_BE_IMPORTED)
def test_reads_do_without_the_loops_where_numba_cannot_be_imported(raised, told):
    assert told[raised] == "[None]\n"


@pytest.mark.parametrize("raised", SAY_NOTHING)
def test_what_says_nothing_of_numba_does_not_give_it_up(raised, told):
    assert SAY_NOTHING[raised] in told[raised]


@pytest.mark.parametrize(
    "name", ["/opt/uwsgi", "/opt/blender", "", None, "/opt/python-ish"]
)
def test_a_program_that_is_not_python_is_not_started(name, folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", name)
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: pytest.fail("started"))
    assert CompilerProcess().run_once()


@pytest.mark.parametrize("name", ["python", "python3", "python3.12", "python3.14t"])
def test_python_is_started_by_any_of_its_names(name, folder, monkeypatch):
    started = []
    monkeypatch.setattr(sys, "executable", f"/opt/bin/{name}")
    monkeypatch.setattr(os, "posix_spawn", lambda *a, **_: started.append(a) or 7)
    assert compiler_process._start() == 7
    ((_, command, _),) = started
    assert command[-len(sys.path) :] == sys.path


def test_a_program_that_is_frozen_starts_nothing(folder, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: pytest.fail("started"))
    assert CompilerProcess().run_once()


def test_nothing_is_started_where_no_code_is_kept(monkeypatch):
    monkeypatch.setattr(kept_code, "kept_file", lambda: None)
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: pytest.fail("started"))
    assert CompilerProcess().run_once()


def test_who_may_start_no_process_waits_for_none(folder, monkeypatch):
    asked = []

    def refuse(*_, **__):
        asked.append(1)
        raise PermissionError("no processes here")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    process = CompilerProcess()
    assert process.run_once()
    assert process.run_once()
    assert asked == [1]  # later reads do not try again


def test_a_process_that_fails_is_over_and_not_started_again(folder, monkeypatch):
    monkeypatch.setattr(compiler_process, "_PROGRAM", "raise SystemExit(1)")
    process = CompilerProcess()
    wait_for(process)
    monkeypatch.setattr(os, "posix_spawn", lambda *_, **__: pytest.fail("started"))
    assert process.run_once()
    assert kept_code.find() is None


def test_after_a_fork_the_parents_process_is_waited_for_too(folder, monkeypatch):
    process = CompilerProcess()
    # There, and no child of ours.
    monkeypatch.setattr(compiler_process, "_start", os.getppid)
    assert not process.run_once()
    monkeypatch.setattr(kept_code, "find", lambda: "code")
    assert process.run_once()


def test_one_process_compiles_at_a_time(folder):
    held_turn, let_go, order = Event(), Event(), []

    def first():
        with kept_code.compile_lock():
            held_turn.set()
            let_go.wait(10)
            order.append("first")

    def second():
        held_turn.wait(10)
        let_go.set()
        with kept_code.compile_lock():
            order.append("second")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert order == ["first", "second"]


def test_where_no_code_is_kept_nobody_waits(monkeypatch):
    monkeypatch.setattr(kept_code, "kept_file", lambda: None)
    with kept_code.compile_lock(), kept_code.compile_lock():
        pass


def test_what_this_process_was_started_with_is_let_go(folder, monkeypatch):
    head, _, _ = compiler_process._PROGRAM.partition("sys.path[:]")
    monkeypatch.setattr(
        compiler_process, "_PROGRAM", f"{head}import time; time.sleep(60)"
    )
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    process = CompilerProcess()
    assert not process.run_once()
    os.close(theirs)
    ended, _, _ = select.select([ours], [], [], 30)
    os.close(ours)
    assert not process.run_once()
    os.kill(process._pid, signal.SIGKILL)
    wait_for(process)
    assert ended


def test_imports_are_cached_where_this_process_caches_its_own(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    assert compiler_process._options() == ["-I"]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiler_process._options() == ["-I", "-B"]
    monkeypatch.setattr(sys, "pycache_prefix", "/var/pyc")
    assert compiler_process._options() == ["-I", "-B", "-X", "pycache_prefix=/var/pyc"]


def test_folders_that_no_process_can_be_told_of_cost_no_read(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, None, Path("/opt")])
    started = []
    with monkeypatch.context() as m:
        m.setattr(os, "posix_spawn", lambda *a, **_: started.append(a) or 7)
        compiler_process._start()
    ((_, command, _),) = started
    assert command[-len(sys.path) + 2 :] == sys.path[:-2]
    monkeypatch.setattr(sys, "path", [*sys.path, "null\0byte"])
    assert CompilerProcess().run_once()


def test_a_fork_gives_up_what_was_being_loaded_and_nothing_else(monkeypatch):
    monkeypatch.setattr(choice, "_loaded", [])
    with held_by_another_thread(choice._turn.alone):  # which asks for the process
        choice._give_up_loading()
    assert choice._loaded == []
    with held_by_another_thread(choice._turn.alone), choice._loading():
        choice._give_up_loading()
    assert choice._loaded == [None]
    assert not choice._turn.alone.is_entered


def test_a_fork_is_told_of_loading_as_long_as_it_lasts(monkeypatch):
    monkeypatch.setattr(choice, "_loaded", [])
    during = []
    for name in ("load", "load_ready"):
        monkeypatch.setattr(
            loading, name, lambda: during.append(choice._turn.is_loading)
        )
    choice._compiled_loops()
    choice._ready_loops.__wrapped__()
    assert during == [True, True]
    choice._give_up_loading()
    assert choice._loaded == []  # nobody was loading any more
