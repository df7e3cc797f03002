"""What `python -m benchmarks scaling` asks, and what it says."""

from __future__ import annotations

import json

from benchmarks import __main__ as command
from benchmarks import scaling
from benchmarks.configs import MIB


def test_scaling_asks_for_the_same_box_and_for_larger_parts(tmp_path, capsys):
    out = tmp_path / "scaling.json"
    few = ["--nbytes", str(MIB), "--repetitions", "1"]
    assert command.main(["scaling", *few, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    of_array = [
        row["n_inner_chunks_of_array"] for row in found["same_box_of_larger_arrays"]
    ]
    assert of_array == [256, 2560, 25600, 256000]
    parts = [row["n_inner_chunks"] for row in found["larger_parts_of_one_array"]]
    assert parts[-1] == 256
    assert parts == sorted(parts)
    told = capsys.readouterr().out
    assert told.count("inner chunks ") == len(of_array) + len(parts)


def test_loops_are_compiled_before_anything_is_timed(monkeypatch):
    begun = []
    monkeypatch.setattr(scaling, "can_have_loops", lambda: True)
    monkeypatch.setattr(
        scaling.subprocess, "run", lambda words, **_: begun.append(words)
    )
    for are_kept in (True, False):
        monkeypatch.setattr(scaling, "are_loops_ready", lambda kept=are_kept: kept)
        scaling._have_loops_kept()
        assert len(begun) == (not are_kept)
    assert "fused.code.loading" in begun[0][-1]


def test_scaling_says_if_there_were_no_loops():
    result = {"same_box_of_larger_arrays": [], "nbytes": 0}
    result |= {"larger_parts_of_one_array": [], "peak_nbytes_of_full_reads": []}
    for has_loops in (True, False):
        text = scaling.render(result | {"has_loops": has_loops})
        assert ("without its compiled loops" in text) is not has_loops
