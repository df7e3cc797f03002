"""A wait for a GPU that does not end is told of, and others are not."""

from __future__ import annotations

import time

import pytest

from cuda_cases import two_gpus
from gpushard.devices import watch
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.watch import Watch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(watch, "_LONG_S", 0.2)
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)


@pytest.fixture
def is_told(caplog):
    """Waits until something is told; the thread that looks has then ended."""

    def wait():
        deadline = time.monotonic() + 5
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(caplog.messages)

    return wait


def test_a_wait_that_does_not_end_is_told_of_once(caplog, is_told):
    watched = Watch("cuda:7")
    with watched.waiting(), watched.waiting():
        assert is_told()
    with watched.waiting():
        time.sleep(0.3)
    (message,) = caplog.messages
    assert message.startswith("cuda:7 has not ended for 0 seconds")
    assert "placement='host'" in message


def test_waits_that_end_are_not_told_of(caplog, is_told):
    watched = Watch("cuda:7")
    for _ in range(50):
        with watched.waiting():
            time.sleep(0.01)
    assert caplog.messages == []
    with watched.waiting():  # lets the thread end
        assert is_told()


def test_a_wait_that_fails_has_ended():
    watched = Watch("cuda:7")
    watched._is_begun = True  # nobody looks
    with pytest.raises(KeyboardInterrupt), watched.waiting():
        raise KeyboardInterrupt
    assert not watched._since


def test_waits_that_change_while_they_are_looked_at_are_looked_at_again(monkeypatch):
    class Changing(dict):
        def values(self):
            raise RuntimeError("dictionary changed size during iteration")

    watched = Watch("cuda:7")
    monkeypatch.setattr(watched, "_since", Changing(wait=0.0))
    assert not watched._is_long()
    watched._since = {"wait": 0.0}
    assert watched._is_long()


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


@pytest.mark.usefixtures("cupy")
def test_both_waits_of_a_device_are_watched(monkeypatch, is_told):
    device = CudaDevice(0)
    stream = device.create_stream()
    waits, waiting = [], device._watch.waiting
    monkeypatch.setattr(device._watch, "waiting", lambda: waits.append(1) or waiting())
    device.wait_for(stream)
    device.wait(device.record(stream))
    assert len(waits) == 2
    with waiting():  # lets the thread end
        assert is_told()
