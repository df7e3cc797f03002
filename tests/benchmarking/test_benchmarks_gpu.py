"""What a GPU host will be asked runs here at tiny sizes, on the emulated device.

No figure means anything; that every question is asked, and answered with a row, does.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import zarr

from benchmarks import data
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import (
    alternatives,
    checks,
    choices,
    exercise,
    prepare,
    ratios,
    replay,
)
from benchmarks.gpu.record import MAX_ATTEMPTS, Record
from benchmarks.gpu.run import Run, Skipped
from benchmarks.gpu.sizes import CODECS, TINY
from benchmarks.gpu.tasks import STAGES, tasks
from benchmarks.gpu.vendor_crc import KernelConf, Options, VendorCrc
from cuda_cases import two_gpus
from cuda_host import kvikio_standin
from cuda_host.machine import emulated
from gpushard.devices import budget
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.kernels import load_kernel_sources
from nvcomp_batch import Batch, vendor_library
from places import TESTS

DEVICE = "cuda_host.machine:emulated"
# These are processes of their own, whatever the sizes.
APART = ("tests", "sanitizer")

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of all tasks that need no process of their own."""
    found, root = {}, tmp_path_factory.mktemp("arrays")

    def emit(row):
        found[row.pop("id", "facts")] = row | {"task": task.name}

    prepare.prepare(TINY, root)
    prepared = {path.name for path in root.glob("field-*")}
    run = Run(DEVICE, "tiny", root, emit=emit)
    # zarrs' contender changes the pipeline for its process.
    name = "codec_pipeline.path"
    with zarr.config.set({name: zarr.config.get(name)}):
        for task in tasks(TINY):
            if task.stage not in APART:
                try:
                    task.function(run)
                except Skipped as reason:
                    emit({"id": task.name, "skipped": str(reason)})
    assert run.machine.device.standin.complaints == []
    # No task has to store what it reads.
    assert {path.name for path in root.iterdir()} == prepared
    return found


def test_every_task_answers_with_rows(rows):
    for task in tasks(TINY):
        if task.stage not in APART and task.stage != "tests":
            assert any(row.get("task") == task.name for row in rows.values()), task
    refused = {name for name, row in rows.items() if "refused" in row}
    # Neither of them has numcodecs' LZ4.
    codec = f"lz4/{TINY.usual}"
    assert refused <= {f"peers/zarrs/{codec}", f"peers/tensorstore/{codec}"}


def test_whole_reads_are_compared_with_what_is_stored(rows):
    read = [name for name in rows if name.startswith(("whole/", "sweep/", "straight/"))]
    assert len(read) == len(CODECS) * 5 + 1
    assert all(rows[name]["is_right"] for name in read)


def test_what_is_asked_of_the_vendors_decoder_comes_out_right_here(rows):
    frames = {n: row for n, row in rows.items() if n.startswith("probes/zstd-frames/")}
    refused = {
        name.rpartition("/")[2] for name in frames if not frames[name]["is_right"]
    }
    # The stand-in refuses what the gate keeps away from the vendor's decoder.
    assert refused == {"two-frames", "skippable-before", "skippable-behind"}
    assert not any(row.get("crashed") for row in rows.values())
    assert rows["probes/crc32c"]["is_right"]


def test_both_ways_to_checksums_are_measured_and_come_out_right(rows):
    row = rows[f"alternatives/crc32c/{TINY.inner_nbytes[0]}"]
    assert row["is_right"]
    assert row["own_gb_s"] > 0 < row["nvcomp_gb_s"]
    wrong = rows | {"alternatives/crc32c/2048": row | {"is_right": False}}
    assert "choose nothing yet" in choices.choices(wrong)[0]


def test_wrong_checksums_of_the_vendor_are_told(tmp_path, monkeypatch):
    found = {}
    run = Run(DEVICE, "tiny", tmp_path, emit=lambda row: found.update({row["id"]: row}))
    monkeypatch.setattr(VendorCrc, "enqueue", lambda *_: None)
    alternatives.checksums(run)
    assert [row["is_right"] for row in found.values()] == [False]


def test_options_of_the_vendors_checksums_arrive_by_value():
    assert ctypes.sizeof(Options) == 128
    vendor, tables = VendorCrc(vendor_library().path), Batch([b"x"], [10]).tables
    # Refused as values before a device is looked for, so the fields were seen.
    for conf in (KernelConf(2, 16, 1), KernelConf(1, 3, 1)):
        with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
            vendor.enqueue(tables, 8, conf, 0)


@pytest.mark.parametrize("has_gds", [True, False])
def test_all_settings_of_kvikio_are_measured_beside_the_ring(
    tmp_path, monkeypatch, has_gds
):
    machine, found = emulated(), {}
    standin = kvikio_standin.install(monkeypatch, machine.device)
    standin.is_gds = has_gds
    run = Run(DEVICE, "tiny", tmp_path, emit=lambda row: found.update({row["id"]: row}))
    run.machine = machine
    alternatives.fetch(run)
    n_files = len(data.files_of(next(tmp_path.glob("field-none*")))) - 1
    tried = [row for name, row in found.items() if "/kvikio/" in name]
    assert len(tried) == 4 * 3
    assert standin.n_preads == len(tried) * n_files * (1 + 2 * TINY.repetitions)
    assert all(row["cold_gb_s"] > 0 < row["warm_gb_s"] for row in found.values())
    assert {row["is_compat"] for row in tried} == {not has_gds}
    assert "n_direct" not in str(found["alternatives/fetch/ring"])


CRC = {f"alternatives/crc32c/{k}": {"is_right": True, "own_gb_s": 100.0} for k in "123"}


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ((50.0, 110.0, 400.0), "keep our own kernel; nvCOMP's rate is 1.10"),
        ((50.0, 130.0, 140.0), "take nvCOMP's preset; nvCOMP's rate is 1.30"),
    ],
)
def test_the_faster_checksum_is_named_where_it_is_worth_it(rates, said):
    rows = {
        name: row | {"nvcomp_gb_s": rate}
        for (name, row), rate in zip(CRC.items(), rates, strict=True)
    }
    found = choices.choices(rows)
    assert said in found[0]
    assert len(found) == 4


def fetched_at(**cold):
    """Rows of a ring, and of kvikio by threads and MiB."""
    rates = {
        name.replace("kvikio_", "kvikio/"): {
            "cold_gb_s": rate,
            "warm_gb_s": 30.0,
            "is_compat": False,
        }
        for name, rate in cold.items()
    }
    return {f"alternatives/fetch/{name}": row for name, row in rates.items()}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            fetched_at(ring=5.0, kvikio_8x4=5.5, kvikio_16x4=5.6),
            [
                "keep the ring of pinned slots",
                "take 8 threads and tasks of 4 MiB as now",
            ],
        ),
        (
            fetched_at(ring=5.0, kvikio_8x4=8.0, kvikio_16x16=12.0),
            ["take kvikio with GDS", "take 16 threads and tasks of 16 MiB"],
        ),
        (fetched_at(ring=5.0), ["keep the ring, 5.0 GB/s"]),
        ({}, []),
    ],
)
def test_how_to_fetch_is_said_in_words(rows, told):
    found = choices.choices(rows)
    assert len(found) == len(told)
    assert all(words in sentence for words, sentence in zip(told, found, strict=True))


def test_each_launch_of_a_batch_has_a_figure(rows):
    for codec in CODECS:
        row = rows[f"kernels/{codec}/{TINY.inner_nbytes[0]}"]
        assert row["n_batches"] == 1
        kinds = [call["kind"] for call in row["calls"]]
        assert kinds.count("upload") >= 2
        assert ("decode" in kinds) == (codec != "none")
        assert row["calls"][-1]["what"].startswith("gs_scatter")


def test_what_is_replayed_is_one_batch_though_reads_have_several(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "MAX_ENCODED_NBYTES", 4096)
    found = {}
    run = Run(DEVICE, "tiny", tmp_path, emit=lambda row: found.update(row))
    replay.scatter("scatter-64", run)
    assert found["n_batches"] == 1
    assert found["encoded_nbytes"] > 4096


def test_all_that_is_aimed_for_has_a_ratio_or_the_reason_why_not(rows):
    lacking = [r.what for r in ratios.ratios(rows) if r.found is None]
    assert lacking
    assert [what for what in lacking if "on the GPU" not in what] == []
    text = ratios.render(rows, is_emulated=True)
    assert text.startswith("EMULATED")


def test_every_kernel_is_launched_where_the_sanitizer_looks():
    launched, wrong = exercise.exercise(emulated().device)
    assert set(load_kernel_sources()) - launched == exercise.NOT_READ
    assert not wrong


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


def test_the_sanitizer_sees_where_each_allocation_ends(cupy, monkeypatch):
    allocators = []
    cuda, device = sys.modules["cupy"].cuda, CudaDevice(0)
    monkeypatch.setattr(cuda, "set_allocator", allocators.append, raising=False)
    monkeypatch.setattr(cuda.runtime, "hostAllocPortable", 1, raising=False)
    exercise.without_pools(device)
    before = cupy.host_nbytes
    held = [device.allocate_pinned(1000)]
    assert (len(held[0]), held[0].dtype) == (1000, np.uint8)
    assert cupy.host_nbytes - before == 1000
    held.clear()
    assert cupy.host_nbytes == before
    assert allocators == [None]


@pytest.mark.parametrize(
    "place",
    ["nvidia/cu13/bin", "nvidia/cuda_sanitizer_api/bin"],
)
def test_the_sanitizer_of_a_wheel_is_found(tmp_path, monkeypatch, place):
    tool = tmp_path / place / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.touch(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(checks, "_PLACES", ("{home}/bin/compute-sanitizer",))
    monkeypatch.setattr(sys, "path", ["elsewhere", str(tmp_path)])
    assert checks.find_sanitizer() == str(tool)
    tool.chmod(0o644)
    assert checks.find_sanitizer() is None


def arguments(tmp_path, *more, device=DEVICE):
    """Arguments of a tiny run."""
    out = tmp_path / "new" / "result.json"
    given = ["--out", str(out), "--dir", str(tmp_path / "arrays"), "--sizes", "tiny"]
    return out, [*given, "--device", device, *more]


def test_rows_are_kept_and_not_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    names = ("facts", "probes/calls", "peers/zarr-gpu/none")
    out, given = arguments(tmp_path, "--only", *names)
    out.parent.mkdir()
    # A budget that is spent before the second task.
    assert command.main([*given, "--budget", "0.01"]) == 3
    assert "left: 3" in capsys.readouterr().out
    assert command.main(given) == 0
    result = json.loads(out.read_text())
    assert result["emulated"] is True
    assert result["facts"]["device"] == "emulated:0"
    versions = result["facts"]["versions"]
    assert versions["zarr"] == zarr.__version__
    for name in ("numba", "cffi"):
        assert (name in versions) is (find_spec(name) is not None)
    assert {"probes/calls/1", "probes/calls/64"} <= set(result["rows"])
    assert all(row["emulated"] for row in result["rows"].values())
    assert "emulated" in result["rows"]["peers/zarr-gpu/none"]["skipped"]
    before = result["rows"]
    monkeypatch.setattr(command, "_run", None)  # nothing is left to run
    assert command.main(given) == 0
    assert json.loads(out.read_text())["rows"] == before
    assert "probes/calls" in out.with_suffix(".log").read_text()


def test_a_task_that_fails_is_told_and_tried_again_but_not_for_ever(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    out, given = arguments(tmp_path, "--only", "facts", device="cuda_host.machine:none")
    out.parent.mkdir()
    for _ in range(MAX_ATTEMPTS):
        status = command.main(given)
    assert status == 1
    assert "failed: facts" in capsys.readouterr().out
    state = json.loads(out.read_text())["tasks"]["facts"]
    assert state["n_failed"] == MAX_ATTEMPTS
    assert "AttributeError" in state["error"]


def test_nothing_is_begun_without_what_all_tasks_need(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.delattr(command, "_work_off")
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path / "r.json")])
    told = capsys.readouterr().err
    assert "cupy and pytest missing; run: pip install '.[cuda13,fast,test]'" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["training/ours/zstd/chunk", "sanitiser"])
def test_names_of_no_task_are_refused(tmp_path, monkeypatch, capsys, name):
    """Rows of a task are not asked for alone; on a lent GPU each minute counts."""
    monkeypatch.delattr(command, "_work_off")
    _, given = arguments(tmp_path, "--only", "facts", name)
    with pytest.raises(SystemExit):
        command.main(given)
    assert f"no task begins with {name}\n" in capsys.readouterr().err


def test_emulated_rows_are_no_results(tmp_path, capsys):
    results = Path(command.__file__).parents[1] / "results" / "x.json"
    with pytest.raises(SystemExit):
        command.main(["--out", str(results), "--device", DEVICE])
    assert "does not belong" in capsys.readouterr().err
    path = tmp_path / "r.json"
    Record(path, tmp_path / "l", is_emulated=True).flush()
    with pytest.raises(ValueError, match="another kind of device"):
        Record(path, tmp_path / "l", is_emulated=False)


def test_the_tests_that_are_run_are_all_that_need_a_gpu():
    defined = {
        (name, path.stem.removeprefix("test_gpu_"))
        for path in (TESTS / "devices").glob("test_gpu_*.py")
        for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)
    }
    contact = {item for item in defined if item[1] == checks.CONTACT}
    assert contact
    assert set(checks.TESTS.items()) == defined - contact
    assert [task.name for task in tasks(TINY)][:2] == ["facts", "tests/contact"]
    assert {task.stage for task in tasks(TINY)} == set(STAGES)


def test_a_ratio_is_what_was_reached_of_what_bounds_it():
    scatter = {"copy_seconds": 1.0, "scatter_seconds": 2.0}
    rows = {
        "kernels/scatter-64": scatter,
        "ceilings/host-to-device/1": {"gb_s": 50.0},
        "straight/1024": {"gb_s": 45.0},
        "sweep/zstd/4096": {"nbytes": 256, "gb_s": 10.0},
        "sweep/zstd/4096/cost": {"nbytes": 256, "gb_s": 12.0},
        "peers/zarr-gpu/zstd/4096": {"nbytes": 256, "gb_s": 0.1},
        "peers/zarr/zstd/4096": {"nbytes": 256, "gb_s": 2.0},
        "peers/zarrs/zstd/4096": {"nbytes": 256, "gb_s": 4.0},
        # Slow ones read a smaller array, and ours is compared with it there.
        "sweep/lz4/4096": {"nbytes": 256, "gb_s": 10.0},
        "sweep/lz4/4096/few": {"nbytes": 16, "gb_s": 4.0},
        "peers/zarr/lz4/4096": {"nbytes": 16, "gb_s": 0.2},
        "peers/zarrs/lz4/4096": {"nbytes": 256, "gb_s": 2.0},
        "peers/tensorstore/lz4/4096": {"nbytes": 99, "gb_s": 100.0},
    }
    found = {r.what: r.found for r in ratios.ratios(rows) if r.found}
    assert found["lz4 4096 / best of the host"] == pytest.approx(5)
    assert found["scatter-64 / copy within the device"] == 0.5
    assert found["zstd 4096, placed / zarr-python on the GPU"] == pytest.approx(120)
    assert found["zstd 4096 / best of the host"] == 2.5
    assert found["zstd 4096, placed / best of the host"] == 3.0
    assert len(found) == 6
