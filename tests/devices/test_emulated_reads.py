"""Reads on the emulated device: the whole GPU path but for the vendor's own code.

The host's path is the oracle. Batches are a few rows, streams run in random orders, and
device memory can be touched only by what runs on the device (see cuda_host/device.py).
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import array_strategies as arrays
import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from flipped_bytes import damage_inner_chunks
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from places import INTEROP
from selection_strategies import basic_keys, masks, orthogonal_keys, point_keys
from zarr_oracle import assert_same_bits

MANIFEST = json.loads((INTEROP / "manifest.json").read_text())
KERNELS = Kernels()
CHAINS = {
    "none": None,
    "crc32c": [Crc32cCodec()],
    "zstd": [ZstdCodec()],
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "crc32c-zstd": [Crc32cCodec(), ZstdCodec()],
    "gzip": [GzipCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle", blocksize=256)],
    "blosc-zstd": [BloscCodec(cname="zstd", shuffle="bitshuffle")],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="noshuffle")],
}


def emulated(**knobs):
    return EmulatedDevice(KERNELS, load_standin(), **knobs)


def stored(place, compressors, shape=(33, 40), dtype="i4"):
    """Array of which a third is missing, and its values."""
    made = zarr.create_array(
        place,
        shape=shape,
        chunks=(8, 10),
        shards=(16, 20),
        dtype=dtype,
        compressors=compressors,
        fill_value=7,
    )
    values = np.random.default_rng(5).integers(0, 50, shape).astype(dtype)
    values[20:] = 7
    made[:20] = values[:20]
    return values


def corrupted(place, chain, victims):
    """Array with one byte flipped in each of some inner chunks of its first shard."""
    values = stored(place, CHAINS[chain])
    damage_inner_chunks(place / "c/0/0", victims)
    return values


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("chain", CHAINS)
def test_every_chain_is_decoded_on_the_device(tmp_path, chain, schedule):
    values = stored(tmp_path, CHAINS[chain])
    a = gpushard.open_array(tmp_path)
    selections = [
        whole(a.shape),
        expressions.basic((slice(30, 2, -3), 5, None), a.shape),
        expressions.orthogonal(([3, 1, 30], slice(None)), a.shape),
        expressions.points(([3, 1, 30], [2, 39, 0]), a.shape),
    ]
    device = emulated(seed=schedule, schedule=schedule)
    results, job = read_on_device(a, selections, device, max_rows=5)
    assert job.sink.decodes
    assert "n_refused_inner_chunks" not in job.tally.counts
    rows = np.array([3, 1, 30])
    assert_same_bits(results[0], values)
    assert_same_bits(results[1], values[30:2:-3, 5, None])
    assert_same_bits(results[2], values[rows])
    assert_same_bits(results[3], values[rows, [2, 39, 0]])
    assert device.standin.complaints == []


@pytest.mark.parametrize("name", MANIFEST["valid"])
def test_interop_samples_are_read_as_on_the_host(name):
    entry = MANIFEST["valid"][name]
    a = gpushard.open_array(INTEROP / entry["path"])
    want = np.load(INTEROP / entry["expected"])
    results, _ = read_on_device(a, [whole(a.shape)], emulated(), max_rows=7)
    assert_same_bits(results[0], want)


def keys_of_axes(draw, shape):
    """Slices and integers of every kind; integer arrays and masks, axis by axis."""
    return [
        expressions.basic(draw(basic_keys(shape)), shape),
        expressions.orthogonal(draw(orthogonal_keys(shape)), shape),
    ]


def keys_of_elements(draw, shape):
    """Single elements, by coordinates and by a mask of the array's shape."""
    assume(0 not in shape and shape)
    return [
        expressions.points(draw(point_keys(shape)), shape),
        expressions.points((draw(masks(shape)),), shape),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [keys_of_axes, keys_of_elements])
# Each of two kinds of keys with six times the profile's examples.
@settings(
    max_examples=6 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(data=st.data(), seed=st.integers(0, 9))
def test_any_array_is_read_as_on_the_host(keys, data, seed):
    stored_array = data.draw(arrays.stored_arrays())
    a = gpushard.open_array(stored_array.placed("memory", None))
    assume(not a.dtype.hasobject and a.dtype.kind != "T")  # no device has those
    selections = keys(data.draw, a.shape)
    want = a.read_many(selections)
    device = emulated(seed=seed, schedule=seed % len(SCHEDULES))
    results, _ = read_on_device(a, selections, device, max_rows=3)
    for got, expected in zip(results, want, strict=True):
        assert_same_bits(got, expected)


@pytest.mark.parametrize(
    ("dtype", "stored_as"),
    [("f2", "i4"), ("f4", "i4"), ("f8", "i4"), ("i8", "i4"), ("c16", "c8")],
)
def test_values_are_cast_on_the_way(tmp_path, dtype, stored_as):
    values = stored(tmp_path, CHAINS["zstd"], dtype=stored_as)
    a = gpushard.open_array(tmp_path)
    points = [3, 1, 30, 3], [2, 39, 0, 2]
    selections = [whole(a.shape), expressions.points(points, a.shape)]
    results, _ = read_on_device(a, selections, emulated(), dtype=dtype)
    assert_same_bits(results[0], values.astype(dtype))
    assert_same_bits(results[1], values[points].astype(dtype))


@pytest.mark.parametrize("chain", ["zstd-crc32c", "crc32c-zstd", "gzip"])
def test_damage_is_refused_with_its_place(tmp_path, chain):
    corrupted(tmp_path, chain, [1])
    a = gpushard.open_array(tmp_path)
    with pytest.raises(gpushard.CorruptShardError) as host:
        a[...]
    with pytest.raises(gpushard.CorruptShardError) as device:
        read_on_device(a, [whole(a.shape)], emulated(), max_rows=3)
    assert device.value.what == host.value.what
    assert device.value.shard_key == host.value.shard_key
    assert device.value.inner_chunk == host.value.inner_chunk == (0, 1)


def test_a_checksum_keeps_damaged_bytes_from_the_vendors_decoder(tmp_path):
    corrupted(tmp_path, "zstd-crc32c", [0, 2])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    seen = []
    device.standin.intercept = lambda _, encoded: seen.append(encoded)
    with pytest.raises(gpushard.ChecksumError):
        read_on_device(a, [whole(a.shape)], device)
    shard = (tmp_path / "c/0/0").read_bytes()
    entries = np.frombuffer(shard[-68:-4], "<u8").reshape(-1, 2).astype(int)
    stored_bytes = [shard[o : o + n - 4] for o, n in entries]
    assert stored_bytes[1] in seen
    assert stored_bytes[0] not in seen
    assert stored_bytes[2] not in seen


def test_what_the_vendor_refuses_is_decoded_on_the_host(tmp_path):
    values = stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    refusals = iter([None, 12, None, 12] + [None] * 99)
    device.standin.intercept = lambda *_: next(refusals)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] == 2


def test_a_stream_that_comes_out_short_is_decoded_on_the_host(tmp_path):
    values = stored(tmp_path, CHAINS["blosc-zstd"])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    first = []
    device.standin.shorten = lambda *_: not first and not first.append(1)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] == 1


def test_blosclz_is_decoded_on_the_host_and_the_rest_is_not(tmp_path):
    values = stored(tmp_path, [BloscCodec(cname="blosclz", clevel=9)])
    a = gpushard.open_array(tmp_path)
    results, job = read_on_device(a, [whole(a.shape)], emulated())
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_refused_inner_chunks"] > 0


def test_frames_of_several_compressors_are_a_batch(tmp_path):
    values = np.random.default_rng(3).integers(0, 50, (48, 48), "i4")
    for k, cname in enumerate(("lz4", "zlib", "zstd")):
        compressor = BloscCodec(cname=cname, shuffle="shuffle", blocksize=256)
        zarr.create_array(
            tmp_path / cname,
            shape=values.shape,
            chunks=(16, 48),
            dtype="i4",
            compressors=compressor,
        )[...] = values
        frame = tmp_path / cname / f"c/{k}/0"
        frame.replace(tmp_path / f"lz4/c/{k}/0")
    a = gpushard.open_array(tmp_path / "lz4")
    for seed in range(3):
        device = emulated(seed=seed)
        results, job = read_on_device(a, [whole(a.shape)], device)
        assert_same_bits(results[0], values)
        assert "n_refused_inner_chunks" not in job.tally.counts
        decoded = [what for _, kind, what in device.log if kind == "decode"]
        assert len(decoded) == 3  # one for each, of one batch


@pytest.mark.parametrize("chain", [c for c in CHAINS if c != "none"])
def test_a_batch_takes_few_driver_calls(tmp_path, chain):
    stored(tmp_path, CHAINS[chain], shape=(16, 20))
    a = gpushard.open_array(tmp_path)
    device = emulated()
    read_on_device(a, [whole(a.shape)], device)
    log = device.log
    scatters = [what for _, kind, what in log if what.startswith("gs_scatter")]
    downloads = [what for _, kind, what in log if kind == "download"]
    uploads = [what for _, kind, what in log if kind == "upload"]
    assert len(scatters) == 1
    # Encoded bytes, and one packed page; the targets' tables once a read.
    assert len(uploads) == 3
    assert len(downloads) == 1  # the verdict
    batch = len(log) - 2  # the tables of the targets and their event
    assert batch <= 20
    # For the batch, and for the tables; Blosc for the count.
    assert device.n_waits == 2 + chain.startswith("blosc")


@pytest.mark.parametrize("chain", CHAINS)
def test_more_batches_take_few_driver_calls_and_hardly_memory(tmp_path, chain):
    stored(tmp_path, CHAINS[chain], shape=(16, 80))
    a = gpushard.open_array(tmp_path)
    few, more = (calls_of(a, part) for part in (np.s_[:, :40], np.s_[:, :]))
    assert (few["scatters"], more["scatters"]) == (4, 8)
    # Where streams are larger than before, on each of the lanes.
    assert more["memory"] <= few["memory"] + 4
    assert more["calls"] - few["calls"] <= 4 * 20
    assert more["waits"] - few["waits"] == 4 * (1 + chain.startswith("blosc"))


def calls_of(a, part):
    """How often a read in batches of two inner chunks asks for what."""
    taken = []
    device = emulated(refuses=lambda kind, _: taken.append(kind))
    read_on_device(a, [expressions.basic(part, a.shape)], device, max_rows=2)
    n_memory = len(taken) - taken.count("launch")
    return {
        "scatters": sum(what.startswith("gs_scatter") for *_, what in device.log),
        "memory": n_memory,
        "calls": device.n_calls - n_memory,
        "waits": device.n_waits,
    }


def test_lanes_take_turns(tmp_path):
    stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    read_on_device(a, [whole(a.shape)], device, max_rows=2)
    lanes = {stream for stream, kind, _ in device.log if kind == "decode"}
    assert lanes == {1, 2, 3}


@pytest.mark.parametrize(
    ("free_nbytes", "chain", "options", "n_rows"),
    [
        (64 << 30, "zstd", {}, 2826),
        (8 << 30, "zstd", {}, 702),  # an eighth of what the result leaves
        (1 << 30, "zstd", {}, 170),  # no less than on the host
        (64 << 30, "zstd", {"memory_limit": 64 << 20}, 38),
        (64 << 30, "none", {}, 4096),
    ],
)
def test_batches_are_cut_by_streams_while_the_device_has_room(
    tmp_path, free_nbytes, chain, options, n_rows
):
    chunk = (16 * 1024,)
    zarr.create_array(
        tmp_path, shape=chunk, chunks=chunk, dtype="i4", compressors=CHAINS[chain]
    )
    a = gpushard.open_array(tmp_path, options=gpushard.Options(**options))
    device = emulated(limit_nbytes=free_nbytes)
    _, job = read_on_device(a, [whole(a.shape)], device)
    assert job.sink.max_rows == n_rows
    limit = job.source.options.memory_limit
    if options:  # slots, and what is assembled in pinned memory, take their part
        assert limit == options["memory_limit"] - job.sink.pinned_nbytes
    assert (limit > 256 << 20) == (n_rows > 170)
