"""Arguments of a loader -> checked values that later parts can trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from sys import float_info
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.arguments import flag, items_by_axis, whole_number
from gpushard.array import Array
from gpushard.devices.find import find_device
from gpushard.errors import OptionError, SelectionError, UnsupportedError
from gpushard.layout import MAX_LENGTH, GridAxis
from gpushard.loader.batches import Form, Kind
from gpushard.loader.conversion import ElementConversion
from gpushard.loader.fields import Field, usable_source
from gpushard.loader.ragged import Ragged, RaggedField, read_offsets
from gpushard.loader.sample_grid import SampleGrid
from gpushard.loader.windows import Cut, Origins, Padding, lay_origins
from gpushard.placing.outputs import parsed_dtype
from gpushard.rolling.reader import RollingReader
from gpushard.selecting.selection import Ints

if TYPE_CHECKING:
    from gpushard.devices.base import Device


def one_of(value: Any, name: str, choices: Sequence[str]) -> Any:
    """`value`, which must be one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(
            f"{name}= must be one of the values that it knows",
            expected=" or ".join(map(repr, choices)),
            got=repr(value),
        )
    return value


def count(value: Any, name: str, least: int = 1) -> int:
    """`value`, a number of elements from `least` to as many as an axis can have."""
    number = whole_number(value, name, least)
    if number > MAX_LENGTH:  # int64 positions would overflow
        raise OptionError(
            f"{name}= is too large", expected=f"at most {MAX_LENGTH}", got=number
        )
    return number


def held_arrays(arrays: Any) -> Any:
    """The caller's arrays, opened; a rolling one with the window that it has now.

    A pickled loader then has the window that it was made with.
    """
    form, given = Form.of(arrays)
    return form.joined([_held(one) for one in given])


def _held(array: Any) -> Any:
    if isinstance(array, Ragged):
        values, offsets = _held(array.values), _held(array.offsets)
        return replace(array, values=values, offsets=offsets)
    return array.view() if isinstance(array, RollingReader) else array


def chosen_device(device: Any, arrays: Any) -> Device | None:
    """Device for the batches, None for the host; by default the device of `arrays`.

    Raises
    ------
    OptionError
        No device was chosen, and the arrays are on different ones.
    UnsupportedError
        The device does not exist or cannot be used.
    """
    if device is not None:
        return find_device(device).device
    _, given = Form.of(arrays)
    given = [one.values if isinstance(one, Ragged) else one for one in given]
    opened = [one for one in given if isinstance(one, Array)]
    labels = sorted({one.device for one in opened})
    if len(labels) > 1 or (len(opened) < len(given) and labels not in ([], ["cpu"])):
        raise OptionError(
            "the arrays of a loader must all be opened on one device",
            got=", ".join(labels),
            hint="pass device='cpu' or device='cuda' to say where to make batches",
        )
    return opened[0].device_object if opened else None


def chosen_kind(to: Any, device: Device | None) -> Kind:
    """Kind of the arrays in a batch.

    Raises
    ------
    OptionError
        There is no such kind, or none in the memory of the batches.
    """
    if to is None:
        return "numpy" if device is None else "cupy"
    kind = one_of(to, "to", ("numpy", "cupy", "torch", "jax"))
    if kind == ("cupy" if device is None else "numpy"):
        raise OptionError(
            f"arrays of {kind} cannot use the memory in which batches are made",
            got=f"to={kind!r} on {'cpu' if device is None else device.label}",
            hint="pass the other device, device='cpu' or device='cuda'",
        )
    return kind


def check_types(fields: Sequence[Field], device: Device) -> None:
    """Refuse arrays whose elements a device cannot hold.

    Raises
    ------
    UnsupportedError
        The device's library has no such data type.
    """
    for one in fields:
        dtype = one.conversion.dtype
        if dtype.hasobject or dtype.kind == "T":
            raise UnsupportedError(
                f"the loader's {one.name} has elements that a device cannot hold",
                got=str(dtype),
                hint="make a separate loader for this array, with device='cpu'",
            )
        device.empty((1,), dtype)


def laid_fields(
    arrays: Any,
    *,
    num_threads: int | None,
    window: Any,
    lead: Any,
    conversions: dict[str, Any],
) -> tuple[Form, list[Field]]:
    """Form of the batches, and one field for each array.

    Parameters
    ----------
    conversions
        Options ``dtype``, ``scale`` and ``offset``.
    """
    form, given = Form.of(arrays)
    spread = {k: form.spread(v, k) for k, v in conversions.items()}
    shapes = zip(
        form.names,
        given,
        form.spread(window, "window"),
        form.spread(lead, "lead"),
        strict=True,
    )
    return form, [
        _field(name, array, (w, d), {k: v[i] for k, v in spread.items()}, num_threads)
        for i, (name, array, w, d) in enumerate(shapes)
    ]


def _field(
    name: str,
    array: Any,
    window_and_lead: tuple[Any, Any],
    conversion: dict[str, Any],
    num_threads: int | None,
) -> Field:
    window, lead = window_and_lead
    values = array.values if isinstance(array, Ragged) else array
    source = usable_source(values, name, num_threads)
    made = _conversion(source.dtype, conversion)
    if not isinstance(array, Ragged):
        cut = _cut(source.shape, window, 0 if lead is None else lead, name)
        return Field(name, source, cut, made)
    if window is not None or lead:
        raise OptionError(f"{name} is ragged, so window= and lead= cannot apply to it")
    offsets = read_offsets(array, name)
    return RaggedField(
        name,
        source,
        Cut((len(offsets) - 1,)),
        made,
        offsets=offsets,
        packed=flag(array.packed, "packed"),
    )


def _conversion(stored: np.dtype[Any], options: dict[str, Any]) -> ElementConversion:
    dtype, scale, offset = options["dtype"], options["scale"], options["offset"]
    try:
        wanted = None if dtype is None else parsed_dtype(dtype)
    except SelectionError as error:  # as it is for a read
        raise OptionError(error.what, got=error.got, hint=error.hint) from error
    try:
        made = ElementConversion.to(stored, wanted, scale, offset)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(
            "scale= and offset= must be numbers",
            got=f"{scale!r}, {offset!r}",
            hint="pass a function as transform= if they differ between channels",
        ) from error
    is_number = _is_number(stored) and _is_number(made.dtype)
    if not (is_number or made.is_none):
        raise OptionError(
            "dtype=, scale= and offset= apply only to numbers",
            got=f"{stored} to {made.dtype}",
        )
    if stored.kind == "c" and made.dtype.kind != "c":
        raise OptionError(
            "dtype= must be complex, or the imaginary parts would be lost",
            got=f"{stored} to {made.dtype}",
        )
    return made


def _is_number(dtype: np.dtype[Any]) -> bool:
    # NumPy has no kind of numbers for bfloat16 and similar types.
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


def _cut(shape: tuple[int, ...], window: Any, lead: Any, name: str) -> Cut:
    is_whole = isinstance(lead, int | np.integer) and not isinstance(lead, bool)
    if not is_whole or abs(shift := int(lead)) > MAX_LENGTH:
        raise OptionError(
            f"lead= of {name} must be a whole number",
            expected=f"-{MAX_LENGTH} to {MAX_LENGTH}",
            got=repr(lead),
        )
    if window is None:
        return Cut(shape, lead=shift)
    given = items_by_axis(window)
    if not 1 <= len(given) <= len(shape):
        raise OptionError(
            f"the number of lengths in window= does not fit the axes of {name}",
            expected=f"at least 1 and at most {len(shape)}",
            got=len(given),
            hint="pass one length for each of the first axes, or a number for axis 0",
        )
    lengths = tuple(count(n, "window") for n in given)
    return Cut(shape, lengths, shift, drop=False)


def laid_origins(fields: Sequence[Field], stride: Any, padding: Padding) -> Origins:
    """Origins of the samples; without `stride`, windows of the first array touch."""
    cuts = [f.cut for f in fields]
    n_axes = max(len(cut.window) for cut in cuts)
    if stride is None:
        longest = max(cuts, key=lambda cut: len(cut.window)).window
        steps = (*cuts[0].window, *longest[len(cuts[0].window) :])
    else:
        steps = tuple(count(n, "stride") for n in items_by_axis(stride, n_axes))
    if len(steps) != n_axes:
        raise OptionError(
            "stride= must have one distance for each axis of the window",
            expected=n_axes,
            got=len(steps),
        )
    return lay_origins(cuts, steps, padding)


def sample_grid(
    fields: Sequence[Field], origins: Origins, block: str | int
) -> SampleGrid:
    """Samples in their stored order, cut into blocks.

    Parameters
    ----------
    fields
        The arrays. Blocks follow the shards or inner chunks of the first one, and those
        of another one only along axes where the first has no windows.
    block
        "shard", "chunk" or a number of samples.
    """
    if not isinstance(block, str):
        return SampleGrid((GridAxis(origins.n, block),))
    axes: list[GridAxis] = []
    for d in range(len(origins.counts)):
        field = next(f for f in fields if len(f.cut.window) > d)
        axes.append(_sample_axis(field, origins, d, block))
    return SampleGrid(tuple(axes))


def _sample_axis(field: Field, origins: Origins, d: int, block: str) -> GridAxis:
    """Samples along axis `d`, cut before those that begin in another block."""
    axis, n = field.axis(block, d), origins.counts[d]
    if field.cut.drop and not field.cut.lead and n == axis.extent:
        return axis
    first = axis.start_of(np.arange(axis.n_cells, dtype=np.int64))
    at = -((origins.start[d] - first) // origins.stride[d])
    # They ascend, so that equal ones are neighbours.
    bounds = np.concatenate([[0], at.clip(0, n), [n]])
    return GridAxis(n, 0, np.append(bounds[:1], bounds[1:][np.diff(bounds) > 0]))


def block_of(block: Any) -> str | int:
    """Parsed value of ``block=``: "shard", "chunk" or a number of samples."""
    if isinstance(block, str):
        return one_of(block, "block", ("shard", "chunk"))
    return count(block, "block")


def cumulated_weights(weights: Any, n_samples: int) -> NDArray[np.float64]:
    """Cumulative sums of the weights: float64, shape (n_samples,)."""
    values = weight_numbers(weights)
    if values.shape != (n_samples,):
        raise OptionError(
            "weights= must have one number for each sample",
            expected=(n_samples,),
            got=values.shape,
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
        raise OptionError(
            "weights= must be finite and not negative, and at least one must exceed 0",
            hint="leave out weights= to draw all samples with equal probability",
        )
    return finite_sums(values)


def weight_numbers(weights: Any) -> NDArray[np.float64]:
    """The caller's weights as float64, of any shape and value."""
    try:
        values = np.asarray(weights)
        if values.dtype.kind != "c":  # NumPy drops imaginary parts
            return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError("weights= must be numbers") from error
    raise OptionError("weights= must be numbers", got=str(values.dtype))


def finite_sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cumulative sums of finite weights: float64, same shape."""
    with np.errstate(over="ignore"):
        sums = np.cumsum(weights)
    # A part of a smaller sum may be rounded to all of it, which is behind the last.
    if not float_info.min <= sums[-1] <= float_info.max:
        raise OptionError(
            "the sum of weights= is no normal float64",
            hint="multiply all weights by one number",
        )
    return sums


def usable_sampler(sampler: Any, n_samples: int) -> Callable[[int], Ints]:
    """Function from the number of an epoch to the caller's order; called once an epoch.

    Parameters
    ----------
    sampler
        A function of the epoch, or an iterable, whose `set_epoch` is called before if
        it has one.

    Raises
    ------
    OptionError
        It is neither of these, or it can be iterated over only once.
    """
    is_usable = callable(sampler) or hasattr(sampler, "__iter__")
    if not is_usable or hasattr(sampler, "__next__"):
        raise OptionError(
            "sampler= must give an order for every epoch",
            expected="a list of samples, or a function of the epoch",
            got=type(sampler).__name__,
        )

    @lru_cache(maxsize=1)
    def order(epoch: int) -> Ints:
        given: Any = sampler
        if callable(sampler):
            given = sampler(epoch)
        elif hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        samples = _listed(given)
        if samples.size and (samples.ndim != 1 or samples.dtype.kind not in "iu"):
            raise OptionError(
                "sampler= must give a list of sample numbers",
                expected="whole numbers",
                got=f"{samples.dtype} of shape {samples.shape}",
            )
        wrong = samples[(samples < 0) | (samples >= n_samples)]
        if len(wrong):
            raise OptionError(
                "sampler= gives the number of a sample that does not exist",
                expected=f"0 to {n_samples - 1}",
                got=int(wrong[0]),
            )
        return samples.astype(np.int64)

    return order


def _listed(given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given if isinstance(given, np.ndarray) else list(given))
    except (TypeError, ValueError) as error:
        raise OptionError("sampler= must give a list of sample numbers") from error
