"""Fetched inner chunks -> rows in host memory, laid out as a device would decode them.

The compiled loops decode most rows, Python those that the loops leave: damaged ones,
parts of plain elements, and chains that only zarr knows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs import libdeflate
from gpushard.device_reading.payload.answers import FetchedChunks
from gpushard.devices.decoding.chain import DeviceChain
from gpushard.devices.lane import Lane
from gpushard.devices.placement import (
    HOST_ROW_S,
    LOOPS_ROW_S,
    HostDecoding,
    Rates,
    without_libdeflate,
)
from gpushard.fetching.job import Job
from gpushard.fused.addresses import address_of
from gpushard.fused.chain import fused_chain
from gpushard.fused.choice import are_loaded, row_decoder
from gpushard.machine import usable_cpu_count
from gpushard.options import KIB
from gpushard.placing.place import completed, decode_row
from gpushard.planning.blocks import ShardBlock
from gpushard.selecting.selection import Ints
from gpushard.source import Source
from gpushard.threads.workers import run_side_by_side

# In Python, a larger inner chunk takes longer to decode than to be given to a thread.
_LARGE_NBYTES = 64 * KIB


def put_rows(
    chain: DeviceChain,
    fetched: tuple[Job, ShardBlock, FetchedChunks],
    lane: Lane,
    memory: NDArray[np.uint8],
    places: Ints,
) -> None:
    """Decode inner chunks into `memory`: uint8, host, aligned.

    `places` has the offset of each row, int64, shape (n,). What lies on the device is
    copied back on `lane`. Raises `CorruptShardError` if one is damaged.
    """
    job, block, encoded = fetched
    held, at = encoded.payload.on_host(lane, encoded)
    n_lanes = lane.budget.n_lanes
    is_left = np.ones(len(encoded), np.bool_)
    if _stays_as_stored(chain, job.source):
        decoder = row_decoder(job.source, len(encoded))
        is_whole = encoded.nbytes == encoded.stored_nbytes
        if decoder is not None and is_whole.all():
            job.tally.note(loops=decoder.library_name)
            columns = address_of(held) + at, encoded.nbytes, address_of(memory) + places
            n_threads = loops_threads(job.source, n_lanes)
            is_left = ~decoder.decode(*columns, n_threads)

    def put(n: int) -> None:
        low, nbytes = int(encoded.low[n]), int(encoded.nbytes[n])
        span = held[int(at[n]) : int(at[n]) + nbytes]
        stored_nbytes = int(encoded.stored_nbytes[n])
        stored = completed(job.source.room, span, low, stored_nbytes)
        chunk = decode_row(job, block, int(encoded.column[n]), stored)
        place = int(places[n])
        chain.store(chunk, memory[place : place + chain.decoded_nbytes])

    is_large = chain.decoded_nbytes >= _LARGE_NBYTES
    left = np.flatnonzero(is_left).tolist()
    n_threads = python_threads(job.source, n_lanes) if is_large else 1
    run_side_by_side(put, left, n_threads)


def python_threads(source: Source, n_lanes: int) -> int:
    """Number of threads that decode inner chunks in Python, for all lanes together.

    The pool of so many threads serves all lanes. Whoever waits for it decodes, too, if
    no thread has begun; there is room for as many more as `ChunkRoom` spares.
    """
    # A distant store has more workers (`Source.most_workers`), which mostly wait.
    return max(1, min(source.options.threads, source.room.most_workers + 1 - n_lanes))


def loops_threads(source: Source, n_lanes: int) -> int:
    """The same in the loops, whose threads mostly decode into the lane's memory."""
    fused = fused_chain(source)
    if fused is None or not fused.decodes_directly:
        return python_threads(source, n_lanes)
    return min(source.options.threads, source.room.most_direct_workers)


def rates_here(rates: Mapping[str, Rates]) -> Mapping[str, Rates]:
    """Rates of a device, with those of the host as its libraries are."""
    return rates if libdeflate.find() is not None else without_libdeflate(rates)


def decoding(chain: DeviceChain, source: Source, n_lanes: int) -> HostDecoding:
    """What decodes inner chunks in `put_rows`, for an estimate."""
    if are_loaded() and _stays_as_stored(chain, source):
        threads, row_s = loops_threads(source, n_lanes), LOOPS_ROW_S
    else:
        threads, row_s = python_threads(source, n_lanes), HOST_ROW_S
    n_cpus = usable_cpu_count()
    return HostDecoding(min(threads, n_cpus), n_cpus, row_s)


def _stays_as_stored(chain: DeviceChain, source: Source) -> bool:
    """Whether the loops decode inner chunks to what a device would decode them to."""
    fused = fused_chain(source)
    if fused is None or fused.strides != chain.strides:
        return False
    stored = source.pipeline.stored_dtype
    # Bytes of booleans are viewed as integers; so are bfloat16 in the other byte order.
    return chain.is_swapped or chain.dtype.itemsize == 1 or stored == chain.dtype
