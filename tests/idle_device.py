"""A device that is asked for everything and does nothing, to count what is asked.

Stored objects may hold anything, so that any chain is read without being encoded.
"""

from __future__ import annotations

import json
from copy import copy
from functools import cache

import crc32c
import numpy as np

import gpushard
from cuda_host.device import EmulatedDevice
from fuzz.shard_cases import OneObject, document, sharding
from gpushard.devices.nvcomp import Nvcomp
from gpushard.devices.reading import choose_chain
from gpushard.devices.row_tables import TOTALS_NBYTES

N_SHARDS, PER_SHARD = 2, 4
SHAPE = (16, 32 * N_SHARDS)
_ANY_NBYTES = 100


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
        self.queue(stream, "kernel", kernel, _nothing)

    def download(self, data, address, stream):
        answer = self.totals if data.nbytes == TOTALS_NBYTES else np.zeros(1, "u1")

        def run():
            data[:] = answer.view("u1")

        self.queue(stream, "download", str(data.nbytes), run)


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
