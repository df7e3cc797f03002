"""Streams of shuffled bytes (`numcodecs.shuffle`) are read in the compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from fused_cases import (
    CRC,
    FUSED,
    LITTLE,
    SHUFFLE,
    ZSTD,
    assert_all_fused,
    need_fast_packages,
)
from gpushard.fused.chain import fused_chain
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, held, write

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

# Inner chunks of 192 bytes.
VALUES = np.arange(24 * 24, dtype="i4").reshape(24, 24) * 70_001
COMPRESSORS = {
    "zstd": [ZSTD],
    "zlib": [codec("numcodecs.zlib", level=1)],
    "lz4, crc32c": [codec("numcodecs.lz4", acceleration=1), CRC],
    "blosc": [
        codec(
            "blosc",
            cname="lz4",
            clevel=5,
            shuffle="noshuffle",
            typesize=1,
            blocksize=64,
        )
    ],
}


def opened(chain):
    wanted = document(
        (24, 24), (12, 24), sharding((6, 8), codecs=[LITTLE, *chain]), dtype="int32"
    )
    stored = write(wanted, [(..., VALUES)])
    return gpushard.open_array(held(stored.objects), options=FUSED)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("element_nbytes", [2, 3, 4, 6, 8, 12, 16])
def test_elements_of_any_size_are_put_together(compressor, element_nbytes, seen):
    shuffle = codec("numcodecs.shuffle", elementsize=element_nbytes)
    a = opened([shuffle, *COMPRESSORS[compressor]])
    chain = fused_chain(a.source)
    assert chain is not None
    assert chain.shuffle_itemsize == element_nbytes
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[::-3, 5:20:2], VALUES[::-3, 5:20:2])
    # One row of an inner chunk, of which all is decoded.
    assert_same_bits(a[7], VALUES[7])
    assert_same_bits(a.read(np.s_[2:5], dtype="f8"), VALUES[2:5].astype("f8"))
    assert_all_fused(seen)


def test_single_bytes_are_in_their_own_order(seen):
    a = opened([codec("numcodecs.shuffle", elementsize=1), ZSTD])
    chain = fused_chain(a.source)
    assert chain is not None
    assert chain.shuffle_itemsize == 0
    assert_same_bits(a[...], VALUES)
    assert_all_fused(seen)


@pytest.mark.parametrize("chain", [[SHUFFLE], [SHUFFLE, CRC]])
def test_a_shuffle_without_a_compressor_behind_it_goes_the_plain_way(chain):
    a = opened(chain)
    assert fused_chain(a.source) is None
    assert_same_bits(a[...], VALUES)
