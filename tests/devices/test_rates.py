"""What was measured of a device is kept, and placement goes by it."""

from __future__ import annotations

import json

import pytest

import gpushard
from cli_runs import run, run_json, sentence
from cuda_host import cupy_standin
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.cli import device_rates, measuring
from gpushard.cli.device_rates import decoding_rate
from gpushard.devices import find
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.placement import RATES, Rates
from gpushard.devices.rates import keep_rates, kept_rates
from gpushard.errors import DeviceError

MEASURED = {"zstd": Rates(3e9, 2e9, 1e9)}
TINY = measuring.Amounts(256, 1024, 8, 512, 1)


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that `device="auto"` finds."""
    device = EmulatedDevice(Kernels(), load_standin())
    yield cupy_standin.install(monkeypatch, device)
    for asked_once in (find._usable_gpu, find._cuda_device):
        asked_once.cache_clear()


def test_what_was_measured_is_kept_for_the_model_it_was_measured_on():
    assert kept_rates("A GPU, nvCOMP 6.0.0") is None
    keep_rates("A GPU, nvCOMP 6.0.0", MEASURED)
    assert kept_rates("A GPU, nvCOMP 6.0.0") == {**RATES, **MEASURED}
    assert kept_rates("A GPU, nvCOMP 6.0.1") is None
    keep_rates("A GPU, nvCOMP 6.0.1", {})
    assert kept_rates("A GPU, nvCOMP 6.0.1") == RATES
    assert kept_rates("A GPU, nvCOMP 6.0.0") == {**RATES, **MEASURED}


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace("3000000000.0", "-1"),
        lambda text: text.replace("3000000000.0", "NaN"),
        lambda text: text.replace("3000000000.0", "Infinity"),
        lambda text: text.replace("3000000000.0", "-1.0"),
        lambda text: text.replace("3000000000.0", '"fast"'),
        lambda text: text.replace('"together"', '"apart"'),
        lambda text: text.replace('"version": 2', '"version": 1'),
    ],
)
def test_what_cannot_be_read_was_never_kept(damage):
    path = keep_rates("A GPU", MEASURED)
    path.write_text(damage(path.read_text()))
    assert kept_rates("A GPU") is None


def test_a_device_goes_by_what_was_measured_of_its_model(gpu):
    assert CudaDevice(0).rates is RATES
    keep_rates("A GPU, nvCOMP 6.0.0", MEASURED)
    assert CudaDevice(0).rates["zstd"] == MEASURED["zstd"]
    assert CudaDevice(0).rates["gzip"] == RATES["gzip"]


def test_doctor_measures_once_what_it_advises_to_measure(gpu, monkeypatch):
    def measure(device):
        return real(device, TINY)

    real = measuring.measure_rates
    monkeypatch.setattr(measuring, "measure_rates", measure)
    facts = run_json("doctor")
    assert any("doctor --measure" in text for text in facts["advice"])
    assert facts["rates"]["zstd"]["device"] == RATES["zstd"].device
    find._usable_gpu.cache_clear()
    find._cuda_device.cache_clear()
    assert "decoded bytes a second" in run("doctor", "--measure").stdout
    facts = run_json("doctor")
    assert not any("doctor --measure" in text for text in facts["advice"])
    kept = json.loads(next(iter(gpu_files())).read_text())
    assert facts["rates"]["zstd"] == kept["rates"]["zstd"]
    assert set(kept["rates"]) == set(RATES)
    assert all(min(rates.values()) > 0 for rates in kept["rates"].values())


def test_a_thread_is_timed_as_it_decodes_and_not_as_it_finds_what_was_kept(
    gpu, monkeypatch
):
    opened, reports = [], []
    open_array, host_rate = gpushard.open_array, measuring._host_rate
    monkeypatch.setattr(measuring, "usable_cpu_count", lambda: 3)

    def noted(*arguments, **more):
        opened.append(open_array(*arguments, **more))
        return opened[-1]

    def explained(*arguments):
        rate = host_rate(*arguments)
        reports.append(opened[-1].explain())
        return rate

    monkeypatch.setattr(gpushard, "open_array", noted)
    monkeypatch.setattr(measuring, "_host_rate", explained)
    # Inner chunks that are kept when reads come back to them.
    amounts = measuring.Amounts(32 << 10, 64 << 10, 2, 512, 5)
    measuring.measure_rates(CudaDevice(0), amounts)
    assert len(reports) == 2 * (len(RATES) - 1)  # nothing here encodes Blosc's Snappy
    assert {report.n_kept_inner_chunks for report in reports} == {0}
    assert {report.n_inner_chunks for report in reports} == {6}


@pytest.mark.parametrize(("all_together", "part"), [(6e9, 0.5), (30e9, 1.0)])
def test_each_of_all_threads_has_a_part_of_what_one_alone_has(
    monkeypatch, all_together, part
):
    asked = []

    def host_rate(_place, nbytes, threads, _repetitions):
        asked.append((nbytes, threads))
        return 3e9 if threads == 1 else all_together

    monkeypatch.setattr(measuring, "_host_rate", host_rate)
    monkeypatch.setattr(measuring, "usable_cpu_count", lambda: 4)
    assert measuring._host_rates("zstd", TINY) == (3e9, part)
    assert asked == [(1024, 1), (4096, 4)]


def test_streams_that_are_not_decoded_have_no_rate():
    device = EmulatedDevice(Kernels(), load_standin())
    device.standin.intercept = lambda *_: 12
    with pytest.raises(DeviceError, match="nvCOMP does not decode Zstd"):
        measuring.measure_rates(device, TINY)


def test_a_rate_is_of_all_bytes_of_the_batch_in_its_quickest_time(monkeypatch):
    device = EmulatedDevice(Kernels(), load_standin())
    times = iter([0.0, 9.0, 10.0, 12.0, 20.0, 21.0, 30.0, 33.0])
    monkeypatch.setattr(device_rates, "perf_counter", lambda: next(times))
    pieces = [bytes(100), bytes(range(100))]
    rate = decoding_rate(device, Algorithm.LZ4, pieces, 5, 3)
    assert rate == 500
    assert device.standin.decoded == ["lz4"] * 20


def gpu_files():
    from gpushard.cached_files import cache_directory

    return (cache_directory() / "rates").iterdir()


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(
        measuring, "find_device", lambda _: find.FoundDevice(None, "no GPU")
    )
    assert "nothing to measure: no GPU" in sentence(run("doctor", "--measure", code=2))


def test_without_a_home_what_was_measured_is_not_kept(monkeypatch, tmp_path):
    device = EmulatedDevice(Kernels(), load_standin())
    monkeypatch.setattr(
        measuring, "find_device", lambda _: find.FoundDevice(device, None)
    )
    monkeypatch.setattr(measuring, "measure_rates", lambda _: RATES)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    told = sentence(run("doctor", "--measure", code=2))
    assert "cannot be kept: there is no home" in told
    assert "set XDG_CACHE_HOME" in told
