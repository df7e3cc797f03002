"""Machine instructions and C functions (by address) for use in compiled loops.

This is imported only once reads are large enough to pay for it, because numba takes at
least a tenth of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# The functions that these return are called by numba's type inference and by its code
# generator, which have no type stubs.
_INT64 = ir.IntType(64)
# RFC 3720, appendix B.4: the polynomial, bits reversed.
_CRC32C_POLYNOMIAL = 0x82F63B78
_HAS_CRC32 = bool(binding.get_host_cpu_features().get("sse4.2"))


# Functions that only compiled loops call need no wrappers for Python, which take a
# fifth of the first compilation. numba's stubs lack these options.
_NO_WRAPPERS: dict[str, Any] = dict.fromkeys(
    ("no_cpython_wrapper", "no_cfunc_wrapper"), True
)
# Loops raise no errors, so they never call into Python.
PLAIN_ERRORS: dict[str, Any] = {"error_model": "numpy"}
inner = njit(nogil=True, **_NO_WRAPPERS, **PLAIN_ERRORS)


def _function(result_bits: int, argument_bits: tuple[int, ...]) -> Any:
    """Call of a C function at an address; the caller gives all arguments as int64."""

    @intrinsic
    def call(_typing: Any, address: Any, arguments: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            widths = [ir.IntType(bits) for bits in argument_bits]
            kind = ir.FunctionType(ir.IntType(result_bits), widths)
            unpacked = cgutils.unpack_tuple(builder, values[1])
            passed = [
                value if width == _INT64 else builder.trunc(value, width)
                for value, width in zip(unpacked, widths, strict=True)
            ]
            result = builder.call(
                builder.inttoptr(values[0], kind.as_pointer()), passed
            )
            return result if result_bits == 64 else builder.sext(result, _INT64)

        return types.int64(address, arguments), generate

    return call


def _transfer(bits: int, *, swaps: bool) -> Any:
    """Copies one integer between addresses; reverses its bytes if `swaps`."""

    @intrinsic
    def transfer(_typing: Any, target: Any, source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            kind = ir.IntType(bits).as_pointer()
            value = builder.load(builder.inttoptr(values[1], kind), align=1)
            if swaps:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(values[0], kind), align=1)

        return types.void(target, source), generate

    return transfer


def _load(bits: int) -> Any:
    """Loads the unsigned integer at an address, as int64."""

    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            kind = ir.IntType(bits).as_pointer()
            value = builder.load(builder.inttoptr(values[0], kind), align=1)
            return value if bits == 64 else builder.zext(value, _INT64)

        return types.int64(address), generate

    return load


@intrinsic
def _pointer(_typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(values[0], kind)

    return types.voidptr(address), generate


def tuple_at(kind: Any) -> Any:
    """Reads a named tuple of int64 from consecutive words at an address."""
    numba_type = types.NamedUniTuple(types.int64, len(kind._fields), kind)

    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            pointer = context.get_value_type(numba_type).as_pointer()
            return builder.load(builder.inttoptr(values[0], pointer), align=1)

        return numba_type(address), generate

    return load


@intrinsic
def _copy_bytes(_typing: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """``memcpy(target, source, nbytes)``."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(value, kind) for value in values[:2])
        cgutils.raw_memcpy(builder, target, source, values[2], 1)

    return types.void(target, source, nbytes), generate


def _store(bits: int) -> Any:
    """Writes the lower bytes of an int64 to an address."""

    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(values[0], kind.as_pointer())
            kept = values[1] if bits == 64 else builder.trunc(values[1], kind)
            builder.store(kept, pointer, align=1)

        return types.void(address, value), generate

    return store


@intrinsic
def _store_bool(_typing: Any, address: Any, value: Any) -> Any:
    """Write the byte 1 if an int64 is not 0, otherwise the byte 0."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.IntType(8)
        is_set = builder.icmp_unsigned("!=", values[1], ir.Constant(_INT64, 0))
        pointer = builder.inttoptr(values[0], kind.as_pointer())
        builder.store(builder.zext(is_set, kind), pointer, align=1)

    return types.void(address, value), generate


def _stream(nbytes: int) -> Any:
    """Copies `nbytes` past the caches; the target is a multiple of `nbytes`."""

    @intrinsic
    def stream(_typing: Any, target: Any, source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            kind = ir.VectorType(_INT64, nbytes // 8).as_pointer()
            value = builder.load(builder.inttoptr(values[1], kind), align=1)
            place = builder.inttoptr(values[0], kind)
            store = builder.store(value, place, align=nbytes)
            one = ir.Constant(ir.IntType(32), 1)
            store.set_metadata("nontemporal", builder.module.add_metadata([one]))

        return types.void(target, source), generate

    return stream


@intrinsic
def _fence(_typing: Any) -> Any:
    """Make what was written past the caches visible to other threads."""

    def generate(_context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        builder.fence("seq_cst")

    return types.void(), generate


@intrinsic
def _claim(_typing: Any, address: Any) -> Any:
    """Return the int64 at an address and add 1 to it, atomically."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        counter = builder.inttoptr(values[0], _INT64.as_pointer())
        # Claimed work was written before any thread knew the counter: no order needed.
        return builder.atomic_rmw("add", counter, ir.Constant(_INT64, 1), "monotonic")

    return types.int64(address), generate


@intrinsic
def _crc32_of_8(_typing: Any, crc: Any, data: Any) -> Any:
    """The CPU's CRC-32C of eight more bytes."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_INT64, [_INT64, _INT64])
        function = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.x86.sse42.crc32.64.64"
        )
        return builder.call(function, values)

    return types.int64(crc, data), generate


def _slice_tables() -> np.ndarray[Any, np.dtype[np.int64]]:
    """CRC-32C of each byte followed by 0 to 7 zero bytes: int64, shape (8, 256)."""
    tables = np.empty((8, 256), np.int64)
    crc = np.arange(256)
    for _ in range(8):
        crc = (crc >> 1) ^ (_CRC32C_POLYNOMIAL * (crc & 1))
    tables[0] = crc
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ crc[tables[k - 1] & 0xFF]
    return tables


# fd, buf, nbytes, offset
call_pread = _function(64, (32, 64, 64, 64))
# number, and the arguments of openat2
call_syscall = _function(64, (64, 64, 64, 64, 64))
# dirfd, pathname, flags, mask, statxbuf
call_statx = _function(32, (32, 64, 32, 32, 64))
call_close, call_errno = _function(32, (32,)), _function(64, ())
# device address, host address, nbytes, stream; event, stream; event; context; what is
# asked about; mode
call_upload = _function(32, (64, 64, 64, 64))
call_record, call_wait = _function(32, (64, 64)), _function(32, (64,))
call_context, call_query = _function(32, (64,)), _function(32, (64,))
call_mode = _function(32, (64,))
# microseconds
call_sleep = _function(32, (32,))
# thread, attributes, function, argument; thread, result; mutex
call_create, call_join = _function(32, (64, 64, 64, 64)), _function(32, (64, 64))
call_mutex = _function(32, (64,))
# ctx, dest, destsize, src, srcsize
call_zstd = _function(64, (64, 64, 64, 64, 64))
# ctx, ZSTD_outBuffer, ZSTD_inBuffer
call_stream = _function(64, (64, 64, 64))
# stream; stream, flush
call_reset, call_inflate = _function(32, (64,)), _function(32, (64, 32))
# decompressor, in, in_nbytes, out, out_nbytes_avail, actual_in_ret, actual_out_ret
call_libdeflate = _function(32, (64, 64, 64, 64, 64, 64, 64))
copy_8, copy_16 = _transfer(8, swaps=False), _transfer(16, swaps=False)
copy_32, copy_64 = _transfer(32, swaps=False), _transfer(64, swaps=False)
copy_128 = _transfer(128, swaps=False)
swap_16, swap_32 = _transfer(16, swaps=True), _transfer(32, swaps=True)
swap_64 = _transfer(64, swaps=True)
# Called without the arguments that numba adds, which type checkers do not know.
pointer: Any = _pointer
copy_bytes: Any = _copy_bytes
# A whole cache line at once: some CPUs write the parts of a line one by one.
stream_128, stream_512 = _stream(16), _stream(64)
fence: Any = _fence
claim: Any = _claim
store_int8: Any = _store(8)
store_int32, store_int64 = _store(32), _store(64)
store_bool: Any = _store_bool
_crc32: Any = _crc32_of_8
load_8, load_16, load_32, load_64 = _load(8), _load(16), _load(32), _load(64)
_TABLES = _slice_tables()


@inner
def word(at: int, n: int) -> int:
    """The n-th int64 from an address on."""
    return load_64(at + 8 * n)


@inner
def ints(address: int, shape: Any) -> Any:
    """Array in C order of the int64 at an address."""
    return carray(pointer(address), shape, np.int64)


@inner
def bools(address: int, shape: Any) -> Any:
    """Array in C order of the booleans at an address."""
    return carray(pointer(address), shape, np.bool_)


@inner
def read_at(pread: int, file: int, target: int, nbytes: int, offset: int) -> int:
    """Number of bytes read from a file; fewer at its end or if reading fails."""
    done = 0
    while done < nbytes:
        call = (file, target + done, nbytes - done, offset + done)
        n = call_pread(pread, call)
        if n <= 0:
            break
        done += n
    return done


@njit(nogil=True)
def _crc32c_by_instruction(source: int, nbytes: int) -> int:
    crc: Any = np.int64(0xFFFFFFFF)
    stop = source + (nbytes & ~7)
    at = source
    while at < stop:
        crc = _crc32(crc, load_64(at))
        at += 8
    return _crc32c_of_rest(crc, at, source + nbytes)


@njit(nogil=True)
def _crc32c_by_table(source: int, nbytes: int) -> int:
    crc: Any = np.int64(0xFFFFFFFF)
    stop = source + (nbytes & ~7)
    at = source
    while at < stop:
        low, high = crc ^ load_32(at), load_32(at + 4)
        crc = (
            _TABLES[7, low & 0xFF]
            ^ _TABLES[6, low >> 8 & 0xFF]
            ^ _TABLES[5, low >> 16 & 0xFF]
            ^ _TABLES[4, low >> 24]
            ^ _TABLES[3, high & 0xFF]
            ^ _TABLES[2, high >> 8 & 0xFF]
            ^ _TABLES[1, high >> 16 & 0xFF]
            ^ _TABLES[0, high >> 24]
        )
        at += 8
    return _crc32c_of_rest(crc, at, source + nbytes)


@inner
def _crc32c_of_rest(crc: Any, at: int, stop: int) -> int:
    while at < stop:
        crc = _TABLES[0, (crc ^ load_8(at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc ^ 0xFFFFFFFF


crc32c = _crc32c_by_instruction if _HAS_CRC32 else _crc32c_by_table
