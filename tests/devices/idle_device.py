"""A device that is asked for everything and does nothing, to count what is asked.

Stored objects may hold anything, so that any chain is read without being encoded.
"""

from __future__ import annotations

import ctypes
import json
from copy import copy
from functools import cache, partial

import crc32c
import numpy as np

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fuzz.shard_cases import OneObject, document, sharding
from gpushard.device_reading.choice import choose_chain
from gpushard.devices.decoding.row_tables import TOTALS_NBYTES
from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.structs import StreamClass

N_SHARDS, PER_SHARD = 2, 4
SHAPE = (16, 32 * N_SHARDS)
_ANY_NBYTES = 100
_KERNELS = Kernels()


class IdleDevice(EmulatedDevice):
    """Queues what it is asked for and lets no kernel run.

    Streams of Blosc frames add up to `totals`, uint64; every row is fine.
    """

    totals = np.zeros(TOTALS_NBYTES // 8, np.uint64)

    def __post_init__(self):
        super().__post_init__()
        self.decoder = copy(_decoder(self.standin.path))
        self.decoder.device = self

    def launch(self, kernel, grid, parameters, stream):
        self._take("launch", 0)
        run = _nothing
        if kernel == "gs_blosc_count":
            told = int(parameters[0]["totals_host"])
            run = partial(ctypes.memmove, told, self.totals.ctypes.data, TOTALS_NBYTES)
        self.queue(stream, "kernel", kernel, run)

    def download(self, data, address, stream):
        self.queue(stream, "download", str(data.nbytes), partial(data.fill, 0))


class _IdleDecoder(Nvcomp):
    def decompress_async(self, algorithm, tables, temp, temp_nbytes, stream):
        self.device.queue(stream, "decode", "nvCOMP", _nothing)


@cache
def _decoder(path):
    return _IdleDecoder(path)


def _nothing():
    pass


def opened(codecs, data_type="float32"):
    """Array of some shards whose inner chunks, behind `codecs`, hold anything."""
    metadata = document([sharding(codecs)], SHAPE, (16, 32))
    fill_value = False if data_type == "bool" else 0
    metadata |= {"data_type": data_type, "fill_value": fill_value}
    objects = {"zarr.json": json.dumps(metadata).encode()}
    a = gpushard.open_array(OneObject(objects))
    chain, why = choose_chain(a.source)
    assert not why
    nbytes = chain.encoded_nbytes or _ANY_NBYTES
    entries = [(k * nbytes, nbytes) for k in range(PER_SHARD)]
    index = np.array(entries, "<u8").tobytes()
    shard = bytes(PER_SHARD * nbytes) + index
    shard += crc32c.crc32c(index).to_bytes(4, "little")
    objects |= {f"c/0/{k}": shard for k in range(N_SHARDS)}
    return a


def totals_of(compressor):
    """Streams of frames that each make all the work that their codec can."""
    found = np.zeros((3, len(StreamClass)), np.uint64)
    cname, _, shuffle = compressor.removeprefix("blosc ").partition(", ")
    found[:, StreamClass.RAW] = 1
    found[:, slice(None) if cname == "any" else StreamClass[cname.upper()]] = 1
    shuffles = "shuffle", "bitshuffle"
    n_shuffled = np.array([shuffle in (name, "any") for name in shuffles], np.uint64)
    return np.concatenate([found.reshape(-1), n_shuffled])


def idle(compressor):
    """A device for arrays of a compressor: "zstd", or "blosc lz4, shuffle"."""
    device = IdleDevice(_KERNELS, load_standin())
    if compressor.startswith("blosc"):
        device.totals = totals_of(compressor)
    return device


def n_driver_calls(a, key, device, max_rows):
    """Calls that a read takes. A slab that is made anew is of no batch: not counted."""
    taken = []
    device.refuses = lambda kind, _: taken.append(kind)
    _, job = read_on_device(a, [key], device, max_rows=max_rows)
    assert job.sink.decodes
    return device.n_calls - len(taken) + taken.count("launch")
