// Stands before and behind the vendor's decoders: nothing that contradicts itself goes
// in, and nothing is believed that they did not finish.
//
//   rows      src, src_nbytes, dst, status          one per inner chunk
//     | gs_gate_*        which bytes of the row, or the dummy, are decoded
//     v
//   streams   src, nbytes, dst, capacity            one per row (blosc: many)
//     | gs_align_offsets, gs_realign                only for Deflate
//     v
//   the vendor's decoder -> its statuses, actual sizes
//     | gs_fold          failed or short streams mark their rows
//     | gs_verify_*      so do those that contradict their checksum (trailers.cu)
//     v
//   rows      status -> gs_verdict -> 16 words for the host
#include "copy.cuh"
#include "deflate_format.cuh"
#include "lz_format.cuh"
#include "scan.cuh"
#include "zstd_format.cuh"

// All addresses are of the device; tables have one entry a row. A row whose status is
// not OK becomes the dummy: a known-good stream that decodes to a few bytes elsewhere.
struct GateTables {
    const uint64_t* src;
    const uint64_t* src_nbytes;
    const uint64_t* dst;
    Status* status;
    uint64_t* stream_src;
    uint64_t* stream_nbytes;
    uint64_t* stream_dst;
    uint64_t* stream_capacity;
    uint64_t decoded_nbytes;  // of every row
    uint64_t dummy_src;
    uint64_t dummy_nbytes;
    uint64_t dummy_dst;
    uint64_t dummy_capacity;
    uint32_t n_rows;
    uint32_t accept_unsized;  // zstd: whether frames need not tell their content size
};
static_assert(sizeof(GateTables) == 14 * 8, "the host packs the same");

// Calls `check` for each row that is still fine and hands over its bytes, less those
// of a wrapper, or the dummy.
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

constexpr int gs_align_offsets_threads = 512;
constexpr uint64_t DEFLATE_ALIGNMENT = 4;  // nvCOMP asks for it, of Deflate alone

// Offset of each stream, with the zlib trailer behind it, when all lie side by side at
// multiples of 4: offset[0 .. n_streams], the last being the bytes that they take
// together. One block.
extern "C" __global__ void __launch_bounds__(gs_align_offsets_threads)
gs_align_offsets(
    const uint64_t* stream_nbytes, uint64_t* offset, uint32_t n_streams) {
    __shared__ uint64_t until_warp[gs_align_offsets_threads / WARP_LANES];
    uint64_t before = 0;
    for (uint32_t first = 0; first < n_streams; first += gs_align_offsets_threads) {
        const uint32_t stream = first + threadIdx.x;
        uint64_t nbytes = 0;
        if (stream < n_streams) {
            nbytes = (stream_nbytes[stream] + ZLIB_TRAILER_NBYTES +
                      DEFLATE_ALIGNMENT - 1) &
                     ~(DEFLATE_ALIGNMENT - 1);
        }
        uint64_t total;
        const uint64_t sum = exclusive_sum_of_block(nbytes, total, until_warp);
        if (stream < n_streams) offset[stream] = before + sum;
        before += total;
    }
    if (threadIdx.x == 0) offset[n_streams] = before;
}

constexpr int gs_realign_threads = 128;

// Copies each stream, and the trailer behind it, to `arena` + offset and lets its table
// entry point there. One block a stream; `arena` is 16-aligned and has
// offset[n_streams] bytes.
extern "C" __global__ void __launch_bounds__(gs_realign_threads)
gs_realign(
    uint64_t* stream_src, const uint64_t* stream_nbytes, const uint64_t* offset,
    uint64_t arena, uint32_t n_streams) {
    for (uint32_t stream = blockIdx.x; stream < n_streams; stream += gridDim.x) {
        const uint64_t src = stream_src[stream];
        const uint64_t dst = arena + offset[stream];
        copy_bytes(
            reinterpret_cast<uint8_t*>(dst), reinterpret_cast<const uint8_t*>(src),
            stream_nbytes[stream] + ZLIB_TRAILER_NBYTES, threadIdx.x,
            gs_realign_threads);
        __syncthreads();  // everybody has read the old address
        if (threadIdx.x == 0) stream_src[stream] = dst;
    }
}

constexpr int gs_fold_threads = 256;

// Marks the rows of failed (DECODER) and short (SHORT) streams. `stream_row` may be
// null: then stream k is that of row k. Rows with an earlier status keep it; of one
// row's streams a failed one outweighs a short one, whatever their order.
extern "C" __global__ void __launch_bounds__(gs_fold_threads)
gs_fold(
    const int32_t* decoder_status, const uint64_t* actual_nbytes,
    const uint64_t* stream_capacity, const uint32_t* stream_row, Status* status,
    uint32_t n_streams) {
    const uint32_t n_threads = gridDim.x * blockDim.x;
    for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < n_streams;
         k += n_threads) {
        const uint32_t row = stream_row ? stream_row[k] : k;
        if (decoder_status[k] != 0) {
            if (atomicCAS(status + row, STATUS_OK, STATUS_DECODER) == STATUS_SHORT) {
                atomicExch(status + row, STATUS_DECODER);
            }
        } else if (actual_nbytes[k] != stream_capacity[k]) {
            fail_row(status, row, STATUS_SHORT);
        }
    }
}

constexpr int gs_verdict_threads = 256;
constexpr uint32_t VERDICT_WORDS = 16;

// What the host reads back of a batch, 16 words: rows that are not OK, the first of
// them (2^32 - 1: none), then the number of rows with status 0, 1, ...; rest zero.
// One block.
extern "C" __global__ void __launch_bounds__(gs_verdict_threads)
gs_verdict(const Status* status, uint32_t n_rows, uint32_t* verdict) {
    __shared__ uint32_t words[VERDICT_WORDS];
    static_assert(2 + STATUS_COUNT <= VERDICT_WORDS, "a count for every status");
    if (threadIdx.x < VERDICT_WORDS) words[threadIdx.x] = threadIdx.x == 1 ? ~0u : 0;
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < n_rows; row += gs_verdict_threads) {
        const Status why = status[row];
        atomicAdd(&words[2 + why], 1u);
        if (why == STATUS_OK) continue;
        atomicAdd(&words[0], 1u);
        atomicMin(&words[1], row);
    }
    __syncthreads();
    if (threadIdx.x < VERDICT_WORDS) verdict[threadIdx.x] = words[threadIdx.x];
}
