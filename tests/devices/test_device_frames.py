"""Frames that numcodecs writes with any item size, in any length, on a device."""

from __future__ import annotations

import json
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Blosc
from numcodecs.blosc import decompress

from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fuzz.shard_cases import blosc
from gpushard import CorruptShardError, open_array
from gpushard.codecs import blosc_frame
from gpushard.devices.budget import Budget
from gpushard.selecting.selection import whole
from spec_shards import document, shard_of, sharding
from zarr_oracle import assert_same_bits, held

KERNELS = Kernels()
COMPRESSORS = ["lz4", "lz4hc", "zlib", "zstd"]
FILTERS = [Blosc.NOSHUFFLE, Blosc.SHUFFLE, Blosc.BITSHUFFLE]
BLOSC = blosc("lz4", "noshuffle")
ZLIB = codec("numcodecs.zlib", level=1)
# That divide blocks, their items in eights and the decoded size, and that do not.
TYPESIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 100, 255]


def emulated(**knobs):
    return EmulatedDevice(KERNELS, load_standin(), **knobs)


@st.composite
def frames_of(draw, values):
    """A frame an inner chunk, each written with settings of its own."""
    return [
        bytes(
            Blosc(
                draw(st.sampled_from(COMPRESSORS)),
                draw(st.sampled_from([0, 1, 5])),
                draw(st.sampled_from(FILTERS)),
                draw(st.sampled_from([0, 128, 200, 512, 1000, 4096])),
                typesize=draw(st.sampled_from(TYPESIZES)),
            ).encode(chunk)
        )
        for chunk in values
    ]


def opened(frames, dtype, n_items, compressor=BLOSC):
    """Array of one shard of such inner chunks."""
    n = n_items * len(frames)
    chain = [codec("bytes", endian="little"), compressor]
    metadata = document((n,), (n,), sharding((n_items,), codecs=chain))
    metadata |= {"data_type": dtype}
    objects = {"zarr.json": json.dumps(metadata).encode(), "c/0": shard_of(*frames)}
    return open_array(held(objects))


def is_left_to_the_host(frame):
    """Whether blocks are so short that a device has no tables for them."""
    header = blosc_frame.parse_header(frame, "blosc")
    is_stored = header.flags & blosc_frame.MEMCPYED
    return not is_stored and header.block_nbytes < min(128, header.nbytes)


@given(
    data=st.data(),
    n_chunks=st.integers(1, 5),
    n_items=st.integers(1, 1500),
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "float64"]),
    seed=st.integers(0, 9),
)
def test_items_cut_short_are_read_as_numcodecs_wrote_them(
    data, n_chunks, n_items, dtype, seed
):
    itemsize = np.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    values = (np.arange(n_chunks * n_items * itemsize) // 3 % 251).astype("u1")
    noise = rng.integers(0, len(values), 2)  # some blocks cannot be compressed
    values[noise.min() : noise.max()] = rng.integers(0, 256, np.ptp(noise))
    frames = data.draw(frames_of(values.reshape(n_chunks, -1)))
    a = opened(frames, dtype, n_items)
    device = emulated(seed=seed, schedule=seed % len(SCHEDULES))
    results, job = read_on_device(a, [whole(a.shape)], device, max_rows=3)
    assert_same_bits(results[0].view("u1"), values)
    n_refused = job.tally.counts.get("n_refused_inner_chunks", 0)
    assert n_refused == sum(map(is_left_to_the_host, frames))
    assert device.standin.complaints == []


def stored_in_blocks(data, block_nbytes, typesize):
    """A frame of byte shuffle whose blocks are stored as they are, in one stream."""
    flags = blosc_frame.BYTE_SHUFFLE | blosc_frame.DONT_SPLIT | blosc_frame.LZ4 << 5
    blocks = [data[at : at + block_nbytes] for at in range(0, len(data), block_nbytes)]
    starts = np.cumsum([16 + 4 * len(blocks), *(4 + len(b) for b in blocks)])
    header = pack("<4B3I", 2, 1, flags, typesize, len(data), block_nbytes, starts[-1])
    streams = b"".join(pack("<I", len(block)) + block for block in blocks)
    return header + starts[:-1].astype("<u4").tobytes() + streams


@pytest.mark.parametrize("block_nbytes", [500, 510, 511, 1000])
def test_blocks_that_cut_elements_are_not_left_to_the_scatter(block_nbytes):
    data = np.random.default_rng(0).integers(0, 256, (3, 1000), np.uint8)
    frames = [stored_in_blocks(chunk.tobytes(), block_nbytes, 4) for chunk in data]
    a = opened(frames, "uint32", 250)
    results, job = read_on_device(a, [whole(a.shape)], emulated())
    assert results[0].tobytes() == b"".join(map(decompress, frames))
    assert "n_refused_inner_chunks" not in job.tally.counts


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
def test_streams_too_short_for_zlib_leave_their_dummies_room():
    a = opened([b"x"] * 2000, "uint32", 1, ZLIB)
    with pytest.raises(CorruptShardError):
        read_on_device(a, [whole(a.shape)], emulated())


def test_a_batch_of_more_streams_than_there_is_room_for_is_split(monkeypatch):
    def room(_, n_rows):
        return 1 << 20 if n_rows == 1 else 0

    monkeypatch.setattr(Budget, "streams_nbytes", room)
    values = np.arange(4 * 250, dtype="uint32")
    frames = [bytes(Blosc("zstd").encode(chunk)) for chunk in values.reshape(4, 250)]
    device = emulated()
    a = opened(frames, "uint32", 250)
    results, job = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    assert "n_refused_inner_chunks" not in job.tally.counts
    assert [kind for _, kind, _ in device.log].count("decode") == 4
