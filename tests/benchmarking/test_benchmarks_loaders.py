"""The comparison of loaders looks at every sample before it times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.loaders import __main__ as command
from benchmarks.loaders import chart, contenders, data
from benchmarks.loaders.worker import cpu_seconds


@pytest.fixture
def small(monkeypatch):
    """Arrays of the same kind, a hundredth of the size."""
    sizes = {"N_ROWS": 512, "ROW": 16, "ROWS_CHUNK": 8, "ROWS_SHARD": 64, "MIXED": 8}
    sizes |= {"VOLUME": 48, "VOLUME_CHUNK": 8, "VOLUME_SHARD": 16, "ROWS_BATCH": 32}
    sizes |= {"PATCH": 8, "STRIDE": 6, "N_ALONG": 7, "N_PATCHES": 343}
    for name, size in sizes.items():
        monkeypatch.setattr(data, name, size)
    monkeypatch.setattr(contenders, "_N_BLOCKS", 64)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("workload", command.WORKLOADS)
def test_an_epoch_of_gpushard_has_every_sample_once(workload, tmp_path):
    path = data.write(workload, tmp_path)
    for epochs in contenders.gpushard(path, workload).values():
        check = data.Check(workload)
        for batch in epochs():
            check.see(np.asarray(batch))
        check.end()


def patches():
    values = data.volume()
    for sample in range(data.N_PATCHES):
        at = tuple(slice(o, o + data.PATCH) for o in data.origin(sample))
        yield values[at][None]


@pytest.mark.usefixtures("small")
def test_wrong_missing_and_ordered_samples_are_noticed():
    stored = np.concatenate([values for _, values in data.rows()])
    wrong = stored[:32].copy()
    wrong[3, 9] += 1
    with pytest.raises(ValueError, match="not what is stored"):
        data.Check("rows").see(wrong)
    missing = data.Check("rows")
    missing.see(stored[1:])
    with pytest.raises(ValueError, match="every sample once"):
        missing.end()
    for workload, batches in (("rows", [stored]), ("patches", patches())):
        ordered = data.Check(workload)
        for batch in batches:
            ordered.see(batch)
        with pytest.raises(ValueError, match="not shuffled"):
            ordered.end()
    bent = next(iter(patches())).copy()
    bent[0, 1, 2, 3] += 1
    with pytest.raises(ValueError, match="not what is stored"):
        data.Check("patches").see(bent)


def test_what_a_loader_cannot_do_it_says(tmp_path):
    for name in ("annbatch", "xbatcher"):
        workload = "patches" if name == "annbatch" else "rows"
        with pytest.raises(NotImplementedError, match=name):
            contenders.CONTENDERS[name](tmp_path, workload)


def test_figures_are_medians_and_their_chart_can_be_drawn(tmp_path):
    taken = [{"samples": 100, "wall_s": w, "cpu_s": 2 * w} for w in (4.0, 1.0, 2.0)]
    figures = command._figures(taken)
    assert figures["samples_per_second"] == 50.0
    assert figures["cpu_ms_per_sample"] == 40.0
    found = {"absent": {"other": "why"}, "contenders": {"one": figures}}
    found["contenders"]["one"]["setting"] = "as it is"
    assert "50 samples/s" in command.table("rows", found)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed here")
    machine = {"cpu": "a", "cpus": 1}
    result = {"date": "2026-01-01", "machine": machine, "workloads": {"rows": found}}
    chart.draw(result, tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").stat().st_size > 1000


def test_cpu_time_grows_with_work():
    before = cpu_seconds()
    sum(i * i for i in range(300_000))
    assert cpu_seconds() > before
