"""Payload on its way to a device through the ring of pinned slots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import MemoryStore

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import (
    CHAINS,
    LockedDevice,
    MeasuredDevice,
    emulated,
    small_batches,
    stored,
)
from gpushard.device_reading import sink
from gpushard.device_reading.payload import answers, ring
from gpushard.device_reading.payload.ring import Slot
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.budget import N_LANES
from gpushard.devices.output import DeviceOutput
from gpushard.options import KIB, MIB, Options
from gpushard.report import Tally
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from gpushard.stores.base import ByteRequest
from gpushard.stores.local import store as local
from gpushard.stores.local.store import LocalStore
from zarr_oracle import assert_same_bits

# A slot takes a few inner chunks: each is used many times.
SHAPE, LIMIT = (120, 80), 24 * KIB


def noting_fetches(monkeypatch, device):
    """Let reads of local files stand in the log of a device, as they are asked for."""
    read = LocalStore.read

    def noted(store, requests):
        if requests[0].into is not None:
            device.log.append((-1, "fetch", str(len(requests))))
        return read(store, requests)

    monkeypatch.setattr(LocalStore, "read", noted)


def fetches_and_scatters(device):
    """Where in the log of a device the fetches and the scatters stand."""
    fetches = [
        i for i, entry in enumerate(device.log) if entry[1] in ("fetch", "pread")
    ]
    scatters = [i for i, entry in enumerate(device.log) if "gs_scatter" in entry[2]]
    return fetches, scatters


@pytest.mark.parametrize(("n_slots", "seed"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("chain", CHAINS)
def test_slots_are_used_again_only_when_they_are_copied(tmp_path, chain, n_slots, seed):
    values = stored(tmp_path, CHAINS[chain], SHAPE)
    options = Options(memory_limit=LIMIT, pinned_slots=n_slots)
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(seed=seed)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_payload_requests"] > 4
    assert "n_refused_inner_chunks" not in job.tally.counts


def test_a_slot_that_is_not_waited_for_would_show(tmp_path):
    values = stored(tmp_path, None, SHAPE)
    options = Options(memory_limit=LIMIT, pinned_slots=1)
    a = gpushard.open_array(tmp_path, options=options)
    with mock.patch.object(Slot, "reclaim"):
        try:
            results, _ = read_on_device(a, [whole(a.shape)], emulated())
        except AssertionError:
            return  # the device saw that memory was gone before its copy
    assert (results[0] != values).any()


def test_local_files_are_read_into_the_slot_itself(tmp_path, monkeypatch):
    stored(tmp_path, CHAINS["zstd"])
    seen = []
    is_at = ring._is_at
    monkeypatch.setattr(
        ring, "_is_at", lambda *both: seen.append(is_at(*both)) or seen[-1]
    )
    a = gpushard.open_array(tmp_path)
    read_on_device(a, [whole(a.shape)], emulated())
    assert seen
    assert all(seen)


def test_what_a_store_answers_elsewhere_is_copied_into_the_slot():
    store = MemoryStore()
    values = stored(store, CHAINS["zstd"])
    a = gpushard.open_array(store)
    results, _ = read_on_device(a, [whole(a.shape)], emulated())
    assert_same_bits(results[0], values)


@pytest.mark.parametrize("chain", ["zstd", "none", "blosc-lz4"])
def test_the_next_fetch_is_issued_before_the_scatter_ends(tmp_path, monkeypatch, chain):
    stored(tmp_path, CHAINS[chain], SHAPE)
    a = gpushard.open_array(tmp_path)
    device = emulated(seed=1)
    noting_fetches(monkeypatch, device)
    # What a slot takes is one batch, and of each of them there is one scatter.
    monkeypatch.setattr(sink.Budget, "of", lambda *_, **__: small_batches(1000))
    nothing_missing = expressions.basic((slice(0, 96),), a.shape)
    read_on_device(a, [nothing_missing], device)
    fetches, scatters = fetches_and_scatters(device)
    assert len(fetches) == len(scatters) > 4
    for following, scatter in zip(fetches[1:], scatters, strict=False):
        assert following < scatter


@pytest.mark.parametrize(
    ("chain", "memory_limit"),
    [*((chain, 256 * KIB) for chain in CHAINS), ("none", MIB), ("blosc-zlib", MIB)],
)
def test_slots_and_slabs_stay_under_the_memory_limit(tmp_path, chain, memory_limit):
    shape = (256 if memory_limit < MIB else 512, 480)
    values = stored(tmp_path, CHAINS[chain], shape, chunks=(16, 32), shards=(128, 96))
    options = Options(memory_limit=memory_limit, threads=1)
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(MeasuredDevice)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert device.peak_nbytes - values.nbytes <= memory_limit
    assert job.tally.counts["n_payload_requests"] > 2


@pytest.mark.parametrize(("blocksize", "memory_limit"), [(1024, MIB), (256, 4 * MIB)])
def test_batches_of_many_small_streams_are_cut_for_the_scratch_they_take(
    tmp_path, blocksize, memory_limit
):
    shape = (512, 480)
    many = [BloscCodec(cname="zstd", shuffle="shuffle", blocksize=blocksize)]
    values = stored(tmp_path, many, shape, chunks=(32, 96), shards=(128, 96))
    options = Options(memory_limit=memory_limit, threads=1)
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(MeasuredDevice)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert device.peak_nbytes - values.nbytes <= memory_limit
    assert "n_decoded_on_host" not in job.tally.counts


def test_an_inner_chunk_of_too_many_streams_is_decoded_on_the_host(tmp_path):
    many = [BloscCodec(cname="zstd", shuffle="noshuffle", blocksize=128)]
    values = stored(tmp_path, many, (60, 480), chunks=(60, 480), shards=(60, 480))
    a = gpushard.open_array(tmp_path, options=Options(memory_limit=MIB))
    device = emulated(MeasuredDevice)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert device.peak_nbytes - values.nbytes <= MIB
    assert job.tally.counts["n_decoded_on_host"] == 1


@pytest.mark.parametrize("n_slots", [1, 2, 5])
def test_several_threads_share_slots_and_lanes(tmp_path, n_slots):
    values = stored(
        tmp_path, CHAINS["zstd"], (512, 480), chunks=(32, 32), shards=(64, 96)
    )
    options = Options(memory_limit=MIB, threads=4, pinned_slots=n_slots)
    a = gpushard.open_array(tmp_path, options=options)
    results, job = read_on_device(a, [whole(a.shape)], emulated(LockedDevice))
    assert job.n_workers == min(n_slots + 2, 4)  # others would find nothing to do
    assert_same_bits(results[0], values)


@pytest.mark.parametrize(("concurrency", "n_requests"), [(4, 1), (8, 2), (99, 3)])
def test_few_threads_read_long_ranges_of_a_large_batch(
    tmp_path, monkeypatch, concurrency, n_requests
):
    monkeypatch.setattr(local, "_COSTS", replace(local._COSTS, concurrency=concurrency))
    chunk, shard = (2 << 20,), (24 << 20,)
    how = {"shape": shard, "chunks": chunk, "shards": shard, "dtype": "u1"}
    made = zarr.create_array(tmp_path, **how, compressors=None, fill_value=7)
    made[...] = 5
    a = gpushard.open_array(tmp_path)
    device = emulated(LockedDevice, limit_nbytes=64 << 30)  # batches of 128 MiB
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert (results[0] == 5).all()
    assert job.tally.counts["n_payload_requests"] == n_requests


def test_a_failing_fetch_gives_its_slot_back(tmp_path):
    stored(tmp_path, None, SHAPE)
    options = Options(memory_limit=LIMIT, pinned_slots=1)
    a = gpushard.open_array(tmp_path, options=options)
    n_left = [3]

    def failing(store, requests, *, read=LocalStore.read):
        n_left[0] -= requests[0].into is not None
        if n_left[0] < 0:
            raise gpushard.StoreError("the disk is gone")
        return read(store, requests)

    with (
        mock.patch.object(LocalStore, "read", failing),
        pytest.raises(gpushard.StoreError, match="the disk is gone"),
    ):
        read_on_device(a, [whole(a.shape)], emulated())


def test_plain_elements_keep_their_alignment():
    requests = [ByteRequest("a", 100, 350), ByteRequest("b", 4097, 4098)]
    requests += [ByteRequest("c", 64, 128), ByteRequest("d", 7, 7)]
    places, nbytes = answers.side_by_side(requests, answers.ALIGNMENT)
    assert places == [36, 321, 384, 455]
    assert nbytes == 512
    places, nbytes = answers.side_by_side(requests, 4096)
    assert places == [100, 4097, 8256, 12295]
    assert nbytes == 16384


def test_bytes_of_plain_elements_keep_their_place_between_words(tmp_path):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    made = zarr.create_array(
        tmp_path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(16, 64),
        shards=(64, 64),
        compressors=None,
    )
    made[...] = values  # zarr 3.1.0 loses part of what `data=` is given
    a = gpushard.open_array(tmp_path)
    # Of each inner chunk, no byte of the first row and a half is fetched.
    part = expressions.basic((slice(1, None, 5), slice(35, 37)), a.shape)
    firsts = []
    bring = ring.PinnedPayload.bring

    def noting(landed, lane, encoded):
        addresses = bring(landed, lane, encoded)
        assert encoded.low.all()
        firsts.append(addresses - encoded.low.astype(np.uint64))
        return addresses

    with mock.patch.object(ring.PinnedPayload, "bring", noting):
        results, _ = read_on_device(a, [part], emulated(), max_rows=2)
    assert_same_bits(results[0], values[1::5, 35:37])
    assert not np.any(np.concatenate(firsts) % 16)


def test_rows_that_share_their_bytes_are_decoded_each(tmp_path):
    values = stored(tmp_path, CHAINS["gzip"])
    a = gpushard.open_array(tmp_path)
    selections = [whole(a.shape)] * 3
    results, job = read_on_device(a, selections, emulated(), max_rows=7)
    for result in results:
        assert_same_bits(result, values)
    assert "n_refused_inner_chunks" not in job.tally.counts


@pytest.mark.parametrize("device", [None, "emulated"])
@pytest.mark.usefixtures("device_begins_at_once")
def test_a_chunk_cut_short_in_a_store_without_sizes_is_refused(device):
    store = MemoryStore()
    zarr.create_array(store, data=np.arange(64), chunks=(16,), compressors=None)
    key = "c/1"
    store._store_dict[key] = type(store._store_dict[key]).from_bytes(
        store._store_dict[key].to_bytes()[:100]
    )
    chosen = emulated() if device else "cpu"
    with pytest.raises(gpushard.CorruptShardError) as caught:
        gpushard.open_array(store, device=chosen)[...]
    assert caught.value.shard_key == key


@pytest.mark.usefixtures("device_begins_at_once")
def test_explain_tells_how_payload_was_fetched(tmp_path):
    stored(tmp_path, [ZstdCodec()])
    a = gpushard.open_array(tmp_path, device=emulated())
    assert a.explain().fetch.startswith("ring of 4 pinned slots (")
    assert gpushard.open_array(tmp_path).explain().fetch == "host memory"


WIDE = {"chunks": (8, 80), "shards": (40, 80)}


def kinds_of(device):
    """Uploads, and launches of the scatter, in the log of a device."""
    uploads = [int(what) for _, kind, what in device.log if kind == "upload"]
    return uploads, [what for _, _, what in device.log if "gs_scatter" in what]


@pytest.mark.parametrize("n_slots", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_plain_inner_chunks_that_land_whole_are_copied_there(tmp_path, n_slots, seed):
    values = stored(tmp_path, None, SHAPE, **WIDE)
    options = Options(memory_limit=LIMIT, pinned_slots=n_slots)
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(seed=seed)
    results, _ = read_on_device(a, [expressions.basic((slice(96),), a.shape)], device)
    assert_same_bits(results[0], values[:96])
    uploads, scatters = kinds_of(device)
    assert not scatters
    # The tables of the targets, and nothing but the elements.
    assert sum(uploads[1:]) == results[0].nbytes
    # What is missing is still scattered, and only that.
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)


@pytest.mark.parametrize(
    ("key", "is_straight"),
    [
        ((slice(3, 61),), True),
        ((slice(3, 61), slice(None), None), True),
        ((slice(3, 61), slice(1, None)), False),
        ((slice(3, 61, 2),), False),
        ((slice(61, 3, -1),), False),
    ],
)
def test_parts_of_them_are_copied_where_they_are_side_by_side(
    tmp_path, key, is_straight
):
    values = stored(tmp_path, None, SHAPE, **WIDE)
    a = gpushard.open_array(tmp_path)
    device = emulated()
    results, _ = read_on_device(a, [expressions.basic(key, a.shape)], device)
    assert_same_bits(results[0], values[key])
    assert bool(kinds_of(device)[1]) != is_straight


def test_neighbours_in_a_file_that_go_to_two_arrays_are_two_copies(tmp_path):
    values = stored(tmp_path, None, SHAPE, **WIDE)
    a = gpushard.open_array(tmp_path)
    device = emulated()
    keys = [(slice(8, 16),), (slice(16, 24),)]
    parts = [expressions.basic(key, a.shape) for key in keys]
    results, _ = read_on_device(a, parts, device)
    for key, result in zip(keys, results, strict=True):
        assert_same_bits(result, values[key])
    assert kinds_of(device)[0][1:] == [8 * 80 * 4] * 2


def test_neighbours_that_go_to_two_outputs_side_by_side_are_two_copies(tmp_path):
    values = stored(tmp_path, None, SHAPE, **WIDE)
    a = gpushard.open_array(tmp_path)
    device = emulated()
    # As two allocations may lie in a device's memory: no copy may span both.
    buffer = device.allocate(values[8:32].nbytes)
    ends, strides = [8, 16, 32], values.strides
    selections, outputs = [], []
    for first, last in pairwise(ends):
        address = buffer.address + values[8:first].nbytes
        shape = (last - first, SHAPE[1])
        outputs.append(DeviceOutput(address, shape, strides, a.dtype))
        selections.append(expressions.basic((slice(first, last),), a.shape))
    read_to_device(DeviceRead(a.source, selections, outputs, device, Tally()))
    assert_same_bits(buffer.read().view(a.dtype).reshape(24, 80), values[8:32])
    assert kinds_of(device)[0][1:] == [8 * 80 * 4, 16 * 80 * 4]


def test_more_copies_than_a_batch_may_take_are_a_scatter(tmp_path):
    values = stored(tmp_path, None, (160, 80), chunks=(8, 80), shards=(160, 80))
    a = gpushard.open_array(tmp_path)
    rows = list(range(0, 120, 12))
    device = emulated()
    part = expressions.orthogonal((rows, slice(None)), a.shape)
    results, _ = read_on_device(a, [part], device)
    assert_same_bits(results[0], values[rows])
    assert kinds_of(device)[1]


def test_a_cast_is_no_copy(tmp_path):
    values = stored(tmp_path, None, SHAPE, **WIDE)
    a = gpushard.open_array(tmp_path)
    device = emulated()
    results, _ = read_on_device(a, [whole(a.shape)], device, dtype="f8")
    assert_same_bits(results[0], values.astype("f8"))
    assert kinds_of(device)[1]


def test_streams_are_given_back_and_taken_again(tmp_path):
    stored(tmp_path, CHAINS["zstd"])
    a = gpushard.open_array(tmp_path)
    device = emulated()
    for _ in range(3):
        read_on_device(a, [whole(a.shape)], device)
    assert len(device._streams) == 1 + N_LANES
    assert sorted(device._idle_streams) == [1, 2, 3]
