"""A loader on a device gives what it gives on the host; the device is emulated."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

import gpushard
from cuda_host.arrays import EmulatedArray
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import Loader, OptionError, UnsupportedError
from gpushard.device_reading import read as device_reading
from gpushard.loader import reading
from gpushard.rolling import RollingArray
from loader_data import IMAGES, LABELS, ORDERS, N, images, labels, stored
from spec_shards import LITTLE, document, opened
from zarr_oracle import quiet_zarr

pytestmark = pytest.mark.usefixtures("device_begins_at_once")

KERNELS = Kernels()
SCANS = np.arange(12 * 10 * 9, dtype="i2").reshape(12, 10, 9)


@pytest.fixture
def device():
    return EmulatedDevice(KERNELS, load_standin(), seed=3)


def on_host(value):
    """The same batch in memory of the host."""
    if isinstance(value, dict):
        return {k: on_host(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map(on_host, value))
    return value.get() if isinstance(value, EmulatedArray) else value


def assert_same(got, wanted):
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        got, wanted = tuple(got.values()), tuple(wanted.values())
    if isinstance(wanted, tuple):
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
        return
    assert got.dtype == wanted.dtype
    assert np.array_equal(got, wanted)


def assert_as_on_the_host(device, arrays, **options):
    options = {"batch_size": 8, "return_index": True} | options
    with (
        Loader(arrays, device="cpu", **options) as host,
        Loader(arrays, device=device, **options) as there,
    ):
        for _ in range(2):
            wanted = list(host)
            got = [on_host(batch) for batch in there]
            assert len(got) == len(wanted)
            for one, other in zip(got, wanted, strict=True):
                assert_same(one, other)
    assert device.is_idle or not device.drain()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_every_order_gives_the_batches_of_the_host(device, order, prefetch_factor):
    arrays = {"images": images(), "labels": labels()}
    options = ORDERS[order] | {"prefetch_factor": prefetch_factor}
    assert_as_on_the_host(device, arrays, **options)


@pytest.mark.parametrize("order", ["rows", "chunks"])
def test_batches_that_straddle_reads_are_joined_there(device, order, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 60)
    arrays = {"images": images(), "labels": labels()}
    assert_as_on_the_host(device, arrays, **ORDERS[order])
    assert any(kind == "copy" for _, kind, _ in device.log)


@pytest.mark.parametrize("padding", ["drop", "shift", "fill"])
@pytest.mark.parametrize(
    "options",
    [
        {"window": (4, 3, 5), "stride": (3, 2, 4)},
        {"window": (5, 4)},
        {"window": 3, "stride": 1, "lead": 2},
        {"window": {"x": 2, "y": 1}, "lead": {"y": 2}, "stride": 1},
    ],
    ids=["patches", "planes", "rows", "lead"],
)
def test_windows_are_those_of_the_host(device, options, padding):
    scans = stored(SCANS, (4, 5, 3), (8, 10, 3))
    arrays = {"x": scans, "y": scans} if isinstance(options["window"], dict) else scans
    shared = {"padding": padding, "shuffle": True, "batch_size": 3}
    assert_as_on_the_host(device, arrays, **options, **shared)


def test_windows_of_arrays_in_a_row_are_those_of_the_host(device):
    parts = [stored(SCANS[:5], (4, 5, 3), (8, 10, 3)), stored(SCANS[5:], (3, 4, 3))]
    options = {"window": (4, 3), "stride": 1, "shuffle": True, "padding": "fill"}
    assert_as_on_the_host(device, gpushard.concat(parts), batch_size=9, **options)


@pytest.mark.parametrize("window", [2, (2, 3)], ids=["rows", "patches"])
@pytest.mark.parametrize("concat", [False, True], ids=["alone", "joined"])
def test_windows_with_nothing_of_the_array_are_filled_before_they_come(
    device, window, concat
):
    scans = stored(SCANS, (4, 5, 3), (8, 10, 3))
    arrays = gpushard.concat([scans, scans]) if concat else scans
    options = {"window": window, "padding": "fill", "batch_size": 2}
    with Loader(arrays, lead=5, **options) as host:
        last = len(host) * 2 - 2
    assert_as_on_the_host(device, arrays, lead=5, sampler=[last], **options)


def test_patches_of_a_load_share_a_launch(device, monkeypatch):
    loads = []
    job = device_reading.device_job
    monkeypatch.setattr(
        device_reading, "device_job", lambda *a, **k: loads.append(a) or job(*a, **k)
    )
    scans = stored(SCANS, (4, 5, 3), (8, 10, 3))
    options = {"window": (4, 3, 5), "stride": (1, 2, 4), "shuffle": True}
    with Loader(scans, device=device, batch_size=16, **options) as loader:
        n_samples = sum(batch.shape[0] for batch in loader)
    launches = [what for *_, what in device.log if what.startswith("gs_scatter")]
    assert n_samples > 50
    assert len(launches) == len(loads)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f4"},
        {"scale": 1 / 255},
        {"scale": 0.1, "offset": -3, "dtype": "f2"},
        {"offset": 0.5, "dtype": "f4"},
        # What the kernels cannot is done by the host, and copied.
        {"dtype": "i4", "scale": 0.7},
        {"scale": 1 / 3, "dtype": "f8"},
    ],
)
@pytest.mark.parametrize("stored_as", ["u1", "i2", "f4", "f8"])
def test_elements_are_converted_as_on_the_host(device, options, stored_as):
    values = np.random.default_rng(0).integers(0, 250, (40, 3, 5)).astype(stored_as)
    assert_as_on_the_host(device, stored(values, (4, 3, 3)), shuffle=True, **options)


def test_filled_elements_are_converted_too(device):
    scans = stored(SCANS, (4, 5, 3))
    options = {"window": (5, 4, 4), "padding": "fill", "scale": 0.1, "dtype": "f2"}
    assert_as_on_the_host(device, scans, **options)


def test_joined_arrays_are_read_there(device):
    parts = [stored(IMAGES[:40], (4, 2, 3)), stored(IMAGES[40:], (5, 2, 3), (15, 2, 3))]
    assert_as_on_the_host(device, gpushard.concat(parts), shuffle=True)
    assert_as_on_the_host(device, gpushard.concat(parts), window=(3, 2), stride=(2, 1))


def test_chunks_of_several_shapes_are_read_by_the_host(device):
    meta = document((7, 3), (7, 3), LITTLE, dtype="uint8")
    sizes = {"kind": "inline", "chunk_shapes": [[4, 3], [3]]}
    meta["chunk_grid"] = {"name": "rectilinear", "configuration": sizes}
    a = opened(meta, **{"0_0": bytes(range(12)), "1_0": bytes(range(12, 21))})
    assert_as_on_the_host(device, a, batch_size=3)


def test_a_loader_is_where_its_arrays_are(device):
    a = images()
    there = gpushard.Array(a.source, device)
    batch = next(iter(Loader(there, batch_size=4)))
    assert isinstance(batch, EmulatedArray)
    assert np.array_equal(batch.get(), IMAGES[:4])
    assert isinstance(next(iter(Loader(there, batch_size=4, device="cpu"))), np.ndarray)
    with pytest.raises(OptionError, match="on one device"):
        Loader((there, labels()))
    with pytest.raises(OptionError, match="to='numpy'"):
        Loader(there, to="numpy")
    with pytest.raises(OptionError, match="to='cupy'"):
        Loader(a, to="cupy")


def test_a_rolling_array_is_loaded_where_it_was_opened(device, tmp_path):
    options = {"shape": (0, 2, 3), "dtype": "u2", "chunks": (4, 2, 3)}
    RollingArray.create(tmp_path, **options).append(IMAGES[:24])
    rolling = RollingArray.open(tmp_path, device=device)
    batch = next(iter(Loader(rolling, batch_size=4)))
    assert isinstance(batch, EmulatedArray)
    assert np.array_equal(batch.get(), IMAGES[:4])
    batches = next(iter(Loader((rolling, rolling.view()), batch_size=4)))
    assert all(isinstance(batch, EmulatedArray) for batch in batches)
    with pytest.raises(OptionError, match="on one device"):
        Loader((rolling, images()))


def test_what_no_device_holds_is_refused(device):
    with quiet_zarr():
        words = stored(np.array(["a", "b"], dtype=np.dtypes.StringDType()), (1,))
    with pytest.raises(UnsupportedError, match="a device cannot hold"):
        Loader(words, device=device)


class Torch(SimpleNamespace):
    """As much of PyTorch as a loader asks: who has imported it, and on what stream."""

    def __init__(self):
        current = SimpleNamespace(cuda_stream=0)
        super().__init__(
            cuda=SimpleNamespace(current_stream=lambda _label: current),
            from_dlpack=lambda array: ("tensor", array),
            utils=SimpleNamespace(),
        )


def test_tensors_are_made_of_the_very_memory(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch())
    loader = Loader(images(), batch_size=4, device=device, to="torch")
    kind, array = next(iter(loader))
    assert kind == "tensor"
    assert isinstance(array, EmulatedArray)
    assert np.array_equal(array.get(), IMAGES[:4])


def test_the_next_read_is_begun_before_the_last_one_is_waited_for(device, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 48)
    told = []
    run, finish = reading.run, reading.finish
    monkeypatch.setattr(reading, "run", lambda *j: (told.append("begin"), run(*j)))
    monkeypatch.setattr(reading, "finish", lambda j: (told.append("end"), finish(j)))
    loader = Loader(images(), batch_size=8, device=device, prefetch_factor=1)
    assert len(list(loader)) == -(-N // 8)
    assert told[:4] == ["begin", "begin", "end", "begin"]
    assert told[-2:] == ["end", "end"]
    told.clear()
    list(Loader(images(), batch_size=8))
    assert told[:4] == ["begin", "end", "begin", "end"]


def test_damage_found_on_the_device_is_raised_and_skipped_as_on_the_host(
    device, tmp_path
):

    z = zarr.create_array(
        tmp_path,
        shape=LABELS.shape,
        chunks=(4,),
        shards=(12,),
        dtype="i4",
        compressors=zarr.codecs.ZstdCodec(checksum=True),
    )
    z[...] = LABELS
    shard = tmp_path / "c/2"
    payload = bytearray(shard.read_bytes())
    payload[:8] = b"\0" * 8
    shard.write_bytes(payload)
    options = gpushard.Options(placement="device")
    a = gpushard.open_array(tmp_path, device=device, options=options)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(a, batch_size=8))
    assert caught.value.shard_key == "c/2"
    assert "samples 24, 25, 26, 27" in caught.value.__notes__[0]
    loader = Loader(a, batch_size=8, on_error="skip", return_index=True)
    batches = [(on_host(batch), index) for batch, index in loader]
    found = np.concatenate([index for _, index in batches])
    assert sorted({*range(N)} - {*found.tolist()}) == [24, 25, 26, 27]
    assert all(np.array_equal(batch, LABELS[index]) for batch, index in batches)
    assert loader.stats()["samples_skipped"] == 4


def test_an_epoch_resumes_on_another_device_than_it_was_begun_on(device):
    options = {"batch_size": 8, "shuffle": True, "block": "chunk", "seed": 2}
    there = Loader(images(), device=device, **options)
    batches = iter(there)
    for _ in range(3):
        next(batches)
    here = Loader(images(), **options)
    here.load_state_dict(there.state_dict())
    assert np.array_equal(next(iter(here)), next(batches).get())
    there.close()


def test_a_loader_broken_off_leaves_nothing_under_way(device, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 48)
    with Loader(images(), batch_size=4, device=device) as loader:
        for _ in loader:
            break
    del loader, _
    gc.collect()
    device.drain()
    assert device.is_idle


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork to be told of")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_is_told_what_to_do_instead(device):
    loader = Loader(images(), batch_size=4, device=device)
    readable, writable = os.pipe()
    process = os.fork()
    if not process:
        try:
            next(iter(loader))
        except UnsupportedError as error:
            os.write(writable, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    told = os.read(readable, 1000).decode()
    assert "forked" in told
    assert "num_workers=0" in told


def test_any_worker_of_a_data_loader_is_refused(device, monkeypatch):
    worker = SimpleNamespace(num_workers=1)
    data = SimpleNamespace(
        get_worker_info=lambda: worker,
        IterableDataset=SimpleNamespace(register=lambda _kind: None),
    )
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    next(iter(Loader(images())))
    with pytest.raises(UnsupportedError, match="num_workers=0"):
        next(iter(Loader(images(), device=device)))
