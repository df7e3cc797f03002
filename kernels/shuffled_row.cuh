// A row whose last filter, a byte shuffle with items of the output's size, is not undone
// yet.
//
//   row     | block 0                        | block 1 | ... | a shorter one |
//           | plane 0 | plane 1 | ... | S-1  |
//   offset  numbers the bytes of the unshuffled row. The item at an offset has one byte in
//           each plane of its block
#pragma once
#include "planes.cuh"
#include "scatter_words.cuh"

// Place of an item: its byte k is at `address` + `stride` * k.
struct PlanesPlace {
    uint64_t address;
    uint32_t stride;
};

template <int N>
GS_DEVICE uint64_t load_bytes(const PlanesPlace& at, uint32_t first) {
    const uint64_t from = at.address + static_cast<uint64_t>(first) * at.stride;
    uint64_t bits = 0;
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
        const uint64_t plane = from + static_cast<uint64_t>(k) * at.stride;
        const uint64_t byte = __ldg(reinterpret_cast<const uint8_t*>(plane));
        bits |= byte << (8 * k);
    }
    return bits;
}

// All blocks except the last have `block.divisor` bytes. No block has a part of an item.
struct ShuffledRow {
    uint64_t address;
    FastDivisor block;
    uint32_t nbytes;
    uint32_t item_log2;

    // `at` is the address that the item would have if the row were not shuffled.
    GS_DEVICE PlanesPlace place(uint64_t at) const {
        const uint32_t offset = static_cast<uint32_t>(at - address);
        const uint32_t start = fast_quotient(offset, block) * block.divisor;
        const uint32_t left = nbytes - start;
        const uint32_t item = (offset - start) >> item_log2;
        const uint32_t whole = left < block.divisor ? left : block.divisor;
        return {address + start + item, whole >> item_log2};
    }

    // Loads 2**log2 bytes of one item.
    GS_DEVICE uint64_t load(uint64_t at, uint32_t log2) const {
        const PlanesPlace planes = place(at);
        const uint32_t first =
            static_cast<uint32_t>(at - address) & ((1u << item_log2) - 1);
        switch (log2) {
            case 1: return load_bytes<2>(planes, first);
            case 2: return load_bytes<4>(planes, first);
            default: return load_bytes<8>(planes, first);
        }
    }
};

// Four neighbouring items of S bytes: a word of each of their planes, and the items that
// these make.
template <int S>
struct FourItems;

template <>
struct FourItems<2> {
    typedef uint2 Planes;
    typedef uint64_t Word;
    static GS_DEVICE Planes load(const PlanesPlace& at) {
        return load_two_words(at.address, at.stride);
    }
    static GS_DEVICE Word joined(const Planes& planes, const Transfer& transfer) {
        const uint2 items = transpose_bytes(planes);
        return moved(items.x | static_cast<uint64_t>(items.y) << 32, transfer);
    }
    static GS_DEVICE void store(uint8_t* to, const Word& items) {
        store_streamed(to, items);
    }
};

template <>
struct FourItems<4> {
    typedef uint4 Planes;
    typedef uint4 Word;
    static GS_DEVICE Planes load(const PlanesPlace& at) {
        return load_four_words(at.address, at.stride);
    }
    static GS_DEVICE Word joined(const Planes& planes, const Transfer& transfer) {
        return moved(transpose_bytes(planes), transfer);
    }
    static GS_DEVICE void store(uint8_t* to, const Word& items) {
        store_streamed(to, items);
    }
};

template <>
struct FourItems<8> {
    struct Word {
        uint4 first;
        uint4 last;
    };
    typedef Word Planes;
    static GS_DEVICE Planes load(const PlanesPlace& at) {
        const uint64_t upper = at.address + 4 * static_cast<uint64_t>(at.stride);
        return {
            load_four_words(at.address, at.stride),
            load_four_words(upper, at.stride)};
    }
    static GS_DEVICE Word joined(const Planes& planes, const Transfer& transfer) {
        const uint4 low = transpose_bytes(planes.first);
        const uint4 high = transpose_bytes(planes.last);
        return {
            moved(make_uint4(low.x, high.x, low.y, high.y), transfer),
            moved(make_uint4(low.z, high.z, low.w, high.w), transfer)};
    }
    static GS_DEVICE void store(uint8_t* to, const Word& items) {
        store_streamed(to, items.first);
        store_streamed(to + sizeof items.first, items.last);
    }
};
