// Words of 1 to 16 bytes at aligned addresses, and numbers at any address.
#pragma once
#include "scatter_cast.cuh"

constexpr uint32_t LANES = 32;

template <int W>
struct WordOf;
template <>
struct WordOf<1> {
    typedef uint8_t type;
};
template <>
struct WordOf<2> {
    typedef uint16_t type;
};
template <>
struct WordOf<4> {
    typedef uint32_t type;
};
template <>
struct WordOf<8> {
    typedef uint64_t type;
};
template <>
struct WordOf<16> {
    typedef uint4 type;
};

// Converts bools or reverses bytes, for all elements of a word at once.
GS_DEVICE uint64_t moved(uint64_t word, const Transfer& transfer) {
    if (transfer.from == TYPE_BOOL) {
        return bools_of(word);
    }
    return reversed_bytes(word, transfer.in_swap);
}

GS_DEVICE uint4 moved(uint4 word, const Transfer& transfer) {
    if (transfer.from != TYPE_BOOL && transfer.in_swap < 2) return word;
    const uint64_t low = moved(word.x | static_cast<uint64_t>(word.y) << 32, transfer);
    const uint64_t high = moved(word.z | static_cast<uint64_t>(word.w) << 32, transfer);
    return make_uint4(
        static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
        static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32));
}

// Loads a number of 2**log2 bytes (at most 8) from any address.
GS_DEVICE uint64_t load_number(uint64_t address, uint32_t log2) {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(address);
    if (address & ((1u << log2) - 1)) {
        uint64_t bits = 0;
        for (uint32_t i = 0; i < 1u << log2; ++i) {
            bits |= static_cast<uint64_t>(__ldg(from + i)) << (8 * i);
        }
        return bits;
    }
    switch (log2) {
        case 0: return __ldg(from);
        case 1: return __ldg(reinterpret_cast<const uint16_t*>(from));
        case 2: return __ldg(reinterpret_cast<const uint32_t*>(from));
        default: return __ldg(reinterpret_cast<const uint64_t*>(from));
    }
}

GS_DEVICE void store_number(uint8_t* to, uint64_t bits, uint32_t log2) {
    if (reinterpret_cast<uint64_t>(to) & ((1u << log2) - 1)) {
        for (uint32_t i = 0; i < 1u << log2; ++i) {
            to[i] = static_cast<uint8_t>(bits >> (8 * i));
        }
        return;
    }
    switch (log2) {
        case 0: *to = static_cast<uint8_t>(bits); break;
        case 1: *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits); break;
        case 2: *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(bits); break;
        default: *reinterpret_cast<uint64_t*>(to) = bits; break;
    }
}
