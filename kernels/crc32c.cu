// Verifies and removes the CRC-32C (RFC 3720) that the `crc32c` codec puts behind each
// inner chunk.
//
//   src[row] -> | bytes | CRC 4 B |
//
// One block takes one row.
#include "crc.cuh"

constexpr int gs_crc32c_verify_threads = 256;
static_assert(gs_crc32c_verify_threads == CRC_THREADS, "one block a row");

// Rows of fewer than four bytes fail with FORMAT. Rows whose checksum differs fail with
// CHECKSUM. For all other rows, src_nbytes is reduced by four.
extern "C" __global__ void __launch_bounds__(gs_crc32c_verify_threads)
gs_crc32c_verify(
    const uint64_t* src, uint64_t* src_nbytes, Status* status, uint32_t n_rows) {
    __shared__ CrcTables tables;
    fill_tables<Crc32c>(tables);
    const uint32_t weight = crc_weight<Crc32c>();
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        if (status[row] != STATUS_OK) continue;
        const ByteSpan encoded = {
            reinterpret_cast<const uint8_t*>(src[row]), src_nbytes[row]};
        if (encoded.nbytes < CRC_NBYTES) {
            if (threadIdx.x == 0) fail_row(status, row, STATUS_FORMAT);
            continue;
        }
        const uint64_t nbytes = encoded.nbytes - CRC_NBYTES;
        const uint32_t crc =
            crc_of_block<Crc32c>(tables, weight, encoded.data, nbytes);
        if (threadIdx.x != 0) continue;
        if (crc == read_u32(encoded, nbytes)) {
            src_nbytes[row] = nbytes;
        } else {
            fail_row(status, row, STATUS_CHECKSUM);
        }
    }
}
