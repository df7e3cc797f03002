"""xarray's engine ``gpushard``: datasets whose variables gpushard reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from xarray import Dataset, DataTree, Variable, conventions
from xarray.backends import AbstractDataStore, BackendEntrypoint, StoreBackendEntrypoint
from xarray.backends.zarr import FillValueCoder
from xarray.core.indexing import LazilyIndexedArray

from gpushard.arguments import refuse_unknown
from gpushard.array import Array
from gpushard.errors import GpushardError, MetadataError, OptionError, naming
from gpushard.formats.v2 import DIMENSION_NAMES
from gpushard.group import Group, all_groups, open_group
from gpushard.integrations.xarray_arrays import (
    FILL_VALUES,
    CfDecoding,
    CoordinateArray,
    Coordinates,
    DecodedArray,
    LazyArray,
)
from gpushard.integrations.xarray_encoding import encoding_of
from gpushard.options import DEFAULT, MIB, Options

if TYPE_CHECKING:
    from gpushard.devices.base import Device

# CF attributes that name other variables of the dataset: those are no data.
_REFERRING = ("coordinates", "bounds", "grid_mapping", "climatology", "formula_terms")
_PARAMETERS = (
    "filename_or_obj",
    "mask_and_scale",
    "decode_times",
    "concat_characters",
    "decode_coords",
    "drop_variables",
    "use_cftime",
    "decode_timedelta",
    "group",
    "device",
    "storage_options",
    "options",
    "consolidated",
)
_ABOUT_VALUES = ("mask_and_scale", "decode_times", "decode_timedelta", "use_cftime")
# Attributes of what xarray decodes with NumPy only.
_FOR_NUMPY = {"_Unsigned", "dtype"}
# Coordinates up to this size are read together.
_SHORT_NBYTES = MIB
# What a device can hold and compute with.
_NUMBERS = "biufc"


class GpushardBackend(BackendEntrypoint):
    """Engine of ``xarray.open_dataset(..., engine="gpushard")``.

    Data variables are lazy. They are read to the host, or to the device that
    ``device=`` names; coordinates are NumPy arrays, because indexes must be.
    ``chunks={}`` makes a dask block of each shard.

    Examples
    --------
    >>> import xarray
    >>> wind = xarray.open_dataset("demo.zarr", engine="gpushard")
    >>> wind.u.sel(level=500, latitude=slice(60, 30)).shape
    (2, 41, 480)
    """

    description = "Open sharded Zarr v3 data through gpushard"
    supports_groups = True
    open_dataset_parameters = _PARAMETERS

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """False: users ask for ``engine="gpushard"`` by name."""
        del filename_or_obj
        return False

    def open_dataset(self, filename_or_obj: Any, **parameters: Any) -> Dataset:
        """Dataset of the group that `filename_or_obj` holds.

        Parameters
        ----------
        filename_or_obj
            As for `open_group`.
        **parameters
            `group`: path of the group; None is the root. `device`: where data variables
            are read to, by default "cpu", even if there is a GPU; docs/xarray.md says
            why. `storage_options`, `options`: as for `open_group`. `drop_variables`:
            names of arrays that are not opened. `consolidated`: True refuses a group
            without consolidated metadata, False leaves them alone; by default they are
            used if there are any. Those of the root are also those of the groups below
            it. `mask_and_scale`, `decode_times`, `decode_coords`,
            ...: as in xarray.

        Raises
        ------
        OptionError
            A parameter is unknown, or has no possible value.
        NotFoundError, MetadataError, UnsupportedError, StoreError
            As for `open_group`; also if an array does not name its dimensions.
        """
        return _dataset(*_opened(filename_or_obj, **parameters))

    def open_groups_as_dict(
        self, filename_or_obj: Any, **parameters: Any
    ) -> dict[str, Dataset]:
        """Dataset of each group at and below `group`, by its path.

        Takes what `open_dataset` takes. As with xarray's own engines, paths begin with
        a slash, but are relative if `group` is given: "." is that group.
        """
        found = _datasets(filename_or_obj, **parameters)
        if parameters.get("group"):
            return {path or ".": dataset for path, dataset in found.items()}
        return {f"/{path}": dataset for path, dataset in found.items()}

    def open_datatree(self, filename_or_obj: Any, **parameters: Any) -> DataTree:
        """Tree of the datasets that `open_groups_as_dict` gives."""
        found = _datasets(filename_or_obj, **parameters)
        return DataTree.from_dict({f"/{path}": ds for path, ds in found.items()})


def _datasets(filename_or_obj: Any, **parameters: Any) -> dict[str, Dataset]:
    """Dataset of each group at and below the one asked for, by its path from there."""
    opened, dropped, decoding = _opened(filename_or_obj, **parameters)
    return {
        path: _dataset(below, dropped, decoding) for path, below in all_groups(opened)
    }


def _opened(  # noqa: PLR0913  what a caller may wish is a keyword each
    filename_or_obj: Any,
    *,
    group: str | None = None,
    device: str | Device = "cpu",
    storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
    drop_variables: str | Iterable[str] | None = None,
    consolidated: bool | None = None,
    **decoding: Any,
) -> tuple[Group, frozenset[str], dict[str, Any]]:
    """The group, names of variables to leave out, and parameters of the decoding."""
    refuse_unknown(decoding, _PARAMETERS[1:], "engine='gpushard' has no parameter")
    if not isinstance(group, str | None):
        raise OptionError("group is the path of a group", got=repr(group))
    if not isinstance(consolidated, bool | None):
        raise OptionError("consolidated is True or False", got=repr(consolidated))
    opened = partial(
        open_group,
        filename_or_obj,
        device=device,
        storage_options=storage_options,
        options=options,
    )
    return _below(opened, group or "", consolidated), _names(drop_variables), decoding


def _below(opened: Callable[..., Group], path: str, consolidated: bool | None) -> Group:
    """The group at `path`: as in xarray, in the root's consolidated metadata if any."""
    if path.strip("/") and consolidated is not False:
        with suppress(GpushardError):
            return opened(use_consolidated=True).group(path)
    return opened(path, use_consolidated=consolidated)


def _names(dropped: str | Iterable[str] | None) -> frozenset[str]:
    given: Any = (dropped,) if isinstance(dropped, str) else dropped or ()
    names = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(name, str) for name in names):
        raise OptionError("drop_variables are names of arrays", got=repr(dropped))
    return frozenset(names)


def _dataset(
    group: Group, dropped: frozenset[str], decoding: Mapping[str, Any]
) -> Dataset:
    store = _GroupStore(group, dropped, decoding)
    return StoreBackendEntrypoint().open_dataset(store, **decoding)


class _GroupStore(AbstractDataStore):
    """A group in the form that xarray decodes."""

    __slots__ = ("_decoding", "_dropped", "_group")

    def __init__(
        self, group: Group, dropped: frozenset[str], decoding: Mapping[str, Any]
    ) -> None:
        self._group = group
        self._dropped = dropped
        self._decoding = decoding

    def get_attrs(self) -> dict[str, Any]:
        """Attributes of the group."""
        return {k: v for k, v in self._group.attrs.items() if not _is_netcdf_s(k)}

    def get_variables(self) -> dict[str, Variable]:
        """A lazy variable for each array, by name."""
        group = self._group.as_listed()
        arrays = {name: group[name] for name in group if name not in self._dropped}
        on_host = set(_referred_to(self._group.attrs))
        for name, array in arrays.items():
            on_host.update(_referred_to(array.attrs))
            with naming(array.source.store, array.path):
                if name in _dimensions(array):
                    on_host.add(name)
        short = {n: Array(a.source) for n, a in arrays.items() if _is_short(n, a)}
        together = Coordinates(short)
        lazy = {n: CoordinateArray(n, a, together) for n, a in short.items()}
        return {
            name: self._variable(name, array, lazy.get(name), on_host=name in on_host)
            for name, array in arrays.items()
        }

    def _variable(
        self, name: str, array: Array, coordinate: LazyArray | None, *, on_host: bool
    ) -> Variable:
        dimensions, attributes = _dimensions(array), _attributes(array)
        encoding = encoding_of(array, dimensions, is_v2=_is_v2(array))
        probe = None if on_host else self._probe(name, array, dimensions, attributes)
        if probe is None:
            lazy = coordinate or LazyArray(Array(array.source))
            data = LazilyIndexedArray(lazy)
            return Variable(dimensions, data, attributes, encoding)
        packed = LazyArray(array)
        decoding = CfDecoding.of(probe.dtype, probe.encoding)
        changes = decoding.changes(array.dtype)
        data = LazilyIndexedArray(DecodedArray(packed, decoding) if changes else packed)
        return Variable(dimensions, data, probe.attrs, {**probe.encoding, **encoding})

    def _probe(
        self,
        name: str,
        array: Array,
        dimensions: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> Variable | None:
        """A variable without elements, decoded; None if the host has to decode it."""
        is_number = array.dtype.kind in _NUMBERS
        if array.device == "cpu" or not is_number or _FOR_NUMPY & attributes.keys():
            return None
        # How xarray decodes no elements, or one zero, shows how it would decode all.
        nothing = np.zeros((0,) * array.ndim, array.dtype)
        probe = conventions.decode_cf_variable(
            name, Variable(dimensions, nothing, attributes), **self._decoding_of(name)
        )
        # Integers with missing values are times, whether they are decoded or not.
        is_masked = any(fill in probe.encoding for fill in FILL_VALUES)
        return probe if probe.dtype.kind in ("fc" if is_masked else _NUMBERS) else None

    def _decoding_of(self, name: str) -> dict[str, Any]:
        """The parameters of the decoding that concern the values of a variable."""
        given: dict[str, Any] = {}
        for parameter in _ABOUT_VALUES:
            value = self._decoding.get(parameter)
            if isinstance(value, Mapping):
                value = value.get(name)
            if value is not None:
                given[parameter] = value
        return given


def _is_short(name: str, array: Array) -> bool:
    """Whether xarray makes an index of an array, and would wait for it and not read."""
    if _dimensions(array) != (name,) or array.dtype.kind in "OT":
        return False
    is_far = array.source.store.costs.prefers_whole_objects
    return is_far and array.nbytes <= _SHORT_NBYTES


def _referred_to(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Names of variables that CF attributes refer to."""
    for name in _REFERRING:
        value = attributes.get(name)
        if isinstance(value, str):
            yield from value.replace(":", " ").split()


def _dimensions(array: Array) -> tuple[str, ...]:
    """Names of an array's dimensions, from its metadata or from xarray's attribute."""
    names = array.dimension_names or array.attrs.get(DIMENSION_NAMES)
    if names is None and array.ndim == 0:
        return ()
    is_list = isinstance(names, tuple | list)
    if not is_list or len(names) != array.ndim or None in names:
        raise MetadataError(
            "xarray needs a name for every dimension",
            array_path=array.path,
            json_path="dimension_names",
            got=names,
            hint="leave the array out with drop_variables, or name its dimensions",
        )
    return tuple(map(str, names))


def _attributes(array: Array) -> dict[str, Any]:
    """Attributes as xarray decodes them, without what only others need."""
    attributes = dict(array.attrs)
    is_v2 = _is_v2(array)
    if is_v2:  # of Zarr v3, xarray takes all
        attributes.pop(DIMENSION_NAMES, None)
        attributes = {k: v for k, v in attributes.items() if not _is_netcdf_s(k)}
    if array.source.layout.fill_is_missing:
        return {**attributes, "_FillValue": array.fill_value}
    fill = attributes.get("_FillValue")
    # In Zarr v3 it stores that of floats in base64; other writers store numbers.
    kind = array.dtype.kind
    if not is_v2 and isinstance(fill, {"f": str, "c": list}.get(kind, ())):
        attributes["_FillValue"] = _fill_value_in_base64(fill, array)
    elif not is_v2 and kind in "biu" and isinstance(fill, int | float):
        with suppress(ValueError, OverflowError):  # no element is infinite, or NaN
            attributes["_FillValue"] = FillValueCoder.decode(fill, array.dtype)
    return attributes


def _is_v2(array: Array) -> bool:
    """Whether the array is one of Zarr v2, or names its dimensions as those do."""
    # Arrays of Zarr v3 can have the attribute beside the names: it means nothing there.
    is_named_so = array.dimension_names is None and DIMENSION_NAMES in array.attrs
    return array.source.layout.is_v2 or is_named_so


def _is_netcdf_s(attribute: str) -> bool:
    """Whether the netCDF library keeps its own notes on an array or group in it."""
    return attribute.lower().startswith("_nc")


def _fill_value_in_base64(spelled: Any, array: Array) -> Any:
    try:
        if array.dtype.kind == "f":
            return FillValueCoder.decode(spelled, "f8")
        parts: list[Any] = [FillValueCoder.decode(part, "f8") for part in spelled]
        real, imaginary = parts
    except (TypeError, ValueError, struct.error) as error:
        raise MetadataError(
            "xarray cannot decode this fill value",
            array_path=array.path,
            json_path="attributes._FillValue",
            expected="a number, or its 8 bytes in base64",
            got=repr(spelled),
            hint="leave the array out with drop_variables, or correct the attribute",
        ) from error
    return complex(real, imaginary)
