"""Elements as stored -> elements with the data type and scale that the caller wants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.loader.memory import Memory
from gpushard.options import KIB
from gpushard.threads.work_queue import Task
from gpushard.threads.workers import run_tasks

# Pieces of a load are cast one by one, so that a piece stays in cache.
_PIECE_NBYTES = 512 * KIB


_HALF = np.dtype(np.float16)
# Of larger elements, a table of all values would not fit a cache.
_TABLE_ITEMSIZE = 2
# A table has up to 1 MiB, and a training may scale differently in each epoch.
_KEPT_TABLES = 16


@dataclass(frozen=True, slots=True)
class ElementConversion:
    """``value * scale + offset``, cast to another data type.

    Attributes
    ----------
    stored, dtype
        Data types of the input and of the output.
    scale, offset
        None means no scaling or no offset.
    """

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    scale: float | None = None
    offset: float | None = None

    @classmethod
    def to(
        cls,
        stored: np.dtype[Any],
        dtype: np.dtype[Any] | None,
        scale: float | None,
        offset: float | None,
    ) -> ElementConversion:
        """Conversion to `dtype`; None: float32 for scaled integers, else as stored."""
        if dtype is None:
            is_changed = scale is not None or offset is not None
            # bfloat16 and similar types are of kind "V" to NumPy.
            keeps = not is_changed or stored.kind in "fcV"
            dtype = stored if keeps else np.dtype(np.float32)
        # Python numbers keep the precision of arrays; NumPy numbers would widen it.
        scale = None if scale is None else float(scale)
        offset = None if offset is None else float(offset)
        return cls(stored, dtype, scale, offset)

    @property
    def is_none(self) -> bool:
        """Whether elements stay exactly as they are stored."""
        return self.stored == self.dtype and self.scale is None and self.offset is None

    @property
    def widens(self) -> bool:
        """Whether elements take more memory than as they are stored."""
        return self.dtype.itemsize > self.stored.itemsize

    @property
    def _wide(self) -> type[np.floating[Any]]:
        is_half = self.dtype.name in ("float16", "bfloat16")
        is_double = self.stored.kind == "f" and self.stored.itemsize > 4
        return np.float32 if is_half and not is_double else np.float64

    @property
    def factors(self) -> tuple[float, float] | None:
        """Scale and offset that a device applies; None if numbers do not change."""
        if self.scale is None and self.offset is None:
            return None
        # Adding -0.0 never changes a value; adding 0.0 would change -0.0.
        scale = 1.0 if self.scale is None else self.scale
        return scale, -0.0 if self.offset is None else self.offset

    @property
    def is_tabulated(self) -> bool:
        """Whether looking each element up takes less than converting it.

        NumPy converts halves one by one, in 2 to 3 ns; from a table it takes 0.8.
        """
        is_half = _HALF in (self.stored, self.dtype)
        return is_half and not self.is_none and self.stored.itemsize <= _TABLE_ITEMSIZE

    def apply(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write converted `values` into `out`, of the same shape."""
        if self.is_tabulated:
            indexes = values.view(f"u{self.stored.itemsize}")
            table = _table(self, str((self.scale, self.offset)))
            # No index is outside; NumPy takes least time for those that would wrap.
            np.take(table, indexes, out=out, mode="wrap")
        else:
            self.compute(values, out)

    def of_one(self, value: Any) -> Any:
        """A single stored value, converted."""
        out = np.empty(1, self.dtype)
        with np.errstate(all="ignore"):
            self.apply(np.full(1, value, self.stored), out)
        return out[0]

    def compute(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Do what `apply` does, element by element."""
        if self.scale is None and self.offset is None:
            np.copyto(out, values, casting="unsafe")
            return
        # Halves overflow at 65504, which packed integers reach, and integers round. So
        # both are computed in a wider type and cast once. A device also computes halves
        # in single precision, which gives the same numbers.
        is_wide = out.dtype.kind in "fc" and out.dtype.itemsize >= 4
        wide = out if is_wide else np.empty(out.shape, self._wide)
        np.copyto(wide, values, casting="unsafe")
        if self.scale is not None:
            np.multiply(wide, self.scale, out=wide)
        if self.offset is not None:
            np.add(wide, self.offset, out=wide)
        if wide is not out:
            rounded = np.rint(wide, out=wide) if out.dtype.kind in "iu" else wide
            np.copyto(out, rounded, casting="unsafe")


@lru_cache(_KEPT_TABLES)
def _table(conversion: ElementConversion, _factors: str) -> NDArray[Any]:
    """What each stored element becomes, by the unsigned integer with the same bytes.

    Tables are kept by the text of the factors, too: 0.0 equals -0.0, but only to add
    the latter keeps a zero negative.
    """
    itemsize = conversion.stored.itemsize
    every = np.arange(1 << 8 * itemsize, dtype=f"u{itemsize}")
    out = np.empty(len(every), conversion.dtype)
    with np.errstate(all="ignore"):
        conversion.compute(every.view(conversion.stored), out)
    return out


def converted(
    values: NDArray[Any],
    conversion: ElementConversion,
    memory: Memory,
    n_workers: int,
) -> NDArray[Any]:
    """Converted `values`, in other memory; `values` itself if nothing changes."""
    if conversion.is_none:
        return values
    n = len(values)
    out = memory.take(values.shape, conversion.dtype)
    row_nbytes = max(out.nbytes // n, 1) if n else 1
    step = max(_PIECE_NBYTES // row_nbytes, 1)
    convert = partial(_convert, values, conversion, out)
    tasks: list[Task] = [
        partial(convert, first, min(first + step, n)) for first in range(0, n, step)
    ]
    run_tasks(tasks, n_workers if len(tasks) > 1 else 1)
    return out


def _convert(
    values: NDArray[Any],
    conversion: ElementConversion,
    out: NDArray[Any],
    first: int,
    stop: int,
) -> None:
    """Write rows ``first:stop`` of `out`."""
    with np.errstate(all="ignore"):
        conversion.apply(values[first:stop], out[first:stop])
