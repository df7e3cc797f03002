// Decoded inner chunks -> the output. One launch for each array and layout, for any
// number of inner chunks.
//
//   rows (inner chunks)      tiles                    output
//   +---------+              +--+--+--+
//   | row 0   | -- box -->   |t0|t1|t2|  -- warps --> strides of any sign, any rank
//   +---------+              +--+--+--+
//   | missing | ---------->  |t3|         ----------> fill value
//   +---------+
//
// A warp takes a tile: a range of the bytes of one row's box, in the order of the output
// (scatter_box.cuh). Its lanes take neighbouring units of the tile.
//
//   gs_scatter_copy_R    elements keep their type; byte order and bool may change. The
//                        unit is as wide as the row's addresses allow, up to 16 bytes.
//                        It may be a part of an element, or several elements.
//   gs_scatter_cast_R    elements change their type; the unit is one number.
//   gs_scatter_points    single elements, each with two offsets of its own.
//
// Rows that are still byte-shuffled have kernels of their own (scatter_planes.cu). So
// have boxes whose axes change places (scatter_turn.cu).
//
// R is the largest number of loops. Threads do not wait for one another: there are no
// barriers. Some launch bounds name a number of blocks, because otherwise the compiler
// spills registers to fit more blocks.
#include "scatter_move.cuh"

constexpr int gs_scatter_copy_2_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_2_threads, 4)
gs_scatter_copy_2(const __grid_constant__ Scatter2 p) {
    scatter_tiles<2, false, false>(p);
}

constexpr int gs_scatter_copy_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_4_threads, 3)
gs_scatter_copy_4(const __grid_constant__ Scatter4 p) {
    scatter_tiles<4, false, false>(p);
}

constexpr int gs_scatter_copy_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_32_threads)
gs_scatter_copy_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, false, false>(p);
}

constexpr int gs_scatter_cast_2_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_2_threads, 4)
gs_scatter_cast_2(const __grid_constant__ Scatter2 p) {
    scatter_tiles<2, true, false>(p);
}

constexpr int gs_scatter_cast_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_4_threads)
gs_scatter_cast_4(const __grid_constant__ Scatter4 p) {
    scatter_tiles<4, true, false>(p);
}

constexpr int gs_scatter_cast_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_32_threads)
gs_scatter_cast_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, true, false>(p);
}

// Scatters single elements. A thread takes one unit of one point.
//
//   landings[point]  offsets into the inner chunk and into the output
//   row[point]       row of the batch that has the point
struct Points {
    uint8_t* out;
    const uint64_t* src;
    const Status* status;
    uint64_t fill;  // address of one element
    const Landing* landings;
    const uint32_t* row;
    const FastDivisor* planes;  // as in Scatter
    FastDivisor units_per_point;
    Transfer transfer;
    uint32_t n_units;
    uint32_t item_log2;
    uint32_t decoded_nbytes;
};

constexpr int gs_scatter_points_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_points_threads)
gs_scatter_points(const __grid_constant__ Points p) {
    const uint32_t n_threads = gridDim.x * blockDim.x;
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t i = first; i < p.n_units; i += n_threads) {
        const uint32_t point = fast_quotient(i, p.units_per_point);
        const uint32_t unit = fast_remainder(i, point, p.units_per_point);
        const uint32_t row = p.row[point];
        if (p.status != nullptr && p.status[row] != STATUS_OK) {
            continue;
        }
        const Landing landing = p.landings[point];
        const uint32_t in_log2 = p.transfer.in_log2, out_log2 = p.transfer.out_log2;
        uint8_t* const to = p.out + landing.out_offset + (unit << out_log2);
        if (p.src[row] == 0) {
            const uint64_t fill = p.fill + (unit << out_log2);
            store_number(to, load_number(fill, out_log2), out_log2);
            continue;
        }
        const uint64_t from = p.src[row] + landing.in_offset + (unit << in_log2);
        uint64_t bits;
        if (p.planes != nullptr && p.planes[row].divisor) {
            const ShuffledRow shuffled = {
                p.src[row], p.planes[row], p.decoded_nbytes, p.item_log2};
            bits = shuffled.load(from, in_log2);
        } else {
            bits = load_number(from, in_log2);
        }
        store_number(to, transferred(bits, p.transfer), out_log2);
    }
}

// Offset of a field. NVRTC of CUDA 12 has no offsetof.
template <class Struct, class Field>
GS_DEVICE uint32_t offset_of(Field Struct::*field) {
    const uint64_t anywhere = 4096;  // aligned for every struct
    const Struct* const there = reinterpret_cast<const Struct*>(anywhere);
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(&(there->*field)) - anywhere);
}

// Writes the sizes of the structs that the host packs and the offsets of their fields. A
// test compares these with the host's.
//
//   out: uint32, shape (19,)
constexpr int gs_scatter_structs_threads = 32;
extern "C" __global__ void __launch_bounds__(gs_scatter_structs_threads)
gs_scatter_structs(uint32_t* out) {
    const uint32_t found[] = {
        sizeof(Landing),
        sizeof(Cell),
        sizeof(Column),
        sizeof(Transfer),
        sizeof(Loop),
        offset_of(&Loop::length),
        sizeof(Scatter2),
        sizeof(Scatter4),
        sizeof(Scatter32),
        offset_of(&Scatter4::tiles_per_row),
        offset_of(&Scatter4::transfer),
        offset_of(&Scatter4::n_rows),
        offset_of(&Scatter4::in_bits),
        offset_of(&Scatter4::run),
        offset_of(&Scatter4::columns),
        offset_of(&Scatter4::loops),
        sizeof(Points),
        offset_of(&Points::transfer),
        offset_of(&Points::n_units),
    };
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (uint32_t i = 0; i < sizeof(found) / sizeof(found[0]); ++i) {
            out[i] = found[i];
        }
    }
}
