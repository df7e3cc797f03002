// Zstandard frames (RFC 8878, section 3.1.1), checked without decoding them.
//
//   | magic 4 | descriptor 1 | window 0-1 | dictionary 0-4 | content size 0-8 |
//   | block header 3 | block | block header 3 | block | ... | checksum 0 or 4 |
//
//   descriptor: content size flag 7-6, single segment 5, reserved 3, checksum 2,
//   dictionary flag 1-0.   block header: last 0, type 2-1, size 23-3.
#pragma once
#include "common.cuh"

constexpr uint32_t ZSTD_MAGIC = 0xFD2FB528u;
constexpr uint32_t ZSTD_SKIPPABLE_MAGIC = 0x184D2A50u;  // and the 15 after it
constexpr uint32_t ZSTD_BLOCK_MAX_NBYTES = 128 * 1024;
constexpr uint32_t ZSTD_WINDOW_LOG_MAX = 31;  // libzstd, ZSTD_WINDOWLOG_MAX_64
constexpr uint32_t ZSTD_COMPRESSED_MIN_NBYTES = 2;  // two section headers
enum ZstdBlockType { ZSTD_RAW, ZSTD_RLE, ZSTD_COMPRESSED, ZSTD_RESERVED };

// Rules for the frames of a batch.
struct ZstdRules {
    uint64_t decoded_nbytes;  // the size that the metadata promises
    bool accept_unsized;      // whether frames may omit their content size
};

struct ZstdHeader {
    uint64_t nbytes;
    uint64_t content_nbytes;
    uint64_t block_max_nbytes;
    bool is_sized;
    bool has_checksum;
};

constexpr uint32_t ZSTD_DESCRIPTOR_OFFSET = 4;
constexpr uint32_t ZSTD_CHECKSUM_FLAG = 4;

// Whether a checked frame ends with a checksum of its decoded bytes.
GS_DEVICE bool has_zstd_checksum(const ByteSpan& frame) {
    return read_u8(frame, ZSTD_DESCRIPTOR_OFFSET) & ZSTD_CHECKSUM_FLAG;
}

GS_DEVICE uint64_t zstd_window_nbytes(uint32_t descriptor) {
    const uint64_t base = 1ull << (10 + (descriptor >> 3));
    return base + base / 8 * (descriptor & 7);
}

GS_DEVICE uint64_t read_zstd_content_nbytes(
    const ByteSpan& frame, uint64_t offset, uint32_t nbytes) {
    switch (nbytes) {
        case 1: return read_u8(frame, offset);
        case 2: return read_u16(frame, offset) + 256;
        case 4: return read_u32(frame, offset);
        default: return read_u64(frame, offset);
    }
}

GS_DEVICE Status read_zstd_header(const ByteSpan& frame, ZstdHeader& header) {
    if (!holds(frame, 0, 5)) return STATUS_FORMAT;
    const uint32_t magic = read_u32(frame, 0);
    if ((magic & ~15u) == ZSTD_SKIPPABLE_MAGIC) return STATUS_HOST;
    if (magic != ZSTD_MAGIC) return STATUS_FORMAT;
    const uint32_t descriptor = read_u8(frame, 4);
    const bool is_single = descriptor >> 5 & 1;
    const uint32_t size_flag = descriptor >> 6;
    const uint32_t size_nbytes = size_flag ? 1u << size_flag : is_single;
    const uint32_t window_nbytes = is_single ? 0 : 1;
    if (descriptor >> 3 & 1) return STATUS_FORMAT;
    if (descriptor & 3) return STATUS_HOST;  // needs a dictionary
    header.nbytes = 5 + window_nbytes + size_nbytes;
    if (!holds(frame, 0, header.nbytes)) return STATUS_FORMAT;
    header.has_checksum = descriptor & ZSTD_CHECKSUM_FLAG;
    header.is_sized = size_nbytes != 0;
    header.content_nbytes =
        size_nbytes ? read_zstd_content_nbytes(frame, 5 + window_nbytes, size_nbytes)
                    : 0;
    uint64_t window = header.content_nbytes;
    if (!is_single) {
        const uint32_t log_and_eighths = read_u8(frame, 5);
        if (10 + (log_and_eighths >> 3) > ZSTD_WINDOW_LOG_MAX) return STATUS_HOST;
        window = zstd_window_nbytes(log_and_eighths);
    }
    header.block_max_nbytes =
        window < ZSTD_BLOCK_MAX_NBYTES ? window : ZSTD_BLOCK_MAX_NBYTES;
    return STATUS_OK;
}

// Facts about the blocks of a frame that need no decoding.
struct ZstdBlocks {
    uint64_t stop;          // offset behind the last block; may be past the end
    uint64_t known_nbytes;  // decoded size of the raw and the RLE blocks
    uint64_t bound_nbytes;  // largest decoded size of all blocks
};

GS_DEVICE Status walk_zstd_blocks(
    const ByteSpan& frame, const ZstdHeader& header, const ZstdRules& rules,
    ZstdBlocks& blocks) {
    blocks = {header.nbytes, 0, 0};
    // One thread parses a frame, and millions of empty blocks would delay all others.
    const uint64_t n_blocks_max = 64 + rules.decoded_nbytes / 1024;
    for (uint64_t n_blocks = 0; n_blocks < n_blocks_max; n_blocks++) {
        if (!holds(frame, blocks.stop, 3)) return STATUS_FORMAT;
        const uint32_t block = read_u24(frame, blocks.stop);
        const uint32_t type = block >> 1 & 3;
        const uint32_t nbytes = block >> 3;
        if (type == ZSTD_RESERVED) return STATUS_FORMAT;
        if (nbytes > header.block_max_nbytes) return STATUS_HOST;
        if (type == ZSTD_COMPRESSED) {
            if (nbytes < ZSTD_COMPRESSED_MIN_NBYTES) return STATUS_FORMAT;
            blocks.bound_nbytes += header.block_max_nbytes;
        } else {
            blocks.known_nbytes += nbytes;
            blocks.bound_nbytes += nbytes;
        }
        blocks.stop += 3 + (type == ZSTD_RLE ? 1 : nbytes);
        if (block & 1) return STATUS_OK;
    }
    return STATUS_HOST;
}

// Whether the bytes are one frame that may decode to the size in `rules`.
GS_DEVICE Status check_zstd(const ByteSpan& frame, const ZstdRules& rules) {
    ZstdHeader header;
    ZstdBlocks blocks;
    Status status = read_zstd_header(frame, header);
    if (status == STATUS_OK) status = walk_zstd_blocks(frame, header, rules, blocks);
    if (status != STATUS_OK) return status;
    const uint64_t checksum_nbytes = header.has_checksum ? 4 : 0;
    if (!holds(frame, blocks.stop, checksum_nbytes)) return STATUS_FORMAT;
    // Other frames may follow, and only all frames together must have the size.
    if (blocks.stop + checksum_nbytes != frame.nbytes) return STATUS_HOST;
    if (header.is_sized && header.content_nbytes != rules.decoded_nbytes) {
        return STATUS_SIZE;
    }
    if (blocks.known_nbytes > rules.decoded_nbytes ||
        blocks.bound_nbytes < rules.decoded_nbytes) {
        return STATUS_SIZE;
    }
    return header.is_sized || rules.accept_unsized ? STATUS_OK : STATUS_HOST;
}
