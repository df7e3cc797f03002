"""Tensors of PyTorch on the host, as outputs and as what results become."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this lane")

VALUES = np.arange(12 * 10, dtype="f4").reshape(12, 10)


@pytest.fixture
def a() -> gpushard.Array:
    objects: dict = {}
    z = zarr.create_array(
        MemoryStore(objects), shape=(12, 10), chunks=(3, 4), shards=(6, 8), dtype="f4"
    )
    z[...] = VALUES
    return gpushard.open_array(MemoryStore(objects))


def test_a_read_writes_into_a_tensor(a):
    out = torch.empty(5, 10)
    assert a.read(np.s_[2:7], out=out) is out
    assert torch.equal(out, torch.from_numpy(VALUES[2:7]))


def test_a_read_writes_into_a_tensor_of_any_strides_and_casts(a):
    out = torch.zeros(10, 24, dtype=torch.float64)[:, ::2].T
    a.read(out=out)
    assert torch.equal(out, torch.from_numpy(VALUES).to(torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_a_read_writes_elements_that_numpy_has_not(a, dtype):
    out = torch.zeros(10, 24, dtype=dtype)[:, ::2].T
    assert a.read(out=out) is out
    assert torch.equal(out.float(), torch.from_numpy(VALUES).to(dtype).float())
    with pytest.raises(gpushard.SelectionError, match="without gradient"):
        a.read(out=torch.empty(12, 10, dtype=dtype, requires_grad=True))
    with pytest.raises(gpushard.SelectionError, match="on the host"):
        a.read(out=torch.empty(12, 10, dtype=dtype, device="meta"))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_tensors_of_elements_that_numpy_has_not_are_written(name, tmp_path):
    made = gpushard.create_array(tmp_path, shape=(12, 10), chunks=(3, 4), dtype=name)
    tensor = torch.from_numpy(VALUES).to(getattr(torch, name))
    made[...] = tensor.T.contiguous().T
    out = torch.zeros(12, 10, dtype=tensor.dtype)
    made.read(out=out)
    assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8))
    with pytest.raises(gpushard.SelectionError, match="grad"):
        made[...] = tensor.clone().requires_grad_()


def test_read_many_writes_into_tensors(a):
    outs = [torch.empty(10), torch.empty(12, 5)]
    got = a.read_many([4, np.s_[:, ::2]], out=outs)
    assert got[0] is outs[0]
    assert torch.equal(outs[0], torch.from_numpy(VALUES[4]))
    assert torch.equal(outs[1], torch.from_numpy(VALUES[:, ::2].copy()))


def test_a_result_becomes_a_tensor_without_a_copy(a):
    result = a[...]
    tensor = torch.from_dlpack(result)
    assert torch.equal(tensor, torch.from_numpy(VALUES))
    tensor[0, 0] = -1
    assert result[0, 0] == -1


def test_tensors_that_share_no_memory_with_numpy_are_refused(a):
    with pytest.raises(gpushard.SelectionError, match="memory"):
        a.read(out=torch.empty(12, 10, requires_grad=True))
    with pytest.raises(gpushard.SelectionError, match="shape"):
        a.read(out=torch.empty(10, 12))
    with pytest.raises(gpushard.SelectionError, match="cast"):
        a.read(out=torch.empty(12, 10, dtype=torch.int32))


@pytest.mark.parametrize("late", [lambda t: t.conj(), lambda t: t.conj().imag])
def test_tensors_that_torch_has_yet_to_compute_are_refused(late, tmp_path):
    made = gpushard.create_array(tmp_path, shape=4, chunks=2, shards=4, dtype="c8")
    tensor = late(torch.ones(4, dtype=torch.complex64))
    with pytest.raises(gpushard.SelectionError, match="resolve_conj"):
        made[...] = tensor
    with pytest.raises(gpushard.SelectionError, match="resolve_conj"):
        made.read(out=tensor)
    made[...] = tensor.resolve_conj().resolve_neg()
    assert np.array_equal(made[...], tensor.resolve_conj().resolve_neg().numpy())


def test_a_list_of_tensors_with_gradients_is_refused(tmp_path):
    made = gpushard.create_array(tmp_path, shape=2, chunks=2, shards=2, dtype="f4")
    with pytest.raises(gpushard.SelectionError, match="grad"):
        made[...] = [torch.ones((), requires_grad=True)] * 2


def test_tensors_index_an_array(a):
    rows = torch.tensor([3, 0, 11])
    assert np.array_equal(a.oindex[rows], VALUES[[3, 0, 11]])
    assert np.array_equal(a[torch.tensor(4)], VALUES[4])
