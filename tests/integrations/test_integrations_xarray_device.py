"""xarray's engine on a device: an emulated one, its arrays never turn into NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.lib.mixins import NDArrayOperatorsMixin

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from entry_points import add_to_xarray
from gpushard.devices import find
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.usefixtures("device_begins_at_once")

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")


class DeviceArray(NDArrayOperatorsMixin):
    """What CuPy's arrays do for xarray, and what they refuse to do."""

    __array_priority__ = 100

    def __init__(self, of):
        self._of = of
        self.__cuda_array_interface__ = getattr(of, "__cuda_array_interface__", None)

    def get(self):
        return self._of if isinstance(self._of, np.ndarray) else self._of.get()

    shape = property(lambda self: tuple(self._of.shape))
    dtype = property(lambda self: self._of.dtype)
    ndim = property(lambda self: len(self._of.shape))
    size = property(lambda self: int(np.prod(self._of.shape)))

    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit conversion to a NumPy array")

    def __array_function__(self, func, types, args, kwargs):
        return _lifted(func(*_lowered(args), **kwargs))

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if any(isinstance(value, list) for value in inputs):
            raise TypeError("Unsupported type list")
        if out is not None:
            (target,) = out
            found = getattr(ufunc, method)(*_lowered(inputs), **kwargs)
            target._of = np.asarray(found, target.dtype)
            return target
        return _lifted(getattr(ufunc, method)(*_lowered(inputs), **kwargs))

    def astype(self, dtype, copy=True):
        return DeviceArray(self.get().astype(dtype, copy=copy))

    def __getitem__(self, key):
        return _lifted(self.get()[_lowered([key])[0]])

    def __setitem__(self, key, value):
        host = self.get().copy()
        host[_lowered([key])[0]] = value
        self._of = host


def _lowered(values):
    return [v.get() if isinstance(v, DeviceArray) else v for v in values]


def _lifted(value):
    # CuPy gives arrays of no dimension where NumPy gives scalars.
    is_array = isinstance(value, np.ndarray | np.generic)
    return DeviceArray(np.asarray(value)) if is_array else value


class Device(EmulatedDevice):
    def empty(self, shape, dtype):
        return DeviceArray(super().empty(shape, dtype))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    place = tmp_path_factory.mktemp("xarray-device")
    group = zarr.create_group(place)
    packed = np.arange(-30, 30, dtype="i2").reshape(6, 10)
    how = {"chunks": (1, 5), "shards": (2, 10), "fill_value": 0}
    for name, attributes in (
        ("packed", {"scale_factor": 0.5, "add_offset": 2.0, "_FillValue": -7}),
        ("both", {"_FillValue": 4, "missing_value": [4, 4], "coordinates": "lag"}),
        ("plain", {"units": "m"}),
        ("lists", {"scale_factor": [0.5], "add_offset": [3.0], "_FillValue": 4}),
        ("absurd", {"missing_value": "4"}),
        ("lag", {}),
        ("date", {"units": "hours since 2000-01-01"}),
        ("unsigned", {"_Unsigned": "true", "_FillValue": -1}),
    ):
        dims = ("y", "x")
        made = group.create_array(
            name,
            shape=packed.shape,
            dtype="i2",
            attributes=attributes,
            dimension_names=dims,
            **how,
        )
        made[...] = packed
    group.create_array("x", data=np.arange(10.0), dimension_names=["x"])
    return place


def opened_device():
    add_to_xarray()
    return Device(Kernels(), load_standin())


@pytest.fixture(scope="module")
def both(stored):
    ours = xr.open_dataset(stored, engine="gpushard", device=opened_device())
    return ours, xr.open_dataset(stored, engine="zarr", consolidated=False)


@pytest.mark.parametrize("name", ["packed", "both", "plain", "lists", "absurd"])
def test_data_variables_are_decoded_where_they_come_out(both, name):
    got, want = (dataset[name] for dataset in both)
    assert got.dtype == want.dtype
    assert got.attrs == want.attrs
    for part in ({}, {"y": 3}, {"x": [1, 1, 8]}, {"y": slice(None, None, -2)}):
        data = got.isel(part).data
        assert isinstance(data, DeviceArray)
        assert_same_bits(data.get(), want.isel(part).values)


@pytest.mark.parametrize("name", ["x", "lag", "date", "unsigned"])
def test_coordinates_times_and_what_only_numpy_decodes_stay_on_the_host(both, name):
    got, want = (dataset[name] for dataset in both)
    assert isinstance(got.data, np.ndarray)
    assert_same_bits(got.values, want.values)
    assert (name in both[0].coords) == (name in both[1].coords)


@pytest.mark.parametrize(
    ("dtype", "fill_value", "stored_values"),
    [
        ("f4", -999.9, [-999.9, 1]),  # no float32 equals this fill value
        ("f8", -999.9, [-999.9, 1]),
        ("i8", 2**53 + 1, [2**53, 2**53 + 1, 1]),  # both are this float64
        ("u8", 2**64 - 1, [2**64 - 1, 1]),
        ("u1", 255, [255, 1]),
        ("i1", 255, [-1, 1]),
        ("c8", 7, [7, 1]),
        ("f4", 1e300, [3, 1]),  # no element of this type
    ],
)
def test_fill_values_mask_the_elements_that_they_mask_on_the_host(
    dtype, fill_value, stored_values, tmp_path
):
    zarr.open_group(tmp_path).create_array(
        "a",
        data=np.array(stored_values, dtype),
        attributes={"missing_value": fill_value},
        dimension_names=["x"],
    )
    ours = xr.open_dataset(tmp_path, engine="gpushard", device=opened_device()).a
    want = xr.open_dataset(tmp_path, engine="zarr", consolidated=False).a
    assert ours.dtype == want.dtype
    assert isinstance(ours.data, DeviceArray)
    assert_same_bits(ours.data.get(), want.values)


@pytest.mark.parametrize("attributes", [{"scale_factor": 3.0}, {"add_offset": 0.5}])
def test_doubles_are_decoded_though_they_stay_doubles(attributes, tmp_path):
    zarr.open_group(tmp_path).create_array(
        "a", data=np.arange(4.0), attributes=attributes, dimension_names=["x"]
    )
    ours = xr.open_dataset(tmp_path, engine="gpushard", device=opened_device()).a
    want = xr.open_dataset(tmp_path, engine="zarr", consolidated=False).a
    assert isinstance(ours.data, DeviceArray)
    assert_same_bits(ours.data.get(), want.values)


@pytest.mark.filterwarnings("ignore:In a future version, xarray will not decode time")
def test_missing_durations_stay_on_the_host(tmp_path):
    zarr.open_group(tmp_path).create_array(
        "a",
        data=np.array([3, 4, 5], "i2"),
        attributes={"units": "hours", "missing_value": 4},
        dimension_names=["x"],
    )
    ours = xr.open_dataset(tmp_path, engine="gpushard", device=opened_device()).a
    want = xr.open_dataset(tmp_path, engine="zarr", consolidated=False).a
    assert isinstance(ours.data, np.ndarray)
    assert_same_bits(ours.values, want.values)


def test_a_decoding_can_be_switched_off_for_one_variable(stored):
    how = {"mask_and_scale": {"packed": False}}
    ours = xr.open_dataset(stored, engine="gpushard", device=opened_device(), **how)
    want = xr.open_dataset(stored, engine="zarr", consolidated=False, **how)
    for name in ("packed", "both"):
        assert isinstance(ours[name].data, DeviceArray)
        assert ours[name].attrs == want[name].attrs
        assert_same_bits(ours[name].data.get(), want[name].values)


def test_what_new_memory_holds_does_not_decide_how_scalars_are_decoded(
    tmp_path, monkeypatch
):
    made = zarr.open_group(tmp_path).create_array(
        "a", shape=(), dtype="i8", attributes={"units": "hours since 2000-01-01"}
    )
    made[...] = 7
    empty = np.empty

    def full_of_hours(*args, **kwargs):
        memory = empty(*args, **kwargs)
        if memory.dtype == np.int64:
            memory.fill(2**63 - 1)  # too many hours for any date
        return memory

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", full_of_hours)
        ours = xr.open_dataset(tmp_path, engine="gpushard", device=opened_device())
    want = xr.open_dataset(tmp_path, engine="zarr", consolidated=False)
    assert_same_bits(ours.a.values, want.a.values)


def test_packed_winds_of_the_sample_are_scaled_on_the_device_to_the_same_bits():
    add_to_xarray()
    sample = Path(gpushard.__file__).parent / "data" / "eraint.zarr"
    device = Device(Kernels(), load_standin())
    ours = xr.open_dataset(sample, engine="gpushard", device=device)
    want = xr.open_dataset(sample, engine="zarr", consolidated=False)
    part = {"month": 1, "level": 2, "latitude": slice(40, 90)}
    for name in ("u", "z"):
        got = ours[name].isel(part).data
        assert isinstance(got, DeviceArray)
        assert_same_bits(got.get(), want[name].isel(part).values)


def test_the_host_is_the_default_where_there_is_a_device_too(stored, monkeypatch):
    device = opened_device()
    monkeypatch.setattr(find, "_usable_gpu", lambda process: find.FoundDevice(device))
    kinds = [
        type(xr.open_dataset(stored, engine="gpushard", **how).packed.data)
        for how in ({}, {"device": "auto"})
    ]
    assert kinds == [np.ndarray, DeviceArray]


def test_nothing_is_read_before_it_is_asked_for(stored):
    device = opened_device()
    xr.open_dataset(stored, engine="gpushard", device=device)
    assert device.n_calls == 0
