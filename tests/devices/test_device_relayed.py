"""Files relayed to a device in pieces, by threads of the compiled loops."""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import (
    CHAINS,
    LockedDevice,
    MeasuredDevice,
    emulated,
    read_three_ways,
    small_batches,
    stored,
)
from gpushard.device_reading import deciding, relayed, sink
from gpushard.device_reading.choice import choose_chain
from gpushard.device_reading.relayed import BufferSet, Pieces, RelayState
from gpushard.devices.placement import Rates
from gpushard.fused import choice, system_calls
from gpushard.fused.addresses import address_of
from gpushard.fused.system_calls import new_mutex
from gpushard.options import MIB
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from relaying_cases import OPTIONS, in_small_batches, opened, relaying, use_small_pieces
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

SHAPE = (120, 80)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    use_small_pieces(monkeypatch)


@pytest.fixture
def device():
    return relaying()


@pytest.mark.parametrize(
    ("chain", "max_rows"), [*((chain, 5) for chain in CHAINS), ("zstd", 4096)]
)
def test_every_chain_is_read_from_what_was_relayed(
    tmp_path, device, chain, max_rows, monkeypatch
):
    values = stored(tmp_path, CHAINS[chain], SHAPE)
    in_small_batches(monkeypatch)
    job = read_three_ways(opened(tmp_path), values, device, max_rows)
    counts = job.tally.counts
    assert counts["n_relayed_requests"] == counts["n_payload_requests"] > 4
    assert device.copier.n_copies > counts["n_payload_requests"]
    assert "n_refused_inner_chunks" not in counts


def test_threads_leave_the_context_that_they_found(tmp_path, device):
    stored(tmp_path, None)
    read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert device.copier.n_entered > 1
    assert device.copier.is_left


def test_memory_goes_with_the_read(tmp_path, device, monkeypatch):
    stored(tmp_path, CHAINS["zstd"])
    a = opened(tmp_path)
    seen = []
    made = sink.DeviceSink.__init__

    def noted(self, *arguments, **more):
        made(self, *arguments, **more)
        seen.append(weakref.ref(self))

    monkeypatch.setattr(sink.DeviceSink, "__init__", noted)
    gc.collect()
    gc.disable()
    try:
        read_on_device(a, [whole(a.shape)], device)
        assert [made() for made in seen] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("chain", ["zstd", "none"])
def test_memory_stays_under_the_limit(tmp_path, monkeypatch, chain):
    class Measured(LockedDevice, MeasuredDevice):
        pass

    monkeypatch.setattr(relayed, "_PIECE_NBYTES", 4 * MIB)
    device = relaying(Measured)
    shape = (512, 480)
    values = stored(tmp_path, CHAINS[chain], shape, chunks=(16, 32), shards=(128, 96))
    a = opened(tmp_path, OPTIONS.but(memory_limit=MIB))
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_relayed_requests"]
    assert device.peak_nbytes - values.nbytes <= MIB


# Of plain elements, a quarter is for what is neither in slots nor on lanes.
@pytest.mark.parametrize(("chain", "part"), [("zstd", 1), ("none", 3 / 4)])
def test_relays_beside_the_ring_stay_under_the_limit_of_a_device(
    tmp_path, monkeypatch, device, chain, part
):
    shape = (640, 960)
    values = stored(tmp_path, CHAINS[chain], shape, chunks=(16, 32), shards=(128, 96))
    a = opened(tmp_path, OPTIONS.but(memory_limit=MIB))
    read_on_device(a, [expressions.basic((slice(9),), shape)], device)  # loads loops
    real, n_asked = relayed.RelayFetch.begin, itertools.count()

    def first(fetch, job, requests):
        """Fill all slots on the device, and then those of the host, and the lanes."""
        return real(fetch, job, requests) if next(n_asked) < 9 else None

    monkeypatch.setattr(relayed.RelayFetch, "begin", first)
    results, job = read_on_device(a, [whole(shape)], device)
    assert_same_bits(results[0], values)
    counts = job.tally.counts
    assert 0 < counts["n_relayed_requests"] < counts["n_payload_requests"]
    assert device.most_held_nbytes - values.nbytes <= part * MIB


def test_plain_elements_come_in_larger_batches(tmp_path, device):
    shape = (512, 480)
    stored(tmp_path, None, shape, chunks=(16, 32), shards=(128, 96))
    a = opened(tmp_path, OPTIONS.but(memory_limit=MIB))
    read_on_device(a, [expressions.basic((slice(9),), shape)], device)  # loads loops
    _, job = read_on_device(a, [whole(a.shape)], device)
    with_ring = emulated(LockedDevice)
    _, other = read_on_device(a, [whole(a.shape)], with_ring)
    assert job.sink.batch_nbytes > other.sink.batch_nbytes


def test_few_bytes_and_other_stores_go_through_the_ring(tmp_path, device, monkeypatch):
    values = stored(tmp_path / "a", CHAINS["zstd"])
    in_memory = zarr.storage.MemoryStore()
    made = zarr.create_array(
        in_memory, shape=(60, 40), chunks=(8, 10), shards=(16, 20), dtype="i4"
    )
    made[...] = values
    results, job = read_on_device(opened(in_memory), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts
    monkeypatch.setattr(relayed, "_SHARE_NBYTES", 2**20)
    results, job = read_on_device(opened(tmp_path / "a"), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts


def test_batches_of_many_files_go_through_the_ring(tmp_path, device):
    values = stored(tmp_path, None)
    for most, is_relayed in ((8, True), (7, False)):
        a = opened(tmp_path, OPTIONS.but(file_handles=most))
        part = expressions.basic((slice(30),), a.shape)  # of four shards
        results, job = read_on_device(a, [part], device)
        assert_same_bits(results[0], values[:30])
        assert bool(job.tally.counts.get("n_relayed_requests")) == is_relayed


def test_chunks_outside_of_shards_go_through_the_ring(tmp_path, device):
    made = zarr.create_array(tmp_path, shape=(60, 40), chunks=(8, 10), dtype="i4")
    made[...] = values = np.arange(2400, dtype="i4").reshape(60, 40)
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts


def test_without_loops_or_a_copier_the_ring_reads(tmp_path, device, monkeypatch):
    values = stored(tmp_path, CHAINS["zstd"])
    monkeypatch.setattr(choice, "_loaded", [None])
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts
    off = opened(tmp_path, OPTIONS.but(relay=False))
    results, job = read_on_device(off, [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "relay" not in job.sink.fetch_label
    device.copier = None
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "relay" not in job.sink.fetch_label


def test_without_memory_to_pin_the_ring_reads(tmp_path, device, monkeypatch):
    values = stored(tmp_path, CHAINS["zstd"])

    def refuse(_):
        raise gpushard.DeviceMemoryError("no more can be pinned")

    monkeypatch.setattr(relayed.BufferSet, "_make", refuse)
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert "n_relayed_requests" not in job.tally.counts


def test_fewer_threads_relay_where_no_more_can_be_pinned(tmp_path, device, monkeypatch):
    values = stored(tmp_path, CHAINS["zstd"])
    n_left = iter([1, 1])
    make = relayed.BufferSet._make

    def some(buffer_set):
        if not next(n_left, 0):
            raise gpushard.DeviceMemoryError("no more can be pinned")
        return make(buffer_set)

    monkeypatch.setattr(relayed.BufferSet, "_make", some)
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_relayed_requests"]


def batch_of(file, device):
    """What two threads are told of a batch of two pieces, and what must be kept."""
    buffer_set = BufferSet(device, device.copier, 2, 64)
    places = np.array([0, 64])
    pieces = Pieces.cut(np.full(2, file.fileno()), places, np.full(2, 64), places, 64)
    target, shared = device.allocate(128), RelayState.at_start(pieces)
    where = target.address, device.create_stream()
    common = relayed.relay_of_batch(pieces, shared, buffer_set, *where)
    relays = [
        relayed.relay_of_thread(common, buffers) for buffers in buffer_set.take(2)
    ]
    return relays, (shared, pieces, target, buffer_set)


def test_the_next_batch_begins_once_no_piece_is_left_to_claim(tmp_path, device):
    callers, has_joined = [], threading.Event()
    has_second_begun = threading.Event()

    def before_bytes():
        if threading.get_ident() == callers[0]:  # it waits for the other thread
            assert has_joined.wait(30)
        elif not has_joined.is_set():  # which takes its time for a piece
            has_joined.set()
            assert has_second_begun.wait(30)
        else:
            has_second_begun.set()

    device.copier.before_bytes = before_bytes
    loops, turn = choice.relay_loops(OPTIONS, 1), new_mutex()
    (tmp_path / "a").write_bytes(bytes(128))

    def relay(relays):
        callers.append(threading.get_ident())
        loops.relay(relays, address_of(turn))

    with (tmp_path / "a").open("rb") as file, ThreadPoolExecutor(2) as pool:
        first, second = batch_of(file, device), batch_of(file, device)
        batches = [pool.submit(relay, first[0])]
        assert has_joined.wait(30)
        batches.append(pool.submit(relay, second[0]))
        for batch in batches:
            batch.result()
    for _, (shared, *_) in (first, second):
        assert shared.outcomes.tolist() == [0, 0]


def test_a_batch_is_relayed_though_no_thread_can_begin(tmp_path, device, monkeypatch):
    n_asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * 4)
    def refuse(*_):
        n_asked.append(1)
        return errno.EAGAIN

    create = ctypes.cast(refuse, ctypes.c_void_p).value
    calls = system_calls.thread_calls()._replace(create=create)
    monkeypatch.setattr("gpushard.fused.code.loading.thread_calls", lambda: calls)
    values = stored(tmp_path, CHAINS["zstd"])
    results, job = read_on_device(opened(tmp_path), [whole((60, 40))], device)
    assert_same_bits(results[0], values)
    assert job.tally.counts["n_relayed_requests"]
    assert n_asked


def test_buffers_are_made_once_for_all_batches(device):
    buffer_set = BufferSet(device, device.copier, 3, 64)
    two, one, three = buffer_set.take(2), buffer_set.take(1), buffer_set.take(3)
    assert three[:2] == two
    assert two[:1] == one
    assert len({hand.events[0].handle for hand in three}) == 3


# Who decodes


@pytest.mark.parametrize("chain", ["zstd", "blosc-lz4"])
@pytest.mark.parametrize("is_faster", [False, True])
def test_what_the_host_decodes_is_not_relayed(tmp_path, device, chain, is_faster):
    shape = (120, 80)
    values = stored(tmp_path, CHAINS[chain], shape)
    rate = 1e15 if is_faster else 1.0
    device.rates = dict.fromkeys(
        ("zstd", "blosc-lz4", "blosc-zstd"), Rates(rate, rate, 1e6)
    )
    a = opened(tmp_path, OPTIONS.but(placement="cost"))
    # The header of a Blosc frame is known from the first read on, which has the ring.
    for _ in range(2):
        results, job = read_on_device(a, [whole(shape)], device, placement="cost")
        assert_same_bits(results[0], values)
    counts = job.tally.counts
    assert bool(counts.get("n_relayed_requests")) == is_faster
    assert bool(counts.get("n_decoded_on_device")) == is_faster
    assert bool(counts.get("n_decoded_on_host")) != is_faster


def test_the_header_that_placement_needs_is_that_of_the_array(tmp_path, device):
    stored(tmp_path, CHAINS["blosc-lz4"])
    a = opened(tmp_path, OPTIONS.but(placement="cost"))
    read_on_device(a, [whole(a.shape)], device, placement="cost")
    header = a.source.facts[deciding._HEADER]
    assert len(header) == 16
    assert header[2] >> 5 == 1  # LZ4, in the flags of the frame


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=30),
    gaps=st.lists(st.integers(0, 90), min_size=30, max_size=30),
    most=st.integers(1, 300),
)
def test_pieces_have_each_byte_once_and_are_small(sizes, gaps, most):
    nbytes = np.array(sizes)
    places = np.cumsum(nbytes + gaps[: len(sizes)]) - nbytes - gaps[0]
    files, offsets = np.arange(len(sizes)) + 10, np.arange(len(sizes)) * 1000
    pieces = Pieces.cut(files, offsets, nbytes, places, most)
    assert pieces.cuts[0] == 0
    assert pieces.cuts[-1] == len(pieces.ranges)
    assert (np.diff(pieces.cuts) > 0).all()
    assert pieces.ranges.flags.c_contiguous
    found = {}
    for first, stop in zip(pieces.cuts[:-1], pieces.cuts[1:], strict=True):
        some = pieces.ranges[first:stop]
        assert some[-1, 3] + some[-1, 2] - some[0, 3] <= most
        assert (some[1:, 3] >= some[:-1, 3] + some[:-1, 2]).all()
        for file, offset, n, place in some.tolist():
            for k in range(n):
                assert (file, offset + k) not in found
                found[file, offset + k] = place + k
    wanted = {
        (10 + i, 1000 * i + k): int(place) + k
        for i, (n, place) in enumerate(zip(sizes, places, strict=True))
        for k in range(n)
    }
    assert found == wanted


def test_a_limit_with_no_room_for_buffers_leaves_the_ring(tmp_path, monkeypatch):
    stored(tmp_path, CHAINS["zstd"])
    a = opened(tmp_path)
    chain, _ = choose_chain(a.source)
    budget = small_batches(1024)
    assert relayed.relay_budget(a.source, chain, budget) == budget
    for less in (replace(budget, n_slots=1), small_batches(100)):
        assert relayed.relay_budget(a.source, chain, less) is None
    monkeypatch.setattr(relayed, "_SHARE_NBYTES", 1025)
    assert relayed.relay_budget(a.source, chain, budget) is None
