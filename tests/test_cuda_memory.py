"""What a CUDA device asks the driver about its memory."""

from __future__ import annotations

import pytest

from cuda_cases import two_gpus
from cuda_host.cupy_calls import Runtime
from gpushard.devices import cuda
from gpushard.devices.cuda import CudaDevice


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


@pytest.mark.usefixtures("cupy")
def test_the_driver_tells_the_free_memory_once_in_a_while(monkeypatch):
    now, asked = [100.0], []
    ask = Runtime.memGetInfo
    monkeypatch.setattr(cuda, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        Runtime, "memGetInfo", lambda self: asked.append(now[0]) or ask(self)
    )
    device = CudaDevice(0)
    before = device.free_nbytes()
    memory = device.allocate(1 << 20)
    now[0] += 0.4
    assert device.free_nbytes() == before
    now[0] += 0.2
    assert device.free_nbytes() == before - memory.nbytes
    assert asked == [100.0, pytest.approx(100.6)]
