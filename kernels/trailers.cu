// Folds a decoder's outcomes into the rows and checks their canaries, as gs_fold does, and
// verifies the checksums that compressors put behind streams. The checksums are of the
// decoded bytes, and the vendor's decoders do not verify them.
//
//   gzip (RFC 1952)    | header | deflate | CRC-32 4, little-endian | size 4 |
//   zlib (RFC 1950)    | header | deflate | Adler-32 4, big-endian |
//   zstd (RFC 8878)    | header | blocks  | low half of XXH64, 4, little-endian |
//                        only if the descriptor says so
//
// The tables are those that the decoder read and wrote. Streams of rows with a status are
// skipped, because their bytes are undefined. A row whose checksum differs gets CHECKSUM.
// The tables may also have streams of other compressors, which are folded in the same
// launch.
#include "canaries.cuh"
#include "crc.cuh"
#include "scan.cuh"
#include "streams.cuh"
#include "zstd_format.cuh"

struct Trailers {
    const uint64_t* stream_src;
    const uint64_t* stream_nbytes;
    const uint64_t* stream_dst;
    const uint64_t* stream_capacity;  // also the decoded size, if a stream is decoded
    const uint32_t* stream_row;       // null: stream k belongs to row k
    Status* status;
    const int32_t* decoder_status;
    const uint64_t* actual_nbytes;
    uint32_t n_streams;
    uint32_t first;       // first stream with a checksum, and one past the last;
    uint32_t stop;        // gs_verify_zlib only folds all other streams
    uint32_t reserved;
    Canaries canaries;
};
static_assert(sizeof(Trailers) == 14 * 8, "the host packs the same");

GS_DEVICE uint32_t row_of(const Trailers& trailers, uint32_t stream) {
    return trailers.stream_row ? trailers.stream_row[stream] : stream;
}

GS_DEVICE const uint8_t* decoded_of(const Trailers& trailers, uint32_t stream) {
    return reinterpret_cast<const uint8_t*>(trailers.stream_dst[stream]);
}

// The bytes of a stream, and `nbytes` bytes behind it.
GS_DEVICE ByteSpan encoded_of(
    const Trailers& trailers, uint32_t stream, uint64_t nbytes) {
    return {
        reinterpret_cast<const uint8_t*>(trailers.stream_src[stream]),
        trailers.stream_nbytes[stream] + nbytes};
}

GS_DEVICE Outcomes outcomes_of(const Trailers& trailers) {
    return {
        trailers.decoder_status, trailers.actual_nbytes, trailers.stream_capacity};
}

GS_DEVICE void fold(const Trailers& trailers, uint32_t stream) {
    const uint32_t row = row_of(trailers, stream);
    fold_stream(outcomes_of(trailers), stream, trailers.status, row);
}

// Folds a stream, and returns whether its row has no status. All threads of the block get
// the same answer, although other blocks may mark the row. Ends with a barrier.
GS_DEVICE bool is_fine_for_block(
    const Trailers& trailers, uint32_t stream, Status& shared) {
    if (threadIdx.x == 0) {
        fold(trailers, stream);
        shared = trailers.status[row_of(trailers, stream)];
    }
    __syncthreads();
    const bool is_fine = shared == STATUS_OK;
    __syncthreads();
    return is_fine;
}

constexpr int gs_verify_gzip_threads = 256;
static_assert(gs_verify_gzip_threads == CRC_THREADS, "one block a stream");
constexpr uint32_t GZIP_CRC_FROM_END = 8;

extern "C" __global__ void __launch_bounds__(gs_verify_gzip_threads)
gs_verify_gzip(const Trailers trailers) {
    __shared__ CrcTables tables;
    __shared__ Status shared;
    fill_tables<Crc32>(tables);
    check_canaries(trailers.canaries, trailers.status);
    const uint32_t weight = crc_weight<Crc32>();
    for (uint32_t k = blockIdx.x; k < trailers.n_streams; k += gridDim.x) {
        if (!is_fine_for_block(trailers, k, shared)) continue;
        const uint32_t crc = crc_of_block<Crc32>(
            tables, weight, decoded_of(trailers, k), trailers.stream_capacity[k]);
        if (threadIdx.x != 0) continue;
        const ByteSpan member = encoded_of(trailers, k, 0);
        if (crc != read_u32(member, member.nbytes - GZIP_CRC_FROM_END)) {
            fail_row(trailers.status, row_of(trailers, k), STATUS_CHECKSUM);
        }
    }
}

// Loads a unit of bytes as words; `is_aligned` says whether it is at a multiple of 16.
constexpr uint32_t UNIT_NBYTES = 16;

struct Unit {
    uint32_t words[4];
};

GS_DEVICE Unit load_unit(const uint8_t* at, bool is_aligned) {
    if (is_aligned) {
        const uint4 four = *reinterpret_cast<const uint4*>(at);
        return {{four.x, four.y, four.z, four.w}};
    }
    const ByteSpan bytes = {at, UNIT_NBYTES};
    return {
        {read_u32(bytes, 0), read_u32(bytes, 4), read_u32(bytes, 8),
         read_u32(bytes, 12)}};
}

constexpr int gs_verify_zlib_threads = 128;
constexpr uint32_t ADLER_MODULUS = 65521;  // RFC 1950, section 9
constexpr uint32_t ADLER_NBYTES = 4;

// For n bytes d: a = 1 + sum of d[i], b = n + sum of (n - i) d[i], both modulo 65521.
// Sums cannot overflow: a thread adds less than 2^29 for each of at most 2^28 units.
struct AdlerSums {
    uint64_t a;
    uint64_t b;
};

// Adds a unit that is followed by `n_behind` (modulo 65521) more bytes.
GS_DEVICE void add_to_adler(AdlerSums& sums, const Unit& unit, uint32_t n_behind) {
    uint32_t sum = 0;
    uint32_t weighted = 0;
#pragma unroll
    for (uint32_t k = 0; k < UNIT_NBYTES; k++) {
        const uint32_t byte = unit.words[k / 4] >> 8 * (k % 4) & 255;
        sum += byte;
        weighted += (UNIT_NBYTES - k) * byte;
    }
    sums.a += sum;
    sums.b += uint64_t(n_behind) * sum + weighted;
}

// Sums of this thread's whole units; thread 0 also takes the bytes after the last unit.
GS_DEVICE AdlerSums adler_of_thread(const uint8_t* data, uint64_t nbytes) {
    constexpr uint32_t T = gs_verify_zlib_threads;
    const uint64_t n_units = nbytes / UNIT_NBYTES;
    const bool is_aligned = reinterpret_cast<uint64_t>(data) % UNIT_NBYTES == 0;
    AdlerSums sums = {0, 0};
    const uint64_t first_end = UNIT_NBYTES * (threadIdx.x + 1ull);
    if (threadIdx.x < n_units) {
        uint32_t n_behind = static_cast<uint32_t>((nbytes - first_end) % ADLER_MODULUS);
        for (uint64_t k = threadIdx.x; k < n_units; k += T) {
            const Unit unit = load_unit(data + UNIT_NBYTES * k, is_aligned);
            add_to_adler(sums, unit, n_behind);
            const uint32_t step = UNIT_NBYTES * T;
            n_behind = n_behind >= step ? n_behind - step
                                        : n_behind + ADLER_MODULUS - step;
        }
    }
    if (threadIdx.x == 0) {
        const uint32_t n_left = static_cast<uint32_t>(nbytes % UNIT_NBYTES);
        for (uint32_t k = n_left; k; k--) {
            const uint32_t byte = data[nbytes - k];
            sums.a += byte;
            sums.b += k * byte;
        }
    }
    return sums;
}

extern "C" __global__ void __launch_bounds__(gs_verify_zlib_threads)
gs_verify_zlib(const Trailers trailers) {
    constexpr uint32_t WARPS = gs_verify_zlib_threads / WARP_LANES;
    __shared__ AdlerSums of_warp[WARPS];
    __shared__ Status shared;
    check_canaries(trailers.canaries, trailers.status);
    for (uint32_t k = blockIdx.x; k < trailers.n_streams; k += gridDim.x) {
        if (!is_fine_for_block(trailers, k, shared)) continue;
        if (k < trailers.first || k >= trailers.stop) continue;
        const uint64_t nbytes = trailers.stream_capacity[k];
        AdlerSums sums = adler_of_thread(decoded_of(trailers, k), nbytes);
        sums.a = sum_of_warp(sums.a % ADLER_MODULUS);
        sums.b = sum_of_warp(sums.b % ADLER_MODULUS);
        if (threadIdx.x % WARP_LANES == 0) of_warp[threadIdx.x / WARP_LANES] = sums;
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t a = 1;
            uint64_t b = nbytes;
            for (uint32_t warp = 0; warp < WARPS; warp++) {
                a += of_warp[warp].a;
                b += of_warp[warp].b;
            }
            const uint32_t adler = static_cast<uint32_t>(
                (b % ADLER_MODULUS) << 16 | a % ADLER_MODULUS);
            const ByteSpan stream = encoded_of(trailers, k, ADLER_NBYTES);
            const uint64_t at = stream.nbytes - ADLER_NBYTES;
            const uint32_t stored = read_u8(stream, at) << 24 |
                                    read_u8(stream, at + 1) << 16 |
                                    read_u8(stream, at + 2) << 8 |
                                    read_u8(stream, at + 3);
            if (adler != stored) {
                fail_row(trailers.status, row_of(trailers, k), STATUS_CHECKSUM);
            }
        }  // the next stream begins with a barrier, so the sums are read before it
    }
}

// XXH64 (xxHash, "XXH64 algorithm description") with seed 0. Four lanes have one
// accumulator each. In every stripe, lane k takes bytes 8 k to 8 k + 7.
constexpr uint64_t XXH_PRIME_1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t XXH_PRIME_2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t XXH_PRIME_3 = 0x165667B19E3779F9ull;
constexpr uint64_t XXH_PRIME_4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t XXH_PRIME_5 = 0x27D4EB2F165667C5ull;
constexpr uint32_t XXH_LANES = 4;
constexpr uint32_t XXH_STRIPE_NBYTES = 8 * XXH_LANES;

GS_DEVICE uint64_t rotated(uint64_t value, uint32_t by) {
    return value << by | value >> (64 - by);
}

GS_DEVICE uint64_t xxh_round(uint64_t accumulator, uint64_t input) {
    return rotated(accumulator + input * XXH_PRIME_2, 31) * XXH_PRIME_1;
}

GS_DEVICE uint64_t xxh_start(uint32_t lane) {
    switch (lane) {
        case 0: return XXH_PRIME_1 + XXH_PRIME_2;
        case 1: return XXH_PRIME_2;
        case 2: return 0;
        default: return 0 - XXH_PRIME_1;
    }
}

GS_DEVICE uint64_t xxh_of_lane(const ByteSpan& data, uint32_t lane) {
    uint64_t accumulator = xxh_start(lane);
    const uint64_t stop = data.nbytes - data.nbytes % XXH_STRIPE_NBYTES;
    if (reinterpret_cast<uint64_t>(data.data) % 8 == 0) {
        for (uint64_t at = 8 * lane; at < stop; at += XXH_STRIPE_NBYTES) {
            accumulator = xxh_round(
                accumulator, *reinterpret_cast<const uint64_t*>(data.data + at));
        }
    } else {
        for (uint64_t at = 8 * lane; at < stop; at += XXH_STRIPE_NBYTES) {
            accumulator = xxh_round(accumulator, read_u64(data, at));
        }
    }
    return accumulator;
}

// Hash from all four accumulators and the bytes behind the last stripe.
GS_DEVICE uint64_t xxh_finished(const uint64_t* accumulators, const ByteSpan& data) {
    uint64_t hash = XXH_PRIME_5;
    if (data.nbytes >= XXH_STRIPE_NBYTES) {
        hash = rotated(accumulators[0], 1) + rotated(accumulators[1], 7) +
               rotated(accumulators[2], 12) + rotated(accumulators[3], 18);
        for (uint32_t k = 0; k < XXH_LANES; k++) {
            hash = (hash ^ xxh_round(0, accumulators[k])) * XXH_PRIME_1 + XXH_PRIME_4;
        }
    }
    hash += data.nbytes;
    uint64_t at = data.nbytes - data.nbytes % XXH_STRIPE_NBYTES;
    for (; at + 8 <= data.nbytes; at += 8) {
        hash ^= xxh_round(0, read_u64(data, at));
        hash = rotated(hash, 27) * XXH_PRIME_1 + XXH_PRIME_4;
    }
    if (at + 4 <= data.nbytes) {
        hash ^= read_u32(data, at) * XXH_PRIME_1;
        hash = rotated(hash, 23) * XXH_PRIME_2 + XXH_PRIME_3;
        at += 4;
    }
    for (; at < data.nbytes; at++) {
        hash ^= read_u8(data, at) * XXH_PRIME_5;
        hash = rotated(hash, 11) * XXH_PRIME_1;
    }
    hash = (hash ^ hash >> 33) * XXH_PRIME_2;
    hash = (hash ^ hash >> 29) * XXH_PRIME_3;
    return hash ^ hash >> 32;
}

constexpr int gs_verify_zstd_threads = 128;
constexpr uint32_t XXH_NBYTES = 4;

// Four threads take one stream. This is slow for few streams, but no slower than decoding
// them. A row has only one stream here, because zstd frames in Blosc have no checksum.
extern "C" __global__ void __launch_bounds__(gs_verify_zstd_threads)
gs_verify_zstd(const Trailers trailers) {
    constexpr uint32_t STREAMS = gs_verify_zstd_threads / XXH_LANES;
    __shared__ uint64_t accumulators[STREAMS][XXH_LANES];
    const uint32_t mine = threadIdx.x / XXH_LANES;
    const uint32_t lane = threadIdx.x % XXH_LANES;
    const uint32_t n_tiles = (trailers.n_streams + STREAMS - 1) / STREAMS;
    check_canaries(trailers.canaries, trailers.status);
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint32_t k = tile * STREAMS + mine;
        bool has_checksum = false;
        ByteSpan decoded = {nullptr, 0};
        ByteSpan frame = {nullptr, 0};
        if (k < trailers.n_streams && lane == 0) fold(trailers, k);
        // This does not race with lane 0, which writes no status for a decoded stream.
        // Another block may find the row's canaries gone; the row then keeps that status,
        // whatever these lanes make of it.
        if (k < trailers.n_streams && is_decoded(outcomes_of(trailers), k) &&
            trailers.status[row_of(trailers, k)] == STATUS_OK) {
            frame = encoded_of(trailers, k, 0);
            decoded = {decoded_of(trailers, k), trailers.stream_capacity[k]};
            has_checksum = has_zstd_checksum(frame);
        }
        if (has_checksum) accumulators[mine][lane] = xxh_of_lane(decoded, lane);
        __syncthreads();
        if (has_checksum && lane == 0) {
            const uint64_t hash = xxh_finished(accumulators[mine], decoded);
            if (static_cast<uint32_t>(hash) !=
                read_u32(frame, frame.nbytes - XXH_NBYTES)) {
                fail_row(trailers.status, row_of(trailers, k), STATUS_CHECKSUM);
            }
        }
        __syncthreads();  // the accumulators must be read before the next tile
    }
}
