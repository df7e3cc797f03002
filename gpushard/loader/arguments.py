"""Arguments of a loader -> checked values that later parts can trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpushard.arguments import whole_number
from gpushard.array import Array
from gpushard.devices.find import find_device
from gpushard.errors import OptionError, UnsupportedError
from gpushard.layout import GridAxis
from gpushard.loader.batches import Form, Kind
from gpushard.loader.conversion import Conversion
from gpushard.loader.fields import Field, threads_of, usable_source
from gpushard.loader.ragged import Ragged, RaggedField, read_offsets
from gpushard.loader.windows import Cut, Origins, Padding, lay_origins
from gpushard.placing.outputs import parsed_dtype
from gpushard.selecting.selection import Ints

if TYPE_CHECKING:
    from gpushard.devices.base import Device


def one_of(value: Any, name: str, choices: Sequence[str]) -> Any:
    """`value`, which must be one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(
            f"{name}= is none of its choices",
            expected=" or ".join(map(repr, choices)),
            got=repr(value),
        )
    return value


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
            "the arrays of a loader are opened on different devices",
            got=", ".join(labels),
            hint="say which: device='cpu' or 'cuda'",
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
            f"arrays of {kind} are not in the memory that batches are made in",
            got=f"to={kind!r} on {'cpu' if device is None else device.label}",
            hint="pass the other device=, 'cpu' or 'cuda'",
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
                f"{one.name} of a loader has elements that no device holds",
                got=str(dtype),
                hint="make a loader of its own for it, with device='cpu'",
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
        return Field(name, source, cut, made, threads_of(source))
    if window is not None or lead:
        raise OptionError(f"{name} is ragged: it has no windows, and no lead")
    offsets = read_offsets(array, name)
    return RaggedField(
        name,
        source,
        Cut((len(offsets) - 1,)),
        made,
        threads_of(source),
        offsets=offsets,
        packed=array.packed,
    )


def _conversion(stored: np.dtype[Any], options: dict[str, Any]) -> Conversion:
    dtype, scale, offset = options["dtype"], options["scale"], options["offset"]
    wanted = None if dtype is None else parsed_dtype(dtype)
    try:
        made = Conversion.to(stored, wanted, scale, offset)
    except (TypeError, ValueError) as error:
        raise OptionError(
            "scale= and offset= are no numbers", got=f"{scale!r}, {offset!r}"
        ) from error
    is_number = _is_number(stored) and _is_number(made.dtype)
    if not (is_number or made.is_none):
        raise OptionError(
            "dtype=, scale= and offset= are for numbers",
            got=f"{stored} to {made.dtype}",
        )
    if stored.kind == "c" and made.dtype.kind != "c":
        raise OptionError(
            "dtype= would drop the imaginary parts", got=f"{stored} to {made.dtype}"
        )
    return made


def _is_number(dtype: np.dtype[Any]) -> bool:
    # NumPy has no kind of numbers for bfloat16 and similar types.
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


def _cut(shape: tuple[int, ...], window: Any, lead: Any, name: str) -> Cut:
    shift = lead
    if not isinstance(shift, int | np.integer) or isinstance(shift, bool):
        raise OptionError(f"lead= of {name} is no whole number", got=repr(lead))
    if window is None:
        return Cut(shape, lead=int(shift))
    given = tuple(window) if isinstance(window, tuple | list) else (window,)
    if not 1 <= len(given) <= len(shape):
        raise OptionError(
            f"the number of lengths in window= does not fit the axes of {name}",
            expected=f"at least 1 and at most {len(shape)}",
            got=len(given),
            hint="pass one length for each of the first axes, or a number for axis 0",
        )
    lengths = tuple(whole_number(n, "window", 1) for n in given)
    return Cut(shape, lengths, int(shift), drop=False)


def laid_origins(fields: Sequence[Field], stride: Any, padding: Padding) -> Origins:
    """Origins of the samples; without `stride`, windows of the first array touch."""
    cuts = [f.cut for f in fields]
    n_axes = max(len(cut.window) for cut in cuts)
    if stride is None:
        longest = max(cuts, key=lambda cut: len(cut.window)).window
        steps = (*cuts[0].window, *longest[len(cuts[0].window) :])
    else:
        given = stride if isinstance(stride, tuple | list) else (stride,) * n_axes
        steps = tuple(whole_number(n, "stride", 1) for n in given)
    if len(steps) != n_axes:
        raise OptionError(
            "stride= has not one distance for each axis of the window",
            expected=n_axes,
            got=len(steps),
        )
    return lay_origins(cuts, steps, padding)


def sample_axis(field: Field, origins: Origins, block: str | int) -> GridAxis:
    """Samples in their stored order, cut into blocks.

    Parameters
    ----------
    field
        The array whose shards or inner chunks the blocks follow.
    block
        "shard", "chunk" or a number of samples.
    """
    n = origins.n
    if not isinstance(block, str):
        return GridAxis(n, block)
    axis = field.axis(block)
    if field.cut.drop and not field.cut.lead and n == axis.extent:
        return axis
    first = axis.start_of(np.arange(axis.n_cells, dtype=np.int64))
    at = -((origins.start[0] - first) // origins.stride[0])
    bounds = np.append(at.clip(0, origins.counts[0]), [0, origins.counts[0]])
    return GridAxis(n, 0, np.unique(bounds) * prod(origins.counts[1:]))


def block_of(block: Any) -> str | int:
    """Parsed value of ``block=``: "shard", "chunk" or a number of samples."""
    if isinstance(block, str):
        return one_of(block, "block", ("shard", "chunk"))
    return whole_number(block, "block", 1)


def cumulated_weights(weights: Any, n_samples: int) -> NDArray[np.float64]:
    """Cumulative sums of the weights: float64, shape (n_samples,)."""
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError("weights= are no numbers") from error
    if values.shape != (n_samples,):
        raise OptionError(
            "weights= has not one number a sample",
            expected=(n_samples,),
            got=values.shape,
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
        raise OptionError(
            "weights= are finite, not negative, and not all zero",
            hint="leave weights= away to draw all samples alike",
        )
    with np.errstate(over="ignore"):
        sums = np.cumsum(values)
    if not np.isfinite(sums[-1]):
        raise OptionError("the sum of weights= is no finite number")
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
            "sampler= gives no order of every epoch",
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
                "sampler= gives no list of samples",
                expected="whole numbers",
                got=f"{samples.dtype} of shape {samples.shape}",
            )
        samples = samples.astype(np.int64)
        wrong = samples[(samples < 0) | (samples >= n_samples)]
        if len(wrong):
            raise OptionError(
                "sampler= gives a sample that is not there",
                expected=f"0 to {n_samples - 1}",
                got=int(wrong[0]),
            )
        return samples

    return order


def _listed(given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given if isinstance(given, np.ndarray) else list(given))
    except (TypeError, ValueError) as error:
        raise OptionError("sampler= gives no list of samples") from error
