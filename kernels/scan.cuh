// Prefix sums over the threads of one block.
//
//   values      | 3 1 4 1 | 5 9 2 6 | ...     one for each thread
//   in a warp   | 0 3 4 8 | 0 5 14 16 | ...   by shuffles, log2(32) steps
//   of warps    | 0         9         | ...   sums of the warps, scanned by warp 0
#pragma once
#include "common.cuh"

constexpr uint32_t WARP_LANES = 32;
constexpr uint32_t ALL_LANES = 0xffffffffu;

// Sum of `value` over this lane and all lower lanes.
template <class T>
GS_DEVICE T inclusive_sum_of_warp(T value) {
    const uint32_t lane = threadIdx.x % WARP_LANES;
    for (uint32_t distance = 1; distance < WARP_LANES; distance *= 2) {
        const T before = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

// Sum of `value` over the lanes of the warp, in every lane.
template <class T>
GS_DEVICE T sum_of_warp(T value) {
    for (uint32_t distance = WARP_LANES / 2; distance; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

// Sum of `value` over all lower threads; `total` is the sum over all threads. Call it
// from all threads of a block of whole warps. `until_warp` is shared memory with one
// entry for each warp. Ends with a barrier.
template <class T, uint32_t WARPS>
GS_DEVICE T exclusive_sum_of_block(T value, T& total, T (&until_warp)[WARPS]) {
    static_assert(WARPS <= WARP_LANES, "one warp scans the sums of all");
    const uint32_t warp = threadIdx.x / WARP_LANES;
    const T inclusive = inclusive_sum_of_warp(value);
    if (threadIdx.x % WARP_LANES == WARP_LANES - 1) until_warp[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        const uint32_t lane = threadIdx.x;
        const T sum = inclusive_sum_of_warp(lane < WARPS ? until_warp[lane] : T(0));
        if (lane < WARPS) until_warp[lane] = sum;
    }
    __syncthreads();
    total = until_warp[WARPS - 1];
    const T before = warp ? until_warp[warp - 1] : T(0);
    __syncthreads();
    return before + inclusive - value;
}
