// Planes of byte-shuffled blocks -> the items that they were made from.
//
//   block    | byte 0 of items 0..n-1 | byte 1 of items 0..n-1 | ... | byte S-1 ... |
//              ^ a word of each plane: four items
//
//   four words of four planes   a0 a1 a2 a3 | b0 b1 b2 b3 | c0 c1 c2 c3 | d0 d1 d2 d3
//   transposed: four items      a0 b0 c0 d0 | a1 b1 c1 d1 | a2 b2 c2 d2 | a3 b3 c3 d3
#pragma once
#include "common.cuh"

// Transposes four rows of four bytes: byte k of word i becomes byte i of word k.
GS_DEVICE uint4 transpose_bytes(const uint4& planes) {
    const uint32_t low01 = __byte_perm(planes.x, planes.y, 0x5140);
    const uint32_t low23 = __byte_perm(planes.z, planes.w, 0x5140);
    const uint32_t high01 = __byte_perm(planes.x, planes.y, 0x7362);
    const uint32_t high23 = __byte_perm(planes.z, planes.w, 0x7362);
    return make_uint4(
        __byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
        __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
}

// Four items of two bytes from two planes.
GS_DEVICE uint2 transpose_bytes(const uint2& planes) {
    return make_uint2(
        __byte_perm(planes.x, planes.y, 0x5140),
        __byte_perm(planes.x, planes.y, 0x7362));
}

GS_DEVICE uint32_t load_plane(uint64_t address) {
    return load_streamed<uint32_t>(address);
}

// Loads a word from each of two planes, `stride` bytes apart.
GS_DEVICE uint2 load_two_words(uint64_t planes, uint64_t stride) {
    return make_uint2(load_plane(planes), load_plane(planes + stride));
}

// Loads a word from each of four planes, `stride` bytes apart.
GS_DEVICE uint4 load_four_words(uint64_t planes, uint64_t stride) {
    return make_uint4(
        load_plane(planes), load_plane(planes + stride),
        load_plane(planes + 2 * stride), load_plane(planes + 3 * stride));
}

// Loads four items of two bytes.
GS_DEVICE uint2 load_two_planes(uint64_t planes, uint64_t stride) {
    return transpose_bytes(load_two_words(planes, stride));
}

// Loads four items of four bytes.
GS_DEVICE uint4 load_four_planes(uint64_t planes, uint64_t stride) {
    return transpose_bytes(load_four_words(planes, stride));
}
