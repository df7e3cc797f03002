// Decoded inner chunks -> the output: one launch per array and layout, whatever the
// number of inner chunks.
//
//   rows (inner chunks)      tiles                    output
//   +---------+              +--+--+--+
//   | row 0   | -- box -->   |t0|t1|t2|  -- warps --> strides of any sign, any rank
//   +---------+              +--+--+--+
//   | missing | ---------->  |t3|         ----------> fill value
//   +---------+
//
// A warp takes a tile: a range of the bytes of one row's box as they land in the output
// (scatter_box.cuh). Its lanes take neighbouring units of it.
//
//   gs_scatter_copy_R    elements are moved as they are; byte order and bool on the way.
//                        The unit is as wide as the addresses of the row allow, up to 16
//                        bytes, and may be part of an element or hold several.
//   gs_scatter_cast_R    elements change their type; the unit is one number.
//   gs_scatter_points    single elements, each with its own two offsets.
//
// R is the number of loops that fit. Nothing here meets another thread: no barriers.
#include "scatter_box.cuh"

constexpr uint32_t LANES = 32;

template <int W>
struct WordOf;
template <>
struct WordOf<1> {
    typedef uint8_t type;
};
template <>
struct WordOf<2> {
    typedef uint16_t type;
};
template <>
struct WordOf<4> {
    typedef uint32_t type;
};
template <>
struct WordOf<8> {
    typedef uint64_t type;
};
template <>
struct WordOf<16> {
    typedef uint4 type;
};

// Bool and byte order, for all elements of a word at once.
GS_DEVICE uint64_t moved(uint64_t word, const Transfer& transfer) {
    if (transfer.from == TYPE_BOOL) {
        return bools_of(word);
    }
    return reversed_bytes(word, transfer.in_swap);
}

GS_DEVICE uint4 moved(uint4 word, const Transfer& transfer) {
    const uint64_t low = moved(word.x | static_cast<uint64_t>(word.y) << 32, transfer);
    const uint64_t high = moved(word.z | static_cast<uint64_t>(word.w) << 32, transfer);
    word.x = static_cast<uint32_t>(low);
    word.y = static_cast<uint32_t>(low >> 32);
    word.z = static_cast<uint32_t>(high);
    word.w = static_cast<uint32_t>(high >> 32);
    return word;
}

// A number of 2**log2 bytes (at most 8), at any address.
GS_DEVICE uint64_t load_number(uint64_t address, uint32_t log2) {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(address);
    if (address & ((1u << log2) - 1)) {
        uint64_t bits = 0;
        for (uint32_t i = 0; i < 1u << log2; ++i) {
            bits |= static_cast<uint64_t>(__ldg(from + i)) << (8 * i);
        }
        return bits;
    }
    switch (log2) {
        case 0: return __ldg(from);
        case 1: return __ldg(reinterpret_cast<const uint16_t*>(from));
        case 2: return __ldg(reinterpret_cast<const uint32_t*>(from));
        default: return __ldg(reinterpret_cast<const uint64_t*>(from));
    }
}

GS_DEVICE void store_number(uint8_t* to, uint64_t bits, uint32_t log2) {
    if (reinterpret_cast<uint64_t>(to) & ((1u << log2) - 1)) {
        for (uint32_t i = 0; i < 1u << log2; ++i) {
            to[i] = static_cast<uint8_t>(bits >> (8 * i));
        }
        return;
    }
    switch (log2) {
        case 0: *to = static_cast<uint8_t>(bits); break;
        case 1: *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits); break;
        case 2: *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(bits); break;
        default: *reinterpret_cast<uint64_t*>(to) = bits; break;
    }
}

// What happens to one unit, and how many a lane has on their way at once. `src` is where the row's own offsets lead to.
template <int W>
struct Copy {
    typedef typename WordOf<W>::type Word;
    static constexpr int UNROLL = 4;
    const Transfer& transfer;

    GS_DEVICE uint32_t unit() const { return W; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        // Known to be global memory only through __ldg: the address is a number.
        const Word word =
            __ldg(reinterpret_cast<const Word*>(src + spot.in_offset));
        return static_cast<Word>(moved(word, transfer));
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        *reinterpret_cast<Word*>(to) = word;
    }
};

// Byte by byte, for swapped elements at addresses that no word of theirs fits.
struct CopySwappedBytes {
    typedef uint8_t Word;
    static constexpr int UNROLL = 1;
    const Transfer& transfer;

    GS_DEVICE uint32_t unit() const { return 1; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        const uint32_t mirrored = spot.run_offset ^ (transfer.in_swap - 1);
        const uint64_t run = src + spot.in_offset - spot.run_offset;
        return __ldg(reinterpret_cast<const uint8_t*>(run + mirrored));
    }
    GS_DEVICE void store(uint8_t* to, Word word) const { *to = word; }
};

struct Cast {
    typedef uint64_t Word;
    static constexpr int UNROLL = 2;  // four need more registers than there are
    const Transfer& transfer;

    GS_DEVICE uint32_t unit() const { return 1u << transfer.out_log2; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        const uint64_t bits = load_number(src + spot.in_offset, transfer.in_log2);
        return transferred(bits, transfer);
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        store_number(to, word, transfer.out_log2);
    }
};

template <int W>
struct Fill {
    typedef typename WordOf<W>::type Word;
    static constexpr int UNROLL = 1;
    const uint8_t* fill;
    const FastDivisor& fill_nbytes;

    GS_DEVICE uint32_t unit() const { return W; }
    GS_DEVICE Word load(uint64_t, const Spot& spot) const {
        const uint32_t quotient = fast_quotient(spot.run_offset, fill_nbytes);
        const uint32_t at = fast_remainder(spot.run_offset, quotient, fill_nbytes);
        return __ldg(reinterpret_cast<const Word*>(fill + at));
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        *reinterpret_cast<Word*>(to) = word;
    }
};

// A range of the bytes of one row's box.
struct Tile {
    uint32_t row;
    uint32_t first;
    uint32_t stop;
};

// Moves a tile. All loads of a lane are on their way before it stores the first.
template <int R, class Mover>
GS_DEVICE void move_tile(
    const Scatter<R>& p, const Row<R>& row, const Tile& tile, const Mover mover) {
    typedef typename Mover::Word Word;
    constexpr int UNROLL = R > 8 ? 1 : Mover::UNROLL;
    const uint64_t src = p.src[row.index] + row.in_offset;
    uint8_t* const out = p.out + row.out_offset;
    const uint32_t unit = mover.unit();
    const uint32_t lane = threadIdx.x % LANES;
    for (uint32_t at = tile.first + lane * unit; at < tile.stop;
         at += UNROLL * LANES * unit) {
        Word words[UNROLL] = {};
        int64_t places[UNROLL] = {};
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            const uint32_t here = at + j * LANES * unit;
            if (here < tile.stop) {
                const Spot spot = spot_of(p, row, here);
                words[j] = mover.load(src, spot);
                places[j] = spot.out_offset;
            }
        }
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if (at + j * LANES * unit < tile.stop) {
                mover.store(out + places[j], words[j]);
            }
        }
    }
}

// Widest access, in bytes, that all addresses with these bits allow.
GS_DEVICE uint32_t widest_unit(uint64_t bits) {
    const uint32_t low = static_cast<uint32_t>(bits) | 16u;
    return low & (~low + 1);
}

template <int R>
GS_DEVICE void fill_tile(const Scatter<R>& p, const Row<R>& row, const Tile& tile) {
    const uint64_t out = reinterpret_cast<uint64_t>(p.out) + row.out_offset;
    switch (widest_unit(out | p.out_bits | row.run.divisor)) {
        case 16: move_tile(p, row, tile, Fill<16>{p.fill, p.fill_nbytes}); break;
        case 8: move_tile(p, row, tile, Fill<8>{p.fill, p.fill_nbytes}); break;
        case 4: move_tile(p, row, tile, Fill<4>{p.fill, p.fill_nbytes}); break;
        case 2: move_tile(p, row, tile, Fill<2>{p.fill, p.fill_nbytes}); break;
        default: move_tile(p, row, tile, Fill<1>{p.fill, p.fill_nbytes}); break;
    }
}

template <int R>
GS_DEVICE void copy_tile(const Scatter<R>& p, const Row<R>& row, const Tile& tile) {
    const uint64_t src = p.src[row.index] + row.in_offset;
    const uint64_t out = reinterpret_cast<uint64_t>(p.out) + row.out_offset;
    const uint32_t unit =
        widest_unit(src | out | p.in_bits | p.out_bits | row.run.divisor);
    if (unit < p.transfer.in_swap) {
        move_tile(p, row, tile, CopySwappedBytes{p.transfer});
        return;
    }
    switch (unit) {
        case 16: move_tile(p, row, tile, Copy<16>{p.transfer}); break;
        case 8: move_tile(p, row, tile, Copy<8>{p.transfer}); break;
        case 4: move_tile(p, row, tile, Copy<4>{p.transfer}); break;
        case 2: move_tile(p, row, tile, Copy<2>{p.transfer}); break;
        default: move_tile(p, row, tile, Copy<1>{p.transfer}); break;
    }
}

template <int R>
GS_DEVICE Tile tile_of(const Scatter<R>& p, uint32_t index) {
    Tile tile;
    uint32_t nth;
    if (p.tile_bounds == nullptr) {
        tile.row = fast_quotient(index, p.tiles_per_row);
        nth = fast_remainder(index, tile.row, p.tiles_per_row);
    } else {
        uint32_t low = 0, high = p.n_rows;  // bounds[low] <= index < bounds[high]
        while (high - low > 1) {
            const uint32_t middle = low + (high - low) / 2;
            if (p.tile_bounds[middle] <= index) {
                low = middle;
            } else {
                high = middle;
            }
        }
        tile.row = low;
        nth = index - p.tile_bounds[low];
    }
    tile.first = nth << p.tile_log2;
    tile.stop = tile.first + (1u << p.tile_log2);
    return tile;
}

template <int R, bool IS_CAST>
GS_DEVICE void scatter_tiles(const Scatter<R>& p) {
    const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const uint32_t n_warps = gridDim.x * blockDim.x / LANES;
    for (uint32_t index = warp; index < p.n_tiles; index += n_warps) {
        Tile tile = tile_of(p, index);
        if (p.status != nullptr && p.status[tile.row] != STATUS_OK) {
            continue;
        }
        const Row<R> row = row_of(p, tile.row);
        tile.stop = tile.stop < row.box_nbytes ? tile.stop : row.box_nbytes;
        if (p.src[tile.row] == 0) {
            fill_tile(p, row, tile);
        } else if (IS_CAST) {
            move_tile(p, row, tile, Cast{p.transfer});
        } else {
            copy_tile(p, row, tile);
        }
    }
}

constexpr int gs_scatter_copy_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_4_threads)
gs_scatter_copy_4(const __grid_constant__ Scatter4 p) {
    scatter_tiles<4, false>(p);
}

constexpr int gs_scatter_copy_8_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_8_threads)
gs_scatter_copy_8(const __grid_constant__ Scatter8 p) {
    scatter_tiles<8, false>(p);
}

constexpr int gs_scatter_copy_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_copy_32_threads)
gs_scatter_copy_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, false>(p);
}

constexpr int gs_scatter_cast_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_4_threads)
gs_scatter_cast_4(const __grid_constant__ Scatter4 p) {
    scatter_tiles<4, true>(p);
}

constexpr int gs_scatter_cast_8_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_8_threads)
gs_scatter_cast_8(const __grid_constant__ Scatter8 p) {
    scatter_tiles<8, true>(p);
}

constexpr int gs_scatter_cast_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_cast_32_threads)
gs_scatter_cast_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, true>(p);
}

// Single elements. A thread takes one unit of one point.
//
//   landings[point]  offsets into the inner chunk and into the output
//   row[point]       which row of the batch holds it
struct Points {
    uint8_t* out;
    const uint64_t* src;
    const Status* status;
    uint64_t fill;  // address of one element
    const Landing* landings;
    const uint32_t* row;
    FastDivisor units_per_point;
    Transfer transfer;
    uint32_t n_units;
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
        const uint64_t bits = transferred(load_number(from, in_log2), p.transfer);
        store_number(to, bits, out_log2);
    }
}

// Sizes of what the host packs and where its fields lie, for the test that holds both
// sides equal.
//
//   out: uint32, shape (17,)
constexpr int gs_scatter_structs_threads = 32;
extern "C" __global__ void __launch_bounds__(gs_scatter_structs_threads)
gs_scatter_structs(uint32_t* out) {
    const uint32_t found[] = {
        sizeof(Landing),
        sizeof(Cell),
        sizeof(Column),
        sizeof(Transfer),
        sizeof(Loop),
        __builtin_offsetof(Loop, length),
        sizeof(Scatter4),
        sizeof(Scatter8),
        sizeof(Scatter32),
        __builtin_offsetof(Scatter4, tiles_per_row),
        __builtin_offsetof(Scatter4, transfer),
        __builtin_offsetof(Scatter4, n_rows),
        __builtin_offsetof(Scatter4, run),
        __builtin_offsetof(Scatter4, columns),
        __builtin_offsetof(Scatter4, loops),
        sizeof(Points),
        __builtin_offsetof(Points, transfer),
    };
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (uint32_t i = 0; i < sizeof(found) / sizeof(found[0]); ++i) {
            out[i] = found[i];
        }
    }
}
