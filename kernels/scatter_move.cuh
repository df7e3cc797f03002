// Moving the bytes of a tile by a warp: how a unit changes, and how wide a unit can be.
//
//   tile of a row's box   | unit | unit | ... | unit |     lanes take neighbouring units,
//                            |      |            |         each several at a time
//                            v      v            v
//   output                | unit | unit | ... | unit |
//
// A row that was decoded into the output is in its place already. Its tiles are left
// alone, or cleared if the decoder failed, so that no garbage is returned.
#pragma once
#include "scatter_box.cuh"
#include "shuffled_row.cuh"

// Movers say how one unit changes, and how many units a lane loads at once. `src` is the
// address after the row's own offsets. What `load` returns is not looked at before all
// loads of a lane are under way, because a lane waits where it looks: changes are made by
// `changed`.
template <int W>
struct Copy {
    typedef typename WordOf<W>::type Word;
    static constexpr int UNROLL = 4;
    // Narrower words may share their sectors with other tiles.
    static constexpr bool IS_STREAMED = W == 16;
    const Transfer& transfer;

    GS_DEVICE uint32_t unit() const { return W; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        const uint64_t at = src + spot.in_offset;
        if constexpr (IS_STREAMED) return load_streamed<Word>(at);
        // __ldg, as the compiler cannot tell that this number is a global address.
        return __ldg(reinterpret_cast<const Word*>(at));
    }
    GS_DEVICE Word changed(Word word) const {
        return static_cast<Word>(moved(word, transfer));
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        if constexpr (IS_STREAMED) return store_streamed(to, word);
        *reinterpret_cast<Word*>(to) = word;
    }
};

// Byte by byte, for swapped elements at addresses that are not aligned for them.
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
    GS_DEVICE Word changed(Word word) const { return word; }
    GS_DEVICE void store(uint8_t* to, Word word) const { *to = word; }
};

struct Cast {
    typedef uint64_t Word;
    static constexpr int UNROLL = 2;  // 4 would need more registers than there are
    const Transfer& transfer;

    GS_DEVICE uint32_t unit() const { return 1u << transfer.out_log2; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        return load_number(src + spot.in_offset, transfer.in_log2);
    }
    GS_DEVICE Word changed(Word bits) const { return transferred(bits, transfer); }
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
    GS_DEVICE Word changed(Word word) const { return word; }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        *reinterpret_cast<Word*>(to) = word;
    }
};

// One item of a shuffled row, at any place; `unit()` is the item's size.
struct CopyItem {
    typedef uint64_t Word;
    static constexpr int UNROLL = 2;
    const Transfer& transfer;
    const ShuffledRow& shuffled;

    GS_DEVICE uint32_t unit() const { return 1u << shuffled.item_log2; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        return shuffled.load(src + spot.in_offset, shuffled.item_log2);
    }
    GS_DEVICE Word changed(Word bits) const {
        return reversed_bytes(bits, transfer.in_swap);
    }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        store_number(to, word, shuffled.item_log2);
    }
};

// Four items of S bytes; addresses and offsets must be multiples of four items.
template <int S>
struct CopyFourItems {
    typedef typename FourItems<S>::Planes Planes;
    typedef typename FourItems<S>::Word Word;
    static constexpr int UNROLL = S == 8 ? 1 : 2;  // with more, fewer warps fit
    const Transfer& transfer;
    const ShuffledRow& shuffled;

    GS_DEVICE uint32_t unit() const { return 4 * S; }
    GS_DEVICE Planes load(uint64_t src, const Spot& spot) const {
        return FourItems<S>::load(shuffled.place(src + spot.in_offset));
    }
    GS_DEVICE Word changed(const Planes& planes) const {
        return FourItems<S>::joined(planes, transfer);
    }
    GS_DEVICE void store(uint8_t* to, const Word& word) const {
        FourItems<S>::store(to, word);
    }
};

struct CastItem {
    typedef uint64_t Word;
    static constexpr int UNROLL = 2;
    const Transfer& transfer;
    const ShuffledRow& shuffled;

    GS_DEVICE uint32_t unit() const { return 1u << transfer.out_log2; }
    GS_DEVICE Word load(uint64_t src, const Spot& spot) const {
        return shuffled.load(src + spot.in_offset, transfer.in_log2);
    }
    GS_DEVICE Word changed(Word bits) const { return transferred(bits, transfer); }
    GS_DEVICE void store(uint8_t* to, Word word) const {
        store_number(to, word, transfer.out_log2);
    }
};

// A range of the bytes of one row's box.
struct Tile {
    uint32_t row;
    uint32_t first;
    uint32_t stop;
};

// Moves a tile. A lane starts all its loads before it waits for the first.
template <int R, class Mover>
GS_DEVICE void move_tile(
    const Scatter<R>& p, const Row<R>& row, const Tile& tile, const Mover mover) {
    typedef decltype(mover.load(0, Spot())) Loaded;
    constexpr int UNROLL = R > 8 ? 1 : Mover::UNROLL;
    const uint64_t src = p.src[row.index] + row.in_offset;
    uint8_t* const out = p.out + row.out_offset;
    const uint32_t unit = mover.unit();
    const uint32_t lane = threadIdx.x % LANES;
    for (uint32_t at = tile.first + lane * unit; at < tile.stop;
         at += UNROLL * LANES * unit) {
        Loaded loaded[UNROLL] = {};
        int64_t places[UNROLL] = {};
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            const uint32_t here = at + j * LANES * unit;
            if (here < tile.stop) {
                const Spot spot = spot_of(p, row, here);
                loaded[j] = mover.load(src, spot);
                places[j] = spot.out_offset;
            }
        }
#pragma unroll
        for (int j = 0; j < UNROLL; ++j) {
            if (at + j * LANES * unit < tile.stop) {
                mover.store(out + places[j], mover.changed(loaded[j]));
            }
        }
    }
}

// Widest access in bytes that fits all addresses with these bits.
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

// Moves a row that is still shuffled: four items at once if all distances are multiples
// of four items.
template <int R>
GS_DEVICE void copy_items(
    const Scatter<R>& p, const Row<R>& row, const Tile& tile,
    const ShuffledRow& shuffled) {
    if constexpr (R <= 8) {
        const uint64_t out = reinterpret_cast<uint64_t>(p.out) + row.out_offset;
        const uint32_t four_log2 = shuffled.item_log2 + 2;
        const uint64_t distances = row.in_offset | p.in_bits | row.run.divisor |
                                   shuffled.block.divisor | shuffled.nbytes;
        const uint64_t four = 1u << four_log2;
        const bool is_whole = (distances & (four - 1)) == 0 && !(shuffled.address & 3);
        if (is_whole && ((out | p.out_bits) & (four < 16 ? four - 1 : 15)) == 0) {
            switch (shuffled.item_log2) {
                case 1:
                    return move_tile(
                        p, row, tile, CopyFourItems<2>{p.transfer, shuffled});
                case 2:
                    return move_tile(
                        p, row, tile, CopyFourItems<4>{p.transfer, shuffled});
                default:
                    return move_tile(
                        p, row, tile, CopyFourItems<8>{p.transfer, shuffled});
            }
        }
    }
    move_tile(p, row, tile, CopyItem{p.transfer, shuffled});
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

// Whether the row was decoded to its final place.
template <int R>
GS_DEVICE bool is_in_place(const Scatter<R>& p, const Row<R>& row) {
    return p.src[row.index] + row.in_offset ==
           reinterpret_cast<uint64_t>(p.out) + row.out_offset;
}

// Clears what a failed decoder left at the row's final place.
template <int R>
GS_DEVICE void clear_tile(const Scatter<R>& p, const Row<R>& row, const Tile& tile) {
    uint8_t* const out = p.out + row.out_offset;
    for (uint32_t at = tile.first + threadIdx.x % LANES; at < tile.stop; at += LANES) {
        out[at] = 0;
    }
}

// Row `row` as a shuffled row; its block size is 0 if it is not shuffled.
template <int R>
GS_DEVICE ShuffledRow shuffled_row(const Scatter<R>& p, uint32_t row) {
    const FastDivisor none = {0, 0, 0, 0};
    return {
        p.src[row], p.planes ? p.planes[row] : none, p.decoded_nbytes, p.item_log2};
}

template <int R, bool IS_CAST, bool HAS_PLANES>
GS_DEVICE void scatter_tile(const Scatter<R>& p, const Row<R>& row, const Tile& tile) {
    if constexpr (HAS_PLANES) {
        const ShuffledRow shuffled = shuffled_row(p, row.index);
        if (shuffled.block.divisor) {
            if constexpr (IS_CAST) {
                move_tile(p, row, tile, CastItem{p.transfer, shuffled});
            } else {
                copy_items(p, row, tile, shuffled);
            }
            return;
        }
    }
    if constexpr (IS_CAST) {
        move_tile(p, row, tile, Cast{p.transfer});
    } else if (!is_in_place(p, row)) {
        copy_tile(p, row, tile);
    }
}

template <int R, bool IS_CAST, bool HAS_PLANES>
GS_DEVICE void scatter_tiles(const Scatter<R>& p) {
    const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const uint32_t n_warps = gridDim.x * blockDim.x / LANES;
    for (uint32_t index = warp; index < p.n_tiles; index += n_warps) {
        Tile tile = tile_of(p, index);
        const bool has_failed = p.status != nullptr && p.status[tile.row] != STATUS_OK;
        const bool is_missing = p.src[tile.row] == 0;
        if (has_failed && (IS_CAST || is_missing)) {
            continue;
        }
        const Row<R> row = row_of(p, tile.row);
        tile.stop = tile.stop < row.box_nbytes ? tile.stop : row.box_nbytes;
        if (has_failed) {
            if (is_in_place(p, row)) clear_tile(p, row, tile);
        } else if (is_missing) {
            fill_tile(p, row, tile);
        } else {
            scatter_tile<R, IS_CAST, HAS_PLANES>(p, row, tile);
        }
    }
}
