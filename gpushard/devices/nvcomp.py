"""NVIDIA's nvCOMP 6, called through its C batch API: many streams in one call.

All addresses are plain integers. Tables lie in device memory, with one entry for each
stream. No call waits for the device. Loading the library, its alignments and its
scratch sizes need no driver. `nvcomp_abi` has the C declarations.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpushard.devices.nvcomp_abi import (
    MAJOR,
    Algorithm,
    AlignmentRequirements,
    CompressOptions,
    DecompressOptions,
    Properties,
    bound_symbols,
    status_name,
    symbol_of,
)
from gpushard.errors import DeviceError, UnsupportedError

_SONAME = f"libnvcomp.so.{MAJOR}"
INSTALL_HINT = "run: pip install 'gpushard[cuda13]', or 'gpushard[cuda12]'"
"""What installs all software of a GPU but its driver."""

_OR_CPU_HINT = f"{INSTALL_HINT}, or read on the CPU"


@dataclass(frozen=True, slots=True)
class Alignments:
    """Powers of two that addresses must be multiples of."""

    input: int
    output: int
    temp: int


@dataclass(frozen=True, slots=True)
class StreamTables:
    """Device addresses of the tables of one batch, with one entry for each stream.

    Attributes
    ----------
    src, src_nbytes
        uint64 each: addresses and sizes of the encoded streams.
    dst, capacity
        uint64 each: addresses for the decoded streams, and the room there.
    actual_nbytes
        uint64, written: decoded sizes; undefined where the status is not 0.
    statuses
        int32, written: one `NvcompStatus` for each stream.
    """

    count: int
    src: int
    src_nbytes: int
    dst: int
    capacity: int
    actual_nbytes: int
    statuses: int


class Nvcomp:
    """One loaded nvCOMP library, at `path`.

    Each call runs in a context that `within` makes: nvCOMP launches on the thread's
    current device, whatever device the stream belongs to. Raises `UnsupportedError` if
    the library cannot be loaded, has another major version or lacks a function.
    """

    __slots__ = ("_functions", "_within", "cuda_major", "path", "version")

    def __init__(
        self,
        path: Path | str,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.path = str(path)
        library = _load(self.path)
        number, cudart = _properties(library, self.path)
        self.version = (number // 1000, number // 100 % 10, number % 100)
        self.cuda_major = cudart // 1000
        if self.version[0] != MAJOR:
            raise UnsupportedError(
                f"{self.path} is another major version of nvCOMP",
                expected=MAJOR,
                got=".".join(map(str, self.version)),
                hint=_OR_CPU_HINT,
            )
        self._functions = {
            name: _bind(library, name, arguments, self.path)
            for name, arguments in bound_symbols()
        }
        self._within = within

    def within(self, context: Callable[[], AbstractContextManager[None]]) -> Nvcomp:
        """The same library, with a context in which each call runs."""
        return Nvcomp(self.path, context)

    @property
    def label(self) -> str:
        """Name and version of the decoder, for reports: "nvCOMP 6.0.0"."""
        return f"nvCOMP {'.'.join(map(str, self.version))}"

    def alignments(self, algorithm: Algorithm) -> Alignments:
        """Alignments that decoding with `algorithm` needs."""
        name = "DecompressGetRequiredAlignments"
        return self._alignments(algorithm, name, DecompressOptions.with_kernels())

    def encoding_alignments(self, algorithm: Algorithm) -> Alignments:
        """Alignments that encoding with `algorithm` needs."""
        name = "CompressGetRequiredAlignments"
        return self._alignments(algorithm, name, CompressOptions.defaults(algorithm))

    def _alignments(self, algorithm: Algorithm, name: str, options: Any) -> Alignments:
        found = AlignmentRequirements()
        self._call(algorithm, name, options, ctypes.byref(found))
        return Alignments(found.input, found.output, found.temp)

    def temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Scratch bytes to decode `count` streams to at most `total_nbytes` bytes.

        The largest stream has the capacity `max_nbytes`, at most `MAX_STREAM_NBYTES`.
        The answer grows without bound with `total_nbytes`, the sum of the capacities;
        without it, it would be an estimate from `max_nbytes`, often many times too
        large. Raises `DeviceError` if nvCOMP refuses these numbers.
        """
        found = ctypes.c_size_t()
        self._call(
            algorithm,
            "DecompressGetTempSize",
            count,
            max_nbytes,
            DecompressOptions.with_kernels(),
            ctypes.byref(found),
            total_nbytes,
            None,
        )
        return found.value

    def decompress_async(
        self,
        algorithm: Algorithm,
        tables: StreamTables,
        temp: int,
        temp_nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue decoding a batch on `stream`.

        Sources and destinations in `tables` are aligned as `alignments` says. Nothing
        else may use the scratch, of `temp_nbytes` bytes at the device address `temp`,
        until the work is done. Raises `DeviceError` if the call cannot be enqueued;
        errors of single streams are reported in ``tables.statuses``.
        """
        self._call(
            algorithm,
            "DecompressAsync",
            tables.src,
            tables.src_nbytes,
            tables.capacity,
            tables.actual_nbytes,
            tables.count,
            temp,
            temp_nbytes,
            tables.dst,
            DecompressOptions.with_kernels(),
            tables.statuses,
            stream,
        )

    def encoded_limit(self, algorithm: Algorithm, nbytes: int) -> int:
        """Largest encoded size of `nbytes` bytes: the room that a stream needs."""
        found = ctypes.c_size_t()
        options = CompressOptions.defaults(algorithm)
        name = "CompressGetMaxOutputChunkSize"
        self._call(algorithm, name, nbytes, options, ctypes.byref(found))
        return found.value

    def encoding_temp_nbytes(
        self, algorithm: Algorithm, count: int, max_nbytes: int
    ) -> int:
        """Scratch bytes to encode `count` streams of `max_nbytes` bytes each.

        Some algorithms need a device for this.
        """
        found = ctypes.c_size_t()
        options, total = CompressOptions.defaults(algorithm), count * max_nbytes
        numbers = count, max_nbytes, options, ctypes.byref(found), total, None
        self._call(algorithm, "CompressGetTempSize", *numbers)
        return found.value

    def compress_async(
        self,
        algorithm: Algorithm,
        tables: StreamTables,
        max_nbytes: int,
        temp: int,
        temp_nbytes: int,
        stream: int,
    ) -> None:
        """Enqueue encoding a batch on `stream`; see `decompress_async`.

        `src` and `src_nbytes` of the tables describe decoded bytes, at most
        `max_nbytes` each. `actual_nbytes` receives the sizes of the streams. `capacity`
        is not used.
        """
        self._call(
            algorithm,
            "CompressAsync",
            *(tables.src, tables.src_nbytes, max_nbytes, tables.count),
            *(temp, temp_nbytes, tables.dst, tables.actual_nbytes),
            *(CompressOptions.defaults(algorithm), tables.statuses, stream),
        )

    def _call(self, algorithm: Algorithm, name: str, *args: Any) -> None:
        symbol = symbol_of(algorithm, name)
        with self._within():
            status = self._functions[symbol](*args)
        if status:
            raise DeviceError(
                f"nvCOMP's {symbol} failed",
                got=status_name(status),
                hint=(
                    "check the CUDA driver and the free device memory, or read on "
                    "the CPU"
                ),
            )


@cache
def load_nvcomp() -> Nvcomp:
    """The installed nvCOMP: the wheel's, or else the system's.

    Raises `UnsupportedError` if there is none of the supported major version.
    """
    found = sorted(_wheel_libraries(), key=lambda path: path.name != _SONAME)
    if found:
        return Nvcomp(found[0])
    try:
        return Nvcomp(_SONAME)
    except UnsupportedError as error:
        raise UnsupportedError(
            "nvCOMP is not installed",
            expected=_SONAME,
            hint=_OR_CPU_HINT,
        ) from error


def _wheel_libraries() -> Iterator[Path]:
    """Shared objects of any major in the wheels nvidia-libnvcomp-cu12 and -cu13.

    They are not looked up as a module: wheels of CUDA 12.8 and older make `nvidia` a
    package of one directory, which hides what other directories have.
    """
    for root in dict.fromkeys(sys.path):
        yield from Path(root).glob("nvidia/libnvcomp/lib64/libnvcomp.so.[0-9]*")


def _load(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise UnsupportedError(
            f"nvCOMP cannot be loaded from {path}",
            got=str(error),
            hint=_OR_CPU_HINT,
        ) from error


def _properties(library: ctypes.CDLL, path: str) -> tuple[int, int]:
    """Versions of nvCOMP and of its CUDA runtime, as numbers in their encodings."""
    found = Properties()
    get = _bind(library, "nvcompGetProperties", (ctypes.c_void_p,), path)
    get(ctypes.byref(found))
    return found.version, found.cudart_version


def _bind(
    library: ctypes.CDLL, name: str, arguments: tuple[Any, ...], path: str
) -> Any:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise UnsupportedError(
            f"{path} has no function {name}",
            expected=f"nvCOMP {MAJOR}",
            hint=_OR_CPU_HINT,
        ) from error
    function.argtypes = arguments
    function.restype = ctypes.c_int32
    return function
