// Copies of bytes between any two alignments, by aligned words.
//
//   dst   | head | word | word | word | ... | tail |
//         ^ any  ^ 4-aligned
//   src      | head | a  b  c  d | e  f  g  h | ...
//            a word of dst takes parts of two words of src
#pragma once
#include "common.cuh"

// Copies `nbytes` bytes. All `n_threads` threads call it, each with its own `thread`.
// Reads only words that are completely within [src, src + nbytes).
GS_DEVICE void copy_bytes(
    uint8_t* dst, const uint8_t* src, uint64_t nbytes, uint32_t thread,
    uint32_t n_threads) {
    uint64_t head = (0 - reinterpret_cast<uint64_t>(dst)) & 3;
    const uint64_t skew = (reinterpret_cast<uint64_t>(src) + head) & 3;
    if (head < skew) head += 4;
    const uint64_t reach = head + 8 - skew;  // end of the first pair of source words
    const uint64_t n_words = reach > nbytes ? 0 : (nbytes - reach) / 4 + 1;
    if (!n_words) head = 0;
    uint32_t* to = reinterpret_cast<uint32_t*>(dst + head);
    const uint32_t* from = reinterpret_cast<const uint32_t*>(src + head - skew);
    const uint32_t shift = static_cast<uint32_t>(8 * skew);
    for (uint64_t k = thread; k < n_words; k += n_threads) {
        to[k] = __funnelshift_r(from[k], from[k + 1], shift);
    }
    for (uint64_t k = thread; k < head; k += n_threads) dst[k] = src[k];
    for (uint64_t k = head + 4 * n_words + thread; k < nbytes; k += n_threads) {
        dst[k] = src[k];
    }
}
