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
from gpushard.devices.placement import RATES, Load, Rates, estimate, load_of
from gpushard.errors import OptionError
from gpushard.options import KIB, Options
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
CHUNK_NBYTES = 14_000_000
THREADS = 16
NO_HEADER = np.empty(0, np.uint8)


def prefers_device(load):
    costs = estimate(load, THREADS)
    return costs.device <= costs.host


def test_one_large_zstd_frame_goes_to_the_host_and_thousands_to_the_device():
    step = Step(StepKind.ZSTD, "zstd", CHUNK_NBYTES)
    assert not prefers_device(load_of(step, 1, 7_000_000, NO_HEADER))
    small = Step(StepKind.ZSTD, "zstd", 64 * KIB)
    assert prefers_device(load_of(small, 4096, 4096 * 32 * KIB, NO_HEADER))
    assert not prefers_device(load_of(small, 10, 10 * 32 * KIB, NO_HEADER))


@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_the_streams_of_a_shard_of_blosc_frames_go_to_the_device(compressor):
    step = Step(StepKind.BLOSC, "blosc", CHUNK_NBYTES)
    header = blosc_header(compressor, block_nbytes=128 * KIB)
    load = load_of(step, 64, 64 * 7_000_000, header)
    assert load.coding == f"blosc-{compressor}"
    assert load.largest_nbytes == 128 * KIB
    assert prefers_device(load)


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
    assert load_of(step, 1, 1000, header).largest_nbytes == stream_nbytes


def test_no_header_and_a_hostile_one_are_taken_for_something():
    step = Step(StepKind.BLOSC, "blosc", 5000)
    rng = np.random.default_rng(0)
    headers = [rng.integers(0, 256, 16, np.uint8) for _ in range(500)]
    zeros = np.zeros(16, np.uint8)
    for header in (NO_HEADER, zeros, *headers):
        load = load_of(step, 3, 300, header)
        assert 1 <= load.largest_nbytes <= 5000
        assert min(estimate(load, 2)) > 0


def test_what_no_device_decodes_costs_it_for_ever():
    step = Step(StepKind.BLOSC, "blosc", CHUNK_NBYTES)
    load = load_of(step, 64, 1000, blosc_header("blosclz", block_nbytes=128 * KIB))
    assert not prefers_device(load)


def test_costs_are_the_slowest_of_what_overlaps(monkeypatch):
    rates = {"zstd": Rates(device=100.0, stream=10.0, host=20.0)}
    load = Load("zstd", 8, 1, 4000, largest_nbytes=500)
    assert estimate(load, 4, rates, 0) == (50.0, 50.0)
    assert estimate(load, 16, rates, 0) == (50.0, 25.0)  # eight inner chunks, not 16
    assert estimate(load, 16, rates, 0.5) == (50.0, 29.0)
    assert estimate(load._replace(largest_nbytes=100), 4, rates, 0).device == 40.0
    monkeypatch.setattr(placement, "HOST_NBYTES_PER_SECOND", 100.0)
    assert estimate(load, 16, rates, 0.5).host == 44.0


def test_many_small_inner_chunks_are_decoded_where_no_lock_is_waited_for():
    """Blosc's LZ4, which threads of the host decode faster than any bus is."""
    step = Step(StepKind.BLOSC, "blosc", 128 * KIB)
    header = blosc_header("lz4", block_nbytes=128 * KIB, item_nbytes=1)
    assert prefers_device(load_of(step, 512, 512 * 64 * KIB, header))
    assert not prefers_device(load_of(step, 16, 16 * 64 * KIB, header))


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
    load = Load(coding, n, n * nbytes // 2, n * nbytes, nbytes)
    assert seconds / 1.5 < estimate(load, THREADS).device < seconds * 1.5


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
