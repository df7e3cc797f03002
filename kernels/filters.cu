// Undoes filters of numcodecs on decoded rows. The items of a row are contiguous.
//
//   delta              d0 d1 d2 ...          -> d0, d0+d1, d0+d1+d2, ...
//   fixedscaleoffset   e0 e1 e2 ...          -> e0 / scale + offset, ...
//   packbits           | padding 1 | bits |  -> a byte 0 or 1 for each bit, the highest
//                                               bit of a byte first
//   bitround           nothing to undo
//
// Items are little-endian. Source rows may begin at any byte, and decoded rows begin at
// multiples of 16. Rows with a status are skipped. A comment at each kernel says which
// types it takes. The host handles all other types.
#include "scan.cuh"
#include "scatter_cast.cuh"

struct FilterTables {
    const uint64_t* src;         // [n_rows]
    const uint64_t* src_nbytes;  // [n_rows]; used by packbits only
    const uint64_t* dst;         // [n_rows]
    Status* status;              // [n_rows]
    uint64_t n_items;            // decoded items, the same for every row
    double scale;                // fixedscaleoffset
    double offset;
    uint32_t n_rows;
    uint32_t from;  // TYPE_* of the encoded items
    uint32_t to;    // TYPE_* of the decoded items
    uint32_t reserved;
};
static_assert(sizeof(FilterTables) == 9 * 8, "the host packs the same");

GS_DEVICE uint32_t item_nbytes(uint32_t type) {
    switch (type) {
        case TYPE_INT16: case TYPE_UINT16: case TYPE_FLOAT16: return 2;
        case TYPE_INT32: case TYPE_UINT32: case TYPE_FLOAT32: return 4;
        case TYPE_INT64: case TYPE_UINT64: case TYPE_FLOAT64: return 8;
        default: return 1;
    }
}

// Bits of item `index`, sign-extended for signed integers; items may be unaligned.
GS_DEVICE uint64_t load_item(const uint8_t* items, uint64_t index, uint32_t type) {
    const uint32_t nbytes = item_nbytes(type);
    const uint8_t* at = items + index * nbytes;
    uint64_t bits = 0;
    if (reinterpret_cast<uint64_t>(at) % nbytes) {
        for (uint32_t k = 0; k < nbytes; k++) {
            bits |= static_cast<uint64_t>(at[k]) << 8 * k;
        }
    } else if (nbytes == 8) {
        bits = *reinterpret_cast<const uint64_t*>(at);
    } else if (nbytes == 4) {
        bits = *reinterpret_cast<const uint32_t*>(at);
    } else {
        bits = nbytes == 2 ? *reinterpret_cast<const uint16_t*>(at) : *at;
    }
    return sign_extended(bits, type);
}

// Stores the low bytes of `bits` as item `index`, which must be aligned.
GS_DEVICE void store_item(
    uint8_t* items, uint64_t index, uint32_t type, uint64_t bits) {
    uint8_t* at = items + index * item_nbytes(type);
    switch (item_nbytes(type)) {
        case 8: *reinterpret_cast<uint64_t*>(at) = bits; break;
        case 4: *reinterpret_cast<uint32_t*>(at) = static_cast<uint32_t>(bits); break;
        case 2: *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(bits); break;
        default: *at = static_cast<uint8_t>(bits); break;
    }
}

constexpr int gs_delta_threads = 256;
constexpr uint32_t DELTA_PER_THREAD = 2;

// Takes integers to integers that are not narrower. Sums wrap around, as NumPy's do. Does
// not take uint64 together with a signed type, because NumPy adds these as float64. One
// block takes one row.
extern "C" __global__ void __launch_bounds__(gs_delta_threads)
gs_delta(const FilterTables tables) {
    constexpr uint32_t TILE = gs_delta_threads * DELTA_PER_THREAD;
    __shared__ uint64_t until_warp[gs_delta_threads / WARP_LANES];
    for (uint32_t row = blockIdx.x; row < tables.n_rows; row += gridDim.x) {
        if (tables.status[row] != STATUS_OK) continue;
        const uint8_t* src = reinterpret_cast<const uint8_t*>(tables.src[row]);
        uint8_t* dst = reinterpret_cast<uint8_t*>(tables.dst[row]);
        uint64_t before = 0;
        for (uint64_t tile = 0; tile < tables.n_items; tile += TILE) {
            const uint64_t at = tile + uint64_t(threadIdx.x) * DELTA_PER_THREAD;
            uint64_t sums[DELTA_PER_THREAD];  // up to and including each item of mine
            uint64_t mine = 0;
            for (uint32_t k = 0; k < DELTA_PER_THREAD; k++) {
                if (at + k < tables.n_items) {
                    mine += load_item(src, at + k, tables.from);
                }
                sums[k] = mine;
            }
            uint64_t total;
            const uint64_t start =
                before + exclusive_sum_of_block(mine, total, until_warp);
            for (uint32_t k = 0; k < DELTA_PER_THREAD; k++) {
                if (at + k >= tables.n_items) break;
                store_item(dst, at + k, tables.to, start + sums[k]);
            }
            before += total;
        }
    }
}

GS_DEVICE float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
GS_DEVICE double rounded_sum(double a, double b) { return __dadd_rn(a, b); }

// Sums of one row, in the order of its items, because floats give other bits if they are
// added in another order. Gives up at a NaN, whose bits differ between processors.
template <class Float>
GS_DEVICE Status sum_floats(
    const FilterTables& tables, const uint8_t* src, Float* dst) {
    Float sum = 0;
    for (uint64_t k = 0; k < tables.n_items; k++) {
        const uint64_t bits = load_item(src, k, tables.from);
        Float value;
        if constexpr (sizeof(Float) == 4) {
            value = float_of(cast_to_float32(bits, tables.from));
        } else {
            value = double_of(cast_to_float64(bits, tables.from));
        }
        sum = k ? rounded_sum(sum, value) : value;  // 0 + -0 would be 0
        if (sum != sum) return STATUS_HOST;
        dst[k] = sum;
    }
    return STATUS_OK;
}

constexpr int gs_delta_float_threads = 64;

// Takes types that NumPy promotes to float32 or float64, to just that type. NumPy adds
// other types in float64 and then rounds. Rows with a NaN among their sums fail with HOST.
// One thread takes one row, which is slow for few rows.
extern "C" __global__ void __launch_bounds__(gs_delta_float_threads)
gs_delta_float(const FilterTables tables) {
    const uint32_t n_threads = gridDim.x * blockDim.x;
    for (uint32_t row = blockIdx.x * blockDim.x + threadIdx.x; row < tables.n_rows;
         row += n_threads) {
        if (tables.status[row] != STATUS_OK) continue;
        const uint8_t* src = reinterpret_cast<const uint8_t*>(tables.src[row]);
        const uint64_t dst = tables.dst[row];
        const Status status =
            tables.to == TYPE_FLOAT32
                ? sum_floats(tables, src, reinterpret_cast<float*>(dst))
                : sum_floats(tables, src, reinterpret_cast<double*>(dst));
        if (status != STATUS_OK) fail_row(tables.status, row, status);
    }
}

// Bits of the decoded item. NumPy calculates in float32 for float32 items, and in float64
// for all others. A NaN is kept as it is, because arithmetic of a GPU would change its
// bits.
GS_DEVICE uint64_t unscaled(const FilterTables& tables, uint64_t bits) {
    if (tables.from == TYPE_FLOAT32) {
        const float value = float_of(static_cast<uint32_t>(bits));
        const float result = __fadd_rn(
            __fdiv_rn(value, static_cast<float>(tables.scale)),
            static_cast<float>(tables.offset));
        const uint32_t kept = static_cast<uint32_t>(bits) | 0x00400000u;
        const uint32_t out = value == value ? float_bits(result) : kept;
        return tables.to == TYPE_FLOAT64 ? float64_of_float32(out) : out;
    }
    const uint64_t wide = cast_to_float64(bits, tables.from);
    const double value = double_of(wide);
    const double result =
        __dadd_rn(__ddiv_rn(value, tables.scale), tables.offset);
    const uint64_t kept = wide | 0x0008000000000000ull;
    const uint64_t out = value == value ? double_bits(result) : kept;
    return tables.to == TYPE_FLOAT64 ? out : float32_of_float64(out);
}

constexpr int gs_scale_offset_threads = 256;

// Takes integers, float32 or float64 to float32 or float64. Blocks along x share the
// rows, and blocks along y share the items of a row.
extern "C" __global__ void __launch_bounds__(gs_scale_offset_threads)
gs_scale_offset(const FilterTables tables) {
    const uint64_t n_threads = uint64_t(gridDim.y) * blockDim.x;
    for (uint32_t row = blockIdx.x; row < tables.n_rows; row += gridDim.x) {
        if (tables.status[row] != STATUS_OK) continue;
        const uint8_t* src = reinterpret_cast<const uint8_t*>(tables.src[row]);
        uint8_t* dst = reinterpret_cast<uint8_t*>(tables.dst[row]);
        for (uint64_t k = uint64_t(blockIdx.y) * blockDim.x + threadIdx.x;
             k < tables.n_items; k += n_threads) {
            const uint64_t bits = load_item(src, k, tables.from);
            store_item(dst, k, tables.to, unscaled(tables, bits));
        }
    }
}

// The eight bits of a byte as eight bytes, with the highest bit in the lowest byte.
GS_DEVICE uint64_t unpacked(uint32_t byte) {
    uint64_t items = 0;
    for (uint32_t k = 0; k < 8; k++) {
        items |= static_cast<uint64_t>(byte >> (7 - k) & 1) << 8 * k;
    }
    return items;
}

constexpr int gs_packbits_threads = 256;

// Rows of an unexpected length, or with an unexpected padding, fail with FORMAT. Blocks
// along x share the rows, and blocks along y share the bytes of a row.
extern "C" __global__ void __launch_bounds__(gs_packbits_threads)
gs_packbits(const FilterTables tables) {
    const uint64_t n_bytes = (tables.n_items + 7) / 8;
    const uint64_t padding = 8 * n_bytes - tables.n_items;
    const uint64_t n_threads = uint64_t(gridDim.y) * blockDim.x;
    for (uint32_t row = blockIdx.x; row < tables.n_rows; row += gridDim.x) {
        if (tables.status[row] != STATUS_OK) continue;
        const uint8_t* src = reinterpret_cast<const uint8_t*>(tables.src[row]);
        if (tables.src_nbytes[row] != 1 + n_bytes || src[0] != padding) {
            if (threadIdx.x == 0) fail_row(tables.status, row, STATUS_FORMAT);
            continue;
        }
        uint8_t* dst = reinterpret_cast<uint8_t*>(tables.dst[row]);
        for (uint64_t k = uint64_t(blockIdx.y) * blockDim.x + threadIdx.x; k < n_bytes;
             k += n_threads) {
            const uint64_t items = unpacked(src[1 + k]);
            if (8 * k + 8 <= tables.n_items) {
                reinterpret_cast<uint64_t*>(dst)[k] = items;
                continue;
            }
            for (uint32_t item = 0; 8 * k + item < tables.n_items; item++) {
                dst[8 * k + item] = static_cast<uint8_t>(items >> 8 * item);
            }
        }
    }
}
