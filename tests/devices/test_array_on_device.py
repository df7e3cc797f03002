"""`Array` on a device: the emulated one here; `test_gpu_reads` has the real one."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import gpushard
from cuda_host.arrays import EmulatedArray
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard.device_reading import read, sink
from gpushard.device_reading.sink import DeviceSink
from gpushard.devices import find
from gpushard.devices.find import FoundDevice
from gpushard.errors import UnsupportedError
from tiny_bounds import tiny_bounds
from zarr_oracle import assert_same_bits

KERNELS = Kernels()
pytestmark = pytest.mark.usefixtures("device_begins_at_once")


@pytest.fixture
def device():
    return EmulatedDevice(KERNELS, load_standin(), seed=3)


@pytest.fixture
def stored(tmp_path):
    values = np.arange(64 * 48, dtype="i4").reshape(64, 48)
    made = zarr.create_array(
        tmp_path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(8, 8),
        shards=(32, 16),
        compressors=ZstdCodec(),
    )
    made[...] = values
    return tmp_path, values


def test_results_lie_on_the_device(stored, device):
    place, values = stored
    a = gpushard.open_array(place, device=device)
    assert a.device == "emulated:0"
    assert "emulated:0" in repr(a)
    result = a[3:50:2, ::-1]
    assert isinstance(result, EmulatedArray)
    assert_same_bits(result.get(), values[3:50:2, ::-1])
    assert_same_bits(a.oindex[[5, 1], :].get(), values[[5, 1]])
    assert_same_bits(a.vindex[[5, 1], [2, 3]].get(), values[[5, 1], [2, 3]])
    assert_same_bits(a.blocks[1, 2].get(), values[32:64, 32:48])


def test_an_element_is_a_0d_array_of_the_device(stored, device):
    place, values = stored
    element = gpushard.open_array(place, device=device)[7, 9]
    assert element.shape == ()
    assert_same_bits(element.get(), values[7, 9, ...])


def test_many_selections_are_one_batch_on_the_device(stored, device):
    place, values = stored
    a = gpushard.open_array(place, device=device)
    results = a.read_many([(slice(0, 9),), (3,), (slice(60, 64), 1)])
    wanted = [values[0:9], values[3], values[60:64, 1]]
    for result, want in zip(results, wanted, strict=True):
        assert_same_bits(result.get(), want)


def test_a_read_casts_into_the_callers_array(stored, device):
    place, values = stored
    a = gpushard.open_array(place, device=device)
    out = device.empty((64, 48), np.dtype("f4"))
    assert a.read(out=out) is out
    assert_same_bits(out.get(), values.astype("f4"))
    assert_same_bits(a.read(dtype="f8").get(), values.astype("f8"))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_written_before_what_the_callers_stream_does_first(
    stored, seed, monkeypatch
):
    place, values = stored
    monkeypatch.setattr(sink, "MAX_ROWS", 2)  # batches on both lanes
    device = EmulatedDevice(KERNELS, load_standin(), seed=seed)
    a = gpushard.open_array(place, device=device)
    out = device.empty((64, 48), np.dtype("i4"))
    stream = device.create_stream()
    for _ in range(50):  # so that no order of streams is kind by chance
        device.clear(out.buffer.address, values.nbytes, stream)
    a.read(out=out, stream=stream)
    done = [
        kind for _, kind, what in device.log if kind == "clear" or "scatter" in what
    ]
    assert "clear" not in done[50:]
    assert done[50:]
    assert_same_bits(out.get(), values)


@pytest.mark.parametrize("seed", range(5))
def test_a_new_array_is_not_written_before_what_its_memory_was_used_for(
    stored, seed, monkeypatch
):
    place, values = stored
    device = EmulatedDevice(KERNELS, load_standin(), seed=seed)
    empty = device.empty

    def used(shape, dtype):
        made = empty(shape, dtype)
        for _ in range(50):
            device.clear(made.buffer.address, values.nbytes, device.current_stream())
        return made

    monkeypatch.setattr(device, "empty", used)
    a = gpushard.open_array(place, device=device)
    assert_same_bits(a.read(stream=device.create_stream()).get(), values)


def test_results_of_any_sizes_that_the_host_reads_are_copied_whole(stored, device):
    place, values = stored
    # No memory for the tables of targets, which come behind the results.
    device.refuses = lambda kind, n: kind == "allocate" and n == 3
    a = gpushard.open_array(place, device=device)
    keys = [np.s_[:2, 1], np.s_[...], np.s_[5:9]]
    for result, key in zip(a.read_many(keys), keys, strict=True):
        assert_same_bits(result.get(), values[key])
    assert not any("scatter" in what for _, _, what in device.log)


@pytest.mark.parametrize("refused", [1, 9, None])
def test_listed_elements_that_the_host_reads_in_rounds_are_all_copied(
    stored, device, monkeypatch, refused
):
    place, values = stored
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(0, 64, 40), rng.integers(0, 48, 40)
    # No memory for the tables of a round; or a device that scatters nothing.
    device.refuses = lambda kind, n: kind == "allocate" and n == refused
    if refused is None:
        monkeypatch.setattr(read, "choose_chain", lambda _: (None, "no reason"))
    # New memory has nothing of the round before, as it would have by chance.
    full = SimpleNamespace(empty=lambda *of: np.full(of[0], 77, of[1]), uint8=np.uint8)
    monkeypatch.setattr(read, "np", full)
    a = gpushard.open_array(place, device=device)
    with tiny_bounds():
        result = a.vindex[rows, columns].get()
    assert_same_bits(result, values[rows, columns])


@pytest.mark.parametrize("seed", range(5))
def test_neither_is_it_where_the_host_reads_for_the_device(stored, seed):
    place, values = stored
    # No memory for the tables of targets, which come behind the result.
    device = EmulatedDevice(KERNELS, load_standin(), seed=seed)
    device.refuses = lambda kind, n: kind == "allocate" and n == 1
    a = gpushard.open_array(place, device=device)
    out = device.empty((64, 48), np.dtype("i4"))
    stream = device.create_stream()
    device.clear(out.buffer.address, values.nbytes, stream)
    a.read(out=out, stream=stream)
    kinds = [kind for _, kind, _ in device.log if kind != "event"]
    assert kinds == ["clear", "upload"]
    assert_same_bits(out.get(), values)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.empty((64, 48), "i4"), "no array in device memory"),
        (np.empty(3), "no array in device memory"),
    ],
)
def test_an_array_on_the_host_is_refused(stored, device, out, said):
    place, _ = stored
    a = gpushard.open_array(place, device=device)
    with pytest.raises(gpushard.SelectionError, match=said):
        a.read(out=out)


def test_an_array_that_is_read_only_is_refused(stored, device):
    place, _ = stored
    out = device.empty((64, 48), np.dtype("i4"))
    out.__cuda_array_interface__ |= {"data": (out.buffer.address, True)}
    with pytest.raises(gpushard.SelectionError, match="read-only"):
        gpushard.open_array(place, device=device).read(out=out)


def test_an_array_of_another_shape_is_refused(stored, device):
    place, _ = stored
    a = gpushard.open_array(place, device=device)
    with pytest.raises(gpushard.SelectionError, match="another shape"):
        a.read(out=device.empty((64, 47), np.dtype("i4")))


def test_what_is_no_stream_is_refused(stored, device):
    place, _ = stored
    with pytest.raises(gpushard.SelectionError, match="no CUDA stream"):
        gpushard.open_array(place, device=device).read(stream="fast")
    with pytest.raises(gpushard.SelectionError, match="on a device"):
        gpushard.open_array(place).read(stream=1)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
def test_explain_says_what_ran_where_and_why(tmp_path, device):
    values = np.arange(64, dtype="i4").reshape(8, 8)
    zarr.create_array(
        tmp_path / "a", data=values, chunks=(4, 4), compressors=BloscCodec(cname="zstd")
    )
    options = gpushard.Options(placement="device")
    report = gpushard.open_array(
        tmp_path / "a", device=device, options=options
    ).explain()
    assert [(c.codec, c.where) for c in report.codecs] == [
        ("blosc", "device"),
        ("bytes", "scatter"),
    ]
    assert report.codecs[0].library == "nvCOMP 6.0.0"
    zarr.create_array(
        tmp_path / "b",
        data=values,
        chunks=(4, 4),
        compressors={"name": "numcodecs.bz2", "configuration": {"level": 1}},
    )
    report = gpushard.open_array(tmp_path / "b", device=device).explain()
    assert {c.where for c in report.codecs} == {"host"}
    assert "numcodecs.bz2" in report.codecs[0].why


def test_a_missing_gpu_is_told_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(gpushard.UnsupportedError, match=r"pip install 'gpushard\[cuda"):
        gpushard.open_array("nowhere", device="cuda")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", ""])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(gpushard.UnsupportedError, match="no such kind of device"):
        gpushard.open_array("nowhere", device=device)


def test_arrays_on_a_device_are_not_concatenated(stored, device):
    place, _ = stored
    a = gpushard.open_array(place, device=device)
    with pytest.raises(gpushard.UnsupportedError, match="host only"):
        gpushard.concat([a, a])


@pytest.mark.parametrize(
    "selections",
    [
        [slice(9)],
        [[1, 2, 3]],
        [slice(9), [1, 2, 3]],
        [[4, 4], [3, 2]],
        [np.arange(70_000) % 3],
        [np.ones(1 << 17, bool)],
    ],
    ids=["slice", "index", "beside a slice", "two", "long", "mask"],
)
@pytest.mark.parametrize(
    ("limit", "n_rows"), [(None, (2700, 2826)), (64 << 20, (20, 38))]
)
def test_listed_elements_take_no_more_of_the_room_of_a_device_than_their_columns(
    tmp_path, monkeypatch, selections, limit, n_rows
):
    n = 1 << 17
    made = zarr.create_array(tmp_path, shape=(n,), chunks=(n // 8,), dtype="i4")
    made[...] = values = np.arange(n, dtype="i4")
    roomy = EmulatedDevice(KERNELS, load_standin(), limit_nbytes=64 << 30)
    a = gpushard.open_array(tmp_path, device=roomy)
    found = []

    class Noting(DeviceSink):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            found.append(self.max_rows)

    monkeypatch.setattr(read, "DeviceSink", Noting)
    results = a.read_many(selections, memory_limit=limit)
    for result, key in zip(results, selections, strict=True):
        assert_same_bits(result.get(), values[key])
    least, most = n_rows
    assert len(found) == 1
    assert least <= found[0] <= most


@pytest.fixture
def texts(tmp_path, device, monkeypatch):
    """A group of text and numbers where "auto" finds a device."""
    monkeypatch.setattr(find, "_usable_gpu", lambda process: FoundDevice(device))
    group = zarr.open_group(tmp_path, mode="w")
    with warnings.catch_warnings():  # zarr 3.1.0 does not know its own string codec
        warnings.simplefilter("ignore")
        group.create_array("name", data=np.array(["a", "bc"], dtype="T"))
    group.create_array("number", data=np.arange(2))
    return tmp_path


def test_by_default_text_is_read_on_the_host_and_says_why(texts):
    group = gpushard.open_group(texts)
    for a in (gpushard.open_array(texts / "name"), group["name"]):
        assert a.device == "cpu"
        assert a.explain().device_why.startswith("no GPU is used: device memory holds")
        assert list(a[:]) == ["a", "bc"]
    assert group["number"].device == "emulated:0"


def test_text_is_refused_on_a_device_that_was_asked_for(texts, device):
    with pytest.raises(UnsupportedError, match="device memory holds no"):
        gpushard.open_array(texts / "name", device=device)[:]
