// Blosc 1 frames: the header, and the place of each stream. This file must accept and
// refuse the same frames as gpushard/codecs/blosc_frame.py.
//
//   | version 1 | lz version 1 | flags 1 | item size 1 |
//   | decoded size 4 | block size 4 | frame size 4 |
//   | start of block 0, 4 | start of block 1, 4 | ... |   from the start of the frame
//   | size 4 | stream | size 4 | stream | ... |           a block has one stream, or one
//                                                         for each byte of an item
//
//   flags: byte shuffle 0, memcpyed 1, bit shuffle 2, reserved 3, no split 4,
//   compressor 7-5.   A stream as long as its decoded bytes is stored unchanged. In a
//   memcpyed frame the decoded bytes follow the header.
#pragma once
#include "deflate_format.cuh"
#include "lz_format.cuh"
#include "shuffle_format.cuh"
#include "zstd_format.cuh"

constexpr uint32_t BLOSC_HEADER_NBYTES = 16;
constexpr uint32_t BLOSC_VERSION = 2;
constexpr uint32_t BLOSC_STREAMS_VERSION = 1;  // the same for every compressor
constexpr uint32_t BLOSC_MAX_SPLITS = 16;        // blosc.c, MAX_SPLITS
constexpr uint32_t BLOSC_MIN_SPLIT_NBYTES = 128;  // blosc.c, MIN_BUFFERSIZE
enum BloscFlag {
    BLOSC_BYTE_SHUFFLE = 1,
    BLOSC_MEMCPYED = 2,
    BLOSC_BIT_SHUFFLE = 4,
    BLOSC_RESERVED = 8,
    BLOSC_DONT_SPLIT = 16,
};

// Classes of streams by the decoder they need. From LZ4 on, these are the numbers of the
// compressors in the flags. Number 0 in the flags is blosclz, which only the host
// decodes.
enum StreamClass { CLASS_RAW, CLASS_LZ4, CLASS_SNAPPY, CLASS_ZLIB, CLASS_ZSTD };
constexpr uint32_t CLASS_COUNT = 5;
constexpr uint32_t COMPRESSOR_BLOSCLZ = 0;

struct BloscHeader {
    uint32_t flags;
    uint32_t typesize;
    uint32_t nbytes;
    uint32_t block_nbytes;
    uint32_t n_blocks;  // 0 in memcpyed frames and in empty frames
    uint32_t n_splits;  // streams in a block of full size; a shorter last block has one
};

GS_DEVICE uint32_t blosc_compressor(const BloscHeader& header) {
    return header.flags >> 5;
}

GS_DEVICE uint32_t blosc_filter(const BloscHeader& header) {
    if (header.flags & BLOSC_MEMCPYED) return FILTER_NONE;
    if (header.flags & BLOSC_BYTE_SHUFFLE && header.typesize > 1) {
        return FILTER_BYTE_SHUFFLE;
    }
    return header.flags & BLOSC_BIT_SHUFFLE ? FILTER_BIT_SHUFFLE : FILTER_NONE;
}

GS_DEVICE uint32_t blosc_splits(const BloscHeader& header) {
    const bool is_split = header.typesize <= BLOSC_MAX_SPLITS &&
                          !(header.flags & BLOSC_DONT_SPLIT) &&
                          header.block_nbytes / header.typesize >=
                              BLOSC_MIN_SPLIT_NBYTES;
    return is_split ? header.typesize : 1;
}

// Whether the sizes agree with each other and with the frame's real size `frame_nbytes`.
GS_DEVICE bool is_consistent(const BloscHeader& header, uint64_t frame_nbytes) {
    if (header.flags & BLOSC_MEMCPYED) {
        return frame_nbytes == BLOSC_HEADER_NBYTES + uint64_t(header.nbytes) &&
               header.block_nbytes;
    }
    // Each block needs four bytes for its start, and four for the size of a stream.
    const uint64_t n_blocks_max = (frame_nbytes - BLOSC_HEADER_NBYTES) / 8;
    return header.block_nbytes && header.block_nbytes <= header.nbytes &&
           header.nbytes <= n_blocks_max * header.block_nbytes &&
           header.block_nbytes % blosc_splits(header) == 0;
}

GS_DEVICE Status read_blosc_header(
    const ByteSpan& frame, uint64_t decoded_nbytes, BloscHeader& header) {
    if (!holds(frame, 0, BLOSC_HEADER_NBYTES)) return STATUS_FORMAT;
    header.flags = read_u8(frame, 2);
    header.typesize = read_u8(frame, 3);
    header.nbytes = read_u32(frame, 4);
    header.block_nbytes = read_u32(frame, 8);
    header.n_blocks = 0;
    header.n_splits = 1;
    if (read_u32(frame, 12) != frame.nbytes || read_u8(frame, 0) != BLOSC_VERSION ||
        blosc_compressor(header) >= CLASS_COUNT || header.flags & BLOSC_RESERVED ||
        !header.typesize) {
        return STATUS_FORMAT;
    }
    if (header.nbytes && !is_consistent(header, frame.nbytes)) return STATUS_FORMAT;
    if (header.nbytes != decoded_nbytes) return STATUS_SIZE;
    if (!header.nbytes || header.flags & BLOSC_MEMCPYED) return STATUS_OK;
    header.n_splits = blosc_splits(header);
    header.n_blocks = (header.nbytes - 1) / header.block_nbytes + 1;
    return STATUS_OK;
}

// One stream; offsets count from the start of the frame and of the decoded bytes.
struct BloscStream {
    uint32_t source_offset;
    uint32_t source_nbytes;
    uint32_t decoded_offset;
    uint32_t decoded_nbytes;
};

GS_DEVICE bool is_raw(const BloscStream& stream) {
    return stream.source_nbytes == stream.decoded_nbytes;
}

// Calls `visit` for each stream of one block. Returns FORMAT if a stream leaves the
// frame.
template <class Visit>
GS_DEVICE Status walk_blosc_block(
    const ByteSpan& frame, const BloscHeader& header, uint32_t block, Visit&& visit) {
    const uint32_t decoded_offset = block * header.block_nbytes;
    const uint32_t rest = header.nbytes - decoded_offset;
    const bool is_short = rest < header.block_nbytes;
    const uint32_t n_splits = is_short ? 1 : header.n_splits;
    const uint32_t nbytes = (is_short ? rest : header.block_nbytes) / n_splits;
    const uint64_t streams_start = BLOSC_HEADER_NBYTES + uint64_t(header.n_blocks) * 4;
    // Starts and sizes are signed in the file. Read as unsigned numbers, negative ones
    // are beyond the end of any frame with less than 2^31 bytes.
    uint64_t offset = read_u32(frame, BLOSC_HEADER_NBYTES + uint64_t(block) * 4);
    for (uint32_t split = 0; split < n_splits; split++) {
        if (offset < streams_start || !holds(frame, offset, 4)) return STATUS_FORMAT;
        const uint32_t source_nbytes = read_u32(frame, offset);
        if (!holds(frame, offset + 4, source_nbytes)) return STATUS_FORMAT;
        visit(BloscStream{
            static_cast<uint32_t>(offset + 4), source_nbytes,
            decoded_offset + split * nbytes, nbytes});
        offset += 4 + uint64_t(source_nbytes);
    }
    return STATUS_OK;
}

// Whether a stream may be given to the decoder of its compressor.
GS_DEVICE Status check_blosc_stream(
    const ByteSpan& frame, const BloscHeader& header, const BloscStream& stream,
    bool accept_unsized) {
    if (is_raw(stream)) return STATUS_OK;
    const ByteSpan bytes = {frame.data + stream.source_offset, stream.source_nbytes};
    Status status = STATUS_OK;
    switch (blosc_compressor(header)) {
        case COMPRESSOR_BLOSCLZ: return STATUS_HOST;
        case CLASS_SNAPPY: status = check_snappy(bytes, stream.decoded_nbytes); break;
        case CLASS_ZLIB: status = check_zlib(bytes); break;
        case CLASS_ZSTD:
            status = check_zstd(bytes, {stream.decoded_nbytes, accept_unsized});
            // No Blosc writes such a checksum, and no kernel verifies it here.
            if (status == STATUS_OK && has_zstd_checksum(bytes)) status = STATUS_HOST;
            break;
        default: status = bytes.nbytes ? STATUS_OK : STATUS_FORMAT; break;  // LZ4
    }
    // The size is that of a stream, so the frame contradicts itself, not the metadata.
    return status == STATUS_SIZE ? STATUS_FORMAT : status;
}

// The worse of two statuses: FORMAT is the worst, then HOST, then OK.
GS_DEVICE Status worse_of(Status a, Status b) {
    if (a == STATUS_OK || b == STATUS_OK) return a | b;
    return a < b ? a : b;
}

// Counts and sizes of the streams in one or several blocks.
struct BloscTally {
    Status status;
    uint32_t n_raw;
    uint32_t n_compressed;
    uint32_t compressed_nbytes;      // decoded size of the compressed streams
    uint32_t compressed_nbytes_max;  // decoded size of the largest of them
    uint64_t source_nbytes;          // size of all streams, including their size fields
};

GS_DEVICE void tally_blosc_block(
    const ByteSpan& frame, const BloscHeader& header, uint32_t block,
    bool accept_unsized, BloscTally& tally) {
    const Status walked = walk_blosc_block(
        frame, header, block, [&](const BloscStream& stream) {
            tally.source_nbytes += 4 + uint64_t(stream.source_nbytes);
            if (is_raw(stream)) {
                tally.n_raw++;
                return;
            }
            tally.n_compressed++;
            tally.compressed_nbytes += stream.decoded_nbytes;
            if (stream.decoded_nbytes > tally.compressed_nbytes_max) {
                tally.compressed_nbytes_max = stream.decoded_nbytes;
            }
            tally.status = worse_of(
                tally.status,
                check_blosc_stream(frame, header, stream, accept_unsized));
        });
    tally.status = worse_of(tally.status, walked);
}

// Whether a frame is one that no writer makes; the host decodes it. Blocks of a few bytes
// would need huge tables. In long frames, starts and sizes could be negative.
GS_DEVICE bool is_unusual(const BloscHeader& header, const ByteSpan& frame) {
    const bool has_tiny_blocks =
        header.n_blocks > 1 && header.block_nbytes < BLOSC_MIN_SPLIT_NBYTES;
    // c-blosc refuses compressed blocks of any other version, and none was ever written.
    const bool is_of_other_version =
        header.n_blocks && read_u8(frame, 1) != BLOSC_STREAMS_VERSION;
    return has_tiny_blocks || is_of_other_version || frame.nbytes >> 31;
}

// Whether streams overlap in the frame, which would multiply the work.
GS_DEVICE bool has_shared_streams(const BloscTally& tally, const ByteSpan& frame) {
    return tally.source_nbytes > frame.nbytes;
}
