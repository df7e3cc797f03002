"""A loader on a CUDA device, `pytest -m gpu`; batches of the host are the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from gpushard import Array, Loader
from loader_data import ORDERS, images, labels
from real_gpu import cuda_device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _needs_a_gpu():
    cuda_device()


def placed(array, placement):
    """The array, decoded where `placement` says; the host reads little by "cost"."""
    options = array.source.options.but(placement=placement)
    return Array(array.source.with_options(options))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [None, 1 / 255])
@pytest.mark.parametrize("placement", ["cost", "device"])
def test_batches_are_those_of_the_host(order, scale, placement):
    arrays = {
        "images": placed(images(), placement),
        "labels": placed(labels(), placement),
    }
    options = ORDERS[order] | {"batch_size": 8, "scale": {"images": scale}}
    there = Loader(arrays, device="cuda", **options)
    here = Loader(arrays, device="cpu", **options)
    for got, wanted in zip(there, here, strict=True):
        for name, values in wanted.items():
            assert got[name].dtype == values.dtype
            assert np.array_equal(got[name].get(), values)


def test_tensors_are_on_the_gpu_in_the_same_memory():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    options = {"batch_size": 8, "shuffle": True}
    there = Loader(placed(images(), "device"), device="cuda", to="torch", **options)
    used = torch.cuda.Stream()
    with torch.cuda.stream(used):
        sums = [batch.to(torch.float64).sum() for batch in there]
        got = [float(one) for one in sums]
    here = Loader(images(), device="cpu", **options)
    assert got == [float(batch.sum()) for batch in here]
