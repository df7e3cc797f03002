"""Whether the device or the host decodes is decided by what each is told to cost."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.devices import placement
from gpushard.devices.decoding.chain import Step, StepKind
from gpushard.devices.placement import (
    RATES,
    HostDecoding,
    Rates,
    Workload,
    estimate,
    without_libdeflate,
    workload_of,
)
from gpushard.errors import OptionError
from gpushard.options import KIB, MIB, Options
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
CHUNK_NBYTES = 14_000_000
HOST = HostDecoding(threads=16, n_cpus=16)
NO_HEADER = np.empty(0, np.uint8)


def prefers_device(workload):
    costs = estimate(workload, HOST)
    return costs.device <= costs.host


def test_one_large_zstd_frame_goes_to_the_host_and_thousands_to_the_device():
    step = Step(StepKind.ZSTD, "zstd", CHUNK_NBYTES)
    assert not prefers_device(workload_of(step, 1, 7_000_000, NO_HEADER))
    small = Step(StepKind.ZSTD, "zstd", 64 * KIB)
    assert prefers_device(workload_of(small, 4096, 4096 * 32 * KIB, NO_HEADER))
    assert not prefers_device(workload_of(small, 10, 10 * 32 * KIB, NO_HEADER))


@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_the_streams_of_a_shard_of_blosc_frames_go_to_the_device(compressor):
    step = Step(StepKind.BLOSC, "blosc", CHUNK_NBYTES)
    header = blosc_header(compressor, block_nbytes=128 * KIB)
    workload = workload_of(step, 64, 64 * 7_000_000, header)
    assert workload.coding == f"blosc-{compressor}"
    assert workload.largest_nbytes == 128 * KIB
    assert prefers_device(workload)


def blosc_header(compressor, block_nbytes, item_nbytes=4, flags=16):
    number = ("blosclz", "lz4", "snappy", "zlib", "zstd").index(compressor)
    sizes = np.array([CHUNK_NBYTES, block_nbytes, 1000], "<u4").tobytes()
    start = bytes([2, 1, flags | number << 5, item_nbytes])
    return np.frombuffer(start + sizes, np.uint8)


@pytest.mark.parametrize(
    ("item_nbytes", "block_nbytes", "stream_nbytes"),
    [
        (4, 64 * KIB, 16 * KIB),
        (16, 64 * KIB, 4 * KIB),
        (17, 64 * KIB, 64 * KIB),  # too many parts
        (0, 64 * KIB, 64 * KIB),
        (4, 512, 128),
        (4, 511, 511),  # too small parts
    ],
)
def test_split_blocks_are_streams_of_a_part_each(
    item_nbytes, block_nbytes, stream_nbytes
):
    step = Step(StepKind.BLOSC, "blosc", CHUNK_NBYTES)
    header = blosc_header("lz4", block_nbytes, item_nbytes, flags=0)
    assert workload_of(step, 1, 1000, header).largest_nbytes == stream_nbytes


def test_no_header_and_a_hostile_one_are_taken_for_something():
    step = Step(StepKind.BLOSC, "blosc", 5000)
    rng = np.random.default_rng(0)
    headers = [rng.integers(0, 256, 16, np.uint8) for _ in range(500)]
    zeros = np.zeros(16, np.uint8)
    for header in (NO_HEADER, zeros, *headers):
        workload = workload_of(step, 3, 300, header)
        assert 1 <= workload.largest_nbytes <= 5000
        assert min(estimate(workload, HostDecoding(2, 2))) > 0


def test_what_no_device_decodes_costs_it_for_ever():
    step = Step(StepKind.BLOSC, "blosc", CHUNK_NBYTES)
    workload = workload_of(
        step, 64, 1000, blosc_header("blosclz", block_nbytes=128 * KIB)
    )
    assert not prefers_device(workload)


def test_costs_are_the_slowest_of_what_overlaps(monkeypatch):
    rates = {"zstd": Rates(device=100.0, stream=10.0, host=20.0, together=1.0)}
    workload = Workload("zstd", 8, 1, 4000, largest_nbytes=500)
    few, many = HostDecoding(4, 16, 0), HostDecoding(16, 16, 0)
    assert estimate(workload, few, rates) == (50.0, 50.0)
    assert estimate(workload, many, rates) == (50.0, 25.0)  # eight inner chunks, not 16
    assert estimate(workload, many._replace(row_s=0.5), rates) == (50.0, 29.0)
    assert estimate(workload._replace(largest_nbytes=100), few, rates).device == 40.0
    monkeypatch.setattr(placement, "HOST_NBYTES_PER_SECOND", 100.0)
    assert estimate(workload, many._replace(row_s=0.5), rates).host == 44.0


@pytest.mark.parametrize(
    ("n_rows", "n_turns"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3)]
)
def test_threads_decode_whole_inner_chunks_in_turns(n_rows, n_turns):
    rates = {"zstd": Rates(1.0, 1.0, host=20.0, together=1.0)}
    workload = Workload("zstd", n_rows, 1, 400 * n_rows, 1)
    assert estimate(workload, HostDecoding(4, 4, 0), rates).host == pytest.approx(
        n_turns * 400 / 20
    )


@pytest.mark.parametrize(
    ("n_rows", "threads", "seconds"),
    [(4, 16, 20), (8, 16, 20), (16, 16, 40), (160, 16, 400), (16, 4, 80)],
)
def test_threads_that_share_cores_are_as_fast_together_as_fewer_alone(
    n_rows, threads, seconds
):
    rates = {"zstd": Rates(1.0, 1.0, host=20.0, together=0.5)}
    workload = Workload("zstd", n_rows, 1, 400 * n_rows, 1)
    costs = estimate(workload, HostDecoding(threads, 16, 0), rates)
    assert costs.host == pytest.approx(seconds)


def test_without_libdeflate_the_host_takes_longer_unless_that_was_measured():
    measured = {**RATES, "gzip": Rates(1.0, 2.0, 3.0, 1.0)}
    found = without_libdeflate(measured)
    assert found["gzip"] == measured["gzip"]
    assert found["zlib"].host < RATES["zlib"].host
    assert found["zlib"].device == RATES["zlib"].device
    assert {k: v for k, v in found.items() if k != "zlib"} == {
        k: v for k, v in measured.items() if k != "zlib"
    }


@pytest.mark.parametrize(
    ("coding", "n", "is_for_device"),
    # Of 256 MiB, on an H100: 85 ms there and 278 by eight threads of its host; one
    # stream of 16 MiB would take a second there.
    [("gzip", 256, True), ("gzip", 16, False), ("zstd", 16, False)],
)
def test_zlib_is_left_to_the_host_only_where_a_device_has_few_streams(
    coding, n, is_for_device
):
    nbytes = 256 * MIB // n
    workload = Workload(coding, n, n * nbytes // 2, n * nbytes, nbytes)
    costs = estimate(workload, HOST, without_libdeflate(RATES))
    assert (costs.device <= costs.host) == is_for_device


def test_many_small_inner_chunks_are_decoded_where_no_lock_is_waited_for():
    """Blosc's LZ4, which threads of the host decode faster than any bus is."""
    step = Step(StepKind.BLOSC, "blosc", 128 * KIB)
    header = blosc_header("lz4", block_nbytes=128 * KIB, item_nbytes=1)
    assert prefers_device(workload_of(step, 512, 512 * 64 * KIB, header))
    assert not prefers_device(workload_of(step, 16, 16 * 64 * KIB, header))


# Streams, bytes of each and seconds of nvCOMP's decoder alone (H200, nvCOMP 6.0).
ON_AN_H200 = {
    "zstd": [
        (4096, 4 * KIB, 0.000538),
        (4096, 16 * KIB, 0.001676),
        (4096, 64 * KIB, 0.004113),
        (4096, 256 * KIB, 0.022623),
        (1024, 1024 * KIB, 0.021513),
        (256, 4096 * KIB, 0.061819),
        (64, 16384 * KIB, 0.213336),
    ],
}


@pytest.mark.parametrize(
    ("coding", "n", "nbytes", "seconds"),
    [(coding, *row) for coding, rows in ON_AN_H200.items() for row in rows],
)
def test_what_a_device_took_is_estimated_to_within_half(coding, n, nbytes, seconds):
    workload = Workload(coding, n, n * nbytes // 2, n * nbytes, nbytes)
    assert seconds / 1.5 < estimate(workload, HOST).device < seconds * 1.5


@pytest.fixture
def stored(tmp_path):
    values = np.arange(64 * 48, dtype="i4").reshape(64, 48)
    made = zarr.create_array(
        tmp_path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(8, 8),
        shards=(32, 16),
        compressors=ZstdCodec(),
    )
    made[...] = values  # zarr 3.1.0 loses part of what `data=` is given
    return tmp_path, values


SLOW_HOST = {**RATES, "zstd": Rates(1e12, 1e12, 1.0)}
SLOW_DEVICE = {**RATES, "zstd": Rates(1.0, 1.0, 1e12)}


@pytest.mark.usefixtures("device_begins_at_once")
@pytest.mark.parametrize(
    ("placement", "rates", "where"),
    [
        ("cost", SLOW_HOST, "device"),
        ("cost", SLOW_DEVICE, "host"),
        ("device", SLOW_DEVICE, "device"),
        ("host", SLOW_HOST, "host"),
    ],
)
def test_the_report_tells_where_inner_chunks_were_decoded_and_why(
    stored, placement, rates, where
):
    place, values = stored
    device = EmulatedDevice(KERNELS, load_standin(), rates=rates)
    options = Options(placement=placement)
    a = gpushard.open_array(place, device=device, options=options)
    assert_same_bits(a[...].get(), values)
    decoded = device.standin.decoded
    assert bool(decoded) == (where == "device")
    report = a.explain()
    assert getattr(report, f"n_decoded_on_{where}") == 48
    assert report.n_decoded_on_device + report.n_decoded_on_host == 48
    assert report.codecs[0].where == where
    assert f"48 on the {where}" in str(report)
    estimates = {"estimated on the device", "estimated on the host"}
    assert (estimates <= set(report.milliseconds)) == (placement == "cost")


def test_blosclz_is_not_even_uploaded_undecoded(tmp_path):
    values = np.arange(64 * 48, dtype="i4").reshape(64, 48)
    codec = BloscCodec(cname="blosclz", clevel=9, shuffle="shuffle")
    zarr.create_array(tmp_path, data=values, chunks=(32, 48), compressors=codec)
    device = EmulatedDevice(KERNELS, load_standin())
    a = gpushard.open_array(tmp_path, device=device)
    assert_same_bits(a[...].get(), values)
    assert not any(what.startswith("gs_blosc") for _, _, what in device.log)


def test_a_placement_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match=r"placement.*cost, device, host"):
        Options(placement="gpu")
