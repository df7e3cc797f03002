// Checks before and after the vendor's decoders. No stream that contradicts itself goes
// into a decoder, and no output counts that a decoder did not finish.
//
//   rows      src, src_nbytes, dst, status          one for each inner chunk
//     | gs_gate_*        chooses the bytes to decode: those of the row, or the dummy
//     v
//   streams   src, nbytes, dst, capacity            one for each row (blosc: many)
//     | gs_realign       only for Deflate
//     v
//   the vendor's decoder -> its statuses, actual sizes
//     | gs_fold          marks the rows of failed or short streams, and rows that have
//     |                  bytes around them overwritten (canaries.cuh)
//     | gs_verify_*      the same for streams with a checksum; also marks the rows of
//     v                  streams whose checksum differs (trailers.cu)
//   rows      status -> the host
#include "canaries.cuh"
#include "lz_format.cuh"
#include "realign.cuh"
#include "streams.cuh"
#include "zstd_format.cuh"

// All addresses are in device memory. Tables have one entry for each row. A row whose
// status is not OK is replaced by the dummy: a known-good stream that decodes to a few
// bytes elsewhere.
struct GateTables {
    const uint64_t* src;
    const uint64_t* src_nbytes;
    const uint64_t* dst;
    Status* status;
    uint64_t* stream_src;
    uint64_t* stream_nbytes;
    uint64_t* stream_dst;
    uint64_t* stream_capacity;
    uint64_t decoded_nbytes;  // the same for every row
    uint64_t dummy_src;
    uint64_t dummy_nbytes;
    uint64_t dummy_dst;
    uint64_t dummy_capacity;
    uint64_t canary_seed;     // 0: rows have no canaries
    uint32_t n_rows;
    uint32_t accept_unsized;  // zstd: whether frames may omit their content size
};
static_assert(sizeof(GateTables) == 15 * 8, "the host packs the same");

// Calls `check` for each row without a status, and enters the row's bytes without their
// wrapper, or else the dummy, into the stream tables.
template <class Check>
GS_DEVICE void gate_rows(
    const GateTables& tables, uint32_t header_nbytes, uint32_t trailer_nbytes,
    const Check& check) {
    const uint32_t n_threads = gridDim.x * blockDim.x;
    for (uint32_t row = blockIdx.x * blockDim.x + threadIdx.x; row < tables.n_rows;
         row += n_threads) {
        const ByteSpan encoded = {
            reinterpret_cast<const uint8_t*>(tables.src[row]), tables.src_nbytes[row]};
        Status status = tables.status[row];
        if (status == STATUS_OK) {
            status = check(encoded);
            tables.status[row] = status;
        }
        const bool is_fine = status == STATUS_OK;
        tables.stream_src[row] =
            is_fine ? tables.src[row] + header_nbytes : tables.dummy_src;
        tables.stream_nbytes[row] =
            is_fine ? encoded.nbytes - header_nbytes - trailer_nbytes
                    : tables.dummy_nbytes;
        tables.stream_dst[row] = is_fine ? tables.dst[row] : tables.dummy_dst;
        tables.stream_capacity[row] =
            is_fine ? tables.decoded_nbytes : tables.dummy_capacity;
        if (is_fine) {
            write_canaries(
                tables.dst[row], tables.decoded_nbytes, tables.canary_seed, row);
        }
    }
}

constexpr int gs_gate_zstd_threads = 128;

extern "C" __global__ void __launch_bounds__(gs_gate_zstd_threads)
gs_gate_zstd(const GateTables tables) {
    const ZstdRules rules = {tables.decoded_nbytes, tables.accept_unsized != 0};
    gate_rows(tables, 0, 0, [&](const ByteSpan& encoded) {
        return check_zstd(encoded, rules);
    });
}

constexpr int gs_gate_lz4_threads = 128;

extern "C" __global__ void __launch_bounds__(gs_gate_lz4_threads)
gs_gate_lz4(const GateTables tables) {
    gate_rows(tables, LZ4_PREFIX_NBYTES, 0, [&](const ByteSpan& encoded) {
        return check_lz4(encoded, tables.decoded_nbytes);
    });
}

constexpr int gs_gate_gzip_threads = 128;

extern "C" __global__ void __launch_bounds__(gs_gate_gzip_threads)
gs_gate_gzip(const GateTables tables) {
    gate_rows(tables, 0, 0, [&](const ByteSpan& encoded) {
        return check_gzip(encoded, tables.decoded_nbytes);
    });
}

constexpr int gs_gate_zlib_threads = 128;

extern "C" __global__ void __launch_bounds__(gs_gate_zlib_threads)
gs_gate_zlib(const GateTables tables) {
    gate_rows(
        tables, ZLIB_HEADER_NBYTES, ZLIB_TRAILER_NBYTES,
        [](const ByteSpan& encoded) { return check_zlib(encoded); });
}

constexpr int gs_realign_threads = 128;

// Copies each stream, with the zlib trailer behind it, to a multiple of 4 in `arena`, as
// realign_stream does. One block takes one stream. The launch bounds name a number of
// blocks, because otherwise the compiler spills registers to fit more blocks.
extern "C" __global__ void __launch_bounds__(gs_realign_threads, 8)
gs_realign(
    uint64_t* stream_src, const uint64_t* stream_nbytes, uint64_t* used, uint64_t arena,
    uint32_t n_streams) {
    __shared__ Move move;
    for (uint32_t stream = blockIdx.x; stream < n_streams; stream += gridDim.x) {
        realign_stream(stream_src + stream, stream_nbytes[stream], {used, arena}, move);
    }
}

constexpr int gs_fold_threads = 256;

// Marks the rows of failed and short streams, and rows without their canaries. If
// `stream_row` is null, stream k belongs to row k.
extern "C" __global__ void __launch_bounds__(gs_fold_threads)
gs_fold(
    const int32_t* decoder_status, const uint64_t* actual_nbytes,
    const uint64_t* stream_capacity, const uint32_t* stream_row, Status* status,
    uint32_t n_streams, const Canaries canaries) {
    check_canaries(canaries, status);
    const Outcomes outcomes = {decoder_status, actual_nbytes, stream_capacity};
    const uint32_t n_threads = gridDim.x * blockDim.x;
    for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < n_streams;
         k += n_threads) {
        fold_stream(outcomes, k, status, stream_row ? stream_row[k] : k);
    }
}
