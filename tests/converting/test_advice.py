"""Advice follows from the table of rates, says where figures come from, and settles."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf, isfinite, prod

import pytest

from cli_runs import run, run_json, sentence, write_sample, write_shards
from gpushard.converting.advice import (
    READ_NBYTES,
    Advice,
    advise,
    largest_stream_nbytes,
)
from gpushard.devices.placement import RATES
from gpushard.formats.v3 import parse_array
from gpushard.options import DEFAULT, KIB, MIB
from spec_shards import document

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def blosc(cname):
    members = {"clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    return codec("blosc", cname=cname, **members)


CODECS = {
    "zstd": codec("zstd", level=0, checksum=False),
    "gzip": codec("gzip", level=1),
    "numcodecs.lz4": codec("numcodecs.lz4", acceleration=1),
    "numcodecs.bz2": codec("numcodecs.bz2", level=1),
    "blosc-zstd": blosc("zstd"),
    "blosc-lz4hc": blosc("lz4hc"),
    "blosc-zlib": blosc("zlib"),
    "blosc-blosclz": blosc("blosclz"),
}


def layout(chunks, shards=None, compressor="zstd", shape=(4096, 4096, 64)):
    """Layout of an array of float32, 4 GiB unless told otherwise."""
    inner = [BYTES, *([CODECS[compressor]] if compressor else [])]
    codecs = inner
    if shards is not None:
        configuration = {"chunk_shape": chunks, "codecs": inner}
        codecs = [codec("sharding_indexed", **configuration, index_codecs=[BYTES, CRC])]
    meta = document(shape, shards or chunks, *codecs, dtype="float32")
    return parse_array(meta, "", DEFAULT)


def advice(*arguments, **named) -> Advice:
    return advise(layout(*arguments, **named), threads=16)


def chunk_nbytes(plan) -> int:
    return 4 * prod(plan.chunks)


@pytest.mark.parametrize("coding", RATES)
def test_nothing_waits_for_a_stream_of_the_largest_size(coding):
    rates, nbytes = RATES[coding], largest_stream_nbytes(coding)
    assert nbytes / rates.stream <= READ_NBYTES / rates.device
    assert (nbytes + 1) / rates.stream > READ_NBYTES / rates.device * 0.99


@pytest.mark.parametrize("compressor", ["zstd", "gzip", "numcodecs.lz4"])
def test_inner_chunks_of_one_large_stream_are_cut(compressor):
    told = advice((512, 512, 16), (1024, 1024, 64), compressor=compressor)
    assert 64 * KIB < chunk_nbytes(told.better) <= largest_stream_nbytes("zstd") * 2
    assert told.better.costs.device < told.now.costs.device / 10
    assert "in many streams" in " ".join(told.reasons)


def test_blosc_chunks_are_streams_enough_and_stay():
    told = advice((256, 256, 64), (1024, 1024, 16 * 4), compressor="blosc-lz4hc")
    assert told.now.coding == "blosc-lz4"
    assert told.better.chunks == told.now.chunks
    assert told.better.compressor == "keep"
    assert told.now.n_streams == READ_NBYTES // (128 * KIB)
    huge = advice((1024, 1024, 64), (1024, 1024, 64), compressor="blosc-lz4hc")
    assert chunk_nbytes(huge.better) <= 16 * MIB


def test_tiny_streams_are_joined():
    told = advice((16, 16, 4), (256, 256, 64))
    assert 32 * KIB <= chunk_nbytes(told.better) <= 128 * KIB
    assert not any(map(int.__mod__, told.better.shards, told.better.chunks))
    small = advice((16, 16, 4), (64, 64, 16), shape=(64, 64, 16))
    assert small.better.chunks == small.now.chunks, "a small array is left alone"


def test_an_array_without_shards_gets_some_and_few_bytes_make_more():
    plain = advice((64, 64, 8))
    assert plain.now.shards is None
    assert 16 * MIB <= 4 * prod(plain.better.shards) <= 64 * MIB
    assert "no shards" in " ".join(plain.reasons)
    many = advice((64, 64, 8), (128, 128, 8))
    assert 4 * prod(many.better.shards) > 16 * MIB
    huge = advice((64, 64, 8), (4096, 4096, 32))
    assert 4 * prod(huge.better.shards) <= 64 * MIB
    fine = advice((64, 64, 8), (512, 512, 32))
    assert fine.is_fine, fine.reasons


def test_shards_that_the_better_inner_chunks_do_not_divide_are_replaced():
    told = advice((1000, 1000, 64), (1000, 1000, 64))
    assert any(map(int.__mod__, (1000, 1000, 64), told.better.chunks))
    assert not any(map(int.__mod__, told.better.shards, told.better.chunks))
    assert "do not divide the shards" in " ".join(told.reasons)


@pytest.mark.parametrize(
    ("ratio", "is_bound"), [(None, True), (3.0, True), (0.5, False)]
)
def test_decoding_is_the_bound_of_a_read_where_more_arrives_than_is_decoded(
    ratio, is_bound
):
    told = " ".join(advise(layout((64, 64, 8), (512, 512, 32)), 16, ratio).reasons)
    assert ("the bound of a read" in told) == is_bound
    assert ("halved" in told) == (ratio is None)
    assert ("stored 3.0 times smaller" in told) == (ratio == 3)


@pytest.mark.parametrize("shape", [(), (100,)])
def test_a_lone_inner_chunk_needs_no_shard(shape):
    told = advice(shape, compressor=None, shape=shape)
    assert told.is_fine
    assert "shards" not in " ".join(told.reasons)
    # Whatever `convert` makes has shards, which then have no reason of their own.
    anew = advice(shape, compressor="gzip", shape=shape)
    assert (anew.better.shards, anew.better.compressor) == (shape, "zstd")
    assert len(anew.reasons) == 1


@pytest.mark.parametrize(
    ("compressor", "better"),
    [
        ("numcodecs.bz2", "zstd"),
        ("gzip", "zstd"),
        ("blosc-zlib", "blosc-zstd"),
        ("blosc-blosclz", "blosc-zstd"),
        ("zstd", "keep"),
        (None, "keep"),
    ],
)
def test_codecs_that_a_gpu_decodes_slowly_or_not_are_replaced(compressor, better):
    told = advice((64, 64, 8), (512, 512, 32), compressor=compressor)
    assert told.better.compressor == better
    is_decoded = compressor not in ("numcodecs.bz2", "blosc-blosclz")
    assert isfinite(told.now.costs.device) is is_decoded
    assert (told.now.n_streams > 0) is is_decoded
    assert told.better.costs.device < inf


@pytest.mark.parametrize("compressor", [*CODECS, None])
@pytest.mark.parametrize("chunks", [(16, 16, 4), (64, 64, 8), (512, 512, 64)])
@pytest.mark.parametrize("shards", [None, (512, 512, 64), (4096, 4096, 64)])
def test_advice_that_was_followed_is_fine(compressor, chunks, shards):
    told = advice(chunks, shards, compressor=compressor)
    followed = told.better.compressor
    if followed == "keep":
        followed = compressor
    again = advice(told.better.chunks, told.better.shards, compressor=followed)
    assert again.better == replace(again.now, compressor="keep"), again.reasons


@pytest.mark.parametrize("compressor", [*CODECS, None])
def test_every_figure_says_where_it_comes_from(compressor):
    told = advice((512, 512, 64), compressor=compressor)
    assert told.reasons
    for reason in told.reasons:
        if any(character.isdigit() for character in reason):
            assert any(f"[{basis}]" in reason for basis in "gme"), reason


def test_the_command_explains_every_mark_of_its_figures(tmp_path):
    lines = run("info", write_shards(tmp_path / "src"), "--advise").stdout.splitlines()
    (legend,) = (line for line in lines if line.startswith("figures"))
    lines.remove(legend)
    used = set(re.findall(r"\[[a-z]\]", "".join(lines)))
    assert "[g]" in used
    assert used <= set(re.findall(r"\[[a-z]\]", legend))
    assert "[g] measured on a GPU" in legend


def test_the_command_prints_advice_and_how_to_follow_it(tmp_path):
    src = write_shards(tmp_path / "src")
    text = run("info", src, "--advise").stdout
    assert "leave it as it is" in text
    facts = run_json("info", src, "--advise")["advice"]
    assert facts["command"] is None
    assert facts["now"]["chunks"] == [5, 5]
    assert "advice" not in run_json("info", src)


@pytest.mark.parametrize("ndim", [0, 2])
def test_the_command_that_is_told_does_what_was_advised(ndim, tmp_path):
    import zarr

    src, dst = tmp_path / "src", tmp_path / "dst"
    chunks = (1024,) * ndim
    shape = {"shape": chunks, "chunks": chunks}
    zarr.create_array(src, **shape, dtype="f4", compressors=[CODECS["gzip"]])[...] = 1
    advised = run_json("info", src, "--advise")["advice"]
    words = advised["command"].split()
    assert words[:4] == ["gpushard", "convert", str(src), "DST"]
    run("convert", src, dst, *words[4:])
    followed = run_json("info", dst, "--advise")["advice"]
    for name in ("shards", "chunks", "coding"):
        assert followed["now"][name] == advised["better"][name]


def test_what_no_device_decodes_is_told_to_be_copied(tmp_path):
    meta = document((64,), (64,), BYTES, CODECS["numcodecs.bz2"])
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    lines = run("info", tmp_path, "--advise").stdout.splitlines()
    (now,) = [line for line in lines if line.startswith("as it is")]
    (better,) = [line for line in lines if line.startswith("better")]
    assert now.endswith("[e], then copied")
    assert " streams, " in better


def test_advice_on_a_group_is_refused(tmp_path_factory):
    group = write_sample(tmp_path_factory)
    assert "one of its arrays" in sentence(run("info", group, "--advise", code=2))
