"""The codecs that `gpushard doctor` lists, and what decodes each."""

from __future__ import annotations

import pytest

from cli_runs import run
from gpushard import codecs
from gpushard.cli import codec_table
from gpushard.codecs.base import FILTERS_OF_NUMCODECS
from gpushard.errors import UnsupportedError
from gpushard.formats.codec_specs import KNOWN


def rows(label="nvCOMP 6.1.2"):
    return {row["codec"]: row for row in codec_table.codec_table(label)}


def test_every_codec_that_is_decoded_here_has_a_row():
    named = {name.partition(" ")[0] for name in rows()}
    assert named == {*KNOWN} - {"sharding_indexed"}
    assert {*codecs._ARRAY_CODECS} <= named


@pytest.mark.parametrize(
    ("codec", "gpu", "cpu"),
    [
        ("zstd", "nvCOMP 6.1.2", "zstandard "),
        ("numcodecs.lz4", "nvCOMP 6.1.2", "numcodecs "),
        ("blosc (zstd)", "nvCOMP 6.1.2", "numcodecs "),
        ("blosc (blosclz)", None, "numcodecs "),
        ("numcodecs.delta", "gpushard", "numcodecs "),
        ("crc32c", "gpushard", "crc32c "),
        ("bytes", "gpushard", "numpy "),
        ("numcodecs.bz2", None, "Python "),
        ("vlen-utf8", None, "zarr "),
    ],
)
def test_a_codec_is_decoded_where_a_read_decodes_it(codec, gpu, cpu):
    row = rows()[codec]
    assert row["gpu"] == gpu
    assert row["cpu"].startswith(cpu)
    assert bool(row["why"]) is (gpu is None)


def test_codecs_have_the_same_order_in_every_process():
    filters = [name for name in rows() if name in FILTERS_OF_NUMCODECS]
    assert filters == sorted(FILTERS_OF_NUMCODECS)


def test_the_table_goes_by_what_devices_decode(monkeypatch):
    from gpushard.devices.decoding import chain

    monkeypatch.delitem(chain._STEP_OF_CODEC, "zstd")
    assert rows()["zstd"]["gpu"] is None
    assert rows()["numcodecs.zstd"]["gpu"] == "nvCOMP 6.1.2"
    assert rows(None)["gzip"]["gpu"] == "nvCOMP, not installed"


def test_a_codec_that_the_reader_refuses_is_decoded_nowhere(monkeypatch):
    def refuse(document, path):
        if "numcodecs.zstd" in str(document):
            raise UnsupportedError("a package is missing", hint="run: pip install it")
        return parse_array(document, path)

    parse_array = codec_table.parse_array
    monkeypatch.setattr(codec_table, "parse_array", refuse)
    row = rows()["numcodecs.zstd"]
    assert (row["gpu"], row["cpu"]) == (None, None)
    assert row["why"] == "a package is missing; run: pip install it"
    assert "no: a package is missing; run: pip install it" in run("doctor").stdout
    assert rows()["zstd"]["cpu"] is not None
