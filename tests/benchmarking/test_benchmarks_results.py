"""A table and charts are made of results of the suite, and of no other files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import table
from benchmarks.contenders import gpushard_cpu
from gpushard.fused.code import machine_code

RESULTS = Path(command.__file__).parent / "results"
TABLE = RESULTS / "2026-11-28-full-64MiB-epyc-night.json"


def refusal(capsys, *arguments) -> str:
    """What is told by a command that ends with status 2."""
    with pytest.raises(SystemExit) as ended:
        command.main([str(word) for word in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["table", "chart"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read"),
        (b"", "not JSON, or not all of it"),
        (b'{"date": "2026-11-2', "not JSON, or not all of it"),
        (b"\xff\xfe{}", "not JSON, or not all of it"),
        (b"[1, 2]", "no result of this command"),
        (b'{"rows": [{"codec": "zstd"}]}', "no result of this command"),
    ],
)
def test_a_file_that_is_no_result_is_refused_in_a_sentence(
    name, content, told, tmp_path, capsys
):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_bytes(content)
    assert told in refusal(capsys, name, path)


@pytest.mark.parametrize(
    "name", ["2026-11-30-writing-xeon", "2026-11-28-h100", "2026-11-23-scaling"]
)
def test_results_of_other_suites_are_no_table(name, capsys):
    told = refusal(capsys, "table", RESULTS / f"{name}.json")
    assert "no result of this command" in told


def test_a_kept_result_is_printed(capsys):
    assert command.main(["table", str(TABLE)]) == 0
    assert "geometric mean of 196 rows" in capsys.readouterr().out


def test_charts_that_cannot_be_drawn_end_in_a_sentence(tmp_path, capsys, monkeypatch):
    (tmp_path / "taken").touch()
    told = refusal(capsys, "chart", TABLE, "--out", tmp_path / "taken")
    assert "cannot write to" in told
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = refusal(capsys, "chart", TABLE, "--out", tmp_path)
    assert "matplotlib is missing; run: pip install" in told


@pytest.mark.parametrize("loops", [{"numba": "1.0"}, {"loops": "shipped"}])
def test_the_table_says_nothing_of_loops_that_ran(loops):
    machine = {"cpu": "one", "cpus": 2, "python": "3"}
    facts = {"date": "today", "commit": "1", "machine": machine, "load": [0, 0]}
    versions = {"gpushard_cpu": {"gpushard": "1"} | loops}
    result = facts | {"versions": versions, "absent": {}, "rows": []}
    assert "without its compiled loops" not in table.render(result)
    assert next(iter(loops)) in table.render(result)


def test_a_contender_says_that_its_loops_came_with_the_package(monkeypatch):
    assert "loops" not in gpushard_cpu.versions()
    monkeypatch.setattr(machine_code, "find_shipped", lambda: "code")
    assert gpushard_cpu.versions()["loops"] == "shipped"
