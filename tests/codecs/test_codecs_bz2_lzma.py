"""bzip2 and LZMA streams."""

from __future__ import annotations

import bz2
import lzma
import tracemalloc
from typing import Any

import numcodecs
import numpy as np
import pytest

from gpushard import codecs
from gpushard.codecs.base import BytesCodec
from gpushard.errors import CorruptShardError, MetadataError
from gpushard.layout import CodecSpec

RAW = np.arange(3000, dtype="<i4").tobytes()
HALF = len(RAW) // 2
DELTA_FILTERS = [
    {"id": lzma.FILTER_DELTA, "dist": 4},
    {"id": lzma.FILTER_LZMA2, "preset": 1},
]


def codec(name: str, **configuration: Any) -> BytesCodec:
    spec = CodecSpec(f"numcodecs.{name}", configuration, "codecs[1]")
    return codecs.bytes_codec(spec)


@pytest.mark.parametrize(
    ("name", "configuration", "stream"),
    [
        ("bz2", {"level": 1}, numcodecs.BZ2(1).encode(RAW)),
        ("bz2", {}, bz2.compress(RAW[:HALF]) + bz2.compress(RAW[HALF:])),
        ("lzma", {}, numcodecs.LZMA().encode(RAW)),
        ("lzma", {"format": 1}, lzma.compress(RAW[:8]) + lzma.compress(RAW[8:])),
        (
            "lzma",
            {"format": lzma.FORMAT_ALONE},
            lzma.compress(RAW, lzma.FORMAT_ALONE),
        ),
        (
            "lzma",
            {"format": lzma.FORMAT_RAW, "filters": DELTA_FILTERS},
            numcodecs.LZMA(lzma.FORMAT_RAW, filters=DELTA_FILTERS).encode(RAW),
        ),
    ],
)
def test_streams_are_read(name: str, configuration: Any, stream: bytes) -> None:
    decoder = codec(name, **configuration)
    for data in (stream, np.frombuffer(stream, np.uint8)):
        assert bytes(decoder.decode(data, len(RAW), exact=True)) == RAW
        assert bytes(decoder.decode(data, 2 * len(RAW), exact=False)) == RAW
    for off in (-1, 1):
        with pytest.raises(CorruptShardError, match="wrong size"):
            decoder.decode(stream, len(RAW) + off, exact=True)


@pytest.mark.parametrize(
    ("name", "stream"), [("bz2", bz2.compress(RAW)), ("lzma", lzma.compress(RAW))]
)
def test_cuts_and_junk_are_refused(name: str, stream: bytes) -> None:
    damaged = [stream[:nbytes] for nbytes in range(len(stream))]
    damaged += [stream + b"junk", bytes(100)]
    for data in damaged:
        with pytest.raises(CorruptShardError) as caught:
            codec(name).decode(data, len(RAW), exact=True)
        assert caught.value.codec == f"numcodecs.{name}"


@pytest.mark.parametrize("name", ["bz2", "lzma"])
@pytest.mark.parametrize("exact", [True, False])
def test_bombs_cost_no_memory(name: str, exact: bool) -> None:
    zeros = bytes(1 << 24)
    stream = bz2.compress(zeros) if name == "bz2" else lzma.compress(zeros, preset=0)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError, match="wrong size"):
            codec(name).decode(stream, 4096, exact=exact)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_claim_of_a_huge_dictionary_is_refused() -> None:
    stream = bytearray(lzma.compress(RAW, lzma.FORMAT_ALONE))
    stream[1:5] = (3 << 30).to_bytes(4, "little")
    with pytest.raises(CorruptShardError):
        codec("lzma", format=lzma.FORMAT_ALONE).decode(stream, len(RAW), exact=True)


@pytest.mark.parametrize(
    "configuration",
    [
        {"format": 99},
        {"format": "xz"},
        {"format": lzma.FORMAT_RAW},
        {"filters": 5},
        {"filters": [5]},
    ],
)
def test_lzma_configuration_that_makes_no_sense_is_refused(configuration: Any) -> None:
    with pytest.raises(MetadataError) as caught:
        codec("lzma", **configuration)
    assert caught.value.json_path == "codecs[1].configuration"
