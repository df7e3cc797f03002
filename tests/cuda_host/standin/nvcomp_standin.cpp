// Stands in for nvCOMP where there is no GPU: the same symbols and argument layouts, host
// memory for device memory, and Python's decoders behind a callback.
//
//   DecompressAsync -> checks its arguments, keeps them, and gives the work to `enqueue`
//   run(work)       -> checks what lies in device memory, decodes stream by stream
//
// It does everything that nvCOMP's documentation leaves it free to do: it scribbles over
// its scratch and over the whole capacity of each output, reads past inputs, and reports
// the full size of an output that failed. What a caller must not do is told to `complain`.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "nvcomp_types.h"

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace nvcomp;

enum Algorithm : int { ZSTD, LZ4, SNAPPY, DEFLATE, GZIP, CRC32 };

// One call, kept until the stream it was enqueued on gets there.
struct Work {
    Algorithm algorithm;
    const void* const* src;
    const size_t* src_nbytes;
    void* const* dst;
    const size_t* capacity;
    size_t* actual_nbytes;
    size_t count;
    unsigned char* temp;
    size_t temp_nbytes;
    uint32_t* checksums;
    int* statuses;
    bool is_encoding = false;
    size_t max_nbytes = 0;
};

struct Callbacks {
    // Decodes one stream; writes *actual_nbytes and gives an nvCOMP status.
    int (*decode)(
        int algorithm, const void* src, size_t src_nbytes, void* dst, size_t capacity,
        size_t* actual_nbytes);
    // Encodes one, the same way around: `capacity` is room for the encoded stream.
    int (*encode)(
        int algorithm, const void* src, size_t src_nbytes, void* dst, size_t capacity,
        size_t* actual_nbytes);
    // Arranges for run(work) once `stream` gets there; null: at once.
    void (*enqueue)(void* stream, void* work);
    void (*complain)(const char* what);
};

Callbacks callbacks = {nullptr, nullptr, nullptr, nullptr};
size_t overread_nbytes = 0;
uint32_t version = 6000;

void complain(const char* what, uint64_t value) {
    char text[200];
    std::snprintf(
        text, sizeof text, "%s (%llu)", what, static_cast<unsigned long long>(value));
    callbacks.complain(text);
}

size_t input_alignment(Algorithm algorithm) { return algorithm == DEFLATE ? 4 : 1; }
size_t temp_alignment(Algorithm algorithm) { return algorithm == ZSTD ? 8 : 1; }
size_t max_nbytes(Algorithm algorithm) {
    return algorithm == ZSTD || algorithm == SNAPPY ? 0x7fffffffull : 0xffffffffull;
}

// What nvCOMP 6.0.0 answers without a driver.
size_t temp_nbytes(Algorithm algorithm, size_t count, size_t total_nbytes) {
    if (algorithm != ZSTD || count == 0) return 0;
    const size_t pieces = total_nbytes / 65536;
    return 3 * total_nbytes + 3468 * (pieces > 2 * count ? pieces : 2 * count);
}

bool is_misaligned(const void* address, size_t alignment) {
    return reinterpret_cast<uintptr_t>(address) % alignment != 0;
}

void run_work(Work* work);

void start(const Work& work, void* stream) {
    Work* const kept = new Work(work);
    if (callbacks.enqueue)
        callbacks.enqueue(stream, kept);
    else
        run_work(kept);
}

int check_options(Algorithm algorithm, const DecompressOptions& options) {
    for (unsigned char byte : options.others)
        if (byte) complain("options other than the defaults", byte);
    if (options.backend < 0 || options.backend > 2) return NOT_SUPPORTED;
    return options.backend == 1 && algorithm == ZSTD ? INVALID_VALUE : SUCCESS;
}

// The engine of some GPUs reports no damaged LZ4 stream and takes not all memory; by
// default nvCOMP uses it where there is one.
int check_backend(Algorithm algorithm, const DecompressOptions& options) {
    if (options.backend != CUDA_BACKEND && algorithm != ZSTD)
        complain("a backend that may be a decompression engine", options.backend);
    return check_options(algorithm, options);
}

int check_tables(const Work& work) {
    if (!work.src || !work.src_nbytes || !work.dst || !work.capacity ||
        !work.actual_nbytes)
        return INVALID_VALUE;
    if (work.count == 0) complain("a batch without streams", 0);
    if (is_misaligned(work.temp, temp_alignment(work.algorithm))) return ALIGNMENT;
    if (is_misaligned(work.src, 8) || is_misaligned(work.src_nbytes, 8) ||
        is_misaligned(work.dst, 8) || is_misaligned(work.capacity, 8) ||
        is_misaligned(work.actual_nbytes, 8) || is_misaligned(work.statuses, 4))
        complain("a table is not aligned to its entries", 0);
    return SUCCESS;
}

// Only the caller knows what lies behind an input, so it says how far one may read.
void read_past(const void* src, size_t nbytes) {
    volatile unsigned char sink = 0;
    const unsigned char* const end = static_cast<const unsigned char*>(src) + nbytes;
    for (size_t i = 0; i < overread_nbytes; i++) sink = sink ^ end[i];
}

int decode_stream(const Work& work, size_t i, size_t* actual_nbytes) {
    const void* const src = work.src[i];
    *actual_nbytes = work.capacity[i];
    if (is_misaligned(src, input_alignment(work.algorithm))) {
        complain("a stream is misaligned", i);
        return INTERNAL;
    }
    if (work.capacity[i] > max_nbytes(work.algorithm)) {
        complain("a stream is too large", i);
        return CHUNK_SIZE_TOO_LARGE;
    }
    read_past(src, work.src_nbytes[i]);
    std::memset(work.dst[i], 0xBD, work.capacity[i]);
    const int status = callbacks.decode(
        work.algorithm, src, work.src_nbytes[i], work.dst[i], work.capacity[i],
        actual_nbytes);
    if (status) *actual_nbytes = work.capacity[i];
    return status;
}

void run_decompress(const Work& work) {
    size_t total_nbytes = 0;
    for (size_t i = 0; i < work.count; i++) total_nbytes += work.capacity[i];
    const size_t needed = temp_nbytes(work.algorithm, work.count, total_nbytes);
    if (work.temp_nbytes < needed) complain("too little scratch", work.temp_nbytes);
    if (work.temp) std::memset(work.temp, 0x5C, work.temp_nbytes);
    // Backwards: nothing says that streams are decoded in order.
    for (size_t i = work.count; i-- > 0;) {
        size_t actual_nbytes = work.capacity[i];
        int status = INTERNAL;
        if (work.temp_nbytes >= needed) status = decode_stream(work, i, &actual_nbytes);
        work.actual_nbytes[i] = actual_nbytes;
        if (work.statuses) work.statuses[i] = status;
    }
    if (work.temp) std::memset(work.temp, 0xC5, work.temp_nbytes);
}

// Encoding: what nvCOMP 6.0.0 answers for alignments, and more room than it asks for.
Alignments encoding_alignments(Algorithm algorithm) {
    if (algorithm == ZSTD) return {4, 1, 1};
    if (algorithm == LZ4) return {1, 1, 2};
    return {1, 8, 8};
}
size_t encoded_limit(size_t nbytes) { return nbytes + nbytes / 8 + 256; }
size_t encoding_temp_nbytes(size_t count, size_t max_nbytes) {
    return 32768 * count + max_nbytes;
}
// Of two numbers in a header the smaller one.
size_t max_encodable_nbytes(Algorithm algorithm) {
    if (algorithm == DEFLATE) return 1ull << 16;
    return algorithm == GZIP ? 1ull << 31 : 1ull << 24;
}

int check_encoding_options(Algorithm algorithm, const CompressOptions& options) {
    for (unsigned char byte : options.others)
        if (byte) complain("options other than the defaults", byte);
    const bool has_levels = algorithm == DEFLATE || algorithm == GZIP;
    if (options.algorithm != (has_levels ? 1 : 0)) return NOT_SUPPORTED;
    return SUCCESS;
}

int check_encoding_tables(const Work& work) {
    const Alignments needed = encoding_alignments(work.algorithm);
    if (!work.src || !work.src_nbytes || !work.dst || !work.actual_nbytes)
        return INVALID_VALUE;
    if (work.count == 0) complain("a batch without streams", 0);
    if (is_misaligned(work.temp, needed.temp)) return ALIGNMENT;
    if (is_misaligned(work.src, 8) || is_misaligned(work.src_nbytes, 8) ||
        is_misaligned(work.dst, 8) || is_misaligned(work.actual_nbytes, 8) ||
        is_misaligned(work.statuses, 4))
        complain("a table is not aligned to its entries", 0);
    return SUCCESS;
}

int encode_stream(const Work& work, size_t i, size_t* actual_nbytes) {
    const size_t room = encoded_limit(work.max_nbytes);
    const Alignments needed = encoding_alignments(work.algorithm);
    if (is_misaligned(work.src[i], needed.input) ||
        is_misaligned(work.dst[i], needed.output)) {
        complain("a stream is misaligned", i);
        return INTERNAL;
    }
    if (work.src_nbytes[i] > work.max_nbytes ||
        work.src_nbytes[i] > max_encodable_nbytes(work.algorithm)) {
        complain("a stream is too large", i);
        return CHUNK_SIZE_TOO_LARGE;
    }
    std::memset(work.dst[i], 0xBD, room);
    return callbacks.encode(
        work.algorithm, work.src[i], work.src_nbytes[i], work.dst[i], room,
        actual_nbytes);
}

void run_compress(const Work& work) {
    const size_t needed = encoding_temp_nbytes(work.count, work.max_nbytes);
    if (work.temp_nbytes < needed) complain("too little scratch", work.temp_nbytes);
    if (work.temp) std::memset(work.temp, 0x5C, work.temp_nbytes);
    for (size_t i = work.count; i-- > 0;) {
        size_t actual_nbytes = encoded_limit(work.max_nbytes);
        const int status = encode_stream(work, i, &actual_nbytes);
        work.actual_nbytes[i] = actual_nbytes;
        if (work.statuses) work.statuses[i] = status;
    }
}

uint32_t crc32c(const unsigned char* bytes, size_t nbytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

void run_crc32(const Work& work) {
    for (size_t i = work.count; i-- > 0;) {
        read_past(work.src[i], work.src_nbytes[i]);
        work.checksums[i] =
            crc32c(static_cast<const unsigned char*>(work.src[i]), work.src_nbytes[i]);
        if (work.statuses) work.statuses[i] = SUCCESS;
    }
}

void run_work(Work* work) {
    if (work->algorithm == CRC32)
        run_crc32(*work);
    else if (work->is_encoding)
        run_compress(*work);
    else
        run_decompress(*work);
    delete work;
}

}  // namespace

STANDIN_API void standin_set_callbacks(
    int (*decode)(int, const void*, size_t, void*, size_t, size_t*),
    int (*encode)(int, const void*, size_t, void*, size_t, size_t*),
    void (*enqueue)(void*, void*), void (*complain)(const char*)) {
    callbacks = {decode, encode, enqueue, complain};
}
STANDIN_API void standin_set_overread(size_t nbytes) { overread_nbytes = nbytes; }
STANDIN_API void standin_set_version(uint32_t number) { version = number; }
STANDIN_API void standin_run(void* work) { run_work(static_cast<Work*>(work)); }

STANDIN_API int nvcompGetProperties(Properties* properties) {
    *properties = {version, 13040};
    return SUCCESS;
}

#define STANDIN_ALGORITHM(name, algorithm)                                            \
    STANDIN_API int nvcompBatched##name##DecompressGetRequiredAlignments(             \
        DecompressOptions options, Alignments* alignments) {                          \
        *alignments = {input_alignment(algorithm), 1, temp_alignment(algorithm)};     \
        return check_options(algorithm, options);                                     \
    }                                                                                 \
    STANDIN_API int nvcompBatched##name##DecompressGetTempSize(                       \
        size_t count, size_t max_uncompressed, DecompressOptions options,             \
        size_t* nbytes, size_t total_nbytes, void*) {                                 \
        if (max_uncompressed > max_nbytes(algorithm)) return CHUNK_SIZE_TOO_LARGE;    \
        *nbytes = temp_nbytes(algorithm, count, total_nbytes);                        \
        return check_options(algorithm, options);                                     \
    }                                                                                 \
    STANDIN_API int nvcompBatched##name##DecompressAsync(                             \
        const void* const* src, const size_t* src_nbytes, const size_t* capacity,     \
        size_t* actual_nbytes, size_t count, void* temp, size_t temp_size,            \
        void* const* dst, DecompressOptions options, int* statuses, void* stream) {   \
        const Work work = {                                                           \
            algorithm, src, src_nbytes, dst, capacity, actual_nbytes, count,          \
            static_cast<unsigned char*>(temp), temp_size, nullptr, statuses};         \
        int error = check_backend(algorithm, options);                                \
        if (!error) error = check_tables(work);                                       \
        if (!error) start(work, stream);                                              \
        return error;                                                                 \
    }
STANDIN_ALGORITHM(Zstd, ZSTD)
STANDIN_ALGORITHM(LZ4, LZ4)
STANDIN_ALGORITHM(Snappy, SNAPPY)
STANDIN_ALGORITHM(Deflate, DEFLATE)
STANDIN_ALGORITHM(Gzip, GZIP)

#define STANDIN_ENCODER(name, algorithm)                                              \
    STANDIN_API int nvcompBatched##name##CompressGetRequiredAlignments(               \
        CompressOptions options, Alignments* alignments) {                            \
        *alignments = encoding_alignments(algorithm);                                 \
        return check_encoding_options(algorithm, options);                            \
    }                                                                                 \
    STANDIN_API int nvcompBatched##name##CompressGetMaxOutputChunkSize(               \
        size_t nbytes, CompressOptions options, size_t* limit) {                      \
        *limit = encoded_limit(nbytes);                                               \
        return check_encoding_options(algorithm, options);                            \
    }                                                                                 \
    STANDIN_API int nvcompBatched##name##CompressGetTempSize(                         \
        size_t count, size_t max_uncompressed, CompressOptions options,               \
        size_t* nbytes, size_t, void*) {                                              \
        *nbytes = encoding_temp_nbytes(count, max_uncompressed);                      \
        return check_encoding_options(algorithm, options);                            \
    }                                                                                 \
    STANDIN_API int nvcompBatched##name##CompressAsync(                               \
        const void* const* src, const size_t* src_nbytes, size_t max_nbytes,          \
        size_t count, void* temp, size_t temp_size, void* const* dst,                 \
        size_t* actual_nbytes, CompressOptions options, int* statuses,                \
        void* stream) {                                                               \
        const Work work = {                                                           \
            algorithm, src, src_nbytes, dst, nullptr, actual_nbytes, count,           \
            static_cast<unsigned char*>(temp), temp_size, nullptr, statuses, true,    \
            max_nbytes};                                                              \
        int error = check_encoding_options(algorithm, options);                       \
        if (!error) error = check_encoding_tables(work);                              \
        if (!error) start(work, stream);                                              \
        return error;                                                                 \
    }
STANDIN_ENCODER(Zstd, ZSTD)
STANDIN_ENCODER(LZ4, LZ4)
STANDIN_ENCODER(Deflate, DEFLATE)
STANDIN_ENCODER(Gzip, GZIP)

STANDIN_API int nvcompBatchedCRC32GetHeuristicConf(
    const size_t*, size_t, Crc32KernelConf* conf, size_t, void*) {
    *conf = {1, 16, 1, {}};
    return SUCCESS;
}

STANDIN_API int nvcompBatchedCRC32Async(
    const void* const* src, const size_t* src_nbytes, size_t count,
    uint32_t* checksums, Crc32Options options, int segment_kind, int* statuses,
    void* stream) {
    const Crc32Spec& spec = options.spec;
    const Crc32KernelConf& conf = options.kernel_conf;
    const bool is_crc32c = spec.poly == 0x1EDC6F41u && spec.init == ~0u &&
                           spec.ref_in && spec.ref_out && spec.xorout == ~0u;
    if (!src || !src_nbytes || !checksums) return INVALID_VALUE;
    if (!is_crc32c || conf.kernel_kind < 0 || conf.kernel_kind > 1) return NOT_SUPPORTED;
    if (segment_kind != 0 || conf.bytes_per_read != 16) return NOT_SUPPORTED;
    start(
        {CRC32, src, src_nbytes, nullptr, nullptr, nullptr, count, nullptr, 0, checksums,
         statuses},
        stream);
    return SUCCESS;
}
