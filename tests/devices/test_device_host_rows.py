"""Inner chunks that the host decodes for a device, in compiled loops or in Python."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import TransposeCodec as Turned
from zarr.storage import LocalStore, WrapperStore

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import emulated
from gpushard.device_reading import host_rows
from gpushard.device_reading.choice import choose_chain
from gpushard.devices.decoding import chain as device_chain
from gpushard.devices.placement import HOST_ROW_S, LOOPS_ROW_S
from gpushard.fused.rows import RowDecoder
from gpushard.selecting.expressions import basic
from gpushard.selecting.selection import whole
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

COMPILED = gpushard.Options(compile_nbytes=0)
SHAPE, INNER, SHARD = (40, 70), (8, 10), (16, 20)
CODECS = {
    "raw": [],
    "crc": [Crc32cCodec()],
    "zstd": [ZstdCodec()],
    "zstd-crc": [ZstdCodec(), Crc32cCodec()],
    "blosc": [BloscCodec(cname="lz4")],
    "gzip": [GzipCodec()],
}


def stored(place, values, codecs, *, order=None, endian="little"):
    made = zarr.create_array(
        place,
        shape=values.shape,
        chunks=INNER,
        shards=SHARD,
        dtype=values.dtype,
        filters=[Turned(order=order)] if order else None,
        serializer=BytesCodec(endian=endian),
        compressors=codecs or None,
        fill_value=values.dtype.type(3),
    )
    made[...] = values
    return gpushard.open_array(place, options=COMPILED)


def read(a, selection):
    """Result of a read whose inner chunks the host decodes, and its job."""
    results, job = read_on_device(a, [selection], emulated(), placement="host")
    return results[0], job


@pytest.fixture
def left(monkeypatch):
    """Inner chunks that Python decodes, by column, in the reads of a test."""
    found = []
    plain = host_rows.decode_row

    def decode_row(job, block, column, encoded):
        found.append(column)
        return plain(job, block, column, encoded)

    monkeypatch.setattr(host_rows, "decode_row", decode_row)
    return found


def values_of(dtype):
    rng = np.random.default_rng(5)
    if dtype == "bool":
        return rng.integers(0, 2, SHAPE).astype(bool)
    return rng.integers(0, 100, SHAPE).astype(dtype)


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float32", "complex128"])
def test_the_loops_decode_every_row_to_what_the_device_would(
    tmp_path, left, codecs, dtype
):
    values = values_of(dtype)
    a = stored(tmp_path, values, CODECS[codecs])
    got, job = read(a, whole(a.shape))
    assert_same_bits(got, values)
    assert job.tally.counts["n_decoded_on_host"] == 5 * 7
    assert not left


@pytest.mark.parametrize("order", [None, (1, 0)])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_stored_axes_and_byte_order_are_left_to_the_kernel(
    tmp_path, left, order, endian
):
    values = values_of("float32")
    a = stored(tmp_path, values, CODECS["zstd"], order=order, endian=endian)
    got, _ = read(a, whole(a.shape))
    assert_same_bits(got, values)
    assert not left


@pytest.mark.parametrize("endian", ["little", "big"])
def test_rows_that_no_device_decodes_are_native_whoever_decodes_them(
    tmp_path, left, monkeypatch, endian
):
    monkeypatch.setattr(device_chain, "MAX_STREAM_NBYTES", 10)
    values = values_of("float32")
    a = stored(tmp_path, values, CODECS["gzip"], endian=endian)
    got, _ = read(a, whole(a.shape))
    assert_same_bits(got, values)
    # The loops leave elements in their stored order, so Python turns the bytes around.
    assert bool(left) == (endian == "big")


def test_a_damaged_row_is_left_to_python_and_named(tmp_path, left):
    values = values_of("int16")
    a = stored(tmp_path, values, CODECS["zstd-crc"])
    shard = tmp_path / "c/0/1"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(gpushard.CorruptShardError) as caught:
        read(a, whole(a.shape))
    assert caught.value.inner_chunk == (0, 2)
    assert len(left) == 1


def test_parts_of_plain_elements_are_left_to_python(tmp_path, left):
    values = values_of("float32")
    a = stored(tmp_path, values, CODECS["raw"])
    got, job = read(a, basic(slice(3, 5), SHAPE))
    assert_same_bits(got, values[3:5])
    assert left
    assert "loops" not in job.tally.notes


def test_a_report_says_what_the_loops_decoded_with(tmp_path):
    stored(tmp_path, values_of("float32"), CODECS["zstd"])
    options = COMPILED.but(placement="host")
    a = gpushard.open_array(tmp_path, device=emulated(), options=options)
    report = a.explain()
    assert report.n_decoded_on_host == 5 * 7
    assert report.loops == "libzstd"


def test_a_distant_store_does_not_have_more_threads_decode(tmp_path, monkeypatch):
    found = []
    decode = RowDecoder.decode

    def counted(self, *columns):
        found.append(columns[-1])
        return decode(self, *columns)

    monkeypatch.setattr(RowDecoder, "decode", counted)
    values = values_of("float32")
    stored(tmp_path, values, CODECS["zstd"])
    place = WrapperStore(LocalStore(tmp_path))  # a kind that is taken for a network
    options = COMPILED.but(threads=4, whole_object_max_nbytes=0)
    a = gpushard.open_array(place, options=options)
    assert a.source.most_workers > 4
    got, _ = read(a, whole(a.shape))
    assert_same_bits(got, values)
    assert set(found) == {4}  # a pool for all lanes


def test_what_no_loop_decodes_costs_the_host_more(tmp_path):
    plain = stored(tmp_path / "a", values_of("float32"), CODECS["zstd"])
    plain[...]  # loads the loops
    chain, _ = choose_chain(plain.source)
    assert host_rows.decoding(chain, plain.source, 3).row_s == LOOPS_ROW_S
    twice = [GzipCodec(), ZstdCodec()]
    other = stored(tmp_path / "b", values_of("float32"), twice)
    chain, _ = choose_chain(other.source)
    assert host_rows.decoding(chain, other.source, 3).row_s == HOST_ROW_S
