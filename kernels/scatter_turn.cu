// The same as scatter.cu, for boxes whose axes change places: neighbours in the output
// are far apart in the inner chunk, and vice versa.
//
//   inner chunk            a thread's patch       output
//   loop 1 ->                                     loop 0 ->
//   a b c d   wide words   a b c d    wide words  a e i m
//   e f g h   along loop 1 e f g h    along       b f j n
//   i j k l   ---------->  i j k l    loop 0      c g k o
//   m n o p                m n o p    --------->  d h l p
//
// A block takes a square: 64 x 64 units of one row, at one index of the other loops. If
// the units are neighbours on their own side and wide words are aligned, each thread
// turns patches in its registers (turned_patch.cuh). Else the block takes the square by
// quarters, through shared memory: lanes read along loop 1 and write along loop 0. Lines
// in shared memory are one unit longer than a warp, so that a column is in 32 different
// banks.
//
//   gs_scatter_turn_4      the unit is the run, with 1, 2, 4 or 8 bytes
//   gs_scatter_castturn_4  the unit is one number, whose type changes
#include "turned_patch.cuh"

constexpr uint32_t QUARTER = SIDE / 2;
constexpr uint32_t LINE = QUARTER + 1;
constexpr uint32_t LINES_PER_GROUP = QUARTER / GROUPS;

GS_DEVICE uint32_t squares_along(uint32_t length) { return (length + SIDE - 1) / SIDE; }

// Offsets of square `nth` of a row, with loop 0 fastest; false if the row has fewer
// squares.
template <int R>
GS_DEVICE bool enter_square(
    const Scatter<R>& p, const Row<R>& row, uint32_t nth, Square& square) {
    uint32_t rest = nth;
    square.in_offset = row.in_offset;
    square.out_offset = row.out_offset;
#pragma unroll
    for (int d = 0; d < R; ++d) {
        if (d >= static_cast<int>(p.n_loops)) break;
        const uint32_t length = row.box.length(p, row.index, d).divisor;
        const uint32_t n = d < 2 ? squares_along(length) : length;
        if (n == 0) return false;
        const uint32_t first = (rest % n) * (d < 2 ? SIDE : 1);
        rest /= n;
        const Landing* members = row.box.members(p, row.index, d);
        if (members != nullptr) {
            square.in_offset += members[first].in_offset;
            square.out_offset += members[first].out_offset;
        } else {
            square.in_offset += p.loops[d].in_stride * first;
            square.out_offset += p.loops[d].out_stride * first;
        }
        if (d < 2) square.length[d] = length - first;
    }
    return rest == 0;
}

// Moves a quarter of a square through `cells`. Call it from all threads of a block; ends
// with a barrier. A thread starts all its loads before it waits for the first.
template <int R, class Mover>
GS_DEVICE void turn_quarter(
    const Scatter<R>& p, uint64_t src, const Square& square, const Mover& mover,
    uint64_t* cells) {
    typedef typename Mover::Word Word;
    Word* const words = reinterpret_cast<Word*>(cells);
    const uint32_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const uint64_t from = src + square.in_offset + p.loops[1].in_stride * lane;
    static_assert(LINES_PER_GROUP % Mover::UNROLL == 0, "all rounds are alike");
#pragma unroll 1
    for (uint32_t first = group; first < QUARTER; first += Mover::UNROLL * GROUPS) {
        Word loaded[Mover::UNROLL] = {};
#pragma unroll
        for (uint32_t k = 0; k < Mover::UNROLL; ++k) {
            const uint32_t line = first + k * GROUPS;
            if (line < square.length[0] && lane < square.length[1]) {
                const Spot spot = {p.loops[0].in_stride * line, 0, 0};
                loaded[k] = mover.load(from, spot);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < Mover::UNROLL; ++k) {
            words[(first + k * GROUPS) * LINE + lane] = mover.changed(loaded[k]);
        }
    }
    __syncthreads();
    uint8_t* const to = p.out + square.out_offset + p.loops[0].out_stride * lane;
#pragma unroll
    for (uint32_t k = 0; k < LINES_PER_GROUP; ++k) {
        const uint32_t line = group + k * GROUPS;
        if (line < square.length[1] && lane < square.length[0]) {
            mover.store(to + p.loops[1].out_stride * line, words[lane * LINE + line]);
        }
    }
    __syncthreads();
}

// Moves a square through `cells`. Call it from all threads of a block.
template <int R, class Mover>
GS_DEVICE void turn_square(
    const Scatter<R>& p, uint64_t src, const Square& square, const Mover mover,
    uint64_t* cells) {
#pragma unroll 1
    for (uint32_t i = 0; i < SIDE && i < square.length[0]; i += QUARTER) {
#pragma unroll 1
        for (uint32_t j = 0; j < SIDE && j < square.length[1]; j += QUARTER) {
            turn_quarter(p, src, part_of(p, square, i, j), mover, cells);
        }
    }
}

// Moves a square by patches if its units and addresses allow that, else through `cells`.
template <int N, int R>
GS_DEVICE void turn_units(
    const Scatter<R>& p, uint64_t src, const Square& square, uint64_t* cells) {
    if constexpr (N > 1) {
        if (has_patches<N>(p, src, square)) {
            turn_patches<N>(p, src, square);
            return;
        }
    }
    turn_square(p, src, square, Copy<N>{p.transfer}, cells);
}

// Units of any size at any place; each is one number.
struct AnyUnit {
    typedef uint64_t Word;
    static constexpr uint32_t UNROLL = 2;  // 4 would need more registers than there are
    const Transfer& transfer;
    const ShuffledRow& row;
    uint32_t in_log2;
    uint32_t out_log2;
    bool is_cast;

    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        const uint64_t at = src + spot.in_offset;
        return row.block.divisor ? row.load(at, in_log2) : load_number(at, in_log2);
    }
    GS_DEVICE Word changed(Word bits) const {
        return is_cast ? transferred(bits, transfer) : moved(bits, transfer);
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        store_number(to, word, out_log2);
    }
};

// Writes the fill value where a missing inner chunk would land.
template <int R>
GS_DEVICE void fill_square(
    const Scatter<R>& p, const Square& square, const AnyUnit& unit) {
    const uint32_t lane = threadIdx.x % LANES;
    const uint64_t fill = reinterpret_cast<uint64_t>(p.fill);
    const uint64_t word = load_number(fill, unit.out_log2);
    uint8_t* const out = p.out + square.out_offset;
    for (uint32_t j = threadIdx.x / LANES; j < SIDE; j += GROUPS) {
        if (j >= square.length[1]) break;
        for (uint32_t i = lane; i < SIDE && i < square.length[0]; i += LANES) {
            const int64_t place = p.loops[0].out_stride * i + p.loops[1].out_stride * j;
            unit.store(out + place, word);
        }
    }
}

template <int R, bool IS_CAST>
GS_DEVICE void move_square(
    const Scatter<R>& p, const Square& square, const AnyUnit& unit, uint64_t* cells) {
    const uint64_t src = unit.row.address;
    if constexpr (!IS_CAST) {
        const uint64_t distances = (src + square.in_offset) | p.in_bits | p.out_bits |
                                   (reinterpret_cast<uint64_t>(p.out) +
                                    square.out_offset);
        const uint32_t nbytes = 1u << unit.out_log2;
        if (!unit.row.block.divisor && widest_unit(distances) >= nbytes) {
            switch (nbytes) {
                case 1: return turn_units<1>(p, src, square, cells);
                case 2: return turn_units<2>(p, src, square, cells);
                case 4: return turn_units<4>(p, src, square, cells);
                default: return turn_units<8>(p, src, square, cells);
            }
        }
    }
    turn_square(p, src, square, unit, cells);
}

// Binary logarithm of 1, 2, 4 or 8.
GS_DEVICE uint32_t log2_of(uint32_t nbytes) {
    return nbytes >= 4 ? 2 + nbytes / 8 : nbytes / 2;
}

template <int R, bool IS_CAST>
GS_DEVICE void scatter_squares(const Scatter<R>& p) {
    __shared__ uint64_t cells[QUARTER * LINE];
    const uint32_t run_log2 = log2_of(p.run.length.divisor);
    const uint32_t in_log2 = IS_CAST ? p.transfer.in_log2 : run_log2;
    const uint32_t out_log2 = IS_CAST ? p.transfer.out_log2 : run_log2;
    for (uint32_t index = blockIdx.x; index < p.n_tiles; index += gridDim.x) {
        const Tile tile = tile_of(p, index);  // one square, because tile_log2 is 0
        if (p.status != nullptr && p.status[tile.row] != STATUS_OK) continue;
        const Row<R> row = row_of(p, tile.row);
        Square square;
        if (!enter_square(p, row, tile.first, square)) continue;
        const ShuffledRow shuffled = shuffled_row(p, tile.row);
        const AnyUnit unit = {p.transfer, shuffled, in_log2, out_log2, IS_CAST};
        if (shuffled.address == 0) {
            fill_square(p, square, unit);
        } else {
            move_square<R, IS_CAST>(p, square, unit, cells);
        }
    }
}

constexpr int gs_scatter_turn_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_turn_4_threads, 3)
gs_scatter_turn_4(const __grid_constant__ Scatter4 p) {
    scatter_squares<4, false>(p);
}

constexpr int gs_scatter_castturn_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_castturn_4_threads, 3)
gs_scatter_castturn_4(const __grid_constant__ Scatter4 p) {
    scatter_squares<4, true>(p);
}
static_assert(gs_scatter_turn_4_threads == GROUPS * LANES, "a line a warp");
