// The same as scatter.cu, for batches that may have rows that are still byte-shuffled.
//
//   row      | plane 0 of a block | plane 1 | ... |     S planes: byte k of all its items
//              ^ word               ^ word              four items at once, transposed
//   output   | item | item | item | item | ...          in registers
//
// If distances are not multiples of four items, items are moved one by one. Rows that are
// not shuffled (a block size of 0) are moved as in scatter.cu. R is the same as there,
// but one kernel casts for any number of loops. Some launch bounds name a number of
// blocks, because otherwise the compiler spills registers to fit more blocks.
#include "scatter_move.cuh"

// Four fit more warps, but on sm_100 and sm_110 they spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
constexpr int PLANES_2_BLOCKS = 3;
#else
constexpr int PLANES_2_BLOCKS = 4;
#endif
constexpr int gs_scatter_planes_2_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_planes_2_threads, PLANES_2_BLOCKS)
gs_scatter_planes_2(const __grid_constant__ Scatter2 p) {
    scatter_tiles<2, false, true>(p);
}

constexpr int gs_scatter_planes_4_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_planes_4_threads)
gs_scatter_planes_4(const __grid_constant__ Scatter4 p) {
    scatter_tiles<4, false, true>(p);
}

constexpr int gs_scatter_planes_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_planes_32_threads)
gs_scatter_planes_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, false, true>(p);
}

constexpr int gs_scatter_castplanes_32_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_castplanes_32_threads, 4)
gs_scatter_castplanes_32(const __grid_constant__ Scatter32 p) {
    scatter_tiles<32, true, true>(p);
}
