"""Seven days of forecasts, a step every three hours: the case that rolling is for."""

from __future__ import annotations

import re

from places import ROOT
from rolling_simulation import SHARDS_PER_STEP, WINDOW, simulate


def test_a_week_rolls_on_beside_readers_that_check_every_value(tmp_path):
    # A whole week of them by hand, as docs/rolling.md says.
    outcome = simulate(tmp_path, n_rolls=WINDOW // 3)
    assert outcome.n_reads >= 5
    # New shards and the document; then the old shards.
    assert outcome.touched == (SHARDS_PER_STEP + 1, SHARDS_PER_STEP)
    assert outcome.naive == WINDOW * SHARDS_PER_STEP


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/rolling.md"
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert len(examples) == 2
    names: dict = {}
    for example in examples:
        exec(example, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "(56, 16, 24) range(4, 60)"
    assert printed[1:] == ["(8, 16, 24)"] * 3
    assert (names["newest"] == names["same"]).all()
    assert names["mean"].compute() == 4 / 24
