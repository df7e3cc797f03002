// Copies of bytes between any two alignments, by aligned words.
//
//   dst   | head | word | word | word | ... | tail |
//         ^ any  ^ 4-aligned (16-aligned if src has the same distance to a multiple of 16)
//   src      | head | a  b  c  d | e  f  g  h | ...
//            a word of dst takes parts of two words of src
#pragma once
#include "common.cuh"

// Copies bytes in words of 4 and returns the offset at which it stopped. Reads only words
// that are completely within [src, src + nbytes).
GS_DEVICE uint64_t copy_words(
    uint8_t* dst, const uint8_t* src, uint64_t nbytes, uint32_t thread,
    uint32_t n_threads) {
    uint64_t head = (0 - reinterpret_cast<uint64_t>(dst)) & 3;
    const uint64_t skew = (reinterpret_cast<uint64_t>(src) + head) & 3;
    if (head < skew) head += 4;
    const uint64_t reach = head + 8 - skew;  // end of the first pair of source words
    if (reach > nbytes) return 0;
    const uint64_t n_words = (nbytes - reach) / 4 + 1;
    uint32_t* to = reinterpret_cast<uint32_t*>(dst + head);
    const uint32_t* from = reinterpret_cast<const uint32_t*>(src + head - skew);
    const uint32_t shift = static_cast<uint32_t>(8 * skew);
    for (uint64_t k = thread; k < n_words; k += n_threads) {
        to[k] = __funnelshift_r(from[k], from[k + 1], shift);
    }
    for (uint64_t k = thread; k < head; k += n_threads) dst[k] = src[k];
    return head + 4 * n_words;
}

// The same in units of 16, for pointers with equal distances to a multiple of 16.
GS_DEVICE uint64_t copy_quads(
    uint8_t* dst, const uint8_t* src, uint64_t nbytes, uint32_t thread,
    uint32_t n_threads) {
    const uint64_t head = (0 - reinterpret_cast<uint64_t>(dst)) & 15;
    if (head + 16 > nbytes) return 0;
    const uint64_t n_quads = (nbytes - head) / 16;
    uint4* to = reinterpret_cast<uint4*>(dst + head);
    const uint4* from = reinterpret_cast<const uint4*>(src + head);
    for (uint64_t k = thread; k < n_quads; k += n_threads) to[k] = from[k];
    for (uint64_t k = thread; k < head; k += n_threads) dst[k] = src[k];
    return head + 16 * n_quads;
}

// Copies `nbytes` bytes. All `n_threads` threads call it, each with its own `thread`.
GS_DEVICE void copy_bytes(
    uint8_t* dst, const uint8_t* src, uint64_t nbytes, uint32_t thread,
    uint32_t n_threads) {
    const uint64_t skew = reinterpret_cast<uint64_t>(src) ^
                          reinterpret_cast<uint64_t>(dst);
    const uint64_t copied = (skew & 15) == 0
                                ? copy_quads(dst, src, nbytes, thread, n_threads)
                                : copy_words(dst, src, nbytes, thread, n_threads);
    for (uint64_t k = copied + thread; k < nbytes; k += n_threads) dst[k] = src[k];
}
