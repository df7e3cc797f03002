"""What the benchmark of writing compares, and what it says."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import zarr

from benchmarks import __main__ as command
from benchmarks import writing
from benchmarks.configs import KIB

ROW = {
    "inner_nbytes": 4 * KIB,
    "codec": "none",
    "wall_ms": {
        "gpushard synced": 9.0,
        "gpushard": 4.0,
        "zarr": 8.0,
        "tensorstore": 2.0,
    },
}
FEW = ["--nbytes", str(128 * KIB), "--inner", str(4 * KIB), "--repetitions", "1"]


def test_contenders_write_what_zarr_reads(tmp_path, capsys):
    out = tmp_path / "writing.json"
    asked = [*FEW, "--codecs", "zstd", "none", "--out", str(out)]
    assert command.main(["writing", *asked]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["codec"] for row in rows] == ["zstd", "none"]
    present = set(writing._writers())
    for row in rows:
        assert set(row["wall_ms"]) <= present
        assert {"gpushard", "zarr"} <= set(row["wall_ms"])
    told = capsys.readouterr().out
    assert "4K zstd" in told
    assert "geometric mean of 2 rows" in told


def test_a_contender_that_writes_something_else_is_caught(monkeypatch):
    def spoiled(path, values):
        zarr.open_array(str(path), mode="r+")[...] = np.zeros_like(values)

    monkeypatch.setitem(writing._MAKERS, "gpushard", lambda: spoiled)
    with pytest.raises(RuntimeError, match="other elements than were written"):
        command.main(["writing", *FEW, "--codecs", "none"])


def test_a_peer_that_is_faster_has_a_ratio_below_one():
    assert writing.ratio(ROW, writing.UNSYNCED) == 0.5
    assert writing.ratio({"wall_ms": {"gpushard": 4.0}}, writing.UNSYNCED) is None
    said = ["4K", "none", "9.0", "4.0", "8.0", "2.0", "0.50"]
    assert writing._line(ROW).split() == said
    assert writing.render({"rows": [ROW]}) == (
        "not synced: geometric mean of 1 rows: 0.50"
    )


def test_contenders_are_compared_with_those_that_wait_for_the_disk_as_they_do():
    """A peer that leaves the bytes to the system is not ahead of who waits for them."""
    row = {"wall_ms": ROW["wall_ms"] | {"ts synced": 18.0}}
    assert writing.ratio(row, writing.SYNCED) == 2.0
    assert writing.render({"rows": [row]}).splitlines() == [
        "not synced: geometric mean of 1 rows: 0.50",
        "synced: geometric mean of 1 rows: 2.00",
    ]


def test_each_row_is_told_before_the_next_one_is_measured(monkeypatch):
    told = []
    monkeypatch.setattr(writing, "_row", lambda config, *_: told.append(config) or ROW)
    writing.measure(128 * KIB, [4 * KIB], ["none", "zstd"], 1, told.append)
    kinds = [isinstance(entry, str) for entry in told]
    assert kinds == [True, False, True, False, True]  # the head, then two rows


def test_what_a_peer_warns_of_is_not_shown(monkeypatch):
    def warning(path, values):
        warnings.warn("left to zarr-python", UserWarning, stacklevel=1)
        zarr.open_array(str(path), mode="r+")[...] = values

    monkeypatch.setitem(writing._MAKERS, "zarrs", lambda: warning)
    assert command.main(["writing", *FEW, "--codecs", "none"]) == 0
