"""What is loaded into xarray in an event loop, and given up there."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from entry_points import add_to_xarray

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")

pytestmark = pytest.mark.skipif(
    not hasattr(xr.Dataset, "load_async"), reason="xarray has load_async since 2025.8"
)


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


class Slow(MemoryStore):
    """A store that takes `seconds` for an answer."""

    seconds = 0.0
    n_cancelled = 0

    async def get(self, key, prototype=None, byte_range=None):
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return await super().get(key, prototype, byte_range)


def test_a_load_that_is_given_up_breaks_off_its_requests():
    store = Slow()
    group = zarr.create_group(store)
    group.create_array("t", data=np.arange(4), chunks=(2,), dimension_names=["x"])
    lazy = xr.open_dataset(store, engine="gpushard").t
    store.seconds = 5.0

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lazy.variable.load_async(), 0.2)

    asyncio.run(give_up())
    assert store.n_cancelled > 0
    store.seconds = 0.0
    assert lazy.values.tolist() == [0, 1, 2, 3]
