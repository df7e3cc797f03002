// The parameter of a scatter kernel, and the places of the bytes of a box.
//
// The wanted elements of one inner chunk (a row of the batch) form a box. Its bytes are
// numbered in the order of the output, with the innermost loop first:
//
//   at = ((... * length(loop 1) + i1) * length(loop 0) + i0) * run + byte in the run
//
// A run is contiguous in the inner chunk and in the output. Loops are the axes that
// remain after the host has merged axes. A loop has strides, or a list of members (for an
// axis that was indexed by integers). What changes from row to row is in tables:
//
//   row --> landings   where its box begins at both ends
//       --> extents    its length and its members, for each loop that needs them
#pragma once

#include "scatter_cast.cuh"

// Byte offsets into the decoded inner chunk and into the output.
struct Landing {
    int64_t in_offset;
    int64_t out_offset;
};

// What a loop has in one row.
struct Extent {
    FastDivisor length;
    uint32_t first_member;
};

struct Loop {
    int64_t in_stride;
    int64_t out_stride;
    const Extent* extents;   // of each row; null: the same for every row
    const Landing* members;  // null: the loop has strides
    FastDivisor length;      // used if `extents` is null
};

// R: largest number of loops, without the run.
template <int R>
struct Scatter {
    uint8_t* out;                 // address that an offset of 0 means
    const uint64_t* src;          // address of each row's decoded bytes; 0: missing
    const Status* status;         // rows with a status are skipped; null: no row has one
    const Landing* landings;      // of each row
    const uint32_t* tile_bounds;  // first tile of each row, then n_tiles
    const uint8_t* fill;          // fill value, repeated; 16-byte aligned
    FastDivisor fill_nbytes;      // multiple of 16 and of an element
    Transfer transfer;
    uint32_t n_rows;
    uint32_t n_tiles;
    uint32_t tile_log2;
    uint32_t in_bits;             // bitwise or of all strides and member offsets
    uint32_t out_bits;            // the same for the output
    uint32_t n_loops;
    Loop run;                     // length in bytes of the output
    Loop loops[R];
};

typedef Scatter<4> Scatter4;
typedef Scatter<32> Scatter32;

// Length and members of a loop, as one row has them.
struct Span {
    FastDivisor length;
    const Landing* members;
};

GS_DEVICE Span span_of(const Loop& loop, uint32_t row) {
    if (loop.extents == nullptr) {
        return {loop.length, loop.members};
    }
    const Extent extent = loop.extents[row];
    return {
        extent.length, loop.members ? loop.members + extent.first_member : nullptr};
}

// The loops of one row. Few of them are kept in registers; many are looked up again for
// every unit.
template <int R>
struct Box {
    Span spans[R];

    GS_DEVICE void keep(int d, const Span& span) { spans[d] = span; }
    GS_DEVICE Span span(const Scatter<R>&, uint32_t, int d) const { return spans[d]; }
};

template <>
struct Box<32> {
    GS_DEVICE void keep(int, const Span&) {}
    GS_DEVICE Span span(const Scatter32& p, uint32_t row, int d) const {
        return span_of(p.loops[d], row);
    }
};

// One row, as a warp works on it. `src` and `out` are where its box begins; `src` is
// meaningless if the inner chunk is missing.
template <int R>
struct Row {
    uint32_t index;
    bool is_missing;
    uint64_t src;
    uint8_t* out;
    FastDivisor run;
    uint32_t box_nbytes;
    Box<R> box;
};

template <int R>
GS_DEVICE Row<R> row_of(const Scatter<R>& p, uint32_t index) {
    Row<R> row;
    const Landing landing = p.landings[index];
    row.index = index;
    row.is_missing = p.src[index] == 0;
    row.src = p.src[index] + landing.in_offset;
    row.out = p.out + landing.out_offset;
    row.run = span_of(p.run, index).length;
    row.box_nbytes = row.run.divisor;
#pragma unroll(R <= 8 ? R : 1)
    for (int d = 0; d < R; ++d) {
        if (d < static_cast<int>(p.n_loops)) {
            const Span span = span_of(p.loops[d], index);
            row.box.keep(d, span);
            row.box_nbytes *= span.length.divisor;
        }
    }
    return row;
}

// Place of one byte of a box, relative to the beginning of the box.
struct Spot {
    int64_t in_offset;
    int64_t out_offset;
    uint32_t run_offset;  // bytes since the start of the run in the output
};

template <int R>
GS_DEVICE Spot spot_of(const Scatter<R>& p, const Row<R>& row, uint32_t at) {
    const Transfer& transfer = p.transfer;
    uint32_t rest = p.n_loops ? fast_quotient(at, row.run) : 0;
    Spot spot;
    spot.run_offset = at - rest * row.run.divisor;
    spot.in_offset = static_cast<int64_t>(spot.run_offset >> transfer.out_log2)
                     << transfer.in_log2;
    spot.out_offset = spot.run_offset;
#pragma unroll(R <= 8 ? R : 1)
    for (int d = 0; d < R; ++d) {
        if (d < static_cast<int>(p.n_loops)) {
            const Span span = row.box.span(p, row.index, d);
            uint32_t i = rest;
            if (d + 1 < static_cast<int>(p.n_loops)) {  // the outermost takes the rest
                rest = fast_quotient(i, span.length);
                i -= rest * span.length.divisor;
            }
            if (span.members != nullptr) {
                spot.in_offset += span.members[i].in_offset;
                spot.out_offset += span.members[i].out_offset;
            } else {
                spot.in_offset += p.loops[d].in_stride * i;
                spot.out_offset += p.loops[d].out_stride * i;
            }
        }
    }
    return spot;
}
