// The parameter of a scatter kernel, and the places of the bytes of a box.
//
// The wanted elements of one inner chunk (a row of the batch) form a box. Its bytes are
// numbered in the order of the output, with the innermost loop first:
//
//   at = ((... * length(loop 1) + i1) * length(loop 0) + i0) * run + byte in the run
//
// A run is contiguous in the inner chunk and in the output. Loops are the axes that
// remain after the host has merged axes. A loop has strides, or a list of members (for an
// axis that was indexed by integers). Values that change from row to row are in tables
// with an entry for each touched cell of an axis. The row's position on that axis is the
// index:
//
//   position of row --> cells[position]    offsets and length   (loops whose length varies)
//                   --> landings[position] offsets              (all other axes)
#pragma once

#include "scatter_cast.cuh"

constexpr int MAX_COLUMNS = 32;

// Byte offsets into the decoded inner chunk and into the output.
struct Landing {
    int64_t in_offset;
    int64_t out_offset;
};

// One touched cell of an axis. For a loop with members, `in_offset` is the index of the
// first member.
struct Cell {
    int64_t in_offset;
    int64_t out_offset;
    FastDivisor length;
};

struct Loop {
    int64_t in_stride;
    int64_t out_stride;
    const Cell* cells;         // null: `length` is the same for every row
    const uint32_t* position;  // of each row; null if `cells` is null
    const Landing* members;    // null: the loop has strides
    FastDivisor length;
};

struct Column {
    const Landing* landings;
    const uint32_t* position;
};

// R: largest number of loops, without the run.
template <int R>
struct Scatter {
    uint8_t* out;                 // address that a landing of 0 means
    const uint64_t* src;          // address of each row's decoded bytes; 0: missing
    const Status* status;         // rows with a status are skipped; null: no row has one
    const uint8_t* fill;          // fill value, repeated; 16-byte aligned
    const uint32_t* tile_bounds;  // first tile of each row, then n_tiles; null: all rows
                                  // have `tiles_per_row`
    const FastDivisor* planes;    // block size of each row that is still shuffled;
                                  // divisor 0: not shuffled; null: no row is
    int64_t in_base;
    FastDivisor tiles_per_row;
    FastDivisor fill_nbytes;      // multiple of 16 and of an element
    Transfer transfer;
    uint32_t n_rows;
    uint32_t n_tiles;
    uint32_t tile_log2;
    uint32_t item_log2;           // size of the items that the shuffle has split
    uint32_t decoded_nbytes;      // of an inner chunk; used for shuffled rows
    uint32_t in_bits;             // bitwise or of all strides and member offsets
    uint32_t out_bits;            // the same for the output
    uint32_t n_columns;
    uint32_t n_loops;
    Loop run;                     // length in bytes of the output
    Column columns[MAX_COLUMNS];
    Loop loops[R];
};

typedef Scatter<2> Scatter2;
typedef Scatter<4> Scatter4;
typedef Scatter<32> Scatter32;

// Lengths and members of the loops of one row. Few loops are kept in registers. Many
// loops are looked up again for every unit.
template <int R>
struct Box {
    FastDivisor lengths[R];
    const Landing* lists[R];

    GS_DEVICE void keep(int d, const FastDivisor& length, const Landing* members) {
        lengths[d] = length;
        lists[d] = members;
    }
    GS_DEVICE FastDivisor length(const Scatter<R>&, uint32_t, int d) const {
        return lengths[d];
    }
    GS_DEVICE const Landing* members(const Scatter<R>&, uint32_t, int d) const {
        return lists[d];
    }
};

template <>
struct Box<32> {
    GS_DEVICE void keep(int, const FastDivisor&, const Landing*) {}
    GS_DEVICE FastDivisor length(const Scatter32& p, uint32_t row, int d) const {
        const Loop& loop = p.loops[d];
        return loop.cells ? loop.cells[loop.position[row]].length : loop.length;
    }
    GS_DEVICE const Landing* members(const Scatter32& p, uint32_t row, int d) const {
        const Loop& loop = p.loops[d];
        if (loop.members == nullptr || loop.cells == nullptr) {
            return loop.members;
        }
        return loop.members + loop.cells[loop.position[row]].in_offset;
    }
};

// One row, as a warp works on it.
template <int R>
struct Row {
    uint32_t index;
    FastDivisor run;
    uint32_t box_nbytes;
    int64_t in_offset;
    int64_t out_offset;
    Box<R> box;
};

// Adds the offsets of one loop of a row. Returns the loop's length, and its members if it
// has any.
template <int R>
GS_DEVICE FastDivisor enter_loop(
    const Loop& loop, Row<R>& row, const Landing** members) {
    *members = loop.members;
    if (loop.cells == nullptr) {
        return loop.length;
    }
    const Cell cell = loop.cells[loop.position[row.index]];
    if (loop.members != nullptr) {
        *members = loop.members + cell.in_offset;
    } else {
        row.in_offset += cell.in_offset;
    }
    row.out_offset += cell.out_offset;
    return cell.length;
}

template <int R>
GS_DEVICE Row<R> row_of(const Scatter<R>& p, uint32_t index) {
    Row<R> row;
    const Landing* members;
    row.index = index;
    row.in_offset = p.in_base;
    row.out_offset = 0;
    for (uint32_t c = 0; c < p.n_columns; ++c) {
        const Landing landing = p.columns[c].landings[p.columns[c].position[index]];
        row.in_offset += landing.in_offset;
        row.out_offset += landing.out_offset;
    }
    row.run = enter_loop(p.run, row, &members);
    row.box_nbytes = row.run.divisor;
#pragma unroll(R <= 8 ? R : 1)
    for (int d = 0; d < R; ++d) {
        if (d < static_cast<int>(p.n_loops)) {
            const FastDivisor length = enter_loop(p.loops[d], row, &members);
            row.box.keep(d, length, members);
            row.box_nbytes *= length.divisor;
        }
    }
    return row;
}

// Place of one byte of a box, relative to the row's own offsets.
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
            uint32_t i = rest;
            if (d + 1 < static_cast<int>(p.n_loops)) {  // the outermost takes the rest
                const FastDivisor length = row.box.length(p, row.index, d);
                rest = fast_quotient(i, length);
                i -= rest * length.divisor;
            }
            const Landing* members = row.box.members(p, row.index, d);
            if (members != nullptr) {
                spot.in_offset += members[i].in_offset;
                spot.out_offset += members[i].out_offset;
            } else {
                spot.in_offset += p.loops[d].in_stride * i;
                spot.out_offset += p.loops[d].out_stride * i;
            }
        }
    }
    return spot;
}
