"""Exit statuses, and what is printed, where a command does not end well."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import zarr

from cli_runs import (
    ended,
    pipe_that_nobody_reads,
    run,
    sentence,
    write_sample,
    write_shards,
)
from gpushard.cli import files
from gpushard.cli.failures import exit_status
from gpushard.converting.progress import bar_console
from warm_cli import WarmCli

COMMANDS = {
    "info": ("info", "{array}"),
    "map": ("map", "{array}"),
    "verify": ("verify", "{array}"),
    "read": ("read", "{array}"),
    "bench": ("bench", "{array}", "--repetitions", "1"),
    "doctor": ("doctor",),
    "convert": ("convert", "{array}", "{new}"),
    "sample": ("sample", "{new}"),
}
OF_AN_ARRAY = [name for name, words in COMMANDS.items() if "{array}" in words]
every_command = pytest.mark.parametrize("name", COMMANDS)
every_reader = pytest.mark.parametrize("name", OF_AN_ARRAY)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    return write_sample(tmp_path_factory)


def words(name, array, tmp_path):
    places = {"array": str(array), "new": str(tmp_path / "new.zarr")}
    return [word.format(**places) for word in COMMANDS[name]]


@pytest.fixture(scope="module")
def warm():
    """A process that has loaded what each command loads, and forks."""
    with WarmCli() as started:
        yield started


# stdout that takes nothing


@every_command
def test_a_full_disk_behind_stdout_exits_with_2(name, sample, tmp_path, warm):
    with open("/dev/full", "w") as full:
        given = words(name, sample / "u", tmp_path)
        code, _, told = warm.ended(*given, stdout=full.fileno())
    (line,) = told.splitlines()
    assert code == 2
    assert line.startswith("gpushard: standard output cannot be written: No space left")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_full_disk_behind_help_exits_with_2(option):
    with open("/dev/full", "w") as full:
        code, _, told = ended(option, stdout=full)
    assert code == 2
    assert "standard output cannot be written" in told


# All commands print in one way, as the full disk has shown; here some of them do.
@pytest.mark.parametrize("name", ["info", "verify", "doctor"])
def test_a_pipe_that_nobody_reads_ends_a_command_in_silence(
    name, sample, tmp_path, warm
):
    with pipe_that_nobody_reads() as pipe:
        done = warm.ended(*words(name, sample / "u", tmp_path), stdout=pipe)
    assert done == (141, "", "")


def test_a_pipe_that_nobody_reads_ends_help_in_silence():
    with pipe_that_nobody_reads() as pipe:
        assert ended("--help", stdout=pipe) == (141, None, "")


def test_damage_is_told_where_stderr_takes_nothing(tmp_path, warm):
    array = damaged(tmp_path)
    with open("/dev/full", "w") as full:
        assert warm.ended("read", array, stderr=full.fileno())[0] == 1
    with pipe_that_nobody_reads() as pipe:
        assert warm.ended("read", array, stderr=pipe)[0] == 1


@pytest.mark.parametrize("name", ["convert", "read", "verify"])
def test_a_bar_that_stderr_does_not_take_ends_no_work(name, sample, tmp_path, warm):
    given = [*words(name, sample / "u", tmp_path), "--progress"]
    with open("/dev/full", "w") as full:
        assert warm.ended(*given, stderr=full.fileno())[0] == 0
    if name == "convert":
        given.append("--overwrite")
    with pipe_that_nobody_reads() as pipe:
        assert warm.ended(*given, stderr=pipe)[0] == 0


def test_a_bar_outlives_the_stream_that_it_was_drawn_on(monkeypatch):
    monkeypatch.setattr(sys, "stderr", TextIOWrapper(BytesIO()))
    file = bar_console().file
    sys.stderr.close()
    file.flush()  # as Python does once nobody has it


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_one_that_keeps_nothing(closed, sample):
    def close():
        os.close(closed)

    assert ended("info", sample / "u", preexec_fn=close)[0] == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_stdout_lacks_are_replaced(encoding, tmp_path, warm):
    path = tmp_path / "温度.zarr"
    zarr.create_array(path, shape=(4,), dtype="i1", chunks=(2,), shards=(4,))[...] = 1
    variables = {"PYTHONIOENCODING": encoding}
    for command in ("map", "info", "verify"):
        code, out, _ = warm.ended(command, path, variables=variables)
        assert code == 0
    assert r"\u6e29\u5ea6.zarr" in out


# interrupts


@every_reader
def test_an_interrupt_exits_with_130_at_once(name, sample, tmp_path, warm):
    out, err = os.pipe(), os.pipe()
    given = words(name, sample / "u", tmp_path)
    pid = warm.start(given, out[1], err[1], is_slow=True)
    os.close(out[1])
    os.close(err[1])
    with open(out[0]) as printed, open(err[0]) as told:
        assert told.readline() == "reading\n"
        os.kill(pid, signal.SIGINT)
        assert printed.read() == ""
        rest = told.read()
    assert warm.status() == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest


def test_an_interrupt_before_a_command_begins_is_told_in_a_sentence(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert exit_status(interrupted) == 130
    assert capsys.readouterr().err == "gpushard: interrupted.\n"


# errors for programs


def damaged(tmp_path) -> Path:
    path = write_shards(tmp_path / "damaged.zarr")
    shard = path / "c/0/0"
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1  # in the index
    shard.write_bytes(data)
    return path


def unreadable(tmp_path) -> Path:
    path = write_shards(tmp_path / "unreadable.zarr")
    (path / "c/0/0").unlink()
    (path / "c/0/0").mkdir()
    return path


def error_of(code, *arguments):
    """What `--json` tells of an error, which stands on stderr as well."""
    done = run(*arguments, "--json", code=code)
    error = json.loads(done.stdout, parse_constant=pytest.fail)["error"]
    assert done.stderr == f"gpushard: {error['message']}\n"
    return error


@every_reader
def test_a_missing_array_is_an_error_in_json_and_exits_with_2(name, tmp_path):
    error = error_of(2, *words(name, tmp_path / "none", tmp_path))
    assert error["type"] == "NotFoundError"
    assert "none" in error["what"]


@pytest.mark.parametrize("name", ["map", "read", "bench", "convert"])
def test_damage_is_an_error_in_json_and_exits_with_1(name, tmp_path):
    error = error_of(1, *words(name, damaged(tmp_path), tmp_path))
    assert error["type"] == ("CorruptShardError" if name == "map" else "ChecksumError")
    assert error["shard_key"] == "c/0/0"
    assert error["codec"] == "crc32c"
    assert error["expected"] != error["got"]


@pytest.mark.parametrize("name", ["map", "read", "bench", "convert"])
def test_an_unreadable_file_is_an_error_in_json_and_exits_with_2(name, tmp_path):
    error = error_of(2, *words(name, unreadable(tmp_path), tmp_path))
    assert error["type"] == "StoreError"


def test_what_is_no_json_by_itself_is_told_as_text(sample, tmp_path):
    error = error_of(2, "map", sample / "u", "--shard", "9,9,9,9")
    assert error["expected"] == "a key from c/0/0/0/0 to c/1/0/0/0"


@every_command
def test_an_unexpected_error_is_no_damage(name, sample, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("what nobody expected")

    for module in ("description", "mapping", "verification", "reading", "diagnosis"):
        monkeypatch.setitem(sys.modules, f"gpushard.cli.{module}", None)
    monkeypatch.setattr("gpushard.cli.timing.measure", fail)
    monkeypatch.setattr("gpushard.convert", fail, raising=False)
    monkeypatch.setattr(sys.modules["gpushard.cli.sample"], "_copy_directory", fail)
    error = error_of(2, *words(name, sample / "u", tmp_path))
    assert error["type"] in ("ZeroDivisionError", "ModuleNotFoundError")
    assert "this is a defect of gpushard" in error["message"]
    done = run(*words(name, sample / "u", tmp_path), "--debug", code=2)
    assert "Traceback" in done.stderr


# files


@pytest.mark.parametrize(
    ("name", "option", "file"),
    [
        ("read", "--out", "x.npy"),
        ("map", "--out", "x.svg"),
        ("map", "--out", "x.html"),
        ("map", "--out", "x.png"),
        ("verify", "--html", "x.html"),
    ],
)
def test_a_full_disk_leaves_the_old_file(
    name, option, file, sample, tmp_path, monkeypatch
):
    if file.endswith(".png"):
        pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / file
    out.write_text("old")
    monkeypatch.setattr(Path, "replace", refuse)  # when all of it is written
    done = run(*words(name, sample / "u", tmp_path), option, out, code=2)
    assert "No space left on device" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert out.read_text() == "old"


def test_a_file_is_replaced_where_a_link_leads(sample, tmp_path):
    (tmp_path / "there.svg").write_text("old")
    (tmp_path / "link.svg").symlink_to("there.svg")
    run("map", sample / "u", "--out", tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert "<svg" in (tmp_path / "there.svg").read_text()


def test_what_is_no_regular_file_takes_what_it_is_given(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(fifo, "text")
    assert os.read(reading, 9) == b"text"
    os.close(reading)


def test_a_page_that_cannot_be_written_costs_no_verdict(sample, tmp_path):
    done = run("verify", sample / "u", "--html", tmp_path, "--json", code=2)
    assert json.loads(done.stdout)["status"] == "whole"
    assert "Is a directory" in done.stderr


def test_a_verdict_that_cannot_be_printed_costs_no_page(sample, tmp_path, warm):
    page = tmp_path / "report.html"
    given = "verify", sample / "u", "--html", page
    with open("/dev/full", "w") as full:
        assert warm.ended(*given, stdout=full.fileno())[0] == 2
    assert "whole" in page.read_text()


def test_what_zarr_fails_to_read_is_neither_compared_nor_kept(
    sample, tmp_path, monkeypatch
):
    def fail(*_):
        raise RuntimeError("no  such\ncodec")

    monkeypatch.setattr(zarr.Array, "__getitem__", fail)
    out = tmp_path / "u.npy"
    (line,) = run(
        "read", sample / "u", "--verify", "--out", out, code=2
    ).stderr.splitlines()
    assert "nothing was compared (RuntimeError: no such codec)" in line
    assert line.endswith("; read it without --verify.")
    assert list(tmp_path.iterdir()) == []


def test_a_sample_that_does_not_fit_leaves_nothing(tmp_path, monkeypatch):
    written = []

    def refuse(self, data):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(self)
        self.touch()
        return len(data)

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert "No space left" in run("sample", tmp_path / "s", code=2).stderr
    assert list((tmp_path / "s").iterdir()) == []


def test_colours_reach_terminals_only(sample, warm):
    given, term = ("map", sample / "u"), {"TERM": "xterm-256color"}
    assert "\x1b" not in warm.ended(*given, variables=term)[1]
    forced = term | {"FORCE_COLOR": "1"}
    assert "\x1b" in warm.ended(*given, variables=forced)[1]
    assert "\x1b" in on_a_terminal(warm, *given, variables=term)
    plain = term | {"NO_COLOR": "1"}
    assert "\x1b[3" not in on_a_terminal(warm, *given, variables=plain)


@pytest.mark.parametrize("command", ["info", "map", "verify"])
def test_nothing_is_lost_on_a_terminal_without_columns(command, sample, warm):
    text = on_a_terminal(warm, command, sample / "u", variables={"COLUMNS": "0"})
    assert {"shards", "bytes", "inner"} & set(text.split())


def on_a_terminal(warm, *arguments, variables) -> str:
    """What a command prints on a terminal, of 80 columns."""
    import pty

    master, slave = pty.openpty()
    warm.start([str(a) for a in arguments], slave, slave, variables=variables)
    os.close(slave)
    text = b""
    try:
        while some := os.read(master, 4096):
            text += some
    except OSError:  # so Linux tells of a closed terminal
        pass
    os.close(master)
    assert warm.status() == 0
    return text.decode()


# A working directory that was deleted


@pytest.fixture
def deleted_directory(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("info", "."), ("convert", "{array}", "../new.zarr")]
)
def test_a_deleted_working_directory_is_told_in_a_sentence(
    arguments, sample, deleted_directory
):
    given = [word.format(array=sample) for word in arguments]
    told = sentence(run(*given, code=2))
    assert "the working directory was deleted" in told
    assert "change to a directory that exists" in told


def test_a_file_is_read_by_its_full_path_from_a_deleted_working_directory(
    sample, deleted_directory
):
    assert run("read", f"{sample}/u[0, 0]").stdout
