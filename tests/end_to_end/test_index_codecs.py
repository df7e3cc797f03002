"""Shard indexes behind any codecs of fixed size."""

from __future__ import annotations

import struct

import crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec
from zarr.registry import register_codec
from zarr.storage import MemoryStore

import gpushard
from array_strategies import codec
from gpushard import Options
from spec_shards import BIG, CRC, EMPTY, LITTLE, document, opened, sharding
from zarr_oracle import assert_same_bits

# zarr warns of every codec that has no specification yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

CHUNKS = [b"ab", b"cdef", b"", b"gh"]
DECODED = b"ab" + b"cd" + b"\0\0" + b"gh"
ENTRIES = np.array([[0, 2], [2, 2], [EMPTY, EMPTY], [6, 2]], np.uint64)

ASTYPE = codec("numcodecs.astype", encode_dtype="<i8", decode_dtype="<u8")
NARROW = codec("numcodecs.astype", encode_dtype="<u2", decode_dtype="<u8")
DELTA = codec("numcodecs.delta", dtype="<u8")
SCALED = codec("numcodecs.fixedscaleoffset", offset=0, scale=1, dtype="<u8")
AS_FLOAT = codec("numcodecs.astype", encode_dtype="<f8", decode_dtype="<u8")
TO_FLOAT = codec("numcodecs.astype", encode_dtype="<u8", decode_dtype="<f8")
QUANTIZED = codec("numcodecs.quantize", digits=0, dtype="<f8")
ROUNDED = codec("numcodecs.bitround", keepbits=20)


def with_crc(raw: bytes) -> bytes:
    return raw + struct.pack("<I", crc32c.crc32c(raw))


def read_with(index_codecs, index: bytes, location="end", n=0):
    """Array of four inner chunks of two bytes, whose index is stored as `index`."""
    chain = sharding([2], index_codecs=index_codecs, index_location=location)
    payload = b"".join(CHUNKS)
    shard = payload + index if location == "end" else index + payload
    return opened(
        document([8], [8], chain), Options(small_read_chunks=n), **{"0": shard}
    )


def skip_astype_of_zarr_310(index_codecs):
    if "numcodecs.astype" in str(index_codecs) and zarr.__version__ == "3.1.0":
        pytest.skip("zarr 3.1.0 cannot follow a data type through numcodecs.astype")


def test_an_index_that_codecs_make_smaller_is_held_to_its_decoded_size():
    """Its 32 entries of four bytes are decoded to 16 each."""
    skip_astype_of_zarr_310([NARROW])
    meta = document([64], [64], sharding([2], index_codecs=[NARROW, LITTLE]))
    opened(meta, Options(max_index_nbytes=32 * 16))
    with pytest.raises(gpushard.LimitError, match="index is too large"):
        opened(meta, Options(max_index_nbytes=32 * 16 - 1))


def test_an_index_that_codecs_make_smaller_needs_room_for_its_decoded_size():
    """Its 262,144 entries are stored in 1 MiB, and the limit leaves room for 2 MiB."""
    skip_astype_of_zarr_310([NARROW])
    n = 1 << 19
    chain = sharding([2], index_codecs=[NARROW, LITTLE])
    options = Options(memory_limit=1)
    a = opened(document([n], [n], chain), options, **{"0": bytes(n * 2)})
    with pytest.raises(gpushard.LimitError, match="a shard index takes more"):
        a[...]


@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize(
    ("index_codecs", "index"),
    [
        ([ASTYPE, LITTLE], ENTRIES.astype("<i8").tobytes()),
        ([ASTYPE, BIG, CRC], with_crc(ENTRIES.astype("<i8").astype(">i8").tobytes())),
        (
            [DELTA, LITTLE],
            numcodecs.Delta("<u8").encode(ENTRIES.reshape(-1)).tobytes(),
        ),
    ],
)
def test_codecs_that_keep_the_size_of_an_entry_are_undone(index_codecs, index, n):
    skip_astype_of_zarr_310(index_codecs)
    assert read_with(index_codecs, index, n=n)[...].tobytes() == DECODED


@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    ("index_codecs", "stored"),
    [
        ([NARROW, LITTLE], "<u2"),
        ([NARROW, BIG, CRC], ">u2"),
        ([codec("numcodecs.delta", dtype="<u8", astype="<i2"), LITTLE], "delta"),
        ([{**SCALED, "configuration": {**SCALED["configuration"], "astype": "<u2"}},
          LITTLE, CRC], "<u2"),
        ([AS_FLOAT, QUANTIZED, ROUNDED, LITTLE], "<f8"),
        ([AS_FLOAT, codec("transpose", order=[1, 0]), LITTLE], "turned"),
    ],
)  # fmt: skip
def test_codecs_that_change_the_size_of_an_entry_are_undone(
    index_codecs, stored, location, n
):
    skip_astype_of_zarr_310(index_codecs)
    # No sentinel fits into elements so small, so all inner chunks are there.
    entries = np.array([[0, 2], [2, 2], [4, 2], [6, 2]], np.uint64)
    n_trailer = 4 if CRC in index_codecs else 0
    itemsize = {"delta": 2, "turned": 8}.get(stored) or np.dtype(stored).itemsize
    if location == "start":
        entries[:, 0] += np.uint64(8 * itemsize + n_trailer)
    flat = entries.reshape(-1)
    if stored == "delta":
        index = numcodecs.Delta("<u8", "<i2").encode(flat).tobytes()
    elif stored == "turned":
        index = entries.T.astype("<f8").tobytes()
    else:
        index = flat.astype(stored).tobytes()
    index = with_crc(index) if n_trailer else index
    a = read_with(index_codecs, index, location, n)
    assert a[...].tobytes() == b"abcdefgh"
    assert a[3:5].tobytes() == b"de"
    assert a.source.layout.levels[0].index_nbytes(4) == len(index)


@pytest.mark.parametrize(
    ("index_codecs", "got"),
    [
        ([TO_FLOAT, LITTLE], "another data type"),
        ([codec("numcodecs.quantize", digits=1, dtype="<u8"), LITTLE], "only floating"),
        (
            [codec("numcodecs.delta", dtype="<u4"), LITTLE],
            "another data type",
        ),
    ],
)
def test_codecs_that_cannot_encode_an_index_are_refused_at_open(index_codecs, got):
    skip_astype_of_zarr_310(index_codecs)
    with pytest.raises(gpushard.MetadataError, match=got) as caught:
        read_with(index_codecs, ENTRIES.tobytes())
    assert caught.value.json_path.startswith("codecs[0].configuration.index_codecs")


class Doubling(BytesBytesCodec):
    """A codec from elsewhere, which may say how large it makes things."""

    is_fixed_size = True
    name = "doubling"

    def __init__(self, **_configuration):
        pass

    @classmethod
    def from_dict(cls, _data):
        return cls()

    def to_dict(self):
        return {"name": self.name, "configuration": {}}

    def compute_encoded_size(self, input_byte_length, _chunk_spec):
        return 2 * input_byte_length

    async def _decode_single(self, chunk_data, chunk_spec):
        data = chunk_data.to_bytes()
        return chunk_spec.prototype.buffer.from_bytes(data[: len(data) // 2])

    async def _encode_single(self, chunk_data, chunk_spec):
        data = chunk_data.to_bytes()
        return chunk_spec.prototype.buffer.from_bytes(data + data)


class Squeezing(Doubling):
    """The same, but it cannot say."""

    is_fixed_size = False
    name = "squeezing"


class Padding(Doubling):
    """The same, and a size that does not grow with each byte."""

    name = "padding"

    def compute_encoded_size(self, input_byte_length, _chunk_spec):
        return -(-input_byte_length // 64) * 64


register_codec("doubling", Doubling)
register_codec("padding", Padding)
register_codec("squeezing", Squeezing)


def test_a_fixed_size_codec_that_someone_registered_is_undone_by_zarr():
    index = with_crc(ENTRIES.tobytes()) * 2
    a = read_with([LITTLE, CRC, codec("doubling")], index)
    assert a[...].tobytes() == DECODED
    level = a.source.layout.levels[0]
    assert level.index_size == (32, 8)


@pytest.mark.parametrize(
    ("index_codecs", "at", "name"),
    [
        ([LITTLE, CRC, codec("squeezing")], "[2]", "squeezing"),
        ([LITTLE, codec("zstd", level=1, checksum=False)], "[1]", "zstd"),
        ([codec("vlen-bytes")], "[0]", "vlen-bytes"),
        ([NARROW, LITTLE, codec("numcodecs.lz4")], "[2]", "numcodecs.lz4"),
    ],
)
def test_a_codec_of_variable_size_is_refused_by_name_at_open(index_codecs, at, name):
    with pytest.raises(gpushard.MetadataError, match="no fixed encoded size") as caught:
        read_with(index_codecs, b"")
    assert caught.value.json_path == f"codecs[0].configuration.index_codecs{at}"
    assert caught.value.got == name


def test_codecs_that_give_no_fixed_number_of_bytes_an_entry_are_refused():
    as_bool = codec("numcodecs.astype", encode_dtype="|b1", decode_dtype="<u8")
    packed = codec("numcodecs.packbits")
    skip_astype_of_zarr_310([as_bool])
    with pytest.raises(gpushard.MetadataError) as caught:
        read_with([as_bool, packed, codec("bytes")], b"")
    assert caught.value.json_path == "codecs[0].configuration.index_codecs"
    assert "numcodecs.packbits" in str(caught.value)


def test_a_codec_that_pads_an_index_is_refused_at_open():
    with pytest.raises(gpushard.MetadataError, match="for each entry") as caught:
        read_with([LITTLE, codec("padding")], b"")
    assert caught.value.json_path == "codecs[0].configuration.index_codecs"
    assert caught.value.got == ["bytes", "padding"]


def test_a_wrong_configuration_is_refused_at_open_with_its_path():
    with pytest.raises(gpushard.MetadataError) as caught:
        read_with([ROUNDED, LITTLE], b"")
    path = "codecs[0].configuration.index_codecs[0].configuration"
    assert caught.value.json_path == path


def test_a_scaled_index_is_undone_where_zarr_has_the_codec():
    pytest.importorskip(
        "zarr.codecs.scale_offset", reason="this zarr has no such codec"
    )
    entries = np.array([[0, 2], [2, 2], [4, 2], [6, 2]], np.uint64)
    scaled = codec("scale_offset", offset=0, scale=3)
    index = with_crc((entries * np.uint64(3)).tobytes())
    assert read_with([scaled, LITTLE, CRC], index)[...].tobytes() == b"abcdefgh"


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("which", ["scale_offset", "cast_value", "turned"])
def test_arrays_whose_index_zarr_scales_or_casts_read_alike(which, location):
    pytest.importorskip(
        "zarr.codecs.scale_offset", reason="this zarr has no such codec"
    )
    if which != "scale_offset":
        pytest.importorskip("cast_value_rs", reason="what zarr casts with")
    values = np.arange(1, 97, dtype="i4").reshape(8, 12)
    values[2:4, 3:6] = 0  # an inner chunk that is not there
    values[4:, :6] = 0  # a shard that is not there
    objects: dict[str, object] = {}
    stored = zarr.create_array(
        MemoryStore(objects),
        shape=values.shape,
        chunks=(4, 6),
        dtype="i4",
        serializer=ShardingCodec(
            chunk_shape=(2, 3),
            codecs=[BytesCodec()],
            index_codecs=zarr_index_codecs(which),
            index_location=location,
        ),
        compressors=None,
        filters=None,
    )
    stored[...] = values
    for n in (0, 8):
        options = Options(small_read_chunks=n)
        a = gpushard.open_array(MemoryStore(objects), options=options)
        assert_same_bits(a[...], stored[...])
        assert_same_bits(a[1, 3:5], stored[1, 3:5])
        entry_nbytes = {"cast_value": 8, "turned": 4}.get(which, 16)
        assert a.source.layout.levels[0].index_nbytes(4) == 4 * entry_nbytes + 4


def zarr_index_codecs(which):
    """Index codecs as zarr's own objects."""
    if which == "scale_offset":
        from zarr.codecs.scale_offset import ScaleOffset

        return [ScaleOffset(offset=0, scale=1), BytesCodec(), Crc32cCodec()]
    from zarr.codecs.cast_value import CastValue

    bits = 32 if which == "cast_value" else 16
    small = 2**bits - 1
    cast = CastValue(
        data_type=f"uint{bits}",
        scalar_map={"encode": [[EMPTY, small]], "decode": [[small, EMPTY]]},
    )
    turned = [TransposeCodec(order=(2, 1, 0))] if which == "turned" else []
    return [cast, *turned, BytesCodec(endian="big"), Crc32cCodec()]
