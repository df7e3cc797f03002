"""Structs that kernels declare -> NumPy data types, so that both sides agree.

``kernels/`` has the only declarations. The names, order and types of the fields are
read from there, and NumPy pads as C does. Each field of a struct has a line of its own.
A type is a number of fixed size, a pointer, or another struct declared in this way.

    struct Column {                          numpy.dtype([
        const Landing* landings;      ->         ("landings", "u8"),
        const uint32_t* position;                ("position", "u8"),
    };                                       ])
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.devices.kernels import KernelSource, load_kernel_sources
from gpushard.errors import DeviceError
from gpushard.selecting.selection import Ints

_NUMBERS = {
    "uint8_t": "u1",
    "uint32_t": "u4",
    "int32_t": "i4",
    "uint64_t": "u8",
    "int64_t": "i8",
    "float": "f4",
    "double": "f8",
}
_POINTER = "u8"
_COMMENT = re.compile(r"//[^\n]*")
_FIELD = re.compile(
    r"(?:const )?(?P<type>\w+)(?P<pointer>\*(?: const)?)? "
    r"(?P<name>\w+)(?:\[(?P<count>\w+)\])?"
)


def declared_struct(kernel: str, name: str, **numbers: int) -> np.dtype[Any]:
    """Data type of a struct in the source of a kernel, or in one of its headers.

    Parameters
    ----------
    kernel
        Any kernel in the source file: "gs_gate_zstd".
    name
        Name of the struct: "GateTables".
    **numbers
        Values of template parameters that fields use as an array length.

    Raises
    ------
    DeviceError
        There is no such struct, or a field is not written in the form above.
    """
    source = load_kernel_sources()[kernel]
    return _Declarations(source, numbers).struct(name)


@cache
def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


class _Declarations:
    """The structs and the constants of one kernel source."""

    def __init__(self, source: KernelSource, numbers: Mapping[str, int]) -> None:
        self._name = source.name
        texts = source.text, *source.headers.values()
        self._text = "\n".join(map(_without_comments, texts))
        self._numbers = numbers

    def struct(self, name: str) -> np.dtype[Any]:
        body = self._found(rf"^struct {name} \{{\n(.*?)^\}};", name)
        fields = (" ".join(field.split()) for field in body.split(";"))
        return np.dtype([self._field(field) for field in fields if field], align=True)

    def _field(self, text: str) -> tuple[Any, ...]:
        field = _FIELD.fullmatch(text)
        if field is None:
            raise self._unknown(text)
        dtype = _POINTER if field["pointer"] else self._type(field["type"])
        if field["count"] is None:
            return field["name"], dtype
        return field["name"], dtype, (self._number(field["count"]),)

    def _type(self, name: str) -> str | np.dtype[Any]:
        return _NUMBERS.get(name) or self.struct(name)

    def _number(self, name: str) -> int:
        if name.isdecimal():
            return int(name)
        if name in self._numbers:
            return self._numbers[name]
        return int(self._found(rf"^constexpr \w+ {name} = (\d+);", name))

    def _found(self, pattern: str, name: str) -> str:
        found = re.search(pattern, self._text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise self._unknown(name)
        return found[1]

    def _unknown(self, what: str) -> DeviceError:
        return DeviceError(
            f"the kernel source {self._name} declares nothing that could be {what!r}",
            hint="reinstall gpushard, its kernel sources are of another version",
        )


GATE = declared_struct("gs_gate_zstd", "GateTables")
BLOSC_ROWS = declared_struct("gs_blosc_count", "BloscRows")
BLOSC_STREAMS = declared_struct("gs_blosc_count", "BloscStreams")
UNFILTER = declared_struct("gs_unfilter", "UnfilterTables")
CANARIES = declared_struct("gs_fold", "Canaries")
TRAILERS = declared_struct("gs_verify_zstd", "Trailers")
FILTER = declared_struct("gs_delta", "FilterTables")
FAST_DIVISOR = declared_struct("gs_blosc_count", "FastDivisor")

_ANY_BOXES = "gs_scatter_copy_2"
LANDING = declared_struct(_ANY_BOXES, "Landing")
CELL = declared_struct(_ANY_BOXES, "Cell")
LOOP = declared_struct(_ANY_BOXES, "Loop")
COLUMN = declared_struct(_ANY_BOXES, "Column")
TRANSFER = declared_struct(_ANY_BOXES, "Transfer")
SCATTER = {n: declared_struct(_ANY_BOXES, "Scatter", R=n) for n in (2, 4, 32)}
"""Largest number of loops of a kernel -> data type of its parameter."""
POINTS = declared_struct("gs_scatter_points", "Points")
"""Parameter of ``gs_scatter_points``."""

BYTE_SHUFFLED = 1
"""`FILTER_BYTE_SHUFFLE` of ``kernels/shuffle_format.cuh``."""


class StreamClass(IntEnum):
    """Classes of the streams in Blosc frames, as in ``blosc_format.cuh``."""

    RAW = 0
    LZ4 = 1
    SNAPPY = 2
    ZLIB = 3
    ZSTD = 4


def record(struct: np.dtype[Any], **fields: Any) -> Any:
    """A struct as a kernel takes it; fields that are not given are zero."""
    found = np.zeros((), struct)
    for name, value in fields.items():
        found[name] = value
    return found[()]


def fast_divisor(divisor: int | Ints) -> NDArray[Any]:
    """Constants with which kernels divide by `divisor`: `FAST_DIVISOR`, same shape.

    `divisor` is at least 1 and below 2**31.
    """
    if isinstance(divisor, int):
        return _one_divisor(divisor)
    return _divisors(np.asarray(divisor, np.uint64))


@lru_cache(maxsize=256)  # the batches of a read mostly need the same one
def _one_divisor(divisor: int) -> NDArray[Any]:
    found = _divisors(np.asarray(divisor, np.uint64))
    found.flags.writeable = False
    return found


def _divisors(by: NDArray[np.uint64]) -> NDArray[Any]:
    log2 = np.frexp((by - np.uint64(1)).astype(np.float64))[1].astype(np.uint64)
    one, low = np.uint64(1), np.uint64(32)
    found = np.empty(by.shape, FAST_DIVISOR)
    found["divisor"] = by
    found["magic"] = (((one << log2) - by) << low) // by + one
    found["shift_first"] = np.minimum(log2, one)
    found["shift_last"] = np.maximum(log2, one) - one
    return found
