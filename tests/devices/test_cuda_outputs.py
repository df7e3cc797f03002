"""Arrays of callers, written and read by `CudaDevice` over a stand-in for CuPy."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import ml_dtypes
import pytest
import zarr

import gpushard
from cuda_cases import SHAPE, opened, stored, two_gpus
from zarr_oracle import assert_same_bits


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


@pytest.mark.parametrize("name", ["__cuda_stream__", "ptr", "cuda_stream", "handle"])
def test_a_stream_may_be_of_any_library(cupy, tmp_path, name):
    values = stored(tmp_path / "a")
    a, used = opened(tmp_path / "a"), cupy.made.Stream(non_blocking=True)
    out = cupy.empty(SHAPE, "i4")
    cupy.keep_busy(out.data.ptr, out.nbytes, used.ptr)
    told = {"__cuda_stream__": lambda: (0, used.ptr), "handle": used.ptr}
    stream = SimpleNamespace(**{name: told.get(name, used.ptr)})
    a.read(out=out, stream=used.ptr if name == "handle" else stream)
    assert_same_bits(out.get(), values)


def test_an_array_that_says_on_which_stream_it_is_used_is_waited_for(cupy, tmp_path):
    values = stored(tmp_path / "a")
    a, used = opened(tmp_path / "a"), cupy.made.Stream(non_blocking=True)
    out = cupy.empty(SHAPE, "i4")
    told = SimpleNamespace(
        __cuda_array_interface__=out.__cuda_array_interface__ | {"stream": used.ptr}
    )
    cupy.keep_busy(out.data.ptr, out.nbytes, used.ptr)
    assert a.read(out=told) is told
    assert_same_bits(out.get(), values)


class Exporter:
    """An array that has DLPack, and of the interface no more than is told."""

    def __init__(self, array, interface=None):
        self._array = array
        if interface is not None:
            self.__cuda_array_interface__ = interface

    def __dlpack_device__(self):
        return 2, 0  # kDLCUDA

    def __dlpack__(self, *, stream=None):
        assert stream not in (None, 0), "0 is ambiguous (array API standard)"
        return self._array


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16])
@pytest.mark.parametrize("has_interface", [False, True])
def test_out_takes_what_exports_itself_by_dlpack(cupy, tmp_path, dtype, has_interface):
    values = stored(tmp_path / "a")
    out = cupy.empty(SHAPE, dtype)
    interface = out.__cuda_array_interface__ if has_interface else None
    exporter = Exporter(out, interface)
    assert opened(tmp_path / "a").read(out=exporter) is exporter
    assert_same_bits(out.get(), values.astype(dtype))


def test_out_of_another_device_is_refused(cupy, tmp_path):
    """A kernel that writes there ends the process's use of the GPU."""
    stored(tmp_path / "a")
    out = cupy.empty(SHAPE, "i4")
    with pytest.raises(gpushard.SelectionError, match=r"another device.*cuda:1, got"):
        opened(tmp_path / "a", "cuda:1").read(out=out)


class Tensor:
    """A tensor of torch on a GPU, as far as it tells of itself."""

    def __init__(self, array):
        self._array, self.device = array, SimpleNamespace(index=0)
        self.requires_grad = False
        self.dtype, self.has_name = "torch.int32", True
        self.is_late = {"is_conj": False, "is_neg": False}

    def is_conj(self):
        return self.is_late["is_conj"]

    def is_neg(self):
        return self.is_late["is_neg"]

    @property
    def __cuda_array_interface__(self):
        if self.requires_grad:
            raise RuntimeError("use var.detach()")
        if not self.has_name:
            raise KeyError("torch.float8_e5m2")
        interface = self._array.__cuda_array_interface__ | {"version": 2}
        return {k: v for k, v in interface.items() if k != "stream"}


@pytest.fixture
def tensor(cupy, monkeypatch):
    """One that torch is busy with, on its current stream."""
    used = cupy.made.Stream(non_blocking=True)
    torch = ModuleType("torch")
    torch.Tensor = Tensor
    torch.cuda = SimpleNamespace(
        current_stream=lambda _: SimpleNamespace(cuda_stream=used.ptr)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    out = cupy.empty(SHAPE, "i4")
    cupy.keep_busy(out.data.ptr, out.nbytes, used.ptr)
    return Tensor(out)


def made_at(place):
    return gpushard.create_array(
        place, shape=SHAPE, dtype="i4", chunks=(8, 10), device="cuda"
    )


def test_tensors_are_written_after_what_torch_does_with_them(cupy, tmp_path, tensor):
    values = stored(tmp_path / "a")
    assert opened(tmp_path / "a").read(out=tensor) is tensor
    assert_same_bits(tensor._array.get(), values)


def test_tensors_are_compressed_after_what_torch_does_with_them(cupy, tmp_path, tensor):
    made_at(tmp_path / "b")[...] = tensor
    assert "zstd" in cupy.devices[0].standin.encoded
    assert_same_bits(zarr.open_array(tmp_path / "b")[...], tensor._array.get())


def test_tensors_with_a_gradient_are_refused(cupy, tmp_path, tensor):
    stored(tmp_path / "a")
    tensor.requires_grad = True
    told = r"out= does not tell .*\(use var.detach\(\)\).*got Tensor; pass a tensor"
    with pytest.raises(gpushard.SelectionError, match=told):
        opened(tmp_path / "a").read(out=tensor)
    with pytest.raises(gpushard.SelectionError, match="pass its detach"):
        made_at(tmp_path / "b")[...] = tensor


def test_tensors_of_types_that_have_dlpack_only_are_no_error_of_torch(
    cupy, tmp_path, tensor
):
    """Such as float8: their interface is a KeyError. These here lack DLPack, too."""
    stored(tmp_path / "a")
    tensor.has_name = False
    with pytest.raises(gpushard.SelectionError, match="no array in device memory"):
        opened(tmp_path / "a").read(out=tensor)
    with pytest.raises(gpushard.SelectionError, match=r"does not fit|another kind"):
        made_at(tmp_path / "b")[...] = tensor


@pytest.mark.parametrize("way", ["is_conj", "is_neg"])
def test_tensors_whose_memory_has_other_values_are_refused(cupy, tmp_path, tensor, way):
    stored(tmp_path / "a")
    tensor.is_late[way] = True
    told = "not conjugated or negated yet.*pass tensor.resolve_conj"
    with pytest.raises(gpushard.SelectionError, match=told):
        opened(tmp_path / "a").read(out=tensor)
    with pytest.raises(gpushard.SelectionError, match=told):
        made_at(tmp_path / "b")[...] = tensor


def test_arrays_of_jax_are_refused_however_they_lend_their_memory(
    cupy, tmp_path, monkeypatch
):
    """Of bfloat16 they have DLPack only, whose flag CuPy does not look at."""
    stored(tmp_path / "a")
    jax = ModuleType("jax")
    jax.Array = Exporter
    monkeypatch.setitem(sys.modules, "jax", jax)
    out = Exporter(cupy.empty(SHAPE, ml_dtypes.bfloat16))
    with pytest.raises(gpushard.SelectionError, match="out= is read-only"):
        opened(tmp_path / "a").read(out=out)


def test_what_cupy_does_not_adopt_is_unsupported(cupy, tmp_path, monkeypatch):
    stored(tmp_path / "a")

    def refuse(_):
        raise BufferError("a tensor of another device")

    a = opened(tmp_path / "a")
    monkeypatch.setattr(sys.modules["cupy"], "from_dlpack", refuse)
    with pytest.raises(gpushard.UnsupportedError, match="another device"):
        a.read(out=Exporter(None))
