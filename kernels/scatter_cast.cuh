// Casts of one number to another type, with the same bits as NumPy's casts on a host.
//
// All conversions work on bits. Instructions of a GPU turn every NaN into one canonical
// NaN, and the 16-bit types would need headers that NVRTC does not ship.
//
//   bool, integers --(float)--> float32 --> float16, bfloat16
//   bool, integers --(double)-> float64
//   float16, bfloat16 --exact-> float32 --> ...
//   float64 --odd rounding----> float32 --> float16      (rounded once)
//   float64 --nearest---------> float32 --> bfloat16     (rounded twice, as ml_dtypes)
//
// Rounding is to the nearest number, ties to even. A NaN becomes quiet, and keeps its
// sign and as much of its payload as fits. Casts to and from bfloat16 drop the payload if
// ml_dtypes drops it.
#pragma once

#include "common.cuh"

// Data types of elements, as `ElementType` of gpushard/devices/scattering/transfer.py.
constexpr uint32_t TYPE_OPAQUE = 0;  // bytes that are copied unchanged
constexpr uint32_t TYPE_BOOL = 1;
constexpr uint32_t TYPE_INT8 = 2;
constexpr uint32_t TYPE_INT16 = 3;
constexpr uint32_t TYPE_INT32 = 4;
constexpr uint32_t TYPE_INT64 = 5;
constexpr uint32_t TYPE_UINT8 = 6;
constexpr uint32_t TYPE_UINT16 = 7;
constexpr uint32_t TYPE_UINT32 = 8;
constexpr uint32_t TYPE_UINT64 = 9;
constexpr uint32_t TYPE_FLOAT16 = 10;
constexpr uint32_t TYPE_BFLOAT16 = 11;
constexpr uint32_t TYPE_FLOAT32 = 12;
constexpr uint32_t TYPE_FLOAT64 = 13;

// How a unit changes between an inner chunk and the output.
struct Transfer {
    uint32_t from;       // TYPE_*
    uint32_t to;         // TYPE_*; from == to: no cast
    uint32_t in_log2;    // log2 of the bytes of a unit in the inner chunk
    uint32_t out_log2;   // the same in the output
    uint32_t in_swap;    // size of the groups whose bytes are reversed; 1: none
    uint32_t out_swap;   // the same in the output
    uint32_t is_affine;  // value * scale + offset, in float32, before any narrowing
    float scale;
    float offset;
};

GS_DEVICE uint32_t float_bits(float value) {
    union {
        float number;
        uint32_t bits;
    } view;
    view.number = value;
    return view.bits;
}

GS_DEVICE float float_of(uint32_t bits) {
    union {
        uint32_t bits;
        float number;
    } view;
    view.bits = bits;
    return view.number;
}

GS_DEVICE uint64_t double_bits(double value) {
    union {
        double number;
        uint64_t bits;
    } view;
    view.number = value;
    return view.bits;
}

GS_DEVICE double double_of(uint64_t bits) {
    union {
        uint64_t bits;
        double number;
    } view;
    view.bits = bits;
    return view.number;
}

// Reverses the bytes of each group of `group_nbytes` (1, 2, 4 or 8).
GS_DEVICE uint64_t reversed_bytes(uint64_t bits, uint32_t group_nbytes) {
    const uint32_t order =
        group_nbytes < 2 ? 0x3210 : group_nbytes == 2 ? 0x2301 : 0x0123;
    const uint64_t low = __byte_perm(static_cast<uint32_t>(bits), 0, order);
    const uint64_t high = __byte_perm(static_cast<uint32_t>(bits >> 32), 0, order);
    return group_nbytes >= 8 ? low << 32 | high : high << 32 | low;
}

// Each byte of `bits` as a bool: 1 if it is not 0.
GS_DEVICE uint64_t bools_of(uint64_t bits) {
    const uint64_t ones = 0x7f7f7f7f7f7f7f7full;
    return ((((bits & ones) + ones) | bits) >> 7) & 0x0101010101010101ull;
}

GS_DEVICE uint32_t float32_of_float16(uint32_t half) {
    const uint32_t sign = (half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t mantissa = half & 0x3ff;
    if (exponent == 0x1f) {
        return sign | 0x7f800000 | (mantissa ? 0x00400000 : 0) | mantissa << 13;
    }
    if (exponent == 0) {  // times 2**-24, exact
        return sign | float_bits(static_cast<float>(mantissa) * 5.9604644775390625e-8f);
    }
    return sign | (exponent + 112) << 23 | mantissa << 13;
}

GS_DEVICE uint32_t float16_of_float32(uint32_t bits) {
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) {
        return sign | 0x7e00 | ((size >> 13) & 0x3ff);
    }
    if (size >= 0x477ff000) {  // 65520, halfway from the largest number to infinity
        return sign | 0x7c00;
    }
    if (size >= 0x38800000) {  // 2**-14, the smallest normal number
        return sign | (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
    }
    if (size <= 0x33000000) {  // 2**-25, halfway from 0 to the smallest number
        return sign;
    }
    const uint32_t mantissa = (size & 0x7fffff) | 0x800000;
    const uint32_t shift = 126 - (size >> 23);
    const uint32_t quotient = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t tie = 1u << (shift - 1);
    return sign | (quotient + (rest > tie || (rest == tie && (quotient & 1))));
}

GS_DEVICE uint32_t bfloat16_of_float32(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return ((bits >> 16) & 0x8000) | 0x7fc0;
    }
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

GS_DEVICE uint64_t float64_of_float32(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) {
        const uint64_t sign = static_cast<uint64_t>(bits & 0x80000000) << 32;
        const uint64_t payload = static_cast<uint64_t>(bits & 0x7fffff) << 29;
        return sign | 0x7ff8000000000000ull | payload;
    }
    return double_bits(static_cast<double>(float_of(bits)));
}

GS_DEVICE uint32_t float32_of_float64(uint64_t bits) {
    if ((bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull) {
        const uint32_t sign = static_cast<uint32_t>(bits >> 32) & 0x80000000;
        return sign | 0x7fc00000 | (static_cast<uint32_t>(bits >> 29) & 0x7fffff);
    }
    return float_bits(static_cast<float>(double_of(bits)));
}

// Rounds to odd first: if any bits are cut off, the last kept bit is set. So the rounding
// to 11 bits sees on which side of a tie the number is.
GS_DEVICE uint32_t float16_of_float64(uint64_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000;
    const uint64_t size = bits & 0x7fffffffffffffffull;
    if (size > 0x7ff0000000000000ull) {
        return sign | 0x7e00 | (static_cast<uint32_t>(size >> 42) & 0x3ff);
    }
    if (size >= 0x47e0000000000000ull) {  // 2**127
        return sign | 0x7c00;
    }
    if (size < 0x3810000000000000ull) {  // 2**-126
        return sign;
    }
    const uint32_t kept = static_cast<uint32_t>((size - 0x3800000000000000ull) >> 29);
    return sign | float16_of_float32(kept | ((size & 0x1fffffff) != 0));
}

GS_DEVICE uint64_t sign_extended(uint64_t bits, uint32_t from) {
    switch (from) {
        case TYPE_INT8: return static_cast<uint64_t>(static_cast<int8_t>(bits));
        case TYPE_INT16: return static_cast<uint64_t>(static_cast<int16_t>(bits));
        case TYPE_INT32: return static_cast<uint64_t>(static_cast<int32_t>(bits));
        default: return bits;
    }
}

GS_DEVICE float float_of_integer(uint64_t bits, uint32_t from) {
    if (from == TYPE_UINT64) {
        return static_cast<float>(bits);
    }
    if (from == TYPE_INT64) {
        return static_cast<float>(static_cast<int64_t>(bits));
    }
    if (from == TYPE_UINT32) {
        return static_cast<float>(static_cast<uint32_t>(bits));
    }
    return static_cast<float>(static_cast<int32_t>(bits));
}

// Bits of any number as float64; integers must be sign-extended already.
GS_DEVICE uint64_t cast_to_float64(uint64_t bits, uint32_t from) {
    switch (from) {
        case TYPE_FLOAT64: return bits;
        case TYPE_FLOAT32: return float64_of_float32(static_cast<uint32_t>(bits));
        case TYPE_FLOAT16:
            return float64_of_float32(float32_of_float16(static_cast<uint32_t>(bits)));
        case TYPE_BFLOAT16:
            return float64_of_float32(static_cast<uint32_t>(bits) << 16);
        case TYPE_UINT64: return double_bits(static_cast<double>(bits));
        default: return double_bits(static_cast<double>(static_cast<int64_t>(bits)));
    }
}

GS_DEVICE uint32_t cast_to_float32(uint64_t bits, uint32_t from) {
    switch (from) {
        case TYPE_FLOAT64: return float32_of_float64(bits);
        case TYPE_FLOAT32: return static_cast<uint32_t>(bits);
        case TYPE_FLOAT16: return float32_of_float16(static_cast<uint32_t>(bits));
        case TYPE_BFLOAT16: return static_cast<uint32_t>(bits) << 16;
        default: return float_bits(float_of_integer(bits, from));
    }
}

// value * scale + offset, rounded after each of the two steps.
GS_DEVICE uint32_t affine(uint32_t bits, const Transfer& transfer) {
    const float scaled = __fmul_rn(float_of(bits), transfer.scale);
    return float_bits(__fadd_rn(scaled, transfer.offset));
}

GS_DEVICE uint32_t narrowed(uint32_t bits, uint32_t from, uint32_t to) {
    if (to == TYPE_BFLOAT16) {
        return bfloat16_of_float32(bits);
    }
    if (to == TYPE_FLOAT16) {
        const uint32_t half = float16_of_float32(bits);
        const bool drops_payload = from == TYPE_BFLOAT16 && (half & 0x7fff) > 0x7c00;
        return drops_payload ? half & 0xfe00 : half;
    }
    return bits;
}

// Bits of `transfer.to` from bits of `transfer.from`, both in the machine's byte order.
GS_DEVICE uint64_t cast_bits(uint64_t bits, const Transfer& transfer) {
    const uint32_t from = transfer.from, to = transfer.to;
    if (from == TYPE_BOOL) {
        bits = bools_of(bits);
    }
    if (from == to && !transfer.is_affine) {
        return bits;
    }
    bits = sign_extended(bits, from);
    if (to < TYPE_FLOAT16) {
        return bits;
    }
    if (to == TYPE_FLOAT64) {
        return cast_to_float64(bits, from);
    }
    if (from == TYPE_FLOAT64 && to == TYPE_FLOAT16) {
        return float16_of_float64(bits);
    }
    const uint32_t wide = cast_to_float32(bits, from);
    return narrowed(transfer.is_affine ? affine(wide, transfer) : wide, from, to);
}

// All changes to one unit.
GS_DEVICE uint64_t transferred(uint64_t bits, const Transfer& transfer) {
    bits = cast_bits(reversed_bytes(bits, transfer.in_swap), transfer);
    return reversed_bytes(bits, transfer.out_swap);
}
