"""Memory that decoding an inner chunk may take, and what it says that it needs."""

from __future__ import annotations

import json

import numcodecs.blosc
import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from numcodecs import VLenUTF8

import gpushard
from gpushard import CorruptShardError, LimitError, Options
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.options import GIB, MIB
from gpushard.pipeline import HostPipeline, NoRoomError
from spec_shards import document
from zarr_oracle import held

STRING = np.dtypes.StringDType()
TEXTS = np.array(["abc" * k for k in range(50)], object)
STREAM = bytes(VLenUTF8().encode(TEXTS))


def of_numbers(*bytes_bytes: str, delta: bool = False, endian: str = "little"):
    filters = (CodecSpec("numcodecs.delta", {"dtype": "<i4"}),) if delta else ()
    after = tuple(CodecSpec(name) for name in bytes_bytes)
    chain = CodecChain(filters, CodecSpec("bytes", {"endian": endian}), after)
    elements = Elements(np.dtype("<i4"), "int32", 0, np.zeros((), "<i4"))
    return HostPipeline.compile(chain, elements)


def test_elements_for_a_filter_are_copied_if_they_are_not_native():
    assert of_numbers().working_nbytes((5, 20)) == 0
    assert of_numbers(endian="big").working_nbytes((5, 20)) == 0
    assert of_numbers(delta=True).working_nbytes((5, 20)) == 400
    assert of_numbers(delta=True, endian="big").working_nbytes((5, 20)) == 800


def test_a_blosc_frame_needs_three_blocks_beside_what_it_decodes_to():
    assert of_numbers("blosc").working_nbytes((1000,)) == 4 * 4000
    assert of_numbers("blosc").working_nbytes((4, MIB)) == 16 * MIB + 3 * MIB
    assert of_numbers("crc32c").working_nbytes((1000,)) == 0


def test_a_part_of_a_frame_behind_a_checksum_is_decoded_within_its_room():
    values = np.arange(1 << 16, dtype="<i4")
    frame = numcodecs.blosc.compress(values, b"lz4", 5, 1, 8192)
    stored = frame + crc32c(frame).to_bytes(4, "little")
    pipeline = of_numbers("blosc", "crc32c")
    needed = pipeline.working_nbytes(values.shape)
    found = pipeline.decode(stored, values.shape, (4000, 8000), needed)
    assert np.array_equal(found[1000:2000], values[1000:2000])
    with pytest.raises(NoRoomError):
        pipeline.decode(stored, values.shape, (4000, 8000), needed - 1)


def of_text(*bytes_bytes: str) -> HostPipeline:
    after = tuple(CodecSpec(name) for name in bytes_bytes)
    chain = CodecChain((), CodecSpec("vlen-utf8", {}, "codecs[0]"), after)
    return HostPipeline.compile(chain, Elements(STRING, "string", "", np.array("")))


def test_text_needs_room_for_each_string_and_for_eight_copies_of_its_bytes():
    pipeline, shape = of_text(), TEXTS.shape
    working = pipeline.working_nbytes(shape)
    assert working >= len(TEXTS) * (len(TEXTS[0]) + 100)
    needed = working + 8 * len(STREAM)
    with pytest.raises(NoRoomError) as caught:
        pipeline.decode(STREAM, shape, room_nbytes=needed - 1)
    assert caught.value.nbytes == needed
    assert pipeline.decode(STREAM, shape, room_nbytes=needed).tolist() == [*TEXTS]


def test_text_behind_a_checksum_that_does_not_fit_is_not_told_as_damaged():
    noise = np.array([np.random.default_rng(6).bytes(100_000).hex()], object)
    encoded = zstandard.ZstdCompressor().compress(bytes(VLenUTF8().encode(noise)))
    stored = encoded + crc32c(encoded).to_bytes(4, "little")
    pipeline = of_text("zstd", "crc32c")
    working = pipeline.working_nbytes((1,))
    for room in (0, working, working + 8 * 10_000, working + 8 * 200_000):
        with pytest.raises(NoRoomError) as caught:
            pipeline.decode(stored, (1,), room_nbytes=room)
        assert caught.value.nbytes > room
    found = pipeline.decode(stored, (1,), room_nbytes=working + 8 * 200_008)
    assert found.tolist() == [*noise]


def test_text_that_is_stored_in_more_bytes_than_the_cap_asks_for_a_larger_one():
    with pytest.raises(CorruptShardError, match="or raise options"):
        of_text().refuse_oversized(2 * GIB + 1, (4,))
    with pytest.raises(CorruptShardError, match=r"write it again\.$"):
        of_numbers().refuse_oversized(2 * GIB, (4,))


def test_text_beyond_a_memory_limit_is_refused_with_more_bytes_than_the_limit():
    n, text = 300_000, b"twenty bytes of text"
    record = len(text).to_bytes(4, "little") + text
    wanted = document((n,), (n,), {"name": "vlen-utf8"}, dtype="string", fill_value="")
    objects = {
        "zarr.json": json.dumps(wanted).encode(),
        "c/0": n.to_bytes(4, "little") + n * record,
    }
    a = gpushard.open_array(held(objects), options=Options(memory_limit=64 * MIB))
    with pytest.raises(LimitError) as caught:
        a[:3]
    assert caught.value.expected == f"at most {64 * MIB} bytes"
    assert int(str(caught.value.got).split()[0]) > 64 * MIB
