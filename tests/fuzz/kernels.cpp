// The parsers of kernels/*_format.cuh under the coverage-guided loop.
//
//   kernels SEEDS RUNS SEED
//
// SEEDS holds the valid inputs: for each its length in four bytes, then the bytes. An
// input's first byte chooses the parser and whether frames without a size are taken.
#include "blosc_format.cuh"
#include "coverage_loop.h"

constexpr uint64_t DECODED_NBYTES[] = {5000, 4096};

static Status check_blosc(const ByteSpan& frame, uint64_t decoded_nbytes, bool unsized) {
    BloscHeader header;
    const Status status = read_blosc_header(frame, decoded_nbytes, header);
    if (status != STATUS_OK) return status;
    if (is_unusual(header, frame)) return STATUS_HOST;
    BloscTally tally = {STATUS_OK, 0, 0, 0, 0, 0};
    for (uint32_t block = 0; block < header.n_blocks; block++) {
        tally_blosc_block(frame, header, block, unsized, tally);
    }
    const Status shared = has_shared_streams(tally, frame) ? STATUS_HOST : STATUS_OK;
    return worse_of(tally.status, shared);
}

static Status check(const uint8_t* data, uint64_t nbytes) {
    if (!nbytes) return STATUS_FORMAT;
    const ByteSpan bytes = {data + 1, nbytes - 1};
    const uint64_t decoded_nbytes = DECODED_NBYTES[data[0] >> 7];
    const bool unsized = data[0] & 64;
    switch (data[0] % 6) {
        case 0: return check_zstd(bytes, {decoded_nbytes, unsized});
        case 1: return check_lz4(bytes, decoded_nbytes);
        case 2: return check_gzip(bytes, decoded_nbytes);
        case 3: return check_zlib(bytes);
        case 4: return check_snappy(bytes, decoded_nbytes);
        default: return check_blosc(bytes, decoded_nbytes, unsized);
    }
}

NOT_COUNTED static std::vector<Input> read_seeds(const char* path) {
    std::vector<Input> seeds;
    std::FILE* file = std::fopen(path, "rb");
    uint32_t nbytes;
    while (file && std::fread(&nbytes, 4, 1, file) == 1) {
        Input seed(nbytes);
        if (std::fread(seed.data(), 1, nbytes, file) != nbytes) break;
        seeds.push_back(seed);
    }
    if (file) std::fclose(file);
    return seeds;
}

NOT_COUNTED int main(int, char** arguments) {
    uint64_t found[STATUS_COUNT] = {};
    const std::vector<Input> seeds = read_seeds(arguments[1]);
    const uint64_t n = std::strtoull(arguments[2], nullptr, 10);
    const uint64_t seed = std::strtoull(arguments[3], nullptr, 10);
    if (seeds.empty() || !n) return 2;
    const uint64_t n_kept = explore(seeds, n, seed, found, check);
    for (uint64_t count : found) std::printf("%llu ", (unsigned long long)count);
    std::printf("%llu\n", (unsigned long long)n_kept);
}
