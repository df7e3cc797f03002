"""The benchmark suite compares before it times, and does its sums right.

Nothing here looks at a clock: whether gpushard is fast is for `python -m benchmarks`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import contenders, data, runner, small, table, worker
from benchmarks.configs import CODECS, INNER_NBYTES, KIB, MIB, Config, configs
from benchmarks.worker import Worker
from benchmarks.workloads import MOVING, WORKLOADS, reads_of

TINY = 128 * KIB


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run over two tiny arrays with every contender."""
    out = tmp_path_factory.mktemp("result") / "new" / "result.json"
    arguments = ["--nbytes", str(TINY), "--inner", str(4 * KIB), "--repetitions", "2"]
    status = command.main([*arguments, "--codecs", "zstd+crc32c", "--out", str(out)])
    assert status == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("codec", "names"),
    [
        ("none", ["gpushard_cpu"]),
        ("zstd+crc32c", ["gpushard_cpu", "zarr_default", "floor_decompress"]),
    ],
)
def test_arrays_without_shards_are_measured(tmp_path, capsys, codec, names):
    arguments = ["--unsharded", "--datasets", "tiles", "--codecs", codec]
    arguments += ["--nbytes", str(TINY), "--inner", str(4 * KIB), "--repetitions", "1"]
    arguments += ["--out", str(tmp_path / "result.json"), "--contenders", *names]
    assert command.main(arguments) == 0
    assert f"tiles 4K {codec} files full" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    (full,) = (row for row in result["rows"] if row["workload"] == "full")
    assert not full["is_sharded"]
    for name in names:
        entry = result["absent"].get(name) or full["contenders"][name]
        assert isinstance(entry, str) or len(entry["wall_s"]) == 1


def entries(result, name):
    if name in result["absent"]:
        pytest.skip(f"{name}: {result['absent'][name]}")
    return {
        (row["dataset"], row["workload"]): row["contenders"][name]
        for row in result["rows"]
    }


def test_every_workload_of_every_data_set_has_a_row(result):
    rows = {(row["dataset"], row["workload"]) for row in result["rows"]}
    assert rows == {(d, w) for d, names in WORKLOADS.items() for w in names}


@pytest.mark.parametrize("name", [n for n in contenders.ALL if n != "floor_decompress"])
def test_contender_answers_every_workload_with_what_is_stored(name, result):
    for row, entry in entries(result, name).items():
        assert len(entry.get("wall_s", [])) >= 1, (row, entry)
        assert len(entry["cpu_s"]) == len(entry["wall_s"])


def test_the_floor_of_decompression_is_there_for_full_reads_only(result):
    timed = {
        row for row, e in entries(result, "floor_decompress").items() if "wall_s" in e
    }
    assert timed == {("field", "full"), ("tiles", "full")}


def test_result_tells_versions_and_machine(result):
    assert result["versions"]["gpushard_cpu"]["gpushard"]
    assert result["versions"]["zarr_default"]["zarr"]
    assert result["machine"]["cpus"] >= 1
    assert len(result["load"]) == 2


def test_table_shows_every_row_and_the_mean(result):
    text = table.render(result)
    assert text.count("zstd+crc32c") >= len(result["rows"])
    assert "geometric mean of 7 rows" in text


def test_charts_are_drawn_for_each_workload(result, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the bench extra")
    saved = tmp_path / "result.json"
    rows = [row for row in result["rows"] if row["workload"] in ("full", "box")]
    saved.write_text(json.dumps(result | {"rows": rows}))
    command.main(["chart", str(saved), "--out", str(tmp_path / "charts")])
    drawn = [Path(line) for line in capsys.readouterr().out.split()]
    assert len(drawn) == len(rows) == 3
    assert all(b"</svg>" in path.read_bytes() for path in drawn)


class Answering:
    """A contender within this process, which may spoil what it reads."""

    def __init__(self, values, name="it", spoil=lambda read: read):
        self.name, self.n_runs = name, 0
        self._worker = Worker(
            SimpleNamespace(
                open_array=lambda path: values,
                read_box=lambda handle, key: self._count(spoil(handle[key])),
                read_rows=lambda handle, rows: self._count(spoil(handle[rows])),
            )
        )

    def _count(self, read):
        self.n_runs += 1
        return read

    def ask(self, **asked):
        return self._worker.answer(asked)


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    config = Config("field", 4 * KIB, "none", TINY)
    values = data.generate("field", config.shape)
    return config, values, data.write(config, tmp_path_factory.mktemp("field"), values)


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """What a process of tests has made is for no contender to thaw and look through."""
    monkeypatch.setattr(worker.gc, "collect", lambda: 0)
    monkeypatch.setattr(worker.gc, "unfreeze", lambda: None)


def measured(field, workload, *team, budget_s=60.0):
    config, values, path = field
    for contender in team:
        contender.ask(do="open", path=str(path), shape=config.shape)
    names = tuple(contender.name for contender in team)
    settings = runner.Settings(names, repetitions=3, budget_s=budget_s)
    measurement = runner.Measurement(path, config, workload, False, values)
    return measurement.run(list(team), settings)


def without_one_bit(read):
    spoiled = read.copy()
    spoiled.reshape(-1).view(np.uint8)[-1] ^= 1
    return spoiled


@pytest.mark.parametrize(
    "spoil",
    [
        without_one_bit,
        lambda read: read[..., ::-1],
        lambda read: read.view("i4"),
        lambda read: read[None],
    ],
    ids=["one bit", "order", "dtype of the same bytes", "shape of the same bytes"],
)
@pytest.mark.parametrize("workload", WORKLOADS["field"])
def test_who_reads_something_else_is_not_timed(spoil, workload, field):
    wrong = Answering(field[1], "wrong", spoil)
    row = measured(field, workload, Answering(field[1], "right"), wrong)
    assert "other elements" in row["contenders"]["wrong"]["wrong"]
    assert len(row["contenders"]["right"]["wall_s"]) == 3
    assert wrong.n_runs == 1
    assert table.wrong_answers([row]) == [(row, "wrong")]


def test_who_goes_wrong_later_is_caught_where_reads_move(field):
    ways = iter([lambda read: read, without_one_bit])
    contender = Answering(field[1], spoil=lambda read: next(ways)(read))
    row = measured(field, "box", contender)
    assert "repetition 1" in row["contenders"]["it"]["wrong"]


def test_who_raises_is_told_so_with_the_reason(field):
    def fail(read):
        raise ValueError("no such codec\nand more")

    row = measured(field, "full", Answering(field[1], spoil=fail))
    assert row["contenders"]["it"] == {"refused": "ValueError: no such codec"}


def test_who_is_out_of_time_is_timed_once(field):
    row = measured(field, "full", Answering(field[1]), budget_s=0.0)
    assert len(row["contenders"]["it"]["wall_s"]) == 1


def test_a_read_from_an_empty_page_cache_opens_the_array_anew(field):
    config, values, path = field
    asked = []
    contender = Answering(values)
    answer = contender.ask
    contender.ask = lambda **command: asked.append(command["do"]) or answer(**command)
    settings = runner.Settings(("it",), repetitions=2, budget_s=60.0)
    measurement = runner.Measurement(path, config, "full", True, values)
    row = measurement.run([contender], settings)
    assert row["cache"] == "cold"
    assert asked == ["open", "run"] * 3


@pytest.mark.parametrize("workload", sorted(MOVING))
def test_moving_workloads_read_elsewhere_each_time(workload):
    shape = (4096, 64, 64)
    first, again, other = (repr(reads_of(workload, shape, n)) for n in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("dataset", WORKLOADS)
@pytest.mark.parametrize("nbytes", [TINY, 16 * MIB, 256 * MIB])
def test_arrays_are_whole_shards_of_the_size_asked_for(dataset, nbytes):
    for config in configs((dataset,), INNER_NBYTES, ("none",), nbytes):
        itemsize = 4 if dataset == "field" else 1
        assert math.prod(config.shape) * itemsize == nbytes
        assert math.prod(config.inner_shape) * itemsize == config.inner_nbytes
        for n, shard, inner in zip(
            config.shape, config.shard_shape, config.inner_shape, strict=True
        ):
            assert n % shard == shard % inner == 0


def test_the_full_table_has_every_size_and_codec():
    full = configs(tuple(WORKLOADS), INNER_NBYTES, CODECS, 256 * MIB)
    assert len(full) == 2 * 4 * 7
    assert len({config.slug for config in full}) == len(full)


def row_with(**walls):
    timed = {n: {"wall_s": w, "cpu_s": [2 * s for s in w]} for n, w in walls.items()}
    return {
        "dataset": "field",
        "inner_nbytes": 4096,
        "codec": "none",
        "workload": "full",
        "cache": "warm",
        "output_nbytes": 100,
        "contenders": timed,
    }


def test_the_ratio_is_to_the_best_peer_and_never_to_a_floor():
    row = row_with(
        gpushard_cpu=[2.0, 1.0, 3.0],
        zarr_default=[9.0, 8.0, 8.5],
        zarrs_pipeline=[4.0, 7.0, 6.0],
        floor_memory=[0.1],
    )
    found = table.compare(row)
    assert found.peer == "zarrs_pipeline"
    assert found.ratio == 4.0
    assert found.median_ratio == 3.0
    assert found.cpu_ratio == 4.0


def test_gpushard_with_a_cache_is_compared_with_all_peers_and_is_none_itself():
    row = row_with(
        gpushard_cpu=[2.0],
        gpushard_cached=[0.5],
        tensorstore_uncached=[3.0],
        tensorstore_cached=[1.0],
    )
    assert table.compare(row).ratio == 0.5
    assert table.compare(row, "gpushard_cached").ratio == 2.0
    assert table.compare(row_with(zarr_default=[1.0]), "gpushard_cached") is None


def test_a_row_without_peers_has_no_ratio():
    assert table.compare(row_with(gpushard_cpu=[1.0], floor_memory=[1.0])) is None


def test_the_mean_of_a_win_and_an_equal_loss_is_one():
    assert table.geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


def test_the_table_says_where_a_peer_wins():
    ceilings = {"floor_memory": [0.1], "floor_decompress": [0.3]}
    won = row_with(gpushard_cpu=[1.0], zarrs_pipeline=[2.0], **ceilings)
    lost = row_with(gpushard_cpu=[4.0], zarrs_pipeline=[1.0]) | {"codec": "gzip"}
    names = ["gpushard_cpu", "zarrs_pipeline"]
    text = table.render(
        {
            "date": "2026-11-20",
            "commit": None,
            "machine": {"cpu": "some", "cpus": 2, "python": "3.12"},
            "load": [0, 0],
            "versions": {name: {} for name in names},
            "absent": {"tensorstore_cached": "not installed"},
            "rows": [won, lost],
        }
    )
    assert "a peer wins in 1 of 2 rows" in text
    assert "   6.67  zarrs" in text
    assert "field 4K gzip full: zarrs, gpushard at 0.25" in text
    assert "geometric mean of 2 rows: 0.71" in text
    assert "over the ceilings', gpushard: median 2.50, greatest 2.50" in text
    assert "absent: tensorstore_cached (not installed)" in text
    assert "gpushard ran without its compiled loops" in text


def test_a_contender_that_is_not_installed_is_absent_with_the_reason(monkeypatch):
    suite = runner.Suite(runner.Settings(("nobody",), repetitions=1, budget_s=1.0))
    with suite._team(Path(), Config("tiles", 4 * KIB, "none", TINY)) as (team, _):
        assert team == []
    assert "nobody" in suite.absent["nobody"]


def test_a_reason_does_not_tell_where_the_arrays_were(tmp_path):
    def refuse(path):
        raise ValueError(f"no codec for {path}/zarr.json")

    worker = Worker(SimpleNamespace(open_array=refuse))
    answer = worker.answer({"do": "open", "path": str(tmp_path / "a"), "shape": [1]})
    assert answer == {"refused": "ValueError: no codec for a/zarr.json"}


def test_small_tells_what_is_promised_and_whether_it_holds(tmp_path, capsys):
    out = tmp_path / "small.json"
    assert command.main(["small", "--reads", "20", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    over = found["over_peer"]
    assert (over is None) == (small.PEER not in rows)
    if over is not None:
        ratio = rows[small.IN_TURNS]["median_us"] / rows[small.PEER]["median_us"]
        assert over["ratio"] == pytest.approx(ratio)
    assert rows[small.PLAN]["limit_us"] == 15
    assert rows[small.FIRST]["limit_us"] == rows[small.READ]["limit_us"] == 50
    for row in rows.values():
        assert 0 < row["fastest_tenth_us"] <= row["median_us"]
        if "limit_us" in row:
            assert row["holds"] == (row["median_us"] <= row["limit_us"])
    text = capsys.readouterr().out
    assert text.count("promised") == 1
    assert all(name in text for name in rows)


def small_result(read_us, peer_us):
    """What `small` tells of reads that all take the same."""
    in_turns = None if peer_us is None else read_us
    medians = {small.READ: read_us, small.IN_TURNS: in_turns, small.PEER: peer_us}
    rows = [
        small._row(name, np.full(9, us * 1e-6))
        for name, us in medians.items()
        if us is not None
    ]
    over = small._over_peer(rows)
    return {"rows": rows, "load": [0.1, 0.2], "has_loops": True, "over_peer": over}


@pytest.mark.parametrize(
    ("read_us", "peer_us", "absolute", "ratio"),
    [
        (40, 28, "50.0 us, holds", "1.43, at most 1.79, holds"),
        (50, 27, "50.0 us, holds", "1.85, at most 1.79, does NOT hold"),
        (120, 240, "50.0 us, does NOT hold", "0.50, at most 1.79, holds"),
        (60, 28, "50.0 us, does NOT hold", "2.14, at most 1.79, does NOT hold"),
    ],
)
def test_small_says_of_both_promises_whether_they_hold(
    read_us, peer_us, absolute, ratio
):
    text = small.render(small_result(read_us, peer_us))
    assert absolute in text
    assert f"{small.READ} over tensorstore's in turns: {ratio}" in text


def test_small_tells_no_ratio_without_tensorstore():
    result = small_result(40, None)
    assert result["over_peer"] is None
    assert "over tensorstore" not in small.render(result)


def test_small_tells_whether_there_are_loops():
    result = small_result(40, None)
    assert "no compiled loops" not in small.render(result)
    assert "no compiled loops" in small.render(result | {"has_loops": False})


def test_small_refuses_reads_of_other_elements(tmp_path):
    config = Config("tiles", 4 * KIB, "zstd", MIB)
    values = data.generate(config.dataset, config.shape)
    path = data.write(config, tmp_path, values)
    values[7, 0, 0] += 1
    for opened in (small._without_loops, small._with_loops):
        with pytest.raises(RuntimeError, match="other elements"):
            opened(path, values)
