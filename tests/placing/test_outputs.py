"""Outputs: made here, or the caller's own."""

from __future__ import annotations

import array
import json
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from damaged_arrays import opened
from gpushard.errors import SelectionError
from gpushard.placing.outputs import usable_output
from spec_shards import document, shard_of, sharding

INT32 = np.dtype("int32")


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_without_out_an_array_is_made(shape):
    out = usable_output(None, shape, INT32)
    assert (out.shape, out.dtype, type(out)) == (shape, INT32, np.ndarray)
    assert out.flags.c_contiguous
    assert out.flags.writeable


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((2, 3), "float64"),
        np.zeros((4, 6), "int32")[::-2, ::2],
        np.zeros((3, 2), ">i2").T,
    ],
)
def test_an_array_is_taken_as_it_is_whatever_its_strides_and_type(out):
    assert usable_output(out, (2, 3), INT32) is out


def test_data_types_that_numpy_has_not_are_known_by_name():
    """Also where nobody has imported the package that tells NumPy of them."""
    code = "from gpushard.placing.outputs import parsed_dtype as p\n"
    code += "print(p('bfloat16'), p('float8_e5m2'))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "bfloat16 float8_e5m2\n"


class Viewable:
    """What a tensor on the host is to NumPy."""

    def __init__(self, shape):
        self.held = np.zeros(shape, "float32")

    @property
    def __array_interface__(self):
        return self.held.__array_interface__


def test_what_numpy_can_view_is_written_through():
    tensor = Viewable((2, 3))
    usable_output(tensor, (2, 3), INT32)[...] = 7
    assert np.all(tensor.held == 7)
    buffer = array.array("i", [0, 0, 0])
    usable_output(buffer, (3,), INT32)[...] = 7
    assert list(buffer) == [7, 7, 7]
    plain = bytearray(4)
    usable_output(memoryview(plain), (4,), INT32)[...] = 7
    assert plain == b"\7\7\7\7"


def test_an_output_without_elements_is_taken_though_it_shares_no_memory():
    assert usable_output(Viewable((0, 3)), (0, 3), INT32).shape == (0, 3)


def test_an_output_is_viewed_while_another_thread_imports_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    tensor = Viewable((2, 3))
    usable_output(tensor, (2, 3), INT32)[...] = 7
    assert np.all(tensor.held == 7)


def test_an_output_of_another_shape_is_refused_with_both():
    with pytest.raises(SelectionError, match="another shape") as caught:
        usable_output(np.zeros((3, 2)), (2, 3), INT32)
    assert (caught.value.expected, caught.value.got) == ((2, 3), (3, 2))


def test_an_output_of_broadcastable_shape_is_refused_too():
    with pytest.raises(SelectionError, match="another shape"):
        usable_output(np.zeros((1, 3)), (3,), INT32)


def test_a_read_only_output_is_refused():
    frozen = np.zeros(3)
    frozen.setflags(write=False)
    for out in (frozen, memoryview(b"abc"), np.broadcast_to(np.zeros(1), (3,))):
        with pytest.raises(SelectionError, match="read-only; pass a writable array"):
            usable_output(out, (3,), INT32)


class CopiesOnly:
    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("needs a copy")
        return np.zeros(3)


class NeedsGradient:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("requires grad")


class OnTheDevice:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("cannot be converted implicitly")


@pytest.mark.parametrize(
    "out", [[0, 0, 0], CopiesOnly(), NeedsGradient(), OnTheDevice()]
)
def test_an_output_that_shares_no_memory_is_refused(out):
    with pytest.raises(SelectionError, match="shares no memory with NumPy") as caught:
        usable_output(out, (3,), INT32)
    assert caught.value.got == type(out).__name__


def test_a_result_that_no_memory_could_hold_is_refused_in_a_sentence():
    with pytest.raises(SelectionError, match="not enough memory for the result"):
        usable_output(None, (1 << 40, 1 << 40), np.dtype("u1"))


@pytest.mark.parametrize("way", ["plain", "small", "compiled"])
@pytest.mark.parametrize("is_hard", [False, True])
def test_a_masked_array_gets_all_elements_and_keeps_its_mask(tmp_path, is_hard, way):
    """Some ways of a read write to memory, and others assign to the output."""
    shard = shard_of(*(bytes(range(k, k + 4)) for k in range(0, 16, 4)))
    meta = document((16,), (16,), sharding((4,)))
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(shard)
    mask = [True, False] * 8
    out = np.ma.array(np.zeros(16, "u1"), mask=mask, hard_mask=is_hard)
    assert opened(tmp_path, way).read(out=out) is out
    assert out.data.tolist() == list(range(16))
    assert out.mask.tolist() == mask
