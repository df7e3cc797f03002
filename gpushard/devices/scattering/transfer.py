"""Data types of an inner chunk and of the output -> how elements change in between.

The scatter kernels move units: numbers if the data type changes, bytes if it does not.
A change that the kernels cannot make is refused here, before anything is launched, and
so is what exceeds their limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import lcm
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import UnsupportedError

_READ_ON_HOST = "read it on the CPU, or without dtype= and convert afterwards"
WIDEST_ACCESS = 16
"""Largest number of bytes that a thread moves at once."""

LIMIT = 1 << 31
"""Sizes and counts are 32-bit in the kernels, with room for one step past the end."""

MAX_AXES = 32
"""Most axes of an array: `MAX_COLUMNS` of ``kernels/scatter_box.cuh``."""


class ElementType(IntEnum):
    """Data types that the kernels know, as numbered in ``kernels/scatter_cast.cuh``."""

    OPAQUE = 0
    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6
    UINT16 = 7
    UINT32 = 8
    UINT64 = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    FLOAT32 = 12
    FLOAT64 = 13

    @property
    def is_integral(self) -> bool:
        """Whether it is a bool or an integer."""
        return ElementType.BOOL <= self <= ElementType.UINT64


_COMPLEX_PART = {"complex64": ElementType.FLOAT32, "complex128": ElementType.FLOAT64}
_AFFINE_TARGETS = (ElementType.FLOAT16, ElementType.BFLOAT16, ElementType.FLOAT32)


class Affine(NamedTuple):
    """``value * scale + offset`` in float32, rounded after each of the two steps."""

    scale: float
    offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How each element changes.

    Attributes
    ----------
    from_type, to_type
        Types of the numbers; both are the same if nothing is cast.
    in_nbytes, out_nbytes
        Size of an element in the inner chunk and in the output.
    in_unit_nbytes, out_unit_nbytes
        Size of one number in an element; 1 if nothing is cast.
    in_swap, out_swap
        Size of the groups of bytes whose order is reversed; 1 if none is reversed.
    affine
        Scale and offset, applied before a number is narrowed.
    """

    kernel: Literal["copy", "cast"]
    from_type: ElementType
    to_type: ElementType
    in_nbytes: int
    out_nbytes: int
    in_unit_nbytes: int = 1
    out_unit_nbytes: int = 1
    in_swap: int = 1
    out_swap: int = 1
    affine: Affine | None = None

    @property
    def keeps_bytes(self) -> bool:
        """Whether the bytes are copied unchanged."""
        is_plain = self.kernel == "copy" and self.in_swap == 1
        return is_plain and self.from_type is not ElementType.BOOL


class Shuffle(NamedTuple):
    """A byte shuffle that rows may still have when they are scattered.

    Its items have the size of an element; `decoded_nbytes` is that of an inner chunk.
    """

    item_nbytes: int
    decoded_nbytes: int


NO_SHUFFLE = Shuffle(1, 0)
"""No row is ever shuffled."""

FUSED_ITEMS = (2, 4, 8)
"""Sizes of shuffled items that the kernels can put together again."""


def plan_transfer(
    source: np.dtype[Any],
    target: np.dtype[Any],
    *,
    is_swapped: bool = False,
    affine: Affine | None = None,
) -> Transfer:
    """Transfer from elements of an inner chunk to elements of an output.

    Parameters
    ----------
    is_swapped
        Whether the stored byte order is the opposite of what `source` says. (bfloat16
        has no data type with the other byte order.)
    affine
        Scale and offset to apply, for floating-point targets.

    Raises
    ------
    UnsupportedError
        The kernels do not convert between the two data types.
    """
    # Structs and byte strings have no single byte order: they match or do not match.
    in_swapped = is_swapped ^ (not source.isnative and source.fields is None)
    out_swapped = not target.isnative and target.fields is None
    if affine is None and _same_but_for_order(source, target):
        return _copying(source, is_swapped=in_swapped != out_swapped)
    return _casting(
        source, target, affine, in_swapped=in_swapped, out_swapped=out_swapped
    )


def fill_element(
    fill_value: NDArray[Any], target: np.dtype[Any], affine: Affine | None = None
) -> bytes:
    """One element of `target` that holds the 0-d fill value, as NumPy casts it."""
    if affine is not None:
        with np.errstate(all="ignore"):
            single = fill_value.astype(np.float32) * np.float32(affine.scale)
            fill_value = np.asarray(single + np.float32(affine.offset), np.float32)
    if fill_value.dtype == target:
        return fill_value.tobytes()
    with np.errstate(all="ignore"):
        return fill_value.astype(target).tobytes()


def fill_pattern(element: bytes) -> NDArray[np.uint8]:
    """Repeated element, uint8, long enough that the widest access finds any part."""
    nbytes = lcm(len(element), WIDEST_ACCESS)
    return np.frombuffer(element * (nbytes // len(element)), np.uint8)


def check_limit(what: str, number: int, limit: int) -> None:
    """Raise `UnsupportedError` unless `number` is below `limit`."""
    if number >= limit:
        raise UnsupportedError(
            f"the scatter kernels do not take so many {what}",
            expected=f"fewer than {limit}",
            got=number,
            hint="read a smaller selection at a time, or read on the CPU",
        )


def _same_but_for_order(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    if source == target:
        return True
    if source.fields is not None or target.fields is not None:
        return False
    return source.newbyteorder("=") == target.newbyteorder("=")


def _copying(dtype: np.dtype[Any], *, is_swapped: bool) -> Transfer:
    if is_swapped and dtype.fields is not None:
        raise UnsupportedError(
            f"the scatter kernels do not swap the bytes of structs ({dtype})",
            hint=_READ_ON_HOST,
        )
    kind = ElementType.BOOL if dtype == np.bool_ else ElementType.OPAQUE
    swap = _swap_nbytes(dtype) if is_swapped else 1
    return Transfer(
        kernel="copy",
        from_type=kind,
        to_type=kind,
        in_nbytes=dtype.itemsize,
        out_nbytes=dtype.itemsize,
        in_swap=swap,
    )


def _swap_nbytes(dtype: np.dtype[Any]) -> int:
    """Size of the numbers in an element of `dtype`."""
    if dtype.kind == "c":
        return dtype.itemsize // 2
    if dtype.kind == "U":
        return 4
    if dtype.kind in "iufmM" or dtype.name == "bfloat16":
        return dtype.itemsize
    return 1


def _casting(
    source: np.dtype[Any],
    target: np.dtype[Any],
    affine: Affine | None,
    *,
    in_swapped: bool,
    out_swapped: bool,
) -> Transfer:
    from_type, to_type = _number_type(source), _number_type(target)
    is_complex = source.kind == "c"
    if not (
        from_type
        and to_type
        and is_complex == (target.kind == "c")
        and _is_castable(from_type, to_type)
        and (affine is None or _is_scalable(from_type, to_type, is_complex=is_complex))
    ):
        raise UnsupportedError(
            f"the scatter kernels do not cast {source} to {target}"
            + (" with a scale" if affine else ""),
            hint=_READ_ON_HOST,
        )
    parts = 2 if is_complex else 1
    in_unit, out_unit = source.itemsize // parts, target.itemsize // parts
    return Transfer(
        kernel="cast",
        from_type=from_type,
        to_type=to_type,
        in_nbytes=source.itemsize,
        out_nbytes=target.itemsize,
        in_unit_nbytes=in_unit,
        out_unit_nbytes=out_unit,
        in_swap=in_unit if in_swapped else 1,
        out_swap=out_unit if out_swapped else 1,
        affine=affine,
    )


def _number_type(dtype: np.dtype[Any]) -> ElementType:
    name = dtype.name
    if name in _COMPLEX_PART:
        return _COMPLEX_PART[name]
    # Times and strings are no members of ElementType, so they stay opaque.
    return ElementType.__members__.get(name.upper(), ElementType.OPAQUE)


def _is_castable(from_type: ElementType, to_type: ElementType) -> bool:
    if to_type is ElementType.BOOL:
        return from_type is ElementType.BOOL
    return from_type.is_integral or not to_type.is_integral


def _is_scalable(
    from_type: ElementType, to_type: ElementType, *, is_complex: bool
) -> bool:
    """Whether the conversion goes through float32."""
    is_single = from_type is not ElementType.FLOAT64 and to_type in _AFFINE_TARGETS
    return is_single and not is_complex
