"""nvCOMP's other gzip decoder is asked as its header says, and a choice is named."""

from __future__ import annotations

import ctypes

import pytest

from benchmarks.gpu import alternatives, choices
from benchmarks.gpu.run import Run
from benchmarks.gpu.vendor_gzip import LookaheadGzip, Options
from gpushard.devices.nvcomp_abi import Algorithm
from nvcomp_batch import vendor_library


def test_the_other_decoder_is_asked_for_and_answers_as_another_one():
    assert ctypes.sizeof(Options) == 64
    other = LookaheadGzip(vendor_library().path)
    assert other.source_alignment() == 4  # the usual one takes any address
    other._options.algorithm = 2
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
        other.source_alignment()


def test_both_decoders_are_measured_and_come_out_right(tmp_path, monkeypatch):
    """With the usual one in place of the other, which no emulated device has."""

    class Other:
        def __init__(self, path):
            assert path == device.decoder.path

        def temp_nbytes(self, *numbers):
            return device.decoder.temp_nbytes(Algorithm.GZIP, *numbers[:3])

        def enqueue(self, *arguments):
            device.decoder.decompress_async(Algorithm.GZIP, *arguments)

    monkeypatch.setattr(alternatives, "LookaheadGzip", Other)
    run = Run("cuda_host.machine:emulated", "tiny", tmp_path)
    device = run.machine.device
    found = alternatives._gzip_of(run, 2048)
    assert found["is_right"]
    assert found["usual_gb_s"] > 0 < found["lookahead_gb_s"]
    monkeypatch.setattr(Other, "enqueue", lambda *_: None)
    monkeypatch.setattr(alternatives.Batch, "enqueue", lambda *_: None)
    assert not alternatives._gzip_of(run, 2048)["is_right"]


def row(gain, **more):
    return {"usual_gb_s": 2.0, "lookahead_gb_s": 2 * gain, "is_right": True, **more}


def test_the_faster_decoder_is_named_for_each_size_of_streams():
    rows = {
        "alternatives/gzip/4096": row(0.5),
        "alternatives/gzip/65536": row(1.5),
        "alternatives/gzip/1048576": row(3.0, is_right=False),
        "alternatives/gzip/4194304": {"crashed": True},
    }
    told = choices.choices(rows)
    assert "leave" in told[0]
    assert "take the lookahead decoder at 65536 bytes; its rate is 1.50" in told[1]
    assert [text for text in told if "FAILED" in text] == told[2:]
