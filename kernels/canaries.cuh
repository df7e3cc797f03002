// Canaries: known bytes around the rows of an arena. The vendor's decoders ignore the
// room of their outputs, so a damaged stream may overwrite what lies behind its row
// (docs/decisions/2026-11-27-buffers-that-decoders-ignore.md).
//
//   arena   | lead .. before 0 | row 0 | behind 0 .. before 1 | row 1 | behind 1 .. tail |
//                              ^ 16-aligned                   ^
//     | write_canaries   before a decoder runs; gate.cu, blosc.cu
//     | the vendor's decoder
//     | check_canaries   OVERRUN: a canary of this row is not what it was; in the folds
//     v
//   status
//
// Decoders write forwards. So a stream that reaches another row has overwritten the
// canary behind its own, and the one before each row that it reached.
#pragma once
#include "common.cuh"

constexpr uint64_t CANARY_NBYTES = 16;

// The rows of a batch, and what their canaries are made of.
struct Canaries {
    const uint64_t* rows;  // address of each row, a multiple of 16
    uint64_t nbytes;       // decoded size, the same for every row
    uint64_t seed;         // random; 0: rows have no canaries
    uint32_t n_rows;
    uint32_t reserved;
};
static_assert(sizeof(Canaries) == 4 * 8, "the host packs the same");

// Value `k` of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014).
GS_DEVICE uint64_t random_word(uint64_t seed, uint64_t k) {
    uint64_t word = seed + (k + 1) * 0x9E3779B97F4A7C15ull;
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ word >> 27) * 0x94D049BB133111EBull;
    return word ^ word >> 31;
}

// No two canaries of a batch are alike, because a stream may copy bytes that lie before
// its output.
GS_DEVICE uint4 canary_of(uint64_t seed, uint64_t k) {
    const uint64_t low = random_word(seed, 2 * k);
    const uint64_t high = random_word(seed, 2 * k + 1);
    return {
        static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
        static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
}

GS_DEVICE uint4* canary_before(uint64_t row) {
    return reinterpret_cast<uint4*>(row - CANARY_NBYTES);
}

// At a multiple of 16, so the last few bytes before it are nobody's.
GS_DEVICE uint4* canary_behind(uint64_t row, uint64_t nbytes) {
    return reinterpret_cast<uint4*>(
        row + (nbytes + CANARY_NBYTES - 1) / CANARY_NBYTES * CANARY_NBYTES);
}

// Writes the canaries of a row, which has the index `k`.
GS_DEVICE void write_canaries(uint64_t row, uint64_t nbytes, uint64_t seed, uint32_t k) {
    if (!seed) return;
    *canary_before(row) = canary_of(seed, 2 * uint64_t(k));
    *canary_behind(row, nbytes) = canary_of(seed, 2 * uint64_t(k) + 1);
}

GS_DEVICE bool is_canary(const uint4& found, uint64_t seed, uint64_t k) {
    const uint4 wanted = canary_of(seed, k);
    return found.x == wanted.x && found.y == wanted.y && found.z == wanted.z &&
           found.w == wanted.w;
}

// Marks rows without a status whose canaries were overwritten. All threads of the grid
// call it and share the rows.
GS_DEVICE void check_canaries(const Canaries& canaries, Status* status) {
    if (!canaries.seed) return;
    const uint32_t n_threads = gridDim.x * blockDim.x;
    for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < canaries.n_rows;
         k += n_threads) {
        if (status[k] != STATUS_OK) continue;
        const uint64_t row = canaries.rows[k];
        const uint64_t index = 2 * uint64_t(k);
        if (!is_canary(*canary_before(row), canaries.seed, index) ||
            !is_canary(
                *canary_behind(row, canaries.nbytes), canaries.seed, index + 1)) {
            fail_row(status, k, STATUS_OVERRUN);
        }
    }
}
