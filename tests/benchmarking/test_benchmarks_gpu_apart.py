"""A task that hangs or dies on a GPU host leaves nothing behind, and is heard of."""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import data
from benchmarks.configs import KIB
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import apart
from benchmarks.gpu.arrays import Layout, becoming, store, values_of
from benchmarks.gpu.record import Record
from benchmarks.gpu.replay import SCATTERS
from benchmarks.gpu.sizes import FULL, TINY
from benchmarks.gpu.tasks import Task

ROOT = Path(command.__file__).parents[2]
# What it has begun would go on for a minute.
BEGINS = "sleep 60 & "


def has_ended(pipe):
    """Whether nobody has the other end of a pipe any more."""
    return bool(select.select([pipe], [], [], 20)[0]) and pipe.read() == ""


def test_what_a_process_has_begun_ends_with_it():
    crashes = BEGINS + "kill -SEGV $$"
    with apart.begun(["sh", "-c", crashes], stdout=subprocess.PIPE) as process:
        assert apart.ended(process) == -11
        assert has_ended(process.stdout)
        apart.kill(process)  # whose number may be another's by now


def test_what_a_command_says_is_heard_at_once_and_at_its_end(tmp_path, capfd):
    says = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    assert apart.heard([sys.executable, "-c", says], tmp_path) == (3, "one\ntwo\n")
    assert capfd.readouterr().err == "one\ntwo\n"


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "r.json", tmp_path / "r.log", is_emulated=True)


def run(monkeypatch, record, script, limit_s=30.0):
    """State of a task whose process is a script of the shell."""
    processes = []

    def begun(_, **how):
        processes.append(apart.begun(["sh", "-c", script], **how))
        return processes[-1]

    monkeypatch.setattr(command, "begun", begun)
    task = Task("probes", "probes/x", print, limit_s)
    command._run(record, task, [], 100.0, is_first=True)
    assert processes[0].returncode is not None
    return record.content["tasks"]["probes/x"]


def test_a_task_that_hangs_is_ended_and_tells_what_it_said_last(monkeypatch, record):
    script = "echo test_that_hangs >&2; " + BEGINS + "wait"
    state = run(monkeypatch, record, script, limit_s=1.0)
    assert "status -9" in state["error"]
    assert "test_that_hangs" in state["error"]
    assert state["n_failed"] == 1
    assert state["seconds"] < 30


def test_a_task_that_dies_of_a_question_is_taken_up_with_the_next_one(
    monkeypatch, record
):
    """Each process puts one more row, and dies of the one after it; the third does not.

    A task that fails without a row, or hangs after one, is not taken up.
    """
    died, hanging, failing = (Task("probes", n, print, 2.0) for n in ("a", "b", "c"))
    row = 'echo "{\\"id\\": \\"NAME/$$\\"}"; '
    scripts = {
        "a": row.replace("NAME", "a") + "kill -SEGV $$",
        "b": row.replace("NAME", "b") + "sleep 60",
        "c": "exit 4",
    }
    asked = []

    def begun(arguments, **how):
        name = arguments[-1]
        asked.append(name)
        done = "exit 0" if asked.count("a") == 3 and name == "a" else scripts[name]
        return apart.begun(["sh", "-c", done], **how)

    monkeypatch.setattr(command, "begun", begun)
    given = argparse.Namespace(budget=300.0, device="d", sizes="tiny")
    command._work_off(record, [died, hanging, failing], given, record.path.parent)
    assert asked == ["a", "a", "a", "b", "c"]
    assert [record.is_done(task.name) for task in (died, hanging)] == [True, False]
    assert sorted(name[0] for name in record.rows) == ["a", "a", "b"]
    assert record.n_failed("a") == record.n_failed("b") == 0
    assert record.n_failed("c") == 1


def test_a_process_that_dies_before_it_is_told_what_to_do_is_a_failed_task(
    monkeypatch, record
):
    for k in range(4000):  # more than a pipe holds
        record.rows[f"whole/zstd/{k:040}"] = {}
    state = run(monkeypatch, record, "exec <&-; exit 4")
    assert "status 4" in state["error"]


def test_a_task_whose_process_died_of_a_question_has_not_failed(monkeypatch, record):
    row = json.dumps({"id": "probes/x/1", "crashed": True})
    script = f"cat > /dev/null; echo '{row}'; kill -SEGV $$"
    assert run(monkeypatch, record, script)["n_failed"] == 0
    assert run(monkeypatch, record, script)["n_failed"] == 1  # it learned nothing


@pytest.mark.parametrize(
    ("inner", "width"),
    [
        *((inner, None) for inner in FULL.inner_nbytes),
        *((inner, FULL.width) for inner in FULL.inner_nbytes),
        *((FULL.usual, width) for width, _ in SCATTERS.values()),
    ],
)
def test_inner_chunks_of_any_size_fill_the_shards_that_a_gpu_is_measured_with(
    inner, width
):
    layout = Layout.of(FULL, "none", inner, FULL.sweep_nbytes, width)
    high, wide = layout.inner_shape
    assert high * wide * 4 == inner
    assert layout.shard_shape[0] % high == layout.shard_shape[1] % wide == 0
    assert layout.nbytes == FULL.sweep_nbytes


def test_what_two_processes_make_at_once_is_there_once_and_whole(tmp_path):
    layout = Layout.of(TINY, "none", 2 * KIB, TINY.shard_nbytes)
    with becoming(tmp_path / layout.slug) as part:
        # Another one is sooner, and takes nothing away from this one.
        program = "import sys; from pathlib import Path\n"
        program += "from benchmarks.gpu.arrays import Layout, store\n"
        program += "from benchmarks.gpu.sizes import TINY\n"
        program += "layout = Layout.of(TINY, 'none', 2048, TINY.shard_nbytes)\n"
        program += "print(store(layout, Path(sys.argv[1])).path)"
        told = apart.heard([sys.executable, "-c", program, str(tmp_path)], ROOT)
        assert told == (0, f"{tmp_path / layout.slug}\n")
        data.write(layout, part, values_of(layout, tmp_path))
    assert sorted(p.name for p in tmp_path.glob("*-*")) == sorted(
        [layout.slug, "field-32x64.npy"]
    )


def test_what_a_process_left_that_is_no_more_is_cleared_away(tmp_path):
    left = tmp_path / "part-999999999-field"
    left.mkdir()
    (left / "x").touch()
    store(Layout.of(TINY, "none", 2 * KIB, TINY.shard_nbytes), tmp_path)
    assert not left.exists()


def test_what_is_cut_short_is_not_taken_for_an_array(tmp_path):
    def fail():
        with becoming(tmp_path / "field") as part:
            (part / "field").mkdir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_shards_are_encoded_once_for_arrays_of_any_length(tmp_path, monkeypatch):
    written, write = [], data.write
    monkeypatch.setattr(
        data, "write", lambda *args: written.append(args[0]) or write(*args)
    )
    one = TINY._replace(distinct_nbytes=TINY.shard_nbytes)
    found = [
        store(Layout.of(one, "none", 2 * KIB, k * TINY.shard_nbytes), tmp_path).path
        for k in (1, 3, 2, 3)
    ]
    assert len(written) == 1
    files = [{f.stat().st_ino for f in path.glob("c/*/*")} for path in found]
    assert files == [files[0]] * 4
    assert len(list(found[1].glob("c/*/0"))) == 3
    assert found[1] == found[3]
