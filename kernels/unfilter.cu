// Undoes the shuffles of Blosc and of `numcodecs.shuffle`, whose rows have one block.
//
//   staging row   | block 0, filtered      | block 1, filtered | ... | a shorter one |
//                 | piece | piece | piece  | ...       pieces of PIECE_ITEMS items
//   decoded row   | items of block 0       | items of block 1  | ...
//
// shuffle_format.cuh shows a filtered block. Thread blocks along x share the rows, and
// thread blocks along y share the pieces of a row.
#include "copy.cuh"
#include "planes.cuh"
#include "shuffle_format.cuh"

// Tables with one entry for each row, as gs_blosc_count fills them. Rows may begin at any
// byte. Rows at multiples of 16 are faster.
struct UnfilterTables {
    const uint64_t* src;  // staging rows
    const uint64_t* dst;  // decoded rows
    const Status* status;
    const uint32_t* filter;
    const uint32_t* typesize;
    const uint32_t* block_nbytes;
    uint64_t decoded_nbytes;  // the same for every row
    uint32_t n_rows;
    uint32_t reserved;
};
static_assert(sizeof(UnfilterTables) == 8 * 8, "the host packs the same");

constexpr uint32_t PIECE_ITEMS = 2048;  // a multiple of 8: pieces start at whole bytes

// Items [first, stop) of one filtered block.
struct Piece {
    const uint8_t* src;  // of the block
    uint8_t* dst;
    uint32_t n_items;  // of the block
    uint32_t typesize;
    uint32_t first;
    uint32_t stop;
};

// Calls `undo(piece)` for this thread block's share of a row's pieces, and copies the
// bytes behind the last item of each block.
template <class Undo>
GS_DEVICE void for_pieces(
    const UnfilterTables& tables, uint32_t row, const Undo& undo) {
    const uint8_t* src = reinterpret_cast<const uint8_t*>(tables.src[row]);
    uint8_t* dst = reinterpret_cast<uint8_t*>(tables.dst[row]);
    const uint64_t block_nbytes = tables.block_nbytes[row];
    const uint32_t typesize = tables.typesize[row];
    const uint64_t n_blocks = (tables.decoded_nbytes - 1) / block_nbytes + 1;
    const uint32_t pieces_per_block =
        static_cast<uint32_t>(block_nbytes / typesize) / PIECE_ITEMS + 1;
    for (uint64_t k = blockIdx.y; k < n_blocks * pieces_per_block; k += gridDim.y) {
        const uint64_t start = k / pieces_per_block * block_nbytes;
        const uint64_t left = tables.decoded_nbytes - start;
        const uint64_t nbytes = left < block_nbytes ? left : block_nbytes;
        const uint32_t n_items = static_cast<uint32_t>(nbytes / typesize);
        const uint32_t first =
            static_cast<uint32_t>(k % pieces_per_block) * PIECE_ITEMS;
        if (first == 0) {
            const uint64_t rest = start + uint64_t(n_items) * typesize;
            copy_bytes(
                dst + rest, src + rest, start + nbytes - rest, threadIdx.x, blockDim.x);
        }
        if (first >= n_items) continue;
        const uint32_t stop =
            n_items - first < PIECE_ITEMS ? n_items : first + PIECE_ITEMS;
        undo(Piece{src + start, dst + start, n_items, typesize, first, stop});
    }
}

// Undoes four items of SIZE bytes from `item` on; planes and items must be aligned.
template <uint32_t SIZE>
GS_DEVICE void unshuffle_four(const Piece& piece, uint32_t item) {
    const uint64_t planes = reinterpret_cast<uint64_t>(piece.src) + item;
    const uint64_t stride = piece.n_items;
    uint8_t* items = piece.dst + uint64_t(item) * SIZE;
    if constexpr (SIZE == 2) {
        *reinterpret_cast<uint2*>(items) = load_two_planes(planes, stride);
    } else if constexpr (SIZE == 4) {
        *reinterpret_cast<uint4*>(items) = load_four_planes(planes, stride);
    } else if constexpr (SIZE == 8) {
        const uint4 low = load_four_planes(planes, stride);
        const uint4 high = load_four_planes(planes + 4 * stride, stride);
        uint4* out = reinterpret_cast<uint4*>(items);
        out[0] = make_uint4(low.x, high.x, low.y, high.y);
        out[1] = make_uint4(low.z, high.z, low.w, high.w);
    } else {
        static_assert(SIZE == 16, "these sizes are written out");
        const uint4 a = load_four_planes(planes, stride);
        const uint4 b = load_four_planes(planes + 4 * stride, stride);
        const uint4 c = load_four_planes(planes + 8 * stride, stride);
        const uint4 d = load_four_planes(planes + 12 * stride, stride);
        uint4* out = reinterpret_cast<uint4*>(items);
        out[0] = make_uint4(a.x, b.x, c.x, d.x);
        out[1] = make_uint4(a.y, b.y, c.y, d.y);
        out[2] = make_uint4(a.z, b.z, c.z, d.z);
        out[3] = make_uint4(a.w, b.w, c.w, d.w);
    }
}

template <uint32_t SIZE>
GS_DEVICE void unshuffle_fours(const Piece& piece) {
    for (uint32_t item = piece.first + 4 * threadIdx.x; item < piece.stop;
         item += 4 * blockDim.x) {
        unshuffle_four<SIZE>(piece, item);
    }
}

GS_DEVICE void unshuffle_bytes(const Piece& piece) {
    const uint64_t first = uint64_t(piece.first) * piece.typesize;
    const uint32_t nbytes = (piece.stop - piece.first) * piece.typesize;
    for (uint32_t k = threadIdx.x; k < nbytes; k += blockDim.x) {
        const uint32_t item = piece.first + k / piece.typesize;
        const uint64_t plane = k % piece.typesize;
        piece.dst[first + k] = piece.src[plane * piece.n_items + item];
    }
}

GS_DEVICE void unshuffle_piece(const Piece& piece) {
    const uint64_t places =
        reinterpret_cast<uint64_t>(piece.src) | reinterpret_cast<uint64_t>(piece.dst);
    const bool is_aligned = ((piece.n_items & 3) | (places & 15)) == 0;
    if (is_aligned && piece.typesize == 2) {
        unshuffle_fours<2>(piece);
    } else if (is_aligned && piece.typesize == 4) {
        unshuffle_fours<4>(piece);
    } else if (is_aligned && piece.typesize == 8) {
        unshuffle_fours<8>(piece);
    } else if (is_aligned && piece.typesize == 16) {
        unshuffle_fours<16>(piece);
    } else {
        unshuffle_bytes(piece);
    }
}

constexpr int gs_unshuffle_threads = 256;

// Undoes rows with FILTER_BYTE_SHUFFLE; other rows are left alone.
extern "C" __global__ void __launch_bounds__(gs_unshuffle_threads)
gs_unshuffle(const UnfilterTables tables) {
    for (uint32_t row = blockIdx.x; row < tables.n_rows; row += gridDim.x) {
        if (tables.status[row] != STATUS_OK || !tables.decoded_nbytes) continue;
        if (tables.filter[row] != FILTER_BYTE_SHUFFLE) continue;
        for_pieces(tables, row, unshuffle_piece);
    }
}

// Transposes eight rows of eight bits: bit k of byte i becomes bit i of byte k.
GS_DEVICE uint64_t transpose_bits(uint64_t x) {
    uint64_t flipped = (x ^ x >> 7) & 0x00AA00AA00AA00AAull;
    x ^= flipped ^ flipped << 7;
    flipped = (x ^ x >> 14) & 0x0000CCCC0000CCCCull;
    x ^= flipped ^ flipped << 14;
    flipped = (x ^ x >> 28) & 0x00000000F0F0F0F0ull;
    return x ^ flipped ^ flipped << 28;
}

// Byte `byte` of the eight items 8 `group` to 8 `group` + 7, with the first item lowest.
GS_DEVICE uint64_t bytes_of_eight(const Piece& piece, uint32_t group, uint32_t byte) {
    const uint64_t stride = piece.n_items / 8;
    const uint8_t* at = piece.src + uint64_t(byte) * 8 * stride + group;
    uint64_t planes = 0;
    for (uint32_t bit = 0; bit < 8; bit++) {
        planes |= static_cast<uint64_t>(at[bit * stride]) << 8 * bit;
    }
    return transpose_bits(planes);
}

// Undoes eight items at once and writes them as words; the items must be aligned.
template <uint32_t SIZE>
GS_DEVICE void unshuffle_bits_of_eights(const Piece& piece) {
    for (uint32_t group = piece.first / 8 + threadIdx.x; group < piece.stop / 8;
         group += blockDim.x) {
        uint64_t columns[SIZE];
        for (uint32_t byte = 0; byte < SIZE; byte++) {
            columns[byte] = bytes_of_eight(piece, group, byte);
        }
        uint64_t* out = reinterpret_cast<uint64_t*>(piece.dst) + uint64_t(group) * SIZE;
        for (uint32_t word = 0; word < SIZE; word++) {
            uint64_t value = 0;
            for (uint32_t k = 0; k < 8; k++) {
                const uint32_t item = (8 * word + k) / SIZE;
                const uint64_t column = columns[(8 * word + k) % SIZE];
                value |= (column >> 8 * item & 255) << 8 * k;
            }
            out[word] = value;
        }
    }
}

GS_DEVICE void unshuffle_bits_of_bytes(const Piece& piece) {
    const uint32_t n_groups = (piece.stop - piece.first) / 8;
    for (uint32_t k = threadIdx.x; k < n_groups * piece.typesize; k += blockDim.x) {
        const uint32_t group = piece.first / 8 + k / piece.typesize;
        const uint32_t byte = k % piece.typesize;
        const uint64_t column = bytes_of_eight(piece, group, byte);
        uint8_t* out = piece.dst + uint64_t(group) * 8 * piece.typesize + byte;
        for (uint32_t item = 0; item < 8; item++) {
            out[uint64_t(item) * piece.typesize] =
                static_cast<uint8_t>(column >> 8 * item);
        }
    }
}

GS_DEVICE void unshuffle_bits_of_piece(const Piece& piece) {
    if (piece.n_items % 8) {
        const uint64_t first = uint64_t(piece.first) * piece.typesize;
        const uint32_t nbytes = (piece.stop - piece.first) * piece.typesize;
        copy_bytes(
            piece.dst + first, piece.src + first, nbytes, threadIdx.x, blockDim.x);
        return;
    }
    const bool is_aligned = (reinterpret_cast<uint64_t>(piece.dst) & 7) == 0;
    if (is_aligned && piece.typesize == 1) {
        unshuffle_bits_of_eights<1>(piece);
    } else if (is_aligned && piece.typesize == 2) {
        unshuffle_bits_of_eights<2>(piece);
    } else if (is_aligned && piece.typesize == 4) {
        unshuffle_bits_of_eights<4>(piece);
    } else if (is_aligned && piece.typesize == 8) {
        unshuffle_bits_of_eights<8>(piece);
    } else {
        unshuffle_bits_of_bytes(piece);
    }
}

constexpr int gs_unfilter_threads = 256;

// Undoes rows with either filter, for batches with bit shuffles; other rows are left
// alone.
extern "C" __global__ void __launch_bounds__(gs_unfilter_threads)
gs_unfilter(const UnfilterTables tables) {
    for (uint32_t row = blockIdx.x; row < tables.n_rows; row += gridDim.x) {
        if (tables.status[row] != STATUS_OK || !tables.decoded_nbytes) continue;
        const uint32_t filter = tables.filter[row];
        if (filter == FILTER_BIT_SHUFFLE) {
            for_pieces(tables, row, unshuffle_bits_of_piece);
        } else if (filter == FILTER_BYTE_SHUFFLE) {
            for_pieces(tables, row, unshuffle_piece);
        }
    }
}
