"""Writes of values in (emulated) device memory, where memory runs out there."""

from __future__ import annotations

import pytest

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.standin import load_standin
from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.options import Options
from gpushard.writing import on_device as writing
from test_writing_on_device import (
    KERNELS,
    assert_stored,
    check_left_to_the_host,
    device,
)
from written_on_device import CODECS, new, numbers, on_device

__all__ = ["device"]


def test_memory_that_runs_out_is_an_error_and_leaves_the_device_usable(
    tmp_path, device
):
    a, values = new(tmp_path, device, CODECS["zstd"]), numbers()
    value = on_device(device, values)
    device.n_takes = 0
    device.refuses = lambda kind, n: kind == "allocate" and n > 1
    with pytest.raises(gpushard.DeviceError, match="not so much memory"):
        a[...] = value
    device.refuses = lambda *_: False
    a[...] = value
    assert_stored(tmp_path, values)


def test_the_host_takes_over_where_not_one_inner_chunk_has_room(
    tmp_path, device, caplog
):
    writing._tell_once.cache_clear()
    values = numbers()
    value = on_device(device, values)
    device.limit_nbytes = 8000
    check_left_to_the_host(tmp_path, device, CODECS["zstd"], value=value)
    check_left_to_the_host(tmp_path, device, CODECS["zstd"], value=value)
    (told,) = caplog.messages
    assert "Zstd needs more memory for one of 160 bytes" in told


@pytest.mark.parametrize(("limit", "n_encoded"), [(None, 24), (256 << 20, 0)])
def test_scratch_may_exceed_a_limit_that_was_left_open(
    limit, n_encoded, tmp_path, device, monkeypatch
):
    # What nvCOMP's Zstd asks for depends little on the batch.
    monkeypatch.setattr(Nvcomp, "encoding_temp_nbytes", lambda *_: 257 << 20)
    device.limit_nbytes = 4 << 30
    a, values = new(tmp_path, device, CODECS["zstd"]), numbers()
    a = gpushard.open_array(
        tmp_path, device=device, options=Options(memory_limit=limit)
    )
    a[...] = on_device(device, values)
    assert len(device.standin.encoded) == n_encoded
    assert_stored(tmp_path, values)


def test_a_device_that_breaks_is_an_error(tmp_path):
    device = EmulatedDevice(KERNELS, load_standin())
    a, value = new(tmp_path, device, CODECS["zstd"]), on_device(device, numbers())
    device.breaks = lambda n, begin=device.n_runs: n == begin + 5
    with pytest.raises(gpushard.DeviceError, match="broken"):
        a[...] = value


def test_scratch_is_asked_for_the_bytes_of_all_streams(monkeypatch):
    asked = []
    monkeypatch.setattr(Nvcomp, "_call", lambda _, *given: asked.append(given))
    object.__new__(Nvcomp).encoding_temp_nbytes(Algorithm.ZSTD, 3, 100)
    ((_, name, n_streams, largest, _, _, total, _),) = asked
    assert name == "CompressGetTempSize"
    assert (n_streams, largest, total) == (3, 100, 300)
