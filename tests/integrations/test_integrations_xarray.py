"""xarray's engine, on a copy of the sample with times, packed and missing values."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard
from entry_points import add_to_xarray
from gpushard.errors import OptionError
from zarr_oracle import assert_same_bits

xr = pytest.importorskip("xarray", reason="the extra `xarray` is not installed")

SAMPLE = Path(gpushard.__file__).parent / "data" / "eraint.zarr"
FILL = -32767


@pytest.fixture(scope="module", autouse=True)
def _engine():
    add_to_xarray()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The sample; its months as times, and with values that are missing."""
    place = tmp_path_factory.mktemp("xarray") / "era.zarr"
    shutil.copytree(SAMPLE, place)
    group = zarr.open_group(place, mode="r+")
    group.create_group("wind", attributes={"title": "wind"})
    packed = group["u"][...]
    packed[0, 1, 100:140, 200:] = FILL
    u = zarr.create_array(
        group.store_path / "wind" / "u",
        shape=packed.shape,
        dtype="i2",
        chunks=(1, 1, 61, 120),
        shards=(1, 3, 122, 480),
        fill_value=FILL,
        dimension_names=["time", "level", "latitude", "longitude"],
        attributes={**dict(group["u"].attrs), "_FillValue": FILL, "coordinates": "lag"},
    )
    u[...] = packed
    for name, values, attributes in (
        ("time", [0, 181], {"units": "days since 1979-01-01", "calendar": "standard"}),
        ("lag", [3.5, 4.5], {"_FillValue": "AAAAAAAA+H8="}),  # NaN, as xarray has it
    ):
        made = zarr.create_array(
            group.store_path / "wind" / name,
            data=np.array(values),
            dimension_names=["time"],
            attributes=attributes,
        )
        assert made.shape == (2,)
    return place


def theirs(stored, **how):
    """What xarray's engine for zarr gives."""
    return xr.open_dataset(stored, engine="zarr", consolidated=False, **how)


def ours(stored, **how):
    return xr.open_dataset(stored, engine="gpushard", **how)


@pytest.mark.parametrize("group", [None, "wind", "/wind/"])
def test_datasets_are_those_of_xarrays_own_engine(stored, group):
    got, want = ours(stored, group=group), theirs(stored, group=group)
    assert all(not variable._in_memory for variable in got.data_vars.values())
    xr.testing.assert_identical(got.load(), want.load())
    for name, variable in want.variables.items():
        assert got[name].dtype == variable.dtype
        for key in ("_FillValue", "scale_factor", "add_offset", "units", "calendar"):
            at = (got[name].encoding.get(key), variable.encoding.get(key))
            assert at[0] == at[1] or np.isnan(at).all()


def test_missing_packed_and_time_values_are_decoded(stored):
    wind = ours(stored, group="wind")
    assert str(wind.time.values[1])[:10] == "1979-07-01"
    raw = zarr.open_array(stored / "u", mode="r")
    want = raw[...] * raw.attrs["scale_factor"] + raw.attrs["add_offset"]
    want[0, 1, 100:140, 200:] = np.nan
    np.testing.assert_array_equal(wind.u.values, want)
    assert set(wind.coords) == {"time", "lag"}


@pytest.mark.parametrize("how", [{"mask_and_scale": False}, {"decode_times": False}])
def test_decoding_can_be_switched_off(stored, how):
    got, want = (open_(stored, group="wind", **how) for open_ in (ours, theirs))
    xr.testing.assert_identical(got.load(), want.load())


def test_variables_can_be_left_out(stored):
    assert set(ours(stored, drop_variables="u").data_vars) == {"v", "z"}
    assert set(ours(stored, drop_variables=["u", "z"]).data_vars) == {"v"}


POINTS = {
    "latitude": xr.DataArray([240, 3, 3, 77], dims="station"),
    "longitude": xr.DataArray([1, 479, 0, 0], dims="station"),
}
ALONG_ALL = {
    name: xr.DataArray([[1, 0], [0, 1]], dims=("x", "y"))
    for name in ("month", "level", "latitude", "longitude")
}


@pytest.mark.parametrize(
    "indexers",
    [
        {"month": 1, "latitude": slice(5, 200, 7)},
        {"latitude": slice(None, None, -3), "longitude": [4, 1, 4]},
        {"month": [1, 0], "level": [2], "latitude": [9], "longitude": [5, 6]},
        POINTS,
        {"month": 0, "level": 2, **POINTS},
        ALONG_ALL,
    ],
    ids=lambda indexers: " ".join(indexers),
)
def test_every_kind_of_index_gives_what_xarrays_own_engine_gives(stored, indexers):
    got, want = (open_(stored).u.isel(indexers) for open_ in (ours, theirs))
    assert not got.variable._in_memory
    xr.testing.assert_identical(got.load(), want.load())


def test_only_what_is_selected_is_read(stored, monkeypatch):
    read = gpushard.Array.read
    sizes = []

    def noted(self, selection):
        sizes.append(read(self, selection).size)
        return read(self, selection)

    monkeypatch.setattr(gpushard.Array, "read", noted)
    u = ours(stored).u
    sizes.clear()  # the coordinates
    u.isel(ALONG_ALL).load()
    assert sizes == [4]
    u.isel(month=1, level=slice(2), **POINTS).load()
    assert sizes[1:] == [2 * 4]


def test_dask_blocks_are_shards(stored):
    pytest.importorskip("dask", reason="the extra `dask` is not installed")
    u = ours(stored, group="wind", chunks={}).u
    assert u.chunks == ((1, 1), (3,), (122, 119), (480,))
    assert u.data.name == ours(stored, group="wind", chunks={}).u.data.name
    assert_same_bits(u.values, ours(stored, group="wind").u.values)


def test_preferred_chunks_are_shards_and_else_chunks(stored):
    wind = ours(stored, group="wind")
    encoding = wind.u.encoding
    shard = {"time": 1, "level": 3, "latitude": 122, "longitude": 480}
    assert encoding["preferred_chunks"] == shard
    assert (encoding["chunks"], encoding["shards"]) == (
        (1, 1, 61, 120),
        (1, 3, 122, 480),
    )
    assert wind.lag.encoding["preferred_chunks"] == {"time": 2}


def test_shards_of_different_lengths_are_preferred_chunks(tmp_path):
    pytest.importorskip("dask", reason="the extra `dask` is not installed")
    if zarr.config.get("array.rectilinear_chunks", None) is None:
        pytest.skip("this zarr has no rectilinear grids")
    data = np.arange(60).reshape(10, 6)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        made = {"chunks": (1, 2), "shards": [[4, 5, 1], [2, 4]], "dtype": data.dtype}
        made |= {"shape": data.shape, "dimension_names": ["y", "x"]}
        zarr.create_group(tmp_path).create_array("a", **made)[...] = data
    a = ours(tmp_path, chunks={}).a
    assert a.chunks == ((4, 5, 1), (2, 4))
    assert "chunks" not in a.encoding  # to_zarr would make an object of each
    assert_same_bits(a.values, data)


def test_lazy_datasets_pickle_as_addresses(stored):
    pickled = pickle.dumps(ours(stored))
    assert len(pickled) < 20_000
    xr.testing.assert_identical(pickle.loads(pickled).load(), theirs(stored).load())


def test_groups_make_a_tree(stored):
    tree = xr.open_datatree(stored, engine="gpushard")
    assert set(tree.groups) == {"/", "/wind"}
    xr.testing.assert_identical(
        tree["wind"].to_dataset(inherit=False).load(),
        theirs(stored, group="wind").load(),
    )
    assert set(xr.open_groups(stored, engine="gpushard")) == {"/", "/wind"}


def test_dimensions_may_be_named_as_xarray_did_before_version_3(tmp_path):
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}
    data = np.arange(6.0).reshape(2, 3)
    group = zarr.create_group(tmp_path)
    group.create_array("t", data=data, attributes=attributes)
    t = ours(tmp_path).t
    assert t.dims == ("y", "x")
    assert t.attrs == {"units": "K"}
    assert_same_bits(t.values, data)


ELEMENTS = {
    "packed": ("i2", -9, [1, -9, 3, 4], {"scale_factor": 0.5}),
    "named twice": ("i2", -9, [1, -9, 3, 4], {"_FillValue": 3}),
    "lag": ("f8", -999.0, [1, -999, 3, 4], {}),
    "nan": ("f4", np.nan, [1, np.nan, 3, 4], {}),
    "days": ("i8", 0, [0, 1, 2, 3], {"units": "days since 2000-01-01"}),
    "flag": ("?", False, [True, False, True, True], {}),
    "wave": ("c8", 0, [1, 0, 2j, 3], {}),
    "spelled": ("f4", None, [1, 2, 3, 4], {"_FillValue": "NaN"}),
    "no fill value": ("i4", None, [0, 1, 0, 2], {}),
    "text": (str, "", ["a", "", "c", "d"], {}),
    "text without": (str, None, ["a", "", "c", "d"], {}),
}


@pytest.mark.filterwarnings("ignore:The (codec|data type) .* Zarr:UserWarning")
@pytest.mark.parametrize("name", ELEMENTS)
def test_the_fill_value_of_zarr_v2_is_a_missing_value(tmp_path, name):
    dtype, fill, values, attributes = ELEMENTS[name]
    group = zarr.create_group(tmp_path, zarr_format=2)
    stored = group.create_array(
        "v",
        shape=(6,),
        dtype=dtype,
        chunks=(2,),
        fill_value=fill,
        attributes={**attributes, "_ARRAY_DIMENSIONS": ["x"]},
    )
    stored[:4] = values  # the last chunk is not stored
    got, want = ours(tmp_path).load(), theirs(tmp_path).load()
    xr.testing.assert_identical(got, want)
    assert got.v.dtype == want.v.dtype
    for kind in ("_FillValue", "fill_value"):
        at, expected = (d.v.encoding.get(kind) for d in (got, want))
        np.testing.assert_equal(at, expected)


def test_complex_fill_values_are_read_as_xarray_spells_them(tmp_path):
    spelled = ["AAAAAAAAHEA=", "AAAAAAAA8L8="]  # 7 and -1, of 8 bytes each
    zarr.create_group(tmp_path).create_array(
        "wave",
        data=np.array([1, 7 - 1j, 2j]),
        dimension_names=["x"],
        attributes={"_FillValue": spelled},
    )
    wave = ours(tmp_path).wave
    assert wave.isnull().values.tolist() == [False, True, False]
    assert wave.encoding["_FillValue"] == 7 - 1j


def test_the_fill_value_of_zarr_v3_is_written_back(tmp_path):
    made = xr.Dataset({"level": ("x", np.array([3, 4, 5], "i2"))})
    made["level"].encoding["fill_value"] = 4
    made.to_zarr(tmp_path / "a", zarr_format=3, consolidated=False)
    ours(tmp_path / "a").to_zarr(tmp_path / "b", zarr_format=3, consolidated=False)
    assert zarr.open_array(tmp_path / "b" / "level").fill_value == 4


def test_arrays_without_names_of_dimensions_are_refused_by_name(tmp_path):
    zarr.create_group(tmp_path).create_array("bare", data=np.zeros((2, 3)))
    with pytest.raises(
        gpushard.MetadataError, match=rf"'file://{tmp_path}/bare'.*drop_variables"
    ):
        ours(tmp_path)
    assert not ours(tmp_path, drop_variables="bare")


@pytest.mark.parametrize("named", ["xy", 2, {"x": 0, "y": 1}, ["x"], ["x", None]])
def test_an_attribute_that_does_not_name_the_dimensions_is_refused(named, tmp_path):
    attributes = {"_ARRAY_DIMENSIONS": named}
    group = zarr.create_group(tmp_path)
    group.create_array("bare", data=np.zeros((2, 3)), attributes=attributes)
    with pytest.raises(gpushard.MetadataError, match="a name for every dimension"):
        ours(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("f4", "NaN"), ("f8", "AAAA"), ("c8", ["AAAAAAAAHEA="])]
)
def test_a_fill_value_that_xarray_cannot_decode_is_named(dtype, fill, tmp_path):
    group = zarr.create_group(tmp_path)
    for name, attributes in (("good", {}), ("bad", {"_FillValue": fill})):
        values = np.ones(2, dtype)
        group.create_array(
            name, data=values, dimension_names=["x"], attributes=attributes
        )
    with pytest.raises(gpushard.MetadataError, match=r"bad.*attributes\._FillValue"):
        ours(tmp_path)
    assert list(ours(tmp_path, drop_variables="bad")) == ["good"]


def test_a_broken_variable_is_named_and_can_be_left_out(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    for name in ("x", "y", "below/z"):
        group.create_array(name, shape=(4,), dtype="i4", dimension_names=["n"])[...] = 1
    (tmp_path / "g" / "x" / "zarr.json").write_text("{")
    with pytest.raises(gpushard.MetadataError) as caught:
        xr.open_dataset(tmp_path / "g", engine="gpushard")
    assert caught.value.array_path == "x"
    found = xr.open_datatree(tmp_path / "g", engine="gpushard", drop_variables="x")
    assert list(found.data_vars) == ["y"]
    assert found["below/z"].shape == (4,)


def test_parameters_of_other_engines_are_refused_in_words(stored):
    with pytest.raises(gpushard.OptionError, match="no parameter 'chunk_store'"):
        xr.open_dataset(stored, engine="gpushard", chunk_store=None)


def test_the_engine_has_to_be_asked_for(stored):
    from xarray.backends.plugins import list_engines

    assert not list_engines()["gpushard"].guess_can_open(str(stored))


def test_the_engine_names_no_address_as_it_has_none_before_a_release():
    from xarray.backends.plugins import list_engines

    told = repr(list_engines()["gpushard"])
    assert "through gpushard" in told
    assert "http" not in told


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"zarr_format": 3}, "no parameter 'zarr_format'; choose from mask_and"),
        ({"decode_time": False}, "parameter 'decode_time'.*ant decode_times="),
        ({"group": 3}, "group is the path of a group: got 3"),
        ({"consolidated": "yes"}, "^consolidated is True or False: got 'yes'"),
        ({"drop_variables": 3}, "drop_variables are names of arrays: got 3"),
        ({"drop_variables": ["a", 3]}, "drop_variables are names of arrays"),
        ({"drop_variables": [["a"]]}, "drop_variables are names of arrays"),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(stored, how, told):
    with pytest.raises(OptionError, match=told):
        ours(stored, **how)


@pytest.mark.skipif(
    not hasattr(xr.Dataset, "load_async"), reason="xarray has load_async since 2025.8"
)
def test_datasets_are_loaded_in_an_event_loop_that_goes_on(stored, monkeypatch):
    lazy = xr.open_dataset(stored, group="wind", engine="gpushard")
    loads = asyncio.run(lazy.isel(level=[0, 2]).load_async())
    own = xr.open_dataset(stored, group="wind", engine="zarr", consolidated=False)
    xr.testing.assert_identical(loads, own.isel(level=[0, 2]).load())

    goes_on = threading.Event()  # set by the event loop while the read waits for it
    read = gpushard.Array.read
    lazy = xr.open_dataset(stored, group="wind", engine="gpushard")["u"]

    def waiting(array, selection):
        assert goes_on.wait(5), "the event loop stands still"
        return read(array, selection)

    async def load_beside_others():
        loading = asyncio.create_task(lazy.variable.load_async())
        await asyncio.sleep(0)
        goes_on.set()
        return await loading

    monkeypatch.setattr(gpushard.Array, "read", waiting)
    loaded = asyncio.run(load_beside_others())
    monkeypatch.undo()
    xr.testing.assert_identical(loaded, own["u"].variable)


@pytest.mark.filterwarnings("ignore:The (codec|data type) .* Zarr:UserWarning")
def test_text_has_the_data_type_that_xarrays_own_engine_gives_it(tmp_path):
    text = np.array(["a", "bé", "longer text"], object)
    made = xr.Dataset({"text": ("x", text)})
    made.to_zarr(tmp_path / "t.zarr", zarr_format=3, consolidated=False)
    ours = xr.open_dataset(tmp_path / "t.zarr", engine="gpushard")
    own = xr.open_dataset(tmp_path / "t.zarr", engine="zarr", consolidated=False)
    for name in own.variables:
        assert ours[name].dtype == own[name].dtype
        assert ours[name].load().dtype == own[name].load().dtype
    xr.testing.assert_identical(ours, own)
    ours.to_zarr(tmp_path / "again.zarr", zarr_format=3, consolidated=False)
    again = xr.open_dataset(tmp_path / "again.zarr", engine="zarr", consolidated=False)
    xr.testing.assert_identical(again, own)
