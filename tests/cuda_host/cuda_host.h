// Executes CUDA kernel sources on the CPU: each CUDA thread is a fiber, one block runs at
// a time, and a fiber runs until it waits at a barrier or a warp collective.
//
//   launch -> for every block, in the schedule's order
//               poison shared memory
//               until every fiber has returned:
//                 pass over the fibers, in the schedule's order:
//                   READY, not held back -> runs to its next barrier, collective, or end
//                 release the warps whose lanes have all arrived
//                 release the block once all its threads are at one barrier
//                 nobody ran, nobody was released -> a pass with those held back;
//                   nobody even then -> the kernel hangs: die
//
// Schedules: 0 ascending, 1 descending, n >= 2 pseudo-random with seed n (the order of
// blocks, the order of threads in every pass, and pauses before atomics). Odd ones from 3
// on also hold back a random half of the warps, or of the lanes of every warp, until all
// others are stuck, and then draw another half: without that the others could not run
// ahead into the next round, past a place where a trailing barrier is missing. A kernel
// with a missing barrier gives different results in different schedules.
//
// Not modelled: weak memory order, blocks side by side, coalescing, bank conflicts.
// Misuse dies with the kernel's source line: a barrier that part of the block skips or
// meets elsewhere, lanes that disagree about a collective or its mask.
#pragma once

// All standard headers come first: they use some of the words that are defined below.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fibers.h"
#include "schedule.h"

#define GS_CUDA_HOST 1
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
// One section, so that all of it can be poisoned before each block.
#define __shared__ static __attribute__((section("gs_shared")))
#define __grid_constant__
// Not in place everywhere: the scatter kernels would take g++ three times as long.
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define GS_VECTOR2(name, scalar, align)                          \
    struct alignas(align) name {                                 \
        scalar x, y;                                             \
    };                                                           \
    inline name make_##name(scalar x, scalar y) { return {x, y}; }
#define GS_VECTOR4(name, scalar, align)                                      \
    struct alignas(align) name {                                             \
        scalar x, y, z, w;                                                   \
    };                                                                       \
    inline name make_##name(scalar x, scalar y, scalar z, scalar w) {        \
        return {x, y, z, w};                                                 \
    }
GS_VECTOR2(uchar2, unsigned char, 2)
GS_VECTOR4(uchar4, unsigned char, 4)
GS_VECTOR2(ushort2, unsigned short, 4)
GS_VECTOR4(ushort4, unsigned short, 8)
GS_VECTOR2(int2, int, 8)
GS_VECTOR4(int4, int, 16)
GS_VECTOR2(uint2, unsigned, 8)
GS_VECTOR4(uint4, unsigned, 16)
GS_VECTOR2(float2, float, 8)
GS_VECTOR4(float4, float, 16)
GS_VECTOR2(longlong2, long long, 16)
GS_VECTOR2(ulonglong2, unsigned long long, 16)
GS_VECTOR2(double2, double, 16)

#define threadIdx (::gs_host::run.current->thread)
#define blockIdx (::gs_host::run.block)
#define blockDim (::gs_host::run.block_dim)
#define gridDim (::gs_host::run.grid_dim)
#define warpSize 32

#include "collectives.h"
#include "atomics.h"
#include "intrinsics.h"
