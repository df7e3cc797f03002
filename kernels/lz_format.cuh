// The size fields in front of LZ4 and Snappy blocks.
//
//   numcodecs.lz4   | decoded size 4, little-endian | LZ4 block |
//   snappy          | decoded size, 1-5 bytes of 7 bits, the lowest first | elements |
#pragma once
#include "common.cuh"

constexpr uint32_t LZ4_PREFIX_NBYTES = 4;

// Whether the bytes can be an LZ4 block of numcodecs that claims `decoded_nbytes`.
GS_DEVICE Status check_lz4(const ByteSpan& stream, uint64_t decoded_nbytes) {
    if (!holds(stream, 0, LZ4_PREFIX_NBYTES + 1)) return STATUS_FORMAT;
    return read_u32(stream, 0) == decoded_nbytes ? STATUS_OK : STATUS_SIZE;
}

// Whether a Snappy block claims `decoded_nbytes` and has elements to decode.
GS_DEVICE Status check_snappy(const ByteSpan& stream, uint64_t decoded_nbytes) {
    uint64_t claimed = 0;
    for (uint32_t k = 0; k < 5; k++) {
        if (!holds(stream, k, 1)) return STATUS_FORMAT;
        const uint64_t byte = read_u8(stream, k);
        claimed |= (byte & 127) << 7 * k;
        if (byte >> 7) continue;
        if (claimed != decoded_nbytes) return STATUS_SIZE;
        return decoded_nbytes && stream.nbytes == k + 1 ? STATUS_FORMAT : STATUS_OK;
    }
    return STATUS_FORMAT;
}
