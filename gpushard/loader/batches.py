"""Loads -> batches, in the form and of the array kind that the caller asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gpushard.codecs.small_floats import is_small_float
from gpushard.errors import OptionError, UnsupportedError
from gpushard.loader.fields import Field, SampleRows, concatenated
from gpushard.loader.loads import Load
from gpushard.loader.shares import Share
from gpushard.selecting.selection import Ints

if TYPE_CHECKING:
    from gpushard.devices.base import Device, Stream

Kind = Literal["numpy", "cupy", "torch", "jax"]


class Batch(NamedTuple):
    """One step of a rank: `samples` int64, shape (n,), and one array for each field."""

    step: int
    samples: Ints
    arrays: list[SampleRows]


def batches_by_load(
    loads: Generator[Load], share: Share, step: int
) -> Iterator[tuple[Iterator[Batch], bool]]:
    """Batches of a rank from `step` on, those that end in a load together.

    With them comes whether the load is the last of its epoch. The loads of the next
    epoch may follow, with batches from step 0 on.

    A batch from a single load is a view of it, made when it is asked for. One from
    several is made before the batches of the last of them are given: on a device, that
    waits for a copy, which the consumer must not. A batch is left out if none of its
    samples could be read.
    """
    held: list[Load] = []
    with closing(loads):
        for load in loads:
            held.append(load)
            joined: list[Batch] = []
            start, stop = share.turns(step)
            if start < load.start and stop <= load.stop:
                joined.append(_batch_of(held, start, stop, step))
                step += 1
            first, step = step, max(step, _n_ended(load, share))
            is_last = load.stop >= share.n_turns
            handed = [(_batches(joined, load, share, range(first, step)), is_last)]
            is_left = step < share.n_steps and load.stop > share.turns(step)[0]
            if first < step or joined:
                held = [load] if is_left else []
            # Keeping any of these would keep loads while waiting for the next load.
            del load, joined
            yield handed.pop()
            if is_last:
                step = 0


def _n_ended(load: Load, share: Share) -> int:
    """Number of steps whose batches have ended where a load ends."""
    if load.stop >= share.n_turns:
        return share.n_steps
    return load.stop // share.batch_size


def _batches(
    joined: list[Batch], load: Load, share: Share, steps: range
) -> Iterator[Batch]:
    """Batches that end in a load: of `joined`, which is emptied, and of the load."""
    while joined:
        batch = joined.pop()
        if len(batch.samples):
            yield batch
        del batch
    if len(load.samples) == len(load.kept):
        yield from _batches_of_complete(load, share, steps)
        return
    for step in steps:
        batch = _batch_of([load], *share.turns(step), step)
        if len(batch.samples):
            yield batch
        del batch


def _batches_of_complete(load: Load, share: Share, steps: range) -> Iterator[Batch]:
    """Batches that lie in one load whose samples could all be read."""
    size, samples, arrays = share.batch_size, load.samples, load.arrays
    first = steps.start * size - load.start
    for step in steps:
        at = slice(first, first + size)
        yield Batch(step, samples[at], [array[at] for array in arrays])
        first += size


def _batch_of(loads: Sequence[Load], start: int, stop: int, step: int) -> Batch:
    pieces = [_samples_of(load, start, stop) for load in loads if load.start < stop]
    return Batch(step, *(pieces[0] if len(pieces) == 1 else _join(pieces)))


def _samples_of(load: Load, start: int, stop: int) -> tuple[Ints, list[SampleRows]]:
    """Samples of turns ``start:stop`` that a load has."""
    first, last = max(start - load.start, 0), max(stop - load.start, 0)
    if len(load.samples) < len(load.kept):
        first, last = (int(load.kept[:n].sum()) for n in (first, last))
    return load.samples[first:last], [array[first:last] for array in load.arrays]


def _join(
    pieces: Sequence[tuple[Ints, list[SampleRows]]],
) -> tuple[Ints, list[SampleRows]]:
    samples, arrays = zip(*pieces, strict=True)
    return np.concatenate(samples), [
        concatenated(parts) for parts in zip(*arrays, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a batch, which is the form of the arrays that the caller gave.

    Attributes
    ----------
    names
        One name for each array.
    kind
        "one" array, "tuple" of several, or "dict" of several by name.
    """

    names: tuple[str, ...]
    kind: Literal["one", "tuple", "dict"]

    @classmethod
    def of(cls, arrays: Any) -> tuple[Form, list[Any]]:
        """Form of the arrays that the caller gave, and a list of them."""
        if isinstance(arrays, Mapping):
            names = tuple(arrays)
            if not all(isinstance(name, str) for name in names):
                raise OptionError(
                    "the names of a loader's arrays must be strings",
                    got=", ".join(map(repr, names)),
                )
            form, given = cls(names, "dict"), list(arrays.values())
        elif isinstance(arrays, tuple | list):
            names = tuple(f"arrays[{i}]" for i in range(len(arrays)))
            form, given = cls(names, "tuple"), list(arrays)
        else:
            form, given = cls(("array",), "one"), [arrays]
        if not given:
            raise OptionError("a loader needs at least one array, but got none")
        return form, given

    def spread(self, value: Any, option: str) -> list[Any]:
        """Value of an option for each array; a single value is used for all arrays."""
        if isinstance(value, list) and self.kind == "tuple":
            if len(value) != len(self.names):
                raise OptionError(
                    f"{option} must have one entry for each array",
                    expected=len(self.names),
                    got=len(value),
                )
            return value
        if isinstance(value, dict):
            if self.kind != "dict":
                raise OptionError(
                    f"{option} names arrays, and those of the loader have no names",
                    got=", ".join(map(str, value)),
                    hint="pass the arrays as a dict, or one value for all of them",
                )
            if not set(value) <= set(self.names):
                raise OptionError(
                    f"{option} names arrays that the loader does not have",
                    expected=", ".join(self.names),
                    got=", ".join(map(str, value)),
                )
            return [value.get(name) for name in self.names]
        return [value] * len(self.names)

    def joined(self, values: Sequence[Any], index: Any = None) -> Any:
        """A batch of this form; `index` is added as an entry, or beside the batch."""
        if self.kind == "dict":
            batch = dict(zip(self.names, values, strict=True))
            return batch if index is None else {**batch, "index": index}
        batch = values[0] if self.kind == "one" else tuple(values)
        return batch if index is None else (batch, index)


def exporter(kind: Kind) -> Callable[[Any], Any]:
    """Function that makes an array of `kind` from one of NumPy or CuPy.

    The function makes no copy if it can avoid one.

    Raises
    ------
    UnsupportedError
        The library for such arrays is not installed.
    """
    if kind in ("numpy", "cupy"):
        return lambda array: array
    try:
        if kind == "torch":
            import torch  # optional

            return partial(_tensor, torch)
        import jax.dlpack  # optional

        return jax.dlpack.from_dlpack
    except ImportError as error:
        raise UnsupportedError(
            f"to={kind!r} needs {kind}, which is not installed",
            hint=f"run: pip install {kind}, or leave out to=",
        ) from error


def check_exports(export: Callable[[Any], Any], field: Field, kind: Kind) -> None:
    """Refuse a data type that the chosen kind of arrays does not have.

    Raises
    ------
    UnsupportedError
        The kind of arrays has no such data type, or takes a shorter one for it.
    """
    dtype = field.conversion.dtype
    try:
        made = export(np.zeros(1, dtype))
    except (TypeError, ValueError, BufferError, AttributeError) as error:
        raise UnsupportedError(
            f"the loader's {field.name} cannot become arrays of {kind}, as to= says",
            expected=f"elements of a data type that {kind} has",
            got=str(dtype),
            hint="leave out to=, or pass dtype= if the elements are numbers",
        ) from error
    if made.dtype.itemsize != dtype.itemsize:
        raise UnsupportedError(
            f"{kind} would cut the elements of the loader's {field.name}",
            expected=str(made.dtype),
            got=str(dtype),
            hint="run jax.config.update('jax_enable_x64', True), or pass dtype=",
        )


def _tensor(torch: Any, array: Any) -> Any:
    if isinstance(array, np.ndarray):
        if is_small_float(array.dtype):
            words = torch.from_numpy(array.view(f"i{array.dtype.itemsize}"))
            return words.view(getattr(torch, array.dtype.name))
        return torch.from_numpy(array)
    return torch.from_dlpack(array)


def consumer_stream(kind: Kind, device: Device) -> Callable[[], Stream]:
    """Function that returns the stream that the caller uses for `kind` now."""
    if kind != "torch":
        return device.current_stream
    import torch  # optional

    return lambda: int(torch.cuda.current_stream(device.label).cuda_stream)
