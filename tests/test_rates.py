"""What was measured of a device is kept, and placement goes by it."""

from __future__ import annotations

import json

import pytest

from cli_runs import run, run_json, sentence
from cuda_host import cupy_standin
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.cli import measuring
from gpushard.devices import find
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.placement import RATES, Rates
from gpushard.devices.rates import keep_rates, kept_rates

MEASURED = {"zstd": Rates(3e9, 2e9, 1e9)}
TINY = measuring.Amounts(256, 1024, 2, 512, 1)


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace("3000000000.0", "-1"),
        lambda text: text.replace("3000000000.0", "NaN"),
        lambda text: text.replace("3000000000.0", '"fast"'),
        lambda text: text.replace('"version": 1', '"version": 2'),
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
    assert set(kept["rates"]) == set(RATES) - {"blosc-snappy"}
    assert all(min(rates.values()) > 0 for rates in kept["rates"].values())


def gpu_files():
    from gpushard.devices.kernels import cache_directory

    return (cache_directory().parent / "rates").iterdir()


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(measuring, "find_device", lambda _: find.Found(None, "no GPU"))
    assert "nothing to measure: no GPU" in sentence(run("doctor", "--measure", code=2))
