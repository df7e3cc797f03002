"""`CudaDevice` and the driver's functions that compiled code calls by address."""

from __future__ import annotations

import threading

import pytest

import gpushard
from cuda_cases import CHAINS, KERNELS, forget, stored
from cuda_host import cupy_standin, libcuda
from cuda_host.device import EmulatedDevice
from cuda_host.standin import load_standin
from gpushard.devices import waiting
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.cuda_copies import QueryCalls, query_calls
from gpushard.devices.find import find_device
from gpushard.errors import DeviceError
from gpushard.fused.choice import relay_loops
from gpushard.threads.stop_flag import StopFlag, call_for
from relaying_cases import use_small_pieces
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

OPTIONS = gpushard.Options(placement="device", compile_nbytes=0, threads=4)


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    relay_loops(OPTIONS, 0)  # which are not compiled again for another cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(waiting, "_loops", [])
    use_small_pieces(monkeypatch)
    devices = [EmulatedDevice(KERNELS, load_standin(), seed=k) for k in (3, 4)]
    yield cupy_standin.install(monkeypatch, *devices)
    forget()


@pytest.fixture
def driver(monkeypatch, cupy):
    return libcuda.install(monkeypatch, cupy)


def opened(place, device="cuda"):
    return gpushard.open_array(place, device=device, options=OPTIONS)


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("chain", CHAINS)
def test_files_are_relayed_and_waits_ask_by_the_drivers_functions(
    driver, tmp_path, chain, ordinal
):
    values = stored(tmp_path / "a", chain)
    a = opened(tmp_path / "a", f"cuda:{ordinal}")
    assert_same_bits(a[...].get(), values)
    assert_same_bits(a[30:2:-3, 5].get(), values[30:2:-3, 5])
    report = a.explain()
    assert report.fetch.startswith("relay of 4 threads")
    assert report.n_refused_inner_chunks == 0
    calls = driver.calls
    assert calls["cuMemcpyHtoDAsync_v2"] == calls["cuEventRecord"] > 4
    assert calls["cuEventSynchronize"] >= calls["cuEventRecord"]
    assert calls["cuStreamQuery"] > 1
    assert driver.entered == {}


def test_the_ring_reads_where_the_driver_has_no_memory_for_copies(driver, tmp_path):
    values = stored(tmp_path / "a")
    driver.refuses[3] = 2  # CUDA_ERROR_OUT_OF_MEMORY
    a = opened(tmp_path / "a")
    assert_same_bits(a[...].get(), values)
    n_copies = driver.calls["cuMemcpyHtoDAsync_v2"]
    assert_same_bits(a[...].get(), values)
    assert driver.calls["cuMemcpyHtoDAsync_v2"] > n_copies  # the next read relays


def test_a_copy_that_fails_ends_the_read_with_what_the_driver_said(driver, tmp_path):
    values = stored(tmp_path / "a")
    driver.refuses[3] = 719
    a = opened(tmp_path / "a")
    with pytest.raises(DeviceError, match="cuda:0 failed: CUDA_ERROR 719"):
        a[...]
    assert driver.entered == {}
    assert_same_bits(a[...].get(), values)  # such as the device is not lost


@pytest.mark.parametrize("way", ["relay", "ring"])
def test_threads_of_ours_work_on_while_a_thread_captures_a_graph(
    cupy, driver, tmp_path, way
):
    values = stored(tmp_path / "a")
    a, found = opened(tmp_path / "a"), []
    if way == "ring":
        find_device("cuda").device.copier = None

    def read():
        found.append(call_for(StopFlag(), lambda: a[...]))

    thread = threading.Thread(target=read)
    cupy.captures.is_under_way = True
    thread.start()
    thread.join()
    cupy.captures.is_under_way = False
    assert cupy.captures.forbidden == []
    assert_same_bits(found.pop().get(), values)
    assert driver.calls["cuThreadExchangeStreamCaptureMode"] > 1
    assert way in a.explain().fetch


@pytest.mark.usefixtures("driver")
def test_a_read_while_the_caller_captures_a_graph_is_refused_and_breaks_nothing(
    cupy, tmp_path
):
    values = stored(tmp_path / "a")
    a = opened(tmp_path / "a")
    cupy.captures.is_under_way = True
    with pytest.raises(DeviceError, match="before a CUDA graph is captured"):
        a[...]
    cupy.captures.is_under_way = False
    assert_same_bits(a[...].get(), values)


@pytest.mark.usefixtures("cupy")
def test_a_driver_that_lacks_a_function_is_not_called_by_address(driver, monkeypatch):
    monkeypatch.delattr(driver, "cuEventQuery")
    device = CudaDevice(0)
    assert device.copier is not None  # it needs other functions
    device.wait(device.record(device.create_stream()))
    monkeypatch.delattr(driver, "cuCtxSetCurrent")
    assert CudaDevice(0).copier is None


def test_a_thread_without_a_context_finds_no_functions(driver):
    assert query_calls() == QueryCalls()
