// Copies Deflate streams to addresses that nvCOMP accepts. It needs multiples of 4, but
// only for Deflate.
//
//   encoded   ..| stream A | Adler-32 | stream B | Adler-32 |..     at any byte
//   arena     | stream B | Adler-32 | . | stream A | Adler-32 |     in any order
//             ^ a multiple of 4         ^
#pragma once
#include "copy.cuh"
#include "deflate_format.cuh"

constexpr uint64_t DEFLATE_ALIGNMENT = 4;

// Room for copied streams. `used` counts the bytes in use; blocks take room in any order.
// `arena` is 16-aligned.
struct RealignRoom {
    uint64_t* used;
    uint64_t arena;
};

// Shared by the threads that move a stream.
struct Move {
    const uint8_t* src;
    uint8_t* dst;
};

// Copies a stream, with the zlib trailer behind it, to a multiple of 4, and sets its
// table entry to the new address. Call it from all threads of a block; ends with a
// barrier.
GS_DEVICE void realign_stream(
    uint64_t* stream_src, uint64_t stream_nbytes, const RealignRoom& room, Move& move) {
    const uint64_t nbytes = stream_nbytes + ZLIB_TRAILER_NBYTES;
    if (threadIdx.x == 0) {
        const uint64_t taken =
            (nbytes + DEFLATE_ALIGNMENT - 1) & ~(DEFLATE_ALIGNMENT - 1);
        const uint64_t place = room.arena + take_from(room.used, taken);
        move.src = reinterpret_cast<const uint8_t*>(*stream_src);
        move.dst = reinterpret_cast<uint8_t*>(place);
        *stream_src = place;
    }
    __syncthreads();
    copy_bytes(move.dst, move.src, nbytes, threadIdx.x, blockDim.x);
    __syncthreads();  // `move` was read by all before the next stream overwrites it
}
