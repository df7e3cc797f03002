"""Casts of elements on their way to an output, as machine instructions.

All casts are one piece of code for LLVM. As functions of their own they would take a
third of the time that all loops take to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from gpushard.fused.columns import CASTS, FIRST_CAST
from gpushard.fused.compiled.calls import inner

_INT32, _SINGLE = ir.IntType(32), types.float32


@intrinsic
def _cast_elements(
    _typing: Any, change: Any, target: Any, source: Any, nbytes: Any, step: Any
) -> Any:
    """Cast elements that have `nbytes` in all, and lie `step` bytes apart.

    At `target` they lie side by side.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        done = builder.append_basic_block("done")
        switch = builder.switch(values[0], done)
        for n, pair in enumerate(CASTS):
            block = builder.append_basic_block(f"cast{n}")
            switch.add_case(ir.Constant(ir.IntType(64), FIRST_CAST + n), block)
            builder.position_at_end(block)
            _generate_cast(context, builder, pair, values[1:])
            builder.branch(done)
        builder.position_at_end(done)

    return types.void(change, target, source, nbytes, step), generate


def _generate_cast(
    context: Any, builder: Any, pair: tuple[str, str], values: Any
) -> None:
    """Code of the loop that casts between a pair of data types."""
    # numba has no halves for CPUs, so these are their bits.
    dtypes = [np.dtype(_BITS_OF.get(name, name)) for name in pair]
    kinds = [from_dtype(dtype) for dtype in dtypes]
    target, source, nbytes, step = values
    # Elements counted from a pointer, so that LLVM sees that it may cast many at once.
    before, after = (
        builder.inttoptr(start, context.get_value_type(kind).as_pointer())
        for start, kind in zip((source, target), kinds, strict=True)
    )
    itemsize = ir.Constant(ir.IntType(64), dtypes[0].itemsize)
    # In elements, so that LLVM looks whether it is 1, and then casts many at once.
    step = builder.sdiv(step, itemsize)
    with cgutils.for_range(builder, builder.udiv(nbytes, itemsize)) as loop:
        at = builder.gep(before, [builder.mul(loop.index, step)])
        value = builder.load(at, align=1)
        if pair[0] == "b1":  # as in `store_bool`, any byte but 0 is true
            zero = ir.Constant(ir.IntType(8), 0)
            is_true = builder.icmp_unsigned("!=", value, zero)
            value = builder.zext(is_true, ir.IntType(8))
        if pair[0] in _HALVES:
            single = _HALVES[pair[0]].widened(builder, value)
            value = context.cast(builder, single, _SINGLE, kinds[1])
        elif pair[1] in _HALVES:
            single = context.cast(builder, value, kinds[0], _SINGLE)
            value = _HALVES[pair[1]].shortened(builder, single)
        else:
            value = context.cast(builder, value, *kinds)
        builder.store(value, builder.gep(after, [loop.index]), align=1)


def _bits(value: int) -> Any:
    return ir.Constant(_INT32, value)


def _below(builder: Any, size: Any, most: int, this: Any, other: Any) -> Any:
    """Choose `this` where `size` is below `most`, otherwise `other`."""
    return builder.select(builder.icmp_unsigned("<", size, _bits(most)), this, other)


def _single_of(builder: Any, half: Any) -> Any:
    """The float32 with the value of a float16, given as its bits; keeps those of NaN.

    A subnormal float16 is computed as the difference of two larger numbers: a caller
    may have the CPU take subnormal float32 as zero (`torch.set_flush_denormal`).
    """
    bits = builder.zext(half, _INT32)
    size = builder.shl(builder.and_(bits, _bits(0x7FFF)), _bits(13))
    normal = builder.add(size, _bits(112 << 23))  # the exponents are 15 and 127 off
    larger = builder.bitcast(builder.add(normal, _bits(1 << 23)), ir.FloatType())
    least = builder.fsub(larger, ir.Constant(ir.FloatType(), 2.0**-14))
    other = builder.or_(size, _bits(0x7F800000))
    found = _below(builder, size, 0x7C00 << 13, normal, other)
    found = _below(builder, size, 1 << 23, builder.bitcast(least, _INT32), found)
    sign = builder.shl(builder.and_(bits, _bits(0x8000)), _bits(16))
    return builder.bitcast(builder.or_(found, sign), ir.FloatType())


def _half_of(builder: Any, single: Any) -> Any:
    """Bits of the float16 next to a float32, ties to even; NaN as NumPy shortens it."""
    bits = builder.bitcast(single, _INT32)
    size = builder.and_(bits, _bits(0x7FFFFFFF))
    # Of a sum from 0.5 on, the last bit is worth as much as that of the least halves.
    half = ir.Constant(ir.FloatType(), 0.5)
    least = builder.fadd(builder.bitcast(size, ir.FloatType()), half)
    least = builder.sub(builder.bitcast(least, _INT32), _bits(0x3F000000))
    odd = builder.and_(builder.lshr(size, _bits(13)), _bits(1))
    rounded = builder.add(size, builder.add(odd, _bits(0xFFF - 0x38000000)))
    rounded = builder.lshr(rounded, _bits(13))
    nan = builder.and_(builder.lshr(size, _bits(13)), _bits(0x3FF))
    is_lost = builder.icmp_unsigned("==", nan, _bits(0))
    nan = builder.or_(builder.select(is_lost, _bits(1), nan), _bits(0x7C00))
    found = _below(builder, size, 0x7F800001, _bits(0x7C00), nan)
    found = _below(builder, size, 0x47800000, rounded, found)
    found = _below(builder, size, 0x38800000, least, found)
    sign = builder.and_(builder.lshr(bits, _bits(16)), _bits(0x8000))
    return builder.trunc(builder.or_(found, sign), ir.IntType(16))


def _single_of_bfloat16(builder: Any, half: Any) -> Any:
    """The float32 of which a bfloat16 is the upper half."""
    bits = builder.shl(builder.zext(half, _INT32), _bits(16))
    return builder.bitcast(bits, ir.FloatType())


def _bfloat16_of(builder: Any, single: Any) -> Any:
    """Bits of the bfloat16 next to a float32, ties to even; NaN as ml_dtypes' own."""
    bits = builder.bitcast(single, _INT32)
    odd = builder.and_(builder.lshr(bits, _bits(16)), _bits(1))
    rounded = builder.add(bits, builder.add(odd, _bits(0x7FFF)))
    sign = builder.and_(bits, _bits(0x80000000))
    nan = builder.or_(sign, _bits(0x7FC00000))
    size = builder.and_(bits, _bits(0x7FFFFFFF))
    found = _below(builder, size, 0x7F800001, rounded, nan)
    return builder.trunc(builder.lshr(found, _bits(16)), ir.IntType(16))


class _Half(NamedTuple):
    """How elements of 16 bits become float32, and come of them."""

    widened: Callable[[Any, Any], Any]
    shortened: Callable[[Any, Any], Any]


_HALVES = {
    "f2": _Half(_single_of, _half_of),
    "bfloat16": _Half(_single_of_bfloat16, _bfloat16_of),
}

# The integers that elements are loaded and stored as, where numba has no such number.
_BITS_OF = {"b1": "u1", "f2": "u2", "bfloat16": "u2"}

# Called without the arguments that numba adds, which type checkers do not know.
_cast: Any = _cast_elements


@inner
def cast_elements(
    change: int, target: int, source: int, nbytes: int, step: int
) -> None:
    """See `_cast_elements`, whose code would otherwise be there twice."""
    _cast(change, target, source, nbytes, step)
