"""The tables of a batch's rows, where their places on the page say that they lie."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import zstandard

from array_strategies import codec
from fuzz.shard_cases import LITTLE
from gpushard.device_reading.choice import choose_chain
from gpushard.devices.decoding.row_tables import (
    DUMMIES,
    DUMMY_CAPACITY,
    LANDING,
    SCRATCH_NBYTES,
    TOTALS_NBYTES,
    EncodedRows,
    RowTables,
)
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.slabs import TablePage
from gpushard.devices.structs import FAST_DIVISOR
from idle_device import opened

N_ROWS, ADDRESS = 3, 1 << 40
SRC, NBYTES = np.array([7, 8, 9], np.uint64), np.array([70, 80, 90])
PLACES = [np.arange(N_ROWS) + first for first in (100, 200, 300)]

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


SHUFFLED = [LITTLE, codec("numcodecs.shuffle", elementsize=4)]
COMPRESSED = [
    codec("numcodecs.delta", dtype="<i4", astype="<i2"),
    LITTLE,
    codec("numcodecs.shuffle", elementsize=2),
    codec("numcodecs.zlib", level=1),
]


def laid(codecs=COMPRESSED, n_rows=N_ROWS):
    """A page with tables behind other columns, the tables, and the chain."""
    chain, _ = choose_chain(opened(codecs, "int32").source)
    page = TablePage()
    page.add(np.ones(5, np.uint8))
    encoded = EncodedRows(np.resize(SRC, n_rows), np.resize(NBYTES, n_rows))
    places = [np.resize(column, n_rows) for column in PLACES]
    return page, RowTables.lay(page, chain, encoded, places).at(ADDRESS), chain


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
    for k, nbytes in enumerate(sizes[:-1]):
        assert at(tables.sizes_after(k)).tolist() == [nbytes] * N_ROWS
    numbers = [at(address, "u4").tolist() for address in tables.filters_of(1)]
    assert numbers == [[1] * N_ROWS, [2] * N_ROWS, [sizes[1]] * N_ROWS]
    for k in (0, 1, LANDING):
        assert at(tables.place(k)).tolist() == PLACES[k].tolist()
    assert at(tables.status, "u4").tolist() == [0] * N_ROWS
    assert tables.scratch - ADDRESS >= page.upload_nbytes


def test_rows_with_the_same_places_have_one_table_of_them():
    arena, landing = PLACES[0], PLACES[2]
    chain, _ = choose_chain(opened(COMPRESSED, "int32").source)
    page = TablePage()
    encoded = EncodedRows(SRC, NBYTES)
    tables = RowTables.lay(page, chain, encoded, [arena, arena, landing])
    assert tables.place(0) == tables.place(1) != tables.place(LANDING)
    memory = page.packed()
    for k, column in ((1, arena), (LANDING, landing)):
        at = tables.place(k)
        assert memory[at : at + 8 * N_ROWS].view("u8").tolist() == column.tolist()


@pytest.mark.parametrize("codecs", [COMPRESSED, SHUFFLED], ids=["steps", "planes"])
def test_tables_share_no_byte_and_begin_where_a_gpu_loads_their_items(codecs):
    """A GPU faults at addresses that are no multiple of what it loads; x86 does not."""
    n_rows = 1001  # odd, and so many that rows take more than what is left over
    page, tables, chain = laid(codecs, n_rows)
    words = [tables.src, tables.src_nbytes]
    words += [tables.sizes_after(k) for k in range(tables.n_steps - 1)]
    words += [tables.place(k) for k in (0, 1, LANDING)]
    shuffles = [k for k, step in enumerate(chain.steps) if step.kind.value == "shuffle"]
    halves = [tables.status, *(at for k in shuffles for at in tables.filters_of(k))]
    assert max(4 * 8, FAST_DIVISOR.itemsize + 48) <= SCRATCH_NBYTES
    spans = [
        *((at, 8 * n_rows, 8) for at in words),
        *((at, 4 * n_rows, 4) for at in halves),
        *((tables.dummy(kind), len(DUMMIES[kind]), 16) for kind in DUMMIES),
        (tables.totals, TOTALS_NBYTES + 8, 8),
        (tables.n_realigned, 8, 8),
        (tables.scratch, SCRATCH_NBYTES * n_rows, 16),
        (tables.dummy_dst, DUMMY_CAPACITY, 16),
    ]
    if chain.fused_nbytes:
        spans.append((tables.planes, FAST_DIVISOR.itemsize * n_rows, 4))
    spans.sort()
    assert [at % alignment for at, _, alignment in spans] == [0] * len(spans)
    ends = [at + nbytes for at, nbytes, _ in spans]
    assert all(end <= at for end, (at, *_) in zip(ends, spans[1:], strict=False))
    assert ends[-1] <= ADDRESS + page.nbytes


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
