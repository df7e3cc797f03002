"""Reads to a GPU that only takes time: `python -m benchmarks.gpu.simulated`."""

from __future__ import annotations

import re
import shutil

import pytest

from benchmarks.gpu import simulated
from gpushard.devices.nvcomp import load_nvcomp
from gpushard.errors import UnsupportedError

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _needs_nvcomp_and_a_compiler():
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    try:
        load_nvcomp()
    except UnsupportedError as error:
        pytest.skip(f"scratch is as large as nvCOMP says: {error}")


@pytest.fixture
def library(tmp_path):
    return simulated.compiled(tmp_path)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_no_read_is_faster_than_its_slowest_part(tmp_path, capsys, codec):
    # 64 MiB: a bus of 1 GB/s takes 67 ms, or a decoder; all else is much faster.
    slow = "--bus" if codec == "none" else "--decoder"
    given = ["--codec", codec, "--gib", str(64 / 1024), "-n", "2", slow, "1e9"]
    simulated.main(["--dir", str(tmp_path), *given])
    said = capsys.readouterr().out
    rate = float(re.match(r"([\d.]+) GB/s", said)[1])
    assert 0 < rate <= 1.0
    assert ("the bus" if codec == "none" else "the GPU") + " has nothing to do" in said


def test_gaps_are_between_what_is_queued(library):
    device = simulated.SimulatedDevice(library, None)
    stream = device.create_stream()
    library.held.gs_work(stream, 0.02)
    device.wait_for(stream)
    library.held.gs_work(stream, 0.0)
    ((_, began), (ended, again)) = library.gaps(of_gpu=True)
    assert ended - began == pytest.approx(0.02)
    assert again >= ended


def test_a_stream_waits_for_an_event_of_another(library):
    device = simulated.SimulatedDevice(library, None)
    one, other = device.create_stream(), device.create_stream()
    library.number("bus").value = MIB * 50.0
    device.upload(0, device.allocate_pinned(MIB), one)  # 20 ms
    device.await_event(other, device.record(one))
    library.held.gs_work(other, 0.0)
    ((_, copying),) = library.gaps(of_gpu=False)
    ((_, working),) = library.gaps(of_gpu=True)
    assert working - copying == pytest.approx(0.02)
