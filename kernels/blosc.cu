// Blosc 1 frames -> tables of the streams in them, for the vendor's decoders.
//
//   frames (rows)        | row 0 | row 1 | ... |
//     | gs_blosc_count     checks; streams of each class, filter of each row
//     v
//   first[class][row]    index of a row's first stream of a class, among all of the class;
//     |                  rows are in the order in which they were counted
//     | gs_blosc_fill      (the host has read `totals` by then, and sized the tables)
//     v
//   streams              | raw ... | lz4 ... | snappy ... | zlib ... | zstd ... |
//     | gs_blosc_copy      raw streams to their rows, zlib streams to multiples of 4
//     | nvCOMP             one call for each compressor that has streams
//     | gs_fold            or gs_verify_zlib; one launch for all compressors
//     v
//   staging rows         decoded, still filtered: see unfilter.cu and scatter_planes.cu
//   decoded rows         rows without a filter
//
// A warp takes a row, and a lane takes a block. Every pass parses the bytes again, with
// bounds checks.
#include "blosc_format.cuh"
#include "canaries.cuh"
#include "realign.cuh"
#include "scan.cuh"

// Tables with one entry for each row, except `totals` and `totals_host`.
struct BloscRows {
    const uint64_t* src;
    const uint64_t* src_nbytes;
    Status* status;
    uint32_t* filter;        // out: FILTER_*
    uint32_t* typesize;      // out
    uint32_t* block_nbytes;  // out
    uint32_t* first;         // out: [CLASS_COUNT][n_rows]; undefined if the row has no
                             // stream of the class
    uint64_t* totals;        // [3][CLASS_COUNT], zero at first: number of streams, their
                             // decoded bytes, and the decoded bytes of the largest. Then
                             // the rows to unshuffle by bytes and by bits. The last entry
                             // counts the warps of gs_blosc_count that are done
    uint64_t* totals_host;   // out: `totals` without the last entry, in host memory
    const uint64_t* staging; // where rows with a filter are decoded to
    const uint64_t* decoded; // where rows without a filter are decoded to, and where rows
                             // with a filter end up
    uint64_t* stage;         // out: where the streams of each row are decoded to
    uint64_t* next;          // out: where each row is after its filter is undone
    FastDivisor* planes;     // out: size of the shuffled blocks that the scatter undoes;
                             // divisor 0: none in this row; null: none in any row
    uint64_t decoded_nbytes;
    uint32_t n_rows;
    uint32_t accept_unsized;  // zstd: whether frames may omit their content size
    uint32_t fused_typesize;  // item size of shuffles that the scatter undoes
    uint32_t reserved;
    uint64_t canary_seed;     // 0: rows have no canaries
};
static_assert(sizeof(BloscRows) == 18 * 8, "the host packs the same");

constexpr uint32_t TOTALS_COUNT = 3 * CLASS_COUNT + 2;

// Tables with one entry for each stream, except `dst`.
struct BloscStreams {
    const uint64_t* dst;  // [n_rows]: where each row is decoded to (`stage` above)
    uint64_t* stream_src;
    uint64_t* stream_nbytes;
    uint64_t* stream_dst;
    uint64_t* stream_capacity;
    uint32_t* stream_row;
    uint32_t begin[CLASS_COUNT];  // index of the first stream of each class
    uint32_t reserved;
};
static_assert(sizeof(BloscStreams) == 9 * 8, "the host packs the same");

GS_DEVICE ByteSpan frame_of(const BloscRows& rows, uint32_t row) {
    return {reinterpret_cast<const uint8_t*>(rows.src[row]), rows.src_nbytes[row]};
}

GS_DEVICE uint32_t lane_of_thread() { return threadIdx.x % WARP_LANES; }

// Sums of counts, maximum of sizes and worst status over the warp, in all lanes.
GS_DEVICE BloscTally tally_of_warp(const BloscTally& mine) {
    BloscTally all = mine;
    const bool is_broken = __any_sync(ALL_LANES, mine.status == STATUS_FORMAT);
    const bool is_for_host = __any_sync(ALL_LANES, mine.status == STATUS_HOST);
    all.status = is_broken ? STATUS_FORMAT : is_for_host ? STATUS_HOST : STATUS_OK;
    all.n_raw = sum_of_warp(mine.n_raw);
    all.n_compressed = sum_of_warp(mine.n_compressed);
    all.compressed_nbytes = sum_of_warp(mine.compressed_nbytes);
    all.source_nbytes = sum_of_warp(mine.source_nbytes);
    for (uint32_t distance = WARP_LANES / 2; distance; distance /= 2) {
        const uint32_t other =
            __shfl_xor_sync(ALL_LANES, all.compressed_nbytes_max, distance);
        if (other > all.compressed_nbytes_max) all.compressed_nbytes_max = other;
    }
    return all;
}

// Checks and counts all streams of a frame. The lanes of a warp share the work.
GS_DEVICE BloscTally tally_frame(
    const ByteSpan& frame, const BloscHeader& header, bool accept_unsized) {
    BloscTally tally = {STATUS_OK, 0, 0, 0, 0, 0};
    if (is_unusual(header, frame)) {
        tally.status = STATUS_HOST;
        return tally;
    }
    for (uint32_t block = lane_of_thread(); block < header.n_blocks;
         block += WARP_LANES) {
        tally_blosc_block(frame, header, block, accept_unsized, tally);
    }
    tally = tally_of_warp(tally);
    if (header.flags & BLOSC_MEMCPYED) tally.n_raw = header.nbytes != 0;
    if (has_shared_streams(tally, frame)) {
        tally.status = worse_of(tally.status, STATUS_HOST);
    }
    return tally;
}

// Returns how many streams of the class were counted before. The result fits 32 bits,
// because the host makes tables for no more streams.
GS_DEVICE uint32_t add_to_totals(
    uint64_t* totals, uint32_t stream_class, uint32_t n_streams, uint64_t nbytes,
    uint64_t nbytes_max) {
    if (!n_streams) return 0;
    typedef unsigned long long Word;  // as in take_from
    uint64_t* const of_class = totals + stream_class;
    take_from(of_class + CLASS_COUNT, nbytes);
    atomicMax(
        reinterpret_cast<Word*>(of_class + 2 * CLASS_COUNT),
        static_cast<Word>(nbytes_max));
    return static_cast<uint32_t>(take_from(of_class, n_streams));
}

// Called by one lane. Sets where a row goes after it is decoded with `filter` still on
// it.
GS_DEVICE void route_row(
    const BloscRows& rows, uint32_t row, const BloscHeader& header, uint32_t filter) {
    const bool is_fused = filter == FILTER_BYTE_SHUFFLE && rows.planes != nullptr &&
                          header.typesize == rows.fused_typesize &&
                          header.block_nbytes % header.typesize == 0;
    if (!is_fused) rows.filter[row] = filter;
    if (filter != FILTER_NONE) rows.stage[row] = rows.staging[row];
    if (is_fused) {
        rows.next[row] = rows.staging[row];
        rows.planes[row] = fast_divisor(header.block_nbytes);
    } else if (filter != FILTER_NONE) {
        const uint32_t which = filter == FILTER_BIT_SHUFFLE;
        take_from(rows.totals + 3 * CLASS_COUNT + which, 1);
    }
}

// Called by one lane. Writes the results for a row without errors.
GS_DEVICE void write_row(
    const BloscRows& rows, uint32_t row, const BloscHeader& header,
    const BloscTally& tally) {
    route_row(rows, row, header, blosc_filter(header));
    rows.typesize[row] = header.typesize;
    rows.block_nbytes[row] = header.block_nbytes;
    rows.first[uint64_t(CLASS_RAW) * rows.n_rows + row] = add_to_totals(
        rows.totals, CLASS_RAW, tally.n_raw, header.nbytes - tally.compressed_nbytes,
        header.nbytes - tally.compressed_nbytes);
    if (!tally.n_compressed) return;
    const uint32_t compressor = blosc_compressor(header);
    rows.first[uint64_t(compressor) * rows.n_rows + row] = add_to_totals(
        rows.totals, compressor, tally.n_compressed, tally.compressed_nbytes,
        tally.compressed_nbytes_max);
}

// Called by one lane of each warp, after the warp has added its last count. The last of
// these lanes writes the totals to the host, which saves a copy that the host would have
// to wait for. The same lane counts the warp and reads the totals, because a shuffle to
// other lanes would not order memory accesses.
GS_DEVICE void tell_host(const BloscRows& rows, uint32_t n_warps) {
    __threadfence();
    if (take_from(rows.totals + TOTALS_COUNT, 1) != n_warps - 1) return;
    __threadfence();
    // Read by atomics, because no cache of this multiprocessor answers those.
    for (uint32_t k = 0; k < TOTALS_COUNT; k++) {
        rows.totals_host[k] = take_from(rows.totals + k, 0);
    }
}

constexpr int gs_blosc_count_threads = 128;

// Checks every frame. A row with an error has a status afterwards, and no streams.
extern "C" __global__ void __launch_bounds__(gs_blosc_count_threads)
gs_blosc_count(const BloscRows rows) {
    const uint32_t n_warps = gridDim.x * (blockDim.x / WARP_LANES);
    for (uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP_LANES;
         row < rows.n_rows; row += n_warps) {
        const ByteSpan frame = frame_of(rows, row);
        Status status = rows.status[row];
        BloscHeader header = {0, 1, 0, 1, 0, 1};
        BloscTally tally = {STATUS_OK, 0, 0, 0, 0, 0};
        if (status == STATUS_OK) {
            status = read_blosc_header(frame, rows.decoded_nbytes, header);
        }
        if (status == STATUS_OK) {
            tally = tally_frame(frame, header, rows.accept_unsized != 0);
            status = tally.status;
        }
        // A late lane may read the status that lane 0 writes below. That can happen only
        // in a row without a tally, because the lanes meet in the tally.
        if (lane_of_thread() != 0) continue;
        rows.status[row] = status;
        rows.filter[row] = FILTER_NONE;
        rows.typesize[row] = 1;
        rows.block_nbytes[row] = 1;
        rows.stage[row] = rows.next[row] = rows.decoded[row];
        if (rows.planes != nullptr) rows.planes[row] = {0, 0, 0, 0};
        if (status == STATUS_OK) write_row(rows, row, header, tally);
    }
    if (lane_of_thread() == 0) tell_host(rows, n_warps);
}

// Indexes of a lane's next raw and next compressed stream in the tables.
struct StreamCursor {
    uint32_t raw;
    uint32_t compressed;
};

GS_DEVICE void write_stream(
    const BloscStreams& streams, uint32_t at, uint32_t row, uint64_t src,
    const BloscStream& stream) {
    streams.stream_src[at] = src;
    streams.stream_nbytes[at] = stream.source_nbytes;
    streams.stream_dst[at] = streams.dst[row] + stream.decoded_offset;
    streams.stream_capacity[at] = stream.decoded_nbytes;
    streams.stream_row[at] = row;
}

GS_DEVICE void write_blosc_block(
    const ByteSpan& frame, const BloscHeader& header, uint32_t block,
    const BloscStreams& streams, uint32_t row, StreamCursor cursor) {
    const bool is_zlib = blosc_compressor(header) == CLASS_ZLIB;
    walk_blosc_block(frame, header, block, [&](BloscStream stream) {
        const uint32_t at = is_raw(stream) ? cursor.raw++ : cursor.compressed++;
        if (is_zlib && !is_raw(stream)) {
            stream.source_offset += ZLIB_HEADER_NBYTES;
            stream.source_nbytes -= ZLIB_WRAPPER_NBYTES;
        }
        const uint64_t src =
            reinterpret_cast<uint64_t>(frame.data) + stream.source_offset;
        write_stream(streams, at, row, src, stream);
    });
}

// Writes the streams of a row in the order of its blocks. The lanes of a warp share the
// work.
GS_DEVICE void write_frame(
    const ByteSpan& frame, const BloscHeader& header, const BloscStreams& streams,
    uint32_t row, StreamCursor cursor) {
    for (uint32_t tile = 0; tile < header.n_blocks; tile += WARP_LANES) {
        const uint32_t block = tile + lane_of_thread();
        BloscTally mine = {STATUS_OK, 0, 0, 0, 0, 0};
        if (block < header.n_blocks) {
            walk_blosc_block(frame, header, block, [&](const BloscStream& stream) {
                if (is_raw(stream)) mine.n_raw++;
                else mine.n_compressed++;
            });
        }
        const uint32_t raw = inclusive_sum_of_warp(mine.n_raw);
        const uint32_t compressed = inclusive_sum_of_warp(mine.n_compressed);
        if (block < header.n_blocks) {
            const StreamCursor start = {
                cursor.raw + raw - mine.n_raw,
                cursor.compressed + compressed - mine.n_compressed};
            write_blosc_block(frame, header, block, streams, row, start);
        }
        cursor.raw += __shfl_sync(ALL_LANES, raw, WARP_LANES - 1);
        cursor.compressed += __shfl_sync(ALL_LANES, compressed, WARP_LANES - 1);
    }
}

constexpr int gs_blosc_fill_threads = 128;

// Writes the streams of the rows in which gs_blosc_count found no error. Nothing may
// change a status in between. For zlib, the tables get bare deflate streams. Also writes
// the canaries around these rows.
extern "C" __global__ void __launch_bounds__(gs_blosc_fill_threads)
gs_blosc_fill(
    const BloscRows rows, const __grid_constant__ BloscStreams streams) {
    const uint32_t n_warps = gridDim.x * (blockDim.x / WARP_LANES);
    for (uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP_LANES;
         row < rows.n_rows; row += n_warps) {
        const ByteSpan frame = frame_of(rows, row);
        BloscHeader header;
        if (rows.status[row] != STATUS_OK ||
            read_blosc_header(frame, rows.decoded_nbytes, header) != STATUS_OK) {
            continue;
        }
        if (lane_of_thread() == 0) {
            write_canaries(
                rows.stage[row], rows.decoded_nbytes, rows.canary_seed, row);
        }
        const uint64_t raw_entry = uint64_t(CLASS_RAW) * rows.n_rows + row;
        const uint64_t entry =
            uint64_t(blosc_compressor(header)) * rows.n_rows + row;
        const StreamCursor cursor = {
            streams.begin[CLASS_RAW] + rows.first[raw_entry],
            streams.begin[blosc_compressor(header)] + rows.first[entry]};
        if (!(header.flags & BLOSC_MEMCPYED)) {
            write_frame(frame, header, streams, row, cursor);
        } else if (lane_of_thread() == 0 && header.nbytes) {
            const BloscStream stored = {
                BLOSC_HEADER_NBYTES, header.nbytes, 0, header.nbytes};
            const uint64_t src =
                reinterpret_cast<uint64_t>(frame.data) + BLOSC_HEADER_NBYTES;
            write_stream(streams, cursor.raw, row, src, stored);
        }
    }
}

constexpr uint64_t PIECE_NBYTES = 16 * 1024;

// Copies a stream; blocks along y each take some pieces of it.
GS_DEVICE void copy_raw_stream(const BloscStreams& streams, uint32_t at) {
    const uint8_t* src = reinterpret_cast<const uint8_t*>(streams.stream_src[at]);
    uint8_t* dst = reinterpret_cast<uint8_t*>(streams.stream_dst[at]);
    const uint64_t nbytes = streams.stream_nbytes[at];
    for (uint64_t start = blockIdx.y * PIECE_NBYTES; start < nbytes;
         start += gridDim.y * PIECE_NBYTES) {
        const uint64_t left = nbytes - start;
        copy_bytes(
            dst + start, src + start, left < PIECE_NBYTES ? left : PIECE_NBYTES,
            threadIdx.x, blockDim.x);
    }
}

constexpr int gs_blosc_copy_threads = 128;

// Copies that precede the decoders: `n_raw` streams to their places in the rows, and
// `n_zlib` streams to addresses that nvCOMP's Deflate takes.
extern "C" __global__ void __launch_bounds__(gs_blosc_copy_threads, 8)
gs_blosc_copy(
    const __grid_constant__ BloscStreams streams, uint32_t n_raw, uint32_t n_zlib,
    uint64_t* used, uint64_t arena) {
    __shared__ Move move;
    for (uint32_t k = blockIdx.x; k < n_raw + n_zlib; k += gridDim.x) {
        if (k < n_raw) {
            copy_raw_stream(streams, streams.begin[CLASS_RAW] + k);
        } else if (blockIdx.y == 0) {
            const uint32_t at = streams.begin[CLASS_ZLIB] + (k - n_raw);
            realign_stream(
                streams.stream_src + at, streams.stream_nbytes[at], {used, arena}, move);
        }
    }
}
