"""Rows of large outputs are written past the caches: those that fill lines of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from fused_cases import FUSED, PLAIN, assert_all_fused
from gpushard.fused import placer
from gpushard.fused.code.loading import CompiledLoops
from gpushard.fused.short import sharded as short_sharded
from gpushard.placing import outputs
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, write

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

# Rows of 64 and of 640 bytes in an inner chunk, the latter too long to copy in line.
SHAPE, SHARD, CHUNKS = (6, 8, 320), (6, 8, 320), ((3, 4, 16), (3, 8, 160))
LINE = 64


@pytest.fixture(scope="module", params=CHUNKS, ids=str)
def placed(request, tmp_path_factory):
    """Where an array lies, and its elements."""
    wanted = document(SHAPE, SHARD, sharding(request.param), dtype="float32")
    values = np.arange(np.prod(SHAPE), dtype="float32").reshape(SHAPE) + 0.5
    stored = write(wanted, [(..., values)])
    return stored.placed("local", tmp_path_factory.mktemp("streams")), values


@pytest.fixture(autouse=True)
def large(way, monkeypatch):
    """Every output is large."""
    monkeypatch.setattr(outputs, "LARGE_NBYTES", 1)
    for module in (placer, short_sharded):
        monkeypatch.setattr(module, "LARGE_NBYTES", 1)
    return way


def test_a_large_output_begins_on_a_line_of_the_cache():
    for shape in ((3, 5), (1,), (7, 2, 9), ()):
        out = outputs.usable_output(None, shape, np.dtype("float32"))
        assert out.ctypes.data % LINE == 0
        assert (out.shape, out.dtype, type(out)) == (shape, "float32", np.ndarray)
        assert out.flags.c_contiguous
        assert out.flags.writeable


def test_objects_are_in_memory_that_python_looks_through():
    assert usable(object)[0] is None
    assert usable(np.dtypes.StringDType())[1] == ""


def usable(dtype) -> np.ndarray:
    return outputs.usable_output(None, (3,), np.dtype(dtype))


def test_what_is_streamed_reads_as_it_was_written(placed, seen):
    place, values = placed
    a = gpushard.open_array(place, options=FUSED.but(threads=2))
    assert_same_bits(a[...], values)
    assert_same_bits(a[:, 4:, 16:320], values[:, 4:, 16:320])
    assert_all_fused(seen)


@given(data=st.data())
def test_boxes_are_read_alike_wherever_their_rows_begin(placed, data):
    place, values = placed
    key = []
    for n in SHAPE:
        first = data.draw(st.integers(0, n - 1))
        step = data.draw(st.sampled_from([1, 1, 2]))
        key.append(slice(first, data.draw(st.integers(first + 1, n)), step))
    got = gpushard.open_array(place, options=FUSED)[tuple(key)]
    assert_same_bits(got, values[tuple(key)])


@given(
    first=st.integers(0, 40),
    gap=st.sampled_from([0, 1, 16, 24]),
    n=st.sampled_from([320, 24, 184]),
)
def test_nothing_is_written_beside_the_rows_of_an_output(placed, first, gap, n):
    place, values = placed
    memory = np.full(np.prod(SHAPE[:2]) * (320 + gap) + 64, -1, "float32")
    rows = memory[first : first + 48 * (320 + gap)].reshape(6, 8, 320 + gap)
    out = rows[:, :, :n]  # the last run of other rows ends within a line
    gpushard.open_array(place, options=FUSED).read(np.s_[:, :, :n], out=out)
    assert_same_bits(np.ascontiguousarray(out), values[:, :, :n].copy())
    out[...] = -1
    assert (memory == -1).all()


@pytest.mark.parametrize("least", [48 * 320 * 4, 48 * 320 * 4 + 1])
def test_rows_of_smaller_outputs_stay_in_the_caches(placed, least, large, monkeypatch):
    streams = set()

    def place_boxes(self, decoder, *arguments):
        streams.add(decoder.writes_past_cache)
        return plain(self, decoder, *arguments)

    plain = CompiledLoops.place_boxes
    monkeypatch.setattr(CompiledLoops, "place_boxes", place_boxes)
    for module in (placer, short_sharded):
        monkeypatch.setattr(module, "LARGE_NBYTES", least)
    assert_same_bits(gpushard.open_array(placed[0], options=FUSED)[...], placed[1])
    is_large = least <= placed[1].nbytes
    # One call is for smaller outputs only.
    assert streams == (set() if large == "one call" and not is_large else {is_large})


def test_the_plain_way_reads_into_such_memory_too(placed):
    place, values = placed
    assert_same_bits(gpushard.open_array(place, options=PLAIN)[...], values)
