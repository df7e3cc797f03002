"""How many threads of the host decode for a device at once, and from which batches."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import LockedDevice, emulated
from gpushard.device_reading import host_rows, sink
from gpushard.device_reading.choice import choose_chain
from gpushard.device_reading.payload.ring import RingFetch
from gpushard.devices.budget import N_LANES
from gpushard.devices.placement import RATES, Rates, without_libdeflate
from gpushard.fused import choice
from gpushard.fused.columns import LIBDEFLATE
from gpushard.fused.libraries import Library
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

COMPILED = gpushard.Options(compile_nbytes=0)


def large(place, n_chunks, *, inner_nbytes=256 << 10, codec=None):
    """Array of one shard with inner chunks that are all stored in the same bytes."""
    made = zarr.create_array(
        place,
        shape=(n_chunks * inner_nbytes,),
        chunks=(inner_nbytes,),
        shards=(n_chunks * inner_nbytes,),
        dtype="u1",
        compressors=[codec or GzipCodec()],
    )
    rng = np.random.default_rng(5)
    made[...] = np.tile(rng.integers(0, 256, inner_nbytes, np.uint8), n_chunks)
    return place


def all_at_once(n):
    """Waits until `n` threads wait; True unless they never do."""
    barrier = threading.Barrier(n)

    def wait():
        try:
            barrier.wait(timeout=10)
        except threading.BrokenBarrierError:
            return False
        return True

    return wait


# All in one batch, and in batches that are decoded on two lanes or three.
AT_ONCE = [(2, 2), (2, 1), (5, 5), (5, 3), (5, 2), (8, 8), (8, 4), (8, 3)]


@pytest.mark.parametrize(("n", "max_rows"), AT_ONCE)
def test_as_many_inner_chunks_are_decoded_at_once_as_there_are_threads(
    tmp_path, monkeypatch, n, max_rows
):
    large(tmp_path, n)
    monkeypatch.setattr(host_rows, "row_decoder", lambda *_: None)
    wait, waited, plain = all_at_once(n), [], host_rows.decode_row

    def decode_row(*columns):
        waited.append(wait())
        return plain(*columns)

    monkeypatch.setattr(host_rows, "decode_row", decode_row)
    a = gpushard.open_array(tmp_path, options=COMPILED.but(threads=n))
    (got,), _ = read_on_device(
        a, [whole(a.shape)], emulated(LockedDevice), placement="host", max_rows=max_rows
    )
    assert_same_bits(got, a[...])
    assert waited == [True] * n


class Waiting:
    """A library whose function waits and decodes nothing, in place of libdeflate."""

    def __init__(self, wait):
        self.waited = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int,
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p),
        )

        @kind
        def decode(_context, _source, nbytes, target, room, used, _got):
            self.waited.append(wait())
            ctypes.memset(target, 7, room)
            ctypes.c_size_t.from_address(used).value = nbytes
            return 0

        self._decode = decode
        address = ctypes.cast(decode, ctypes.c_void_p).value
        self.library = Library(
            "waiting", LIBDEFLATE, address, make_context=lambda: (1, None)
        )


@pytest.mark.parametrize(("n", "max_rows"), AT_ONCE)
def test_the_loops_decode_as_many_at_once_as_there_are_threads(
    tmp_path, monkeypatch, n, max_rows
):
    pytest.importorskip("numba", reason="the compiled loops are an extra")
    large(tmp_path, n)
    waiting = Waiting(all_at_once(n))
    monkeypatch.setattr(choice, "find_library", lambda *_, **__: waiting.library)
    options = COMPILED.but(threads=n)
    a = gpushard.open_array(tmp_path, options=options)
    device = emulated(LockedDevice)
    (got,), job = read_on_device(
        a, [whole(a.shape)], device, placement="host", max_rows=max_rows
    )
    assert (got == 7).all()
    assert waiting.waited == [True] * n
    assert job.tally.notes["loops"] == "waiting"


def test_in_the_loops_threads_are_not_fewer_because_inner_chunks_are_large(tmp_path):
    """They decode into pinned memory; in Python each needs room of its own."""
    threads = []
    for codecs in ([GzipCodec()], [BloscCodec()]):
        place = tmp_path / str(len(threads))
        made = zarr.create_array(
            place, shape=(1 << 28,), chunks=(1 << 24,), dtype="u1", compressors=codecs
        )
        del made
        a = gpushard.open_array(place, options=COMPILED.but(threads=16))
        threads.append(host_rows.loops_threads(a.source, N_LANES))
        assert host_rows.python_threads(a.source, N_LANES) < 16
    assert threads[0] == 16 > threads[1]


@pytest.mark.parametrize(
    ("placement", "threads", "least_nbytes", "n_rows"),
    [
        ("host", 2, 1, 2),  # two batches for each of three lanes
        ("host", 8, 1, 4),  # two of which keep all threads busy
        ("host", 2, 3 << 10, 3),  # no smaller than is worth it
        ("device", 2, 1, 12),
    ],
)
def test_what_the_host_decodes_is_fetched_in_more_batches(
    tmp_path, monkeypatch, placement, threads, least_nbytes, n_rows
):
    monkeypatch.setattr(sink, "_LEAST_NBYTES", least_nbytes)
    fetched, fetch = [], RingFetch.fetch

    def counted(self, job, requests, n_rows):
        fetched.append(n_rows)
        return fetch(self, job, requests, n_rows)

    monkeypatch.setattr(RingFetch, "fetch", counted)
    large(tmp_path, 12, inner_nbytes=1 << 10)
    a = gpushard.open_array(tmp_path, options=COMPILED.but(threads=threads))
    (got,), _ = read_on_device(
        a, [whole(a.shape)], emulated(LockedDevice), placement=placement
    )
    assert_same_bits(got, a[...])
    assert set(fetched) == {n_rows}
    assert sum(fetched) == 12


def test_inner_chunks_without_a_byte_are_cut_into_some_batch(tmp_path):
    large(tmp_path, 2)
    a = gpushard.open_array(tmp_path)
    _, job = read_on_device(a, [whole(a.shape)], emulated(), placement="host")
    assert job.sink.batch_cut(job, 2, 0) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_batches_are_smaller_once_it_is_known_that_the_host_decodes(
    tmp_path, monkeypatch, is_known
):
    """Which costs less is known of Blosc by the header of a frame."""
    monkeypatch.setattr(sink, "_LEAST_NBYTES", 1)
    rates = {**RATES, "blosc-lz4": Rates(1.0, 1.0, 1e12)}
    large(tmp_path, 12, codec=BloscCodec(cname="lz4"))
    a = gpushard.open_array(tmp_path, options=COMPILED.but(threads=2))
    device = emulated(LockedDevice, rates=rates)
    _, job = read_on_device(a, [whole(a.shape)], device, placement="cost")
    if not is_known:
        job.source.facts.clear()
    most = job.sink.batch_nbytes
    assert (job.sink.batch_cut(job, 1000, most) < most) == is_known


@pytest.mark.parametrize("is_there", [True, False])
def test_the_host_is_estimated_by_the_library_that_decodes(
    tmp_path, monkeypatch, is_there
):
    """By libdeflate, or by zlib where a library of that name is not found."""
    large(tmp_path, 12)
    a = gpushard.open_array(tmp_path, options=COMPILED.but(threads=1))
    monkeypatch.setattr(
        host_rows, "libdeflate", SimpleNamespace(find=lambda: is_there or None)
    )
    _, job = read_on_device(
        a, [whole(a.shape)], emulated(LockedDevice), placement="cost"
    )
    rate = (RATES if is_there else without_libdeflate(RATES))["gzip"].host
    told = job.tally.seconds["estimated on the host"]
    assert told == pytest.approx(a.nbytes / rate, rel=0.1)


def test_no_more_threads_are_estimated_than_there_are_cpus(tmp_path, monkeypatch):
    large(tmp_path, 12)
    a = gpushard.open_array(tmp_path, options=COMPILED.but(threads=8))
    chain, _ = choose_chain(a.source)
    for n_cpus in (3, 20):
        monkeypatch.setattr(host_rows, "usable_cpu_count", lambda n=n_cpus: n)
        found = host_rows.decoding(chain, a.source, N_LANES)
        assert (found.threads, found.n_cpus) == (min(8, n_cpus), n_cpus)
