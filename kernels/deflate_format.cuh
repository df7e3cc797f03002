// Deflate streams in their two wrappers, checked without decoding them.
//
//   zlib (RFC 1950)   | CMF 1 | FLG 1 | deflate | Adler-32 4 |
//   gzip (RFC 1952)   | 1f 8b 08 | FLG 1 | time 4 | 2 | extra | name | comment | CRC |
//                     | deflate | CRC-32 4 | decoded size modulo 2^32 4 |
#pragma once
#include "common.cuh"

constexpr uint32_t DEFLATE_MIN_NBYTES = 2;  // an empty fixed block has ten bits
constexpr uint32_t ZLIB_HEADER_NBYTES = 2;
constexpr uint32_t ZLIB_TRAILER_NBYTES = 4;
constexpr uint32_t ZLIB_WRAPPER_NBYTES = ZLIB_HEADER_NBYTES + ZLIB_TRAILER_NBYTES;
constexpr uint32_t GZIP_MAGIC = 0x088b1fu;  // includes deflate, the only method
constexpr uint32_t GZIP_HEADER_NBYTES = 10;
constexpr uint32_t GZIP_TRAILER_NBYTES = 8;
enum GzipFlag {
    GZIP_HEADER_CRC = 2,
    GZIP_EXTRA = 4,
    GZIP_NAME = 8,
    GZIP_COMMENT = 16,
    GZIP_RESERVED = 224,
};

// Whether the bytes are a zlib stream. The bare deflate stream is between the header of
// ZLIB_HEADER_NBYTES and the trailer.
GS_DEVICE Status check_zlib(const ByteSpan& stream) {
    if (!holds(stream, 0, ZLIB_WRAPPER_NBYTES + DEFLATE_MIN_NBYTES)) {
        return STATUS_FORMAT;
    }
    const uint32_t method = read_u8(stream, 0);
    const uint32_t flags = read_u8(stream, 1);
    const bool is_deflate = (method & 15) == 8 && method >> 4 <= 7;
    if (!is_deflate || (method << 8 | flags) % 31) return STATUS_FORMAT;
    return flags & 32 ? STATUS_HOST : STATUS_OK;  // bit 5: needs a dictionary
}

// Skips a text that ends with a zero byte; false if it does not end.
GS_DEVICE bool skip_gzip_text(const ByteSpan& stream, uint64_t& offset) {
    while (holds(stream, offset, 1)) {
        if (read_u8(stream, offset++) == 0) return true;
    }
    return false;
}

GS_DEVICE bool skip_gzip_fields(
    const ByteSpan& stream, uint32_t flags, uint64_t& offset) {
    if (flags & GZIP_EXTRA) {
        if (!holds(stream, offset, 2)) return false;
        offset += 2 + read_u16(stream, offset);
    }
    if (flags & GZIP_NAME && !skip_gzip_text(stream, offset)) return false;
    return !(flags & GZIP_COMMENT) || skip_gzip_text(stream, offset);
}

// Whether the bytes may be one gzip member that decodes to `decoded_nbytes`. If several
// members or trailing zeros follow, the size field usually differs: the host decodes
// them.
GS_DEVICE Status check_gzip(const ByteSpan& stream, uint64_t decoded_nbytes) {
    if (!holds(stream, 0, GZIP_HEADER_NBYTES)) return STATUS_FORMAT;
    const uint32_t flags = read_u8(stream, 3);
    if (read_u24(stream, 0) != GZIP_MAGIC || flags & GZIP_RESERVED) {
        return STATUS_FORMAT;
    }
    if (flags & GZIP_HEADER_CRC) return STATUS_HOST;  // only the host verifies it
    // One thread reads the header, and a name of a megabyte would delay all others.
    constexpr uint64_t HEADER_MAX_NBYTES = 4096;
    const bool is_long = stream.nbytes > HEADER_MAX_NBYTES;
    const ByteSpan start = {stream.data, is_long ? HEADER_MAX_NBYTES : stream.nbytes};
    uint64_t offset = GZIP_HEADER_NBYTES;
    if (!skip_gzip_fields(start, flags, offset)) {
        return is_long ? STATUS_HOST : STATUS_FORMAT;
    }
    if (!holds(stream, offset, DEFLATE_MIN_NBYTES + GZIP_TRAILER_NBYTES)) {
        return STATUS_FORMAT;
    }
    const uint32_t claimed = read_u32(stream, stream.nbytes - 4);
    return claimed == static_cast<uint32_t>(decoded_nbytes) ? STATUS_OK : STATUS_HOST;
}
