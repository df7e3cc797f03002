// CRC-32 of many bytes by the threads of one block.
//
//   data -> | head 0-3 B | word 0 | ... | word n-1 | tail 0-3 B |
//           ^ any byte   ^ 4-aligned
//
// The words are counted from the end, so that the last round is full. With T threads,
// each thread takes every T-th word:
//
//   round 0        | 0 ... 0 word 0  word 1 ...    |   zeros in front change nothing
//   round 1        |       ...                     |
//   last round     |       ...           word n-1  |
//                    t = 0    1       ...   T-1
//
// Between rounds, a remainder is moved on by 4 T bytes (four table lookups). At the end
// it is moved on by its distance from the end of the words. The remainder of the row is
// the XOR of all of these. A warp reads 128 contiguous bytes at once.
#pragma once
#include "common.cuh"

// Remainders are polynomials over GF(2), x^0 in the highest bit.
constexpr uint32_t X_POWER_0 = 0x80000000u;
constexpr uint32_t CRC_NBYTES = 4;
constexpr uint32_t CRC_THREADS = 256;
constexpr uint32_t ROUND_NBYTES = 4 * CRC_THREADS;
constexpr uint32_t N_DISTANCES = 9;  // 4 bytes, 8, 16, ..., ROUND_NBYTES
static_assert(ROUND_NBYTES == 4 << (N_DISTANCES - 1), "the last is that of a round");

struct Distances {
    uint32_t power[N_DISTANCES];  // x^(8 * 4), x^(8 * 8), ..., x^(8 * 1024)
};

constexpr GS_DEVICE uint32_t times_x(uint32_t a, uint32_t polynomial) {
    return (a >> 1) ^ ((a & 1) ? polynomial : 0);
}

constexpr GS_DEVICE uint32_t multiply(uint32_t a, uint32_t b, uint32_t polynomial) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= (b >> bit & 1) ? a : 0;
        a = times_x(a, polynomial);
    }
    return product;
}

constexpr GS_DEVICE Distances distances_of(uint32_t polynomial) {
    uint32_t power = X_POWER_0;
    for (uint32_t bit = 0; bit < 8 * CRC_NBYTES; bit++) {
        power = times_x(power, polynomial);
    }
    Distances distances = {};
    for (uint32_t k = 0; k < N_DISTANCES; k++) {
        distances.power[k] = power;
        power = multiply(power, power, polynomial);
    }
    return distances;
}

template <uint32_t P>
struct Crc {
    static constexpr uint32_t POLYNOMIAL = P;

    static GS_DEVICE uint32_t distance(uint32_t k) {
        constexpr Distances distances = distances_of(P);
        return distances.power[k];
    }
};

typedef Crc<0x82F63B78u> Crc32c;  // RFC 3720
typedef Crc<0xEDB88320u> Crc32;   // gzip: RFC 1952, section 8

// Shared memory of a block.
struct CrcTables {
    uint32_t next_byte[256];      // remainder after one more byte
    uint32_t next_round[4][256];  // remainder after ROUND_NBYTES of zeros, from byte k
    uint32_t bit_next_round[32];  // the same from bit k
    uint32_t of_warp[CRC_THREADS / 32];
};

// x^(8 nbytes), for `nbytes` that are a multiple of 4 and at most ROUND_NBYTES.
template <class C>
GS_DEVICE uint32_t power_of_distance(uint32_t nbytes) {
    uint32_t power = X_POWER_0;
#pragma unroll
    for (uint32_t k = 0; k < N_DISTANCES; k++) {
        if (nbytes >> (k + 2) & 1) {
            power = multiply(power, C::distance(k), C::POLYNOMIAL);
        }
    }
    return power;
}

// Call it from all threads; ends with a barrier.
template <class C>
GS_DEVICE void fill_tables(CrcTables& tables) {
    const uint32_t value = threadIdx.x;
    if (value < 32) {
        tables.bit_next_round[value] =
            multiply(1u << value, C::distance(N_DISTANCES - 1), C::POLYNOMIAL);
    }
    uint32_t remainder = value;
    for (int bit = 0; bit < 8; bit++) {
        remainder = times_x(remainder, C::POLYNOMIAL);
    }
    tables.next_byte[value] = remainder;
    __syncthreads();
    for (int byte = 0; byte < 4; byte++) {
        uint32_t moved = 0;
        for (int bit = 0; bit < 8; bit++) {
            moved ^= (value >> bit & 1) ? tables.bit_next_round[8 * byte + bit] : 0;
        }
        tables.next_round[byte][value] = moved;
    }
    __syncthreads();
}

GS_DEVICE uint32_t move_on_round(const CrcTables& tables, uint32_t remainder) {
    return tables.next_round[0][remainder & 255] ^
           tables.next_round[1][remainder >> 8 & 255] ^
           tables.next_round[2][remainder >> 16 & 255] ^
           tables.next_round[3][remainder >> 24];
}

GS_DEVICE uint32_t append_bytes(
    const CrcTables& tables, uint32_t remainder, const uint8_t* data,
    uint32_t nbytes) {
    for (uint32_t k = 0; k < nbytes; k++) {
        remainder = remainder >> 8 ^ tables.next_byte[(remainder ^ data[k]) & 255];
    }
    return remainder;
}

// XOR of `value` over the block, in thread 0; ends with a barrier.
GS_DEVICE uint32_t xor_of_block(CrcTables& tables, uint32_t value) {
    for (int lane = 16; lane; lane >>= 1) {
        value ^= __shfl_xor_sync(0xffffffffu, value, lane);
    }
    if (threadIdx.x % 32 == 0) tables.of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    uint32_t total = 0;
    if (threadIdx.x == 0) {
        for (uint32_t warp = 0; warp < CRC_THREADS / 32; warp++) {
            total ^= tables.of_warp[warp];
        }
    }
    __syncthreads();
    return total;
}

// Factor for this thread's distance from the end of the words.
template <class C>
GS_DEVICE uint32_t crc_weight() {
    return power_of_distance<C>(ROUND_NBYTES - 4 * threadIdx.x);
}

// CRC of `nbytes` bytes, in thread 0. Call it from all threads, with their `crc_weight`.
template <class C>
GS_DEVICE uint32_t crc_of_block(
    CrcTables& tables, uint32_t weight, const uint8_t* data, uint64_t nbytes) {
    const uint64_t to_aligned = (0 - reinterpret_cast<uint64_t>(data)) & 3;
    const uint64_t head = to_aligned < nbytes ? to_aligned : nbytes;
    const uint64_t n_words = (nbytes - head) / 4;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(data + head);
    constexpr uint32_t T = CRC_THREADS;
    const uint32_t n_zeros = static_cast<uint32_t>((T - n_words % T) % T);

    uint32_t remainder = 0;
    uint64_t at = threadIdx.x;
    if (n_words && at >= n_zeros) {
        remainder = words[at - n_zeros];
        if (at == n_zeros) remainder ^= append_bytes(tables, ~0u, data, head);
    }
    for (at += T; at < n_words + n_zeros; at += T) {
        remainder = move_on_round(tables, remainder) ^ words[at - n_zeros];
    }
    uint32_t crc = xor_of_block(
        tables, multiply(remainder, weight, C::POLYNOMIAL));
    if (threadIdx.x == 0) {
        if (!n_words) crc = append_bytes(tables, ~0u, data, head);
        const uint64_t tail = head + 4 * n_words;
        crc = ~append_bytes(tables, crc, data + tail, nbytes - tail);
    }
    return crc;
}
