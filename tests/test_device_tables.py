"""The tables of a batch's rows, where their places on the page say that they lie."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import zstandard

from array_strategies import codec
from fuzz.shard_cases import LITTLE
from gpushard.devices.choice import choose_chain
from gpushard.devices.decoding.row_tables import DUMMIES, LANDING, RowTables
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from idle_device import opened

N_ROWS, ADDRESS = 3, 1 << 40
SRC, NBYTES = np.array([7, 8, 9], np.uint64), np.array([70, 80, 90])
PLACES = [np.arange(N_ROWS) + first for first in (100, 200, 300)]

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


def laid():
    """A page with tables behind other columns, the tables, and the chain."""
    packed = codec("numcodecs.delta", dtype="<i4", astype="<i2")
    compressed = codec("numcodecs.zlib", level=1)
    shuffle = codec("numcodecs.shuffle", elementsize=2)
    a = opened([packed, LITTLE, shuffle, compressed], "int32")
    chain, _ = choose_chain(a.source)
    page = TablePage()
    page.add(np.ones(5, np.uint8))
    return page, RowTables.lay(page, chain, (SRC, NBYTES), PLACES).at(ADDRESS), chain


def test_each_table_of_the_rows_lies_where_it_is_said_to():
    page, tables, chain = laid()
    memory = page.packed()

    def at(address, dtype="u8"):
        first = address - ADDRESS
        return memory[first : first + N_ROWS * np.dtype(dtype).itemsize].view(dtype)

    assert at(tables.src).tolist() == SRC.tolist()
    assert at(tables.src_nbytes).tolist() == NBYTES.tolist()
    sizes = [step.decoded_nbytes for step in chain.steps]
    assert len(set(sizes)) == 2
    for k, nbytes in enumerate(sizes):
        assert at(tables.sizes_after(k)).tolist() == [nbytes] * N_ROWS
    numbers = [at(address, "u4").tolist() for address in tables.filters_of(1)]
    assert numbers == [[1] * N_ROWS, [2] * N_ROWS, [sizes[1]] * N_ROWS]
    for k in (0, 1, LANDING):
        assert at(tables.place(k)).tolist() == PLACES[k].tolist()
    assert at(tables.status, "u4").tolist() == [0] * N_ROWS
    assert tables.scratch - ADDRESS >= page.upload_nbytes


def test_each_decoder_has_a_stream_of_its_own_format_for_refused_ones():
    page, tables, _ = laid()
    memory = page.packed()
    decode = {
        Algorithm.ZSTD: zstandard.decompress,
        Algorithm.LZ4: lambda block: block[1:],
        Algorithm.DEFLATE: lambda stream: zlib.decompress(stream, wbits=-15),
        Algorithm.GZIP: lambda stream: zlib.decompress(stream, wbits=31),
    }
    for algorithm, stream in DUMMIES.items():
        first = tables.dummy(algorithm) - ADDRESS
        assert len(decode[algorithm](bytes(memory[first : first + len(stream)]))) == 1
