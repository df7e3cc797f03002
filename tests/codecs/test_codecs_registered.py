"""Codecs that only numcodecs' registry knows, in arrays of Zarr v2."""

from __future__ import annotations

import json
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.abc import Codec
from numcodecs.registry import codec_registry

import gpushard
from gpushard import CorruptShardError, MetadataError, UnsupportedError
from gpushard.codecs import bytes_codec
from gpushard.layout import CodecSpec

VALUES = np.arange(24, dtype="<f4").reshape(4, 6)


class Mirrored(Codec):
    """Rows in the opposite order; needs the shape, as image formats do."""

    codec_id = "mirrored_rows"

    def __init__(self, width: int) -> None:
        if type(width) is not int:
            raise TypeError("width is no integer")
        self.width = width

    def encode(self, buf):
        return np.asarray(buf)[:, ::-1].tobytes()

    def decode(self, buf, out=None):
        flat = np.frombuffer(buf, "<f4")
        return flat.reshape(-1, self.width)[:, ::-1]  # neither contiguous nor bytes


class InFortranOrder(Codec):
    """Gives elements in Fortran order, which are its bytes one after the other."""

    codec_id = "in_fortran_order"

    def encode(self, buf):
        return np.asarray(buf).tobytes(order="A")

    def decode(self, buf, out=None):
        return np.frombuffer(buf, "<f4").reshape((4, 6), order="F")


class PlainBytes(Codec):
    codec_id = "plain_bytes"

    def encode(self, buf):
        return bytes(buf)

    def decode(self, buf, out=None):
        return bytes(buf)


class Objects(Codec):
    codec_id = "some_objects"

    def encode(self, buf):
        return buf

    def decode(self, buf, out=None):
        return np.array([None, 1], object)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for codec in (Mirrored, InFortranOrder, PlainBytes, Objects):
        monkeypatch.setitem(codec_registry, codec.codec_id, codec)


def put(place, dtype, chunk, **how: Any):
    """An array of Zarr v2 of one chunk, stored by hand."""
    document = {"compressor": None, "filters": None, "order": "C"} | how
    document |= {"zarr_format": 2, "shape": [4, 6], "chunks": [4, 6]}
    document |= {"dtype": dtype, "fill_value": None}
    place.mkdir(exist_ok=True)
    (place / ".zarray").write_text(json.dumps(document))
    (place / "0.0").write_bytes(bytes(chunk))
    return place


MIRRORED = {"id": "mirrored_rows", "width": 6}
CASES = {
    "compressor": {"compressor": MIRRORED},
    "filter": {"filters": [MIRRORED]},
    "filter before a compressor": {"filters": [MIRRORED], "compressor": {"id": "zlib"}},
    "compressor behind a filter of elements": {
        "filters": [
            {"id": "fixedscaleoffset", "offset": 1, "scale": 2, "dtype": "<f4"}
        ],
        "compressor": MIRRORED,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_such_a_codec_encoded_is_read_as_by_zarr(case, tmp_path):
    codecs = CASES[case]
    chunk: Any = VALUES
    for one in (*codecs.get("filters", ()), codecs.get("compressor")):
        if one is not None:
            chunk = numcodecs.get_codec(dict(one)).encode(chunk)
            if one["id"] == "fixedscaleoffset":
                chunk = chunk.reshape(VALUES.shape)
    put(tmp_path, "<f4", chunk, **codecs)
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], VALUES)
    for device in ("cpu", "auto"):
        a = gpushard.open_array(tmp_path, device=device)
        np.testing.assert_array_equal(a[...], VALUES)
        np.testing.assert_array_equal(a[1:3, ::2], VALUES[1:3, ::2])


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_in_fortran_order_has_its_bytes_as_they_lie_in_memory(order, tmp_path):
    codec = {"id": "in_fortran_order"}
    put(tmp_path, "<f4", VALUES.tobytes(order), compressor=codec, order=order)
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], VALUES)
    np.testing.assert_array_equal(gpushard.open_array(tmp_path)[...], VALUES)


def test_bytes_are_taken_as_they_are_and_none_are_no_element():
    codec = bytes_codec(CodecSpec("numcodecs:plain_bytes", {}, "compressor"))
    np.testing.assert_array_equal(codec.decode(b"a\0\0", 3, exact=True), [97, 0, 0])
    with pytest.raises(CorruptShardError, match="numcodecs:plain_bytes"):
        codec.decode(b"", 1, exact=True)


def test_text_of_a_few_labels_is_read(tmp_path):
    labels = {"id": "categorize", "labels": ["a", "b"], "dtype": "<U1", "astype": "|u1"}
    words = np.array(list("abbaab" * 4)).reshape(4, 6)
    chunk = numcodecs.get_codec(dict(labels)).encode(words)
    put(tmp_path, "<U1", chunk.tobytes(), filters=[labels])
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], words)
    np.testing.assert_array_equal(gpushard.open_array(tmp_path)[...], words)


def test_a_report_names_the_codec_and_its_package(tmp_path):
    put(tmp_path, "<f4", Mirrored(6).encode(VALUES), compressor=MIRRORED)
    a = gpushard.open_array(tmp_path, device="cpu")
    assert "numcodecs:mirrored_rows: host, test_codecs_registered" in str(
        a.explain((slice(None),))
    )


@pytest.mark.parametrize("chunk", [b"", bytes(24 * 4 - 24), bytes(24 * 4 + 24), b"odd"])
def test_damage_is_an_error_that_names_the_codec(chunk, tmp_path):
    put(tmp_path, "<f4", chunk, compressor=MIRRORED)
    with pytest.raises(CorruptShardError, match="numcodecs:mirrored_rows"):
        gpushard.open_array(tmp_path)[...]


def test_objects_are_no_bytes(tmp_path):
    put(tmp_path, "<f8", bytes(16), compressor={"id": "some_objects"})
    with pytest.raises(CorruptShardError, match="decode to Python objects"):
        gpushard.open_array(tmp_path)[...]


def test_running_out_of_memory_is_no_damage(monkeypatch):
    spec = CodecSpec("numcodecs:mirrored_rows", {"width": 6}, "compressor")
    codec = bytes_codec(spec)

    def decode(self, buf, out=None):
        raise MemoryError

    monkeypatch.setattr(Mirrored, "decode", decode)
    with pytest.raises(MemoryError):
        codec.decode(bytes(96), 96, exact=True)


@pytest.mark.parametrize(
    ("codec", "error", "told"),
    [
        ({"id": "mirrored_rows"}, MetadataError, "cannot be configured, .*width"),
        ({"id": "nobody_s"}, UnsupportedError, "unknown codec .*with numcodecs"),
        ({"id": "pickle"}, MetadataError, "Python objects"),
        ({"id": "pcodec"}, UnsupportedError, r"pip install 'numcodecs\[pcodec\]'"),
    ],
)
def test_what_cannot_be_made_is_refused(codec, error, told, tmp_path, monkeypatch):
    monkeypatch.delitem(codec_registry, "pcodec", raising=False)
    for place in ({"compressor": codec}, {"filters": [codec]}):
        put(tmp_path, "<f4", b"", **place)
        with pytest.raises(error, match=told):
            gpushard.open_array(tmp_path)


def test_such_an_array_is_not_written_to(tmp_path):
    chunk = Mirrored(6).encode(VALUES)
    put(tmp_path, "<f4", chunk, compressor=MIRRORED)
    a = gpushard.open_array(tmp_path, device="cpu")
    with pytest.raises(UnsupportedError, match="only decodes"):
        a[...] = 1
    assert (tmp_path / "0.0").read_bytes() == chunk


def test_it_is_converted_with_other_codecs(tmp_path):
    source = put(
        tmp_path / "old", "<f4", Mirrored(6).encode(VALUES), compressor=MIRRORED
    )
    with pytest.raises(UnsupportedError, match="compressors="):
        gpushard.convert(source, tmp_path / "new")
    gpushard.convert(source, tmp_path / "new", compressors="auto")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new")[...], VALUES)
