"""`gpushard bench`: who takes part, what is compared, and what is printed."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import gpushard
from cli_runs import run, run_json, sentence
from gpushard.cli import contenders, diagnosis, timing
from gpushard.cli.comparison import have_same_elements
from gpushard.fused import choice, libraries
from gpushard.fused.code import kept_code


@pytest.fixture
def path(tmp_path):
    values = np.arange(300 * 8 * 8, dtype="i4").reshape(300, 8, 8)
    made = zarr.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype="i4",
        chunks=(5, 8, 8),
        shards=(100, 8, 8),
    )
    made[...] = values
    return tmp_path / "a"


@pytest.mark.parametrize("stage", ["zarr.json", "c/"], ids=["open", "read"])
@pytest.mark.parametrize(
    "arguments", [("bench",), ("read", "--verify")], ids=["bench", "read"]
)
def test_nothing_of_zarrs_read_goes_on_after_an_interrupt(
    arguments, stage, path, monkeypatch
):
    tasks = []
    get = LocalStore.get

    async def interrupted(self, key, *arguments, **named):
        if stage not in key:
            return await get(self, key, *arguments, **named)
        tasks.append(asyncio.current_task())
        if len(tasks) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.sleep(20)
        return None

    monkeypatch.setattr(LocalStore, "get", interrupted)
    # A shell's jobs in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert "interrupted" in run(*arguments, path, code=130).stderr
    finally:
        signal.signal(signal.SIGINT, before)
    assert tasks
    assert all(task.done() for task in tasks)


def test_every_contender_is_timed_at_every_workload(path):
    facts = run_json("bench", path, "--repetitions", "2")
    assert [row["workload"] for row in facts["rows"]] == [
        "full",
        "rows",
        "batch",
        "line",
    ]
    assert list(facts["versions"])[:2] == ["gpushard", "zarr-python"]
    for row in facts["rows"]:
        assert row["contenders"].keys() == facts["versions"].keys()
        for times in row["contenders"].values():
            assert times["trouble"] == ""
            assert len(times["wall_s"]) == len(times["cpu_s"]) == 2


def test_the_table_has_a_row_for_each_workload_and_the_ratio(path):
    lines = run("bench", path, "--repetitions", "1").stdout.splitlines()
    has_loops = "compiled loops" not in lines[-1]
    assert len(lines) == 6 + 1 + 4 + (not has_loops)
    names, versions, full = (line.split() for line in lines[:3])
    assert names[2:4] == ["gpushard", "zarr-python"]
    assert versions[1] == zarr.__version__
    assert full[0] == "full"
    assert all(float(cell) > 0 for cell in full[1:])
    assert lines[7].split() == ["full", "everything"]
    assert all(len(line) <= 80 for line in lines)


def test_the_table_says_if_reads_ran_without_compiled_loops(path, monkeypatch):
    for are_loaded, library, has_loops in (
        (True, "a library", True),
        (True, None, False),  # that of another codec may be there
        (False, "a library", False),
    ):
        monkeypatch.setattr(choice, "are_loaded", lambda told=are_loaded: told)
        monkeypatch.setattr(libraries, "find_library", lambda _, told=library: told)
        text = run("bench", path, "--repetitions", "1").stdout
        assert ("ran without its compiled loops; gpu" in text) is not has_loops
        facts = run_json("bench", path, "--repetitions", "1")
        assert facts["has_loops"] is has_loops


def test_loops_that_came_with_the_package_need_no_other_package(path, monkeypatch):
    monkeypatch.setattr(diagnosis, "installed", lambda _: None)
    monkeypatch.setattr(choice, "are_loaded", lambda: True)
    assert run_json("bench", path, "--repetitions", "1")["has_loops"]


def test_nothing_is_missed_where_the_loops_do_not_know_the_codec(tmp_path):
    codecs = {"zarr_format": 2, "compressors": numcodecs.BZ2()}
    zarr.create_array(tmp_path / "a", data=np.arange(9), chunks=(3,), **codecs)
    text = run("bench", tmp_path / "a", "--repetitions", "1").stdout
    assert "ran without its compiled loops, which do not decode it\n" in text


def test_a_wait_for_the_compiler_is_told(path, monkeypatch):
    monkeypatch.setattr(diagnosis, "installed", lambda _: "1.0")
    for code, told in ((None, True), (b"kept", False)):
        monkeypatch.setattr(kept_code, "find", lambda code=code: code)
        monkeypatch.setattr(timing, "measure", lambda *_, **__: ([], []))
        done = run("bench", path, "--repetitions", "1")
        assert ("compiling loops" in done.stderr) is told


def test_a_contender_that_reads_other_elements_is_not_timed(path, monkeypatch):
    def wrong(array):
        return contenders.Contender("wrong", "1", lambda key: np.zeros(3))

    monkeypatch.setattr(contenders, "_zarr", wrong)
    facts = run_json("bench", path, "--repetitions", "1", code=1)
    for row in facts["rows"]:
        assert row["contenders"]["wrong"] == {
            "contender": "wrong",
            "wall_s": [],
            "cpu_s": [],
            "trouble": "other elements",
        }
        assert row["contenders"]["gpushard"]["wall_s"]


def test_a_contender_that_fails_is_left_out_with_its_reason(path, monkeypatch):
    def fails(_):
        raise ValueError("no such codec\nin this library")

    def failing(array):
        return contenders.Contender("failing", "1", fails)

    monkeypatch.setattr(contenders, "_zarr", failing)
    facts = run_json("bench", path, "--repetitions", "1")
    trouble = {row["contenders"]["failing"]["trouble"] for row in facts["rows"]}
    assert trouble == {"no such codec"}
    *table, reason = run("bench", path, "--repetitions", "1").stdout.splitlines()
    assert reason.split() == ["failing", "left", "out:", "no", "such", "codec"]
    assert table[2].split()[2:4] == ["left", "out"]


@pytest.mark.parametrize("dtype", [str, "U5", "S5"])
def test_strings_that_are_the_same_are_no_other_elements(dtype, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, of data types that are young
        made = zarr.create_array(
            tmp_path / "s", shape=(30,), chunks=(5,), shards=(10,), dtype=dtype
        )
        texts = [f"r{i}" for i in range(30)]
        as_bytes = dtype == "S5"
        made[:] = np.array([t.encode() for t in texts] if as_bytes else texts, object)
        facts = run_json("bench", tmp_path / "s", "--repetitions", "1")
    for row in facts["rows"]:
        assert row["contenders"]["zarr-python"]["trouble"] == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array("row"), np.array("row", "T"), True),
        (np.array("row"), np.array("raw", "T"), False),
        (np.array(["a", "b"], object), np.array(["a", "b"], "T"), True),
        (np.array(["a", "b"]), np.array(["a", "c"], "T"), False),
        (np.array([b"a", b"b"], object), np.array([b"a", b"b"]), True),
        (np.array(["a", "a"]), np.array("a"), False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array([0.0]), np.array([-0.0]), False),
        (np.array([1], ">i4"), np.array([1], "<i4"), True),
        (np.array([1], "i8"), np.array([1], "i4"), False),
        (np.array([1, 1]), np.array([1]), False),
    ],
)
def test_results_are_the_same_by_their_elements(one, other, same):
    assert have_same_elements(one, other) is same


def test_zarrs_reads_through_its_own_pipeline(path):
    pytest.importorskip("zarrs", reason="zarrs is not installed")
    names = {}
    for contender in contenders.open_contenders(
        gpushard.open_array(path, device="cpu")
    ):
        read = inspect.unwrap(contender.read)
        found = inspect.getclosurevars(read).nonlocals.get("array")
        behind = getattr(found, "_async_array", None)  # of zarr's arrays only
        pipeline = getattr(behind, "codec_pipeline", None)
        names[contender.name] = type(pipeline).__name__
    assert names["zarrs"] == "ZarrsCodecPipeline"
    assert names["zarr-python"] == "BatchedCodecPipeline"


def test_zarrs_is_left_out_where_it_leaves_the_array_to_zarr_python(tmp_path):
    pytest.importorskip("zarrs", reason="zarrs is not installed")
    zarr.create_array(tmp_path / "a", data=np.arange(4.0), chunks=(2,))
    meta = tmp_path / "a/zarr.json"
    text = meta.read_text()
    assert text.count('"attributes": {}') == 1
    # A number that is no JSON, as xarray writes it.
    meta.write_text(text.replace('"attributes": {}', '"attributes": {"missing": NaN}'))
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # pytest's would refuse it for us
        facts = run_json("bench", tmp_path / "a", "--repetitions", "1")
    for row in facts["rows"]:
        told = row["contenders"]["zarrs"]
        assert "unsupported by ZarrsCodecPipeline" in told["trouble"]
        assert not told["wall_s"]


def test_what_zarr_cannot_open_is_timed_without_it(path, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("not today")

    monkeypatch.setattr(zarr, "open_array", refuse)
    facts = run_json("bench", path, "--repetitions", "1")
    for row in facts["rows"]:
        assert row["contenders"]["gpushard"]["wall_s"]
        trouble = row["contenders"]["zarr-python"]["trouble"]
        assert "zarr-python cannot read this" in trouble
        assert "--verify" not in trouble


def test_a_large_array_is_read_as_far_as_it_is_allowed(path):
    a = gpushard.open_array(path)
    full, line = timing.workloads(a.shape, 4, most_nbytes=8 * 8 * 4 * 10)
    assert full.keys(1) == [(slice(0, 10),)]
    assert full.description == "the first 10 rows"
    assert line.keys(1)[0][0] == slice(0, 300)
    *_, line = timing.workloads(a.shape, 4, most_nbytes=80)
    assert line.keys(1)[0][0] == slice(0, 20)
    assert line.description == "the first 20 of the first axis at one place"


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0)])
def test_an_array_without_elements_or_axes_has_no_workloads(shape):
    assert timing.workloads(shape, 4, 1 << 20) == []


def test_an_array_without_workloads_is_told_from_a_table_that_is_lost(tmp_path):
    zarr.create_array(tmp_path, shape=(), dtype="i4")
    assert "there is nothing to time" in run("bench", tmp_path).stdout


@pytest.mark.parametrize(("n_rows", "n_workloads"), [(2, 3), (3, 1)])
def test_random_rows_are_read_where_all_of_them_are_allowed(n_rows, n_workloads):
    assert len(timing.workloads((n_rows,), 1000, 2000)) == n_workloads


def test_libraries_that_are_not_installed_take_no_part(path, monkeypatch):
    for name in ("zarrs", "tensorstore"):
        monkeypatch.setitem(sys.modules, name, None)
    team = contenders.open_contenders(gpushard.open_array(path, device="cpu"))
    assert [one.name for one in team] == ["gpushard", "zarr-python"]


def test_what_is_no_array_is_refused_in_a_sentence(tmp_path):
    assert "there is no directory" in sentence(run("bench", tmp_path / "none", code=2))


@pytest.mark.filterwarnings("ignore:The data type .* Zarr:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_a_contender_that_has_another_axis_of_raw_bytes_is_left_out(tmp_path):
    pytest.importorskip("tensorstore", reason="no tensorstore")
    values = np.arange(56, dtype="u1").view("V7")
    zarr.create_array(tmp_path, shape=(8,), dtype="V7", chunks=(2,))[...] = values
    facts = run_json("bench", tmp_path, "--repetitions", "1")
    assert "tensorstore" not in facts["versions"]


def test_a_contender_that_cannot_open_the_array_is_left_out_with_its_reason(
    path, monkeypatch
):
    tensorstore = pytest.importorskip("tensorstore", reason="no tensorstore")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such driver")

    monkeypatch.setattr(tensorstore, "open", refuse)
    text = run("bench", path, "--repetitions", "1").stdout
    assert "tensorstore  left out: no such driver" in text
