"""What a batch on a device asks of the driver: at most 20 calls, whatever the chain.

Calls of every combination of codecs are counted on a device that runs no kernel; that
it is asked for the same as one that does is a test here.
"""

from __future__ import annotations

import numpy as np
import pytest

from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fuzz.shard_cases import CRC, LITTLE, OneObject, blosc, document, sharding
from gpushard import open_array
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole
from idle_device import SHAPE, idle, n_driver_calls, opened
from zarr_oracle import assert_same_bits, write

MOST_CALLS = 20
COMPRESSORS = {
    "none": [],
    "zstd": [codec("zstd", level=1, checksum=True)],
    "numcodecs.zstd": [codec("numcodecs.zstd", level=1)],
    "numcodecs.lz4": [codec("numcodecs.lz4", acceleration=1)],
    "gzip": [codec("gzip", level=1)],
    "numcodecs.gzip": [codec("numcodecs.gzip", level=1)],
    "numcodecs.zlib": [codec("numcodecs.zlib", level=1)],
} | {
    f"blosc {cname}, {shuffle}": [blosc(cname, shuffle)]
    for cname in ("lz4", "snappy", "zlib", "zstd")
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
}
# What an array holds whose frames were written with all compressors and both shuffles.
COMPRESSORS["blosc any, any"] = [blosc("zstd", "shuffle")]
FLOATS, INTEGERS = "float32", "int32"
SCALED = codec(
    "numcodecs.fixedscaleoffset", scale=1, offset=0, dtype="<f4", astype="<i4"
)
DELTA = codec("numcodecs.delta", dtype="<i4")
SHUFFLE = codec("numcodecs.shuffle", elementsize=4)
FILTERS = {
    "none": (FLOATS, [LITTLE]),
    "big-endian": (FLOATS, [codec("bytes", endian="big")]),
    "transpose": (FLOATS, [codec("transpose", order=[1, 0]), LITTLE]),
    "bitround": (FLOATS, [codec("numcodecs.bitround", keepbits=9), LITTLE]),
    "delta": (INTEGERS, [DELTA, LITTLE]),
    "delta of floats": (FLOATS, [codec("numcodecs.delta", dtype="<f4"), LITTLE]),
    "fixedscaleoffset": (FLOATS, [SCALED, LITTLE]),
    "packbits": ("bool", [codec("numcodecs.packbits"), LITTLE]),
    "shuffle": (INTEGERS, [LITTLE, SHUFFLE]),
    "delta, shuffle": (INTEGERS, [DELTA, LITTLE, SHUFFLE]),
    "fixedscaleoffset, delta": (FLOATS, [SCALED, DELTA, LITTLE]),
    "three": (FLOATS, [SCALED, DELTA, LITTLE, SHUFFLE]),
}
# As many as there are with every filter; as few, which asks for less, without.
CHAINS = [*((f, [CRC], [CRC]) for f in FILTERS.values()), (FILTERS["none"], [], [])]
KERNELS = Kernels()

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


def calls_a_batch(a, make):
    """Calls that each further batch of an inner chunk takes, on devices of `make`."""
    counted = []
    for n_batches in (1, 3):
        key = expressions.basic(np.s_[:8, : 16 * n_batches], a.shape)
        counted.append(n_driver_calls(a, key, make(), max_rows=1))
    return (counted[1] - counted[0]) / 2


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_batch_of_any_chain_takes_at_most_20_driver_calls(compressor):
    # All frames of Blosc are undone alike: each has a third of the filters.
    n = [*COMPRESSORS].index(compressor)
    is_one_of_many = compressor.startswith("blosc") and "any" not in compressor
    chains = CHAINS[n % 3 :: 3] if is_one_of_many else CHAINS
    for (dtype, filters), ahead, behind in chains:
        a = opened([*filters, *ahead, *COMPRESSORS[compressor], *behind], dtype)
        n_calls = calls_a_batch(a, lambda: idle(compressor))
        assert 5 <= n_calls <= MOST_CALLS, a.source.layout.chain


@pytest.mark.parametrize(
    "codecs",
    [
        [LITTLE],
        [LITTLE, CRC, *COMPRESSORS["zstd"], CRC],
        [DELTA, LITTLE, SHUFFLE, *COMPRESSORS["numcodecs.zlib"]],
        [LITTLE, CRC, blosc("zlib", "bitshuffle", 256), CRC],
    ],
    ids=["none", "zstd", "zlib", "blosc"],
)
def test_a_device_that_decodes_is_asked_for_the_same(codecs):
    values = np.random.default_rng(3).integers(0, 2**31, SHAPE, "i4")
    values[4:8] = 7  # frames have blocks that are stored, and others
    metadata = document([sharding(codecs)], SHAPE, (16, 32))
    a = open_array(OneObject(write(metadata, [(..., values)]).objects))
    device = EmulatedDevice(KERNELS, load_standin())
    results, _ = read_on_device(a, [whole(a.shape)], device)
    assert_same_bits(results[0], values)
    real = calls_a_batch(a, lambda: EmulatedDevice(KERNELS, load_standin()))
    is_blosc = "blosc" in str(codecs)
    assert real == calls_a_batch(
        a, lambda: idle("blosc zlib, bitshuffle" if is_blosc else "none")
    )
