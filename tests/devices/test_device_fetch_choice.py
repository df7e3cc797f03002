"""Which way payload takes to a device, and what `explain` says of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from cuda_host import kvikio_standin
from cuda_host.reads import read_on_device
from device_fetch_cases import CHAINS, emulated, standing_in, stored
from gpushard.device_reading.payload import kvikio_file
from gpushard.options import Options
from gpushard.selecting import expressions
from range_server import RangeServer
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.usefixtures("device_begins_at_once")


@pytest.fixture
def device():
    return emulated(seed=1)


@pytest.fixture
def kvikio(monkeypatch, device):
    standin = standing_in(monkeypatch, device)
    yield standin
    assert standin.under_way == []
    kvikio_file._failure.cache_clear()


def way(place, device, **options):
    """How `explain` says that payload came."""
    a = gpushard.open_array(place, device=device, options=Options(**options))
    return a.explain().fetch


def test_explain_tells_which_way_and_why(tmp_path, device, kvikio, monkeypatch):
    stored(tmp_path, CHAINS["zstd"])
    ring = "ring of 4 pinned slots"
    assert way(tmp_path, device) == "kvikio 26.10.0, GPUDirect Storage"
    assert way(tmp_path, device, gds=False) == f"{ring} (the option gds is off)"
    kvikio = standing_in(monkeypatch, device)
    kvikio.is_gds = False
    assert way(tmp_path, device) == f"{ring} (cuFile finds no GPUDirect Storage)"
    kvikio.is_compat = True
    why = "kvikio is in its compatibility mode"
    assert way(tmp_path, device, pinned_slots=3) == f"ring of 3 pinned slots ({why})"
    for name in ("kvikio", "kvikio.defaults", "kvikio.cufile_driver"):
        monkeypatch.setitem(sys.modules, name, None)
    assert way(tmp_path, device) == f"{ring} (kvikio is not installed)"
    for name in ("kvikio", "kvikio.defaults", "kvikio.cufile_driver"):
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "site/kvikio").mkdir(parents=True)
    (tmp_path / "site/kvikio/__init__.py").write_text("raise RuntimeError('no cuFile')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    kvikio_file._failure.cache_clear()
    why = "kvikio cannot be imported (no cuFile)"
    assert way(tmp_path, device) == f"{ring} ({why})"
    store = MemoryStore()
    stored(store, CHAINS["zstd"])
    assert way(store, device) == f"{ring} (a store of which kvikio knows nothing)"


def test_the_driver_of_cufile_is_opened_once_and_before_it_is_asked(
    tmp_path, device, kvikio
):
    stored(tmp_path, CHAINS["zstd"])
    for _ in range(2):
        assert "GPUDirect Storage" in way(tmp_path, device)
    assert kvikio.cufile_driver.n_opened == 1


def test_without_the_kernel_module_only_who_says_so_reads_directly(
    tmp_path, device, kvikio, monkeypatch
):
    """Peer to peer over PCI takes no module; kvikio cannot tell."""
    stored(tmp_path, CHAINS["zstd"])
    refused = "ring of 4 pinned slots (cuFile finds no GPUDirect Storage)"
    monkeypatch.setattr(kvikio_file, "_NVIDIA_FS", tmp_path / "none")
    assert way(tmp_path, device) == refused
    assert kvikio.cufile_driver.n_opened == 0
    kvikio.settings["compat_mode"] = kvikio_standin.CompatMode.OFF
    assert way(tmp_path, device) == "kvikio 26.10.0, GPUDirect Storage"


def test_a_driver_of_cufile_that_does_not_open_is_no_gpudirect_storage(
    tmp_path, device, kvikio
):
    stored(tmp_path, CHAINS["zstd"])
    kvikio.has_driver = False
    assert "cuFile finds no GPUDirect Storage" in way(tmp_path, device)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
def test_what_the_host_decodes_is_not_read_by_kvikio(tmp_path, device, kvikio):
    values = stored(
        tmp_path, [{"name": "numcodecs.bz2", "configuration": {"level": 1}}]
    )
    a = gpushard.open_array(tmp_path, device=device)
    assert_same_bits(a[...].get(), values)
    assert kvikio.n_preads == 0
    assert a.explain().fetch == "ring of 4 pinned slots (the host decodes)"


@pytest.fixture
def server(tmp_path):
    with RangeServer(tmp_path) as running:
        yield running


REMOTE = Options(kvikio_remote=True, whole_object_fraction=1)
# Inner chunks of two of the four in a shard: it is not fetched whole.
HALF = (slice(0, 8),)


@pytest.mark.network
def test_remote_ranges_are_read_by_kvikio_when_it_is_asked_for(
    tmp_path, device, kvikio, server, monkeypatch
):
    values = stored(tmp_path, CHAINS["zstd"])
    part = expressions.basic(HALF, values.shape)
    off = gpushard.open_array(server.url, device=device)
    assert "kvikio_remote is off" in off.explain(HALF).fetch
    with monkeypatch.context() as without:
        without.setattr(kvikio, "is_remote_file_available", lambda: False)
        lacking = gpushard.open_array(server.url, device=device, options=REMOTE)
        assert "this kvikio reads no remote files" in lacking.explain(HALF).fetch
    assert kvikio.n_preads == 0
    a = gpushard.open_array(server.url, options=REMOTE)
    results, job = read_on_device(a, [part], device)
    assert_same_bits(results[0], values[:8])
    assert job.tally.counts["n_direct_requests"] == kvikio.n_preads > 0
    assert job.tally.notes["fetch"] == "kvikio 26.10.0, remote files"


@pytest.mark.network
def test_a_remote_object_replaced_while_it_is_read_is_read_again(
    tmp_path, device, kvikio, server
):
    stored(tmp_path, CHAINS["none"])
    later = np.arange(60 * 40, dtype="i4").reshape(60, 40)

    def replace():
        kvikio.before_bytes = lambda: None
        zarr.open_array(tmp_path)[...] = later

    kvikio.before_bytes = replace
    a = gpushard.open_array(server.url, options=REMOTE)
    part = expressions.basic((slice(0, 8), slice(0, 20)), a.shape)
    results, _ = read_on_device(a, [part], device)
    assert_same_bits(results[0], later[:8, :20])
