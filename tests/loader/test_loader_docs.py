"""The examples in docs/loader.md run."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from gpushard.cli import app
from places import DIGITS, ROOT


def test_the_examples_of_the_loader_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist.zarr").symlink_to(DIGITS)
    assert CliRunner().invoke(app, ["sample", "demo.zarr"]).exit_code == 0
    page = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")
    names: dict = {}
    examples = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(examples) == 8
    for example in examples:
        exec(example, names)
    assert names["x"].shape == (10_000 % 256, 28, 28)
    assert names["x"].dtype == "f4"
    assert capsys.readouterr().out.strip() == "1.0"
