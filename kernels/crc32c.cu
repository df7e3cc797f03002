// Verifies the CRC-32C (RFC 3720) that the `crc32c` codec puts behind each inner chunk,
// and takes it off.
//
//   src[row] -> | head 0-3 B | word 0 | ... | word n-1 | tail 0-3 B | CRC 4 B |
//               ^ any byte   ^ 4-aligned
//
// One block a row. With T threads, and the words counted from the end so that the last
// round is full, thread t takes every T-th word:
//
//   round 0        | 0 ... 0 word 0  word 1 ...    |   zeros in front change nothing
//   round 1        |       ...                     |
//   last round     |       ...           word n-1  |
//                    t = 0    1       ...   T-1
//
// Between rounds a remainder moves on by 4 T bytes (four table lookups), at the end by
// what is left of the row; the remainder of the row is the XOR of all of them.
// Reads of a warp are 128 bytes side by side.
#include "common.cuh"

constexpr int gs_crc32c_verify_threads = 256;

// Remainders are polynomials over GF(2), x^0 in the highest bit.
constexpr uint32_t CRC32C_POLYNOMIAL = 0x82F63B78u;
constexpr uint32_t X_POWER_0 = 0x80000000u;
constexpr uint32_t X_POWER_8192 = 0xe4172b16u;  // the distance of 1,024 bytes
constexpr uint32_t CRC32C_NBYTES = 4;
constexpr uint32_t ROUND_NBYTES = 4 * gs_crc32c_verify_threads;
static_assert(ROUND_NBYTES == 1024, "X_POWER_8192 belongs to 256 threads");

// Shared memory of a block.
struct Crc32cTables {
    uint32_t next_byte[256];      // remainder after one more byte
    uint32_t next_round[4][256];  // the same after ROUND_NBYTES of zeros, for byte k
    uint32_t bit_next_round[32];  // and for bit k
    uint32_t of_warp[gs_crc32c_verify_threads / 32];
};

GS_DEVICE uint32_t times_x(uint32_t a) {
    return (a >> 1) ^ ((a & 1) ? CRC32C_POLYNOMIAL : 0);
}

GS_DEVICE uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= (b >> bit & 1) ? a : 0;
        a = times_x(a);
    }
    return product;
}

// x^(8 nbytes) for a multiple of 4 up to ROUND_NBYTES.
GS_DEVICE uint32_t power_of_distance(uint32_t nbytes) {
    // x^(8 * 4), x^(8 * 8), ..., x^(8 * 1024)
    const uint32_t powers[] = {
        0x82f63b78u, 0x6ea2d55cu, 0x18b8ea18u, 0x510ac59au, 0xb82be955u,
        0xb8fdb1e7u, 0x88e56f72u, 0x74c360a4u, X_POWER_8192,
    };
    uint32_t power = X_POWER_0;
#pragma unroll
    for (uint32_t k = 0; k < 9; k++) {
        if (nbytes >> (k + 2) & 1) power = multiply(power, powers[k]);
    }
    return power;
}

// Called by all threads; ends with a barrier.
GS_DEVICE void fill_tables(Crc32cTables& tables) {
    const uint32_t value = threadIdx.x;
    if (value < 32) {
        tables.bit_next_round[value] = multiply(1u << value, X_POWER_8192);
    }
    uint32_t remainder = value;
    for (int bit = 0; bit < 8; bit++) remainder = times_x(remainder);
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

GS_DEVICE uint32_t move_on_round(const Crc32cTables& tables, uint32_t remainder) {
    return tables.next_round[0][remainder & 255] ^
           tables.next_round[1][remainder >> 8 & 255] ^
           tables.next_round[2][remainder >> 16 & 255] ^
           tables.next_round[3][remainder >> 24];
}

GS_DEVICE uint32_t append_bytes(
    const Crc32cTables& tables, uint32_t remainder, const uint8_t* data,
    uint32_t nbytes) {
    for (uint32_t k = 0; k < nbytes; k++) {
        remainder = remainder >> 8 ^ tables.next_byte[(remainder ^ data[k]) & 255];
    }
    return remainder;
}

// XOR of `value` over the block, in thread 0; ends with a barrier.
GS_DEVICE uint32_t xor_of_block(Crc32cTables& tables, uint32_t value) {
    for (int lane = 16; lane; lane >>= 1) {
        value ^= __shfl_xor_sync(0xffffffffu, value, lane);
    }
    if (threadIdx.x % 32 == 0) tables.of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    uint32_t total = 0;
    if (threadIdx.x == 0) {
        for (int warp = 0; warp < gs_crc32c_verify_threads / 32; warp++) {
            total ^= tables.of_warp[warp];
        }
    }
    __syncthreads();
    return total;
}

// CRC-32C of `nbytes` bytes, in thread 0; called by all threads.
GS_DEVICE uint32_t crc32c_of_block(
    Crc32cTables& tables, uint32_t weight, const uint8_t* data, uint64_t nbytes) {
    const uint64_t to_aligned = (0 - reinterpret_cast<uint64_t>(data)) & 3;
    const uint64_t head = to_aligned < nbytes ? to_aligned : nbytes;
    const uint64_t n_words = (nbytes - head) / 4;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(data + head);
    constexpr uint32_t T = gs_crc32c_verify_threads;
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
    uint32_t crc = xor_of_block(tables, multiply(remainder, weight));
    if (threadIdx.x == 0) {
        if (!n_words) crc = append_bytes(tables, ~0u, data, head);
        const uint64_t tail = head + 4 * n_words;
        crc = ~append_bytes(tables, crc, data + tail, nbytes - tail);
    }
    return crc;
}

// Rows of fewer than four bytes fail with FORMAT, rows whose checksum differs with
// CHECKSUM; of the others src_nbytes becomes smaller by four.
extern "C" __global__ void __launch_bounds__(gs_crc32c_verify_threads)
gs_crc32c_verify(
    const uint64_t* src, uint64_t* src_nbytes, Status* status, uint32_t n_rows) {
    __shared__ Crc32cTables tables;
    fill_tables(tables);
    const uint32_t weight = power_of_distance(ROUND_NBYTES - 4 * threadIdx.x);
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        if (status[row] != STATUS_OK) continue;
        const ByteSpan encoded = {
            reinterpret_cast<const uint8_t*>(src[row]), src_nbytes[row]};
        if (encoded.nbytes < CRC32C_NBYTES) {
            if (threadIdx.x == 0) fail_row(status, row, STATUS_FORMAT);
            continue;
        }
        const uint64_t nbytes = encoded.nbytes - CRC32C_NBYTES;
        const uint32_t crc = crc32c_of_block(tables, weight, encoded.data, nbytes);
        if (threadIdx.x != 0) continue;
        if (crc == read_u32(encoded, nbytes)) {
            src_nbytes[row] = nbytes;
        } else {
            fail_row(status, row, STATUS_CHECKSUM);
        }
    }
}
