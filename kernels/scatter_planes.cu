// As scatter.cu, for batches that may hold rows whose byte shuffle is still on.
//
//   row      | plane 0 of a block | plane 1 | ... |     S planes: byte k of all its items
//              ^ word               ^ word              four items at a time, transposed in
//   output   | item | item | item | item | ...          registers
//
// Where distances are no multiples of four items, one item at a time. Rows that are not
// shuffled (a block size of 0) go as in scatter.cu. R is as there; one kernel casts for all
// numbers of loops. Where launch bounds name a
// number of blocks, the compiler would spill registers to make room for more of them.
#include "scatter_move.cuh"

constexpr int gs_scatter_planes_2_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_scatter_planes_2_threads, 3)
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
