"""What ``device="auto"`` takes, what it says where it takes none, and what fails how.

CuPy is a stand-in here with as much of it as is asked.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.devices import cuda, find
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.cuda_facts import cuda_facts
from gpushard.devices.find import find_device
from gpushard.errors import DeviceError, DeviceMemoryError, UnsupportedError


class RefusalError(Exception):
    """What CuPy raises for an error of the driver."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class FullError(Exception):
    """What CuPy's memory pool raises."""


class FakeDevice:
    compute_capability = "90"

    def __init__(self, ordinal):
        self.ordinal = ordinal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Fakery:
    """A CuPy that is told how to fail."""

    def __init__(self):
        self.fails_with = None
        self.n_devices = 1
        module = ModuleType("cupy")
        module.__spec__ = ModuleSpec("cupy", None)
        runtime = SimpleNamespace(
            CUDARuntimeError=RefusalError,
            getDeviceCount=lambda: self.answer(self.n_devices),
            driverGetVersion=lambda: self.answer(13010),
            memGetInfo=lambda: self.answer((5, 9)),
            memcpyAsync=lambda *_: self.answer(None),
            setDevice=lambda _: None,
        )
        memory = SimpleNamespace(OutOfMemoryError=FullError)
        driver = SimpleNamespace(CUDADriverError=RefusalError)
        module.cuda = SimpleNamespace(
            runtime=runtime,
            memory=memory,
            driver=driver,
            nvrtc=SimpleNamespace(
                getVersion=lambda: (13, 1), getSupportedArchs=lambda: (75, 90, 120)
            ),
            Device=FakeDevice,
            Stream=SimpleNamespace,
        )
        self.module = module

    def answer(self, value):
        if self.fails_with is not None:
            raise self.fails_with
        return value


@pytest.fixture
def fakery(monkeypatch):
    """CuPy is there, and so is nvCOMP."""
    made = Fakery()
    monkeypatch.setitem(sys.modules, "cupy", made.module)
    nvcomp = SimpleNamespace(label="nvCOMP", cuda_major=13, within=lambda _: nvcomp)
    monkeypatch.setattr(cuda, "load_nvcomp", lambda: nvcomp)
    forget()
    yield made
    forget()


def forget():
    find._usable_gpu.cache_clear()
    find._cuda_device.cache_clear()


def test_a_usable_gpu_is_taken_and_is_one_for_all_arrays(fakery):
    device, why = find_device("auto")
    assert isinstance(device, CudaDevice)
    assert why == ""
    assert find_device("cuda:0").device is device
    assert find_device("cpu") == (None, "")


def no_driver(fakery, _):
    fakery.fails_with = RefusalError(35, "cudaErrorInsufficientDriver: too old")


def no_device(fakery, _):
    fakery.n_devices = 0


def too_old(_, monkeypatch):
    monkeypatch.setattr(FakeDevice, "compute_capability", "70")


def another_nvcomp(_, monkeypatch):
    def refuse():
        raise UnsupportedError("another major version of nvCOMP", expected=6, got=5)

    monkeypatch.setattr(cuda, "load_nvcomp", refuse)


def no_nvcomp(_, monkeypatch):
    def refuse():
        raise UnsupportedError("nvCOMP is not installed")

    monkeypatch.setattr(cuda, "load_nvcomp", refuse)


def no_cupy(_, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (no_cupy, "CuPy is not installed"),
        (no_driver, "CUDA finds no usable device"),
        (no_device, "there is no CUDA device 0"),
        (too_old, "architecture too old: expected compute capability 7.5 or later"),
        (no_nvcomp, "nvCOMP is not installed"),
        (another_nvcomp, "another major version of nvCOMP: expected 6, got 5"),
    ],
)
def test_the_reason_for_the_cpu_stands_in_the_report(
    fakery, monkeypatch, tmp_path, lack, said
):
    lack(fakery, monkeypatch)
    zarr.create_array(tmp_path / "g/a", data=np.arange(4), chunks=(2,))
    zarr.open_group(tmp_path / "g", mode="a")
    for a in (
        gpushard.open_array(tmp_path / "g/a"),
        gpushard.open_group(tmp_path / "g")["a"],
    ):
        report = a.explain()
        assert report.device == "cpu"
        assert said in report.device_why
        assert f"on cpu (no GPU is used: {report.device_why[16:]})" in str(report)
    with pytest.raises(UnsupportedError):
        find_device("cuda")


def test_a_gpu_is_looked_for_on_linux_only(fakery, monkeypatch):
    monkeypatch.setattr(find, "sys", SimpleNamespace(platform="darwin"))
    assert find_device("auto") == (None, "no GPU is used: that takes Linux")


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "cpu:0", "cuda:x", "cuda:-1"])
def test_kinds_of_devices_that_there_are_not_are_refused(fakery, device):
    with pytest.raises(UnsupportedError, match="no such kind of device"):
        find_device(device)


def test_who_asks_for_the_cpu_is_told_no_reason(tmp_path):
    zarr.create_array(tmp_path, data=np.arange(4), chunks=(2,))
    report = gpushard.open_array(tmp_path, device="cpu").explain()
    assert report.device_why == ""
    assert "on cpu\n" in str(report)


def test_without_cupy_the_choice_takes_no_time_and_loads_nothing():
    script = """
import sys, time
sys.modules["cupy"] = None
import gpushard.devices.find as find
before = set(sys.modules)
took = []
for _ in range(9):  # of a busy machine the quickest time tells most
    find._usable_gpu.cache_clear()
    start = time.perf_counter()
    found = find.find_device("auto")
    took.append(time.perf_counter() - start)
assert found.device is None and "CuPy" in found.why
assert set(sys.modules) == before, set(sys.modules) - before
assert min(took) < 1e-3, took
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_lack_of_memory_leaves_the_device_usable(fakery):
    device = CudaDevice(0)
    for error in (FullError("pool"), RefusalError(2, "cudaErrorMemoryAllocation")):
        fakery.fails_with = error
        with pytest.raises(DeviceMemoryError, match="has not enough memory"):
            device.copy(0, 0, 1, 0)
    device.check()


def test_an_error_that_stays_breaks_the_device_for_good(fakery):
    device = CudaDevice(0)
    fakery.fails_with = RefusalError(700, "cudaErrorIllegalAddress")
    with pytest.raises(DeviceError, match=r"failed: .*IllegalAddress.*process"):
        device.copy(0, 0, 1, 0)
    fakery.fails_with = None
    for call in (partial(device.copy, 0, 0, 1, 0), device.free_nbytes, device.check):
        with pytest.raises(DeviceError, match=r"before.*IllegalAddress.*new process"):
            call()


def test_an_error_of_one_call_does_not_break_the_device(fakery):
    device = CudaDevice(0)

    def refuse(*_):
        raise RefusalError(1, "cudaErrorInvalidValue")

    fakery.module.cuda.runtime.memcpyAsync = refuse
    with pytest.raises(DeviceError, match="InvalidValue"):
        device.copy(0, 0, 1, 0)
    device.check()


def test_the_facts_name_every_gpu_and_the_driver(fakery):
    runtime = fakery.module.cuda.runtime
    runtime.driverGetVersion = lambda: 13010
    runtime.runtimeGetVersion = lambda: 12080
    properties = {"name": b"H200", "major": 9, "minor": 0, "totalGlobalMem": 1234}
    runtime.getDeviceProperties = lambda _: properties
    facts = cuda_facts()
    assert facts == {
        "driver": "13.1",
        "runtime": "12.8",
        "cuda:0": "H200, sm 9.0, 1,234 bytes",
    }
    fakery.fails_with = RefusalError(100, "cudaErrorNoDevice")
    assert "cudaErrorNoDevice" in cuda_facts()["trouble"]
