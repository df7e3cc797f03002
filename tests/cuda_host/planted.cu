// Kernels for the tests of the host shim: right ones, and ones with a planted bug.
#include "common.cuh"

struct Pair {
    uint64_t first;
    uint16_t second;
};

struct alignas(16) Wide {
    uint4 value;
    uint8_t tail;
};

constexpr int gs_reverse_threads = 256;
// Each block of `out` is that of `in` backwards.
extern "C" __global__ void __launch_bounds__(gs_reverse_threads)
    gs_reverse(const uint32_t* in, uint32_t* out) {
    __shared__ uint32_t tile[gs_reverse_threads];
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = in[i];
    __syncthreads();
    out[i] = tile[blockDim.x - 1 - threadIdx.x];
}

constexpr int gs_reverse_unguarded_threads = 256;
// Planted: `gs_reverse` without its barrier.
extern "C" __global__ void __launch_bounds__(gs_reverse_unguarded_threads)
    gs_reverse_unguarded(const uint32_t* in, uint32_t* out) {
    __shared__ uint32_t tile[gs_reverse_unguarded_threads];
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = in[i];
    out[i] = tile[blockDim.x - 1 - threadIdx.x];
}

constexpr int gs_reverse_warps_threads = 256;
// As `gs_reverse` within each warp; planted: with `guarded` false, no __syncwarp.
extern "C" __global__ void __launch_bounds__(gs_reverse_warps_threads)
    gs_reverse_warps(const uint32_t* in, uint32_t* out, bool guarded) {
    __shared__ uint32_t tile[gs_reverse_warps_threads];
    tile[threadIdx.x] = in[threadIdx.x];
    if (guarded) __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x ^ 31];
}

constexpr int gs_last_block_threads = 32;
// Planted: blocks race for one place.
extern "C" __global__ void __launch_bounds__(gs_last_block_threads)
    gs_last_block(uint32_t* out) {
    *out = blockIdx.x;
}

constexpr int gs_where_threads = 1024;
// The place of every thread in a grid and a block of three dimensions.
extern "C" __global__ void __launch_bounds__(gs_where_threads) gs_where(uint32_t* out) {
    const uint32_t block =
        blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint32_t thread =
        threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + thread] += block * threads + thread;
}

constexpr int gs_parameters_threads = 1;
extern "C" __global__ void __launch_bounds__(gs_parameters_threads) gs_parameters(
    const __grid_constant__ Pair pair, uint8_t byte, const Wide wide, double real,
    const uint32_t* null, uint64_t* out) {
    out[0] = pair.first;
    out[1] = pair.second;
    out[2] = byte;
    out[3] = wide.value.w;
    out[4] = wide.tail;
    out[5] = static_cast<uint64_t>(real);
    out[6] = null == nullptr;
    out[7] = reinterpret_cast<uint64_t>(&wide) % 16;
}

constexpr int gs_shuffles_threads = 64;
// Every shuffle and vote, in groups of `width` lanes; 10 columns of results.
extern "C" __global__ void __launch_bounds__(gs_shuffles_threads)
    gs_shuffles(uint64_t* out, int width) {
    const int i = threadIdx.x;
    const uint32_t all = 0xffffffffu;
    uint64_t* row = out + 10 * i;
    row[0] = __shfl_sync(all, 1000ull + i, 3, width);
    row[1] = __shfl_up_sync(all, static_cast<uint32_t>(i), 2, width);
    row[2] = __shfl_down_sync(all, i, 2, width);
    row[3] = __shfl_xor_sync(all, i, 5, width);
    row[4] = __ballot_sync(all, i % 3 == 0);
    row[5] = __any_sync(all, i == 40);
    row[6] = __all_sync(all, i < 40);
    row[7] = 0;
    // Groups of one warp that meet on their own, a different number of times each.
    const uint32_t mask = i & 1 ? 0xaaaaaaaau : 0x55555555u;
    for (int k = 0; k <= (i & 1); k++)
        row[7] += __shfl_sync(mask, static_cast<uint32_t>(i), 30 + (i & 1));
    // Lanes that have returned are not waited for.
    if (i % 32 >= 16) return;
    row[8] = __ballot_sync(all, 1);
    row[9] = __all_sync(all, 1);
}

constexpr int gs_atomics_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_atomics_threads)
    gs_atomics(uint32_t* out, uint64_t* wide, float* real) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(out + 0, i);
    atomicMax(out + 1, i);
    atomicMin(out + 2, i);
    atomicOr(out + 3, 1u << i % 32);
    atomicAnd(out + 4, ~(1u << i % 16));
    atomicXor(out + 5, i);
    atomicSub(out + 6, 1u);
    if (atomicCAS(out + 7, 0u, i + 1) == 0) atomicExch(out + 8, i);
    atomicAdd(wide, static_cast<uint64_t>(1) << 33);
    atomicAdd(real, 1.0f);
    fail_row(out, 9, i % 2 ? STATUS_SIZE : STATUS_FORMAT);
}

constexpr int gs_intrinsics_threads = 256;
// Bit and integer intrinsics of a, b, c; 21 columns of results.
extern "C" __global__ void __launch_bounds__(gs_intrinsics_threads) gs_intrinsics(
    const uint32_t* a, const uint32_t* b, const uint32_t* c, uint64_t* out,
    uint32_t n) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t x = __ldg(a + i), y = b[i], z = c[i];
    const uint64_t wide = static_cast<uint64_t>(x) << 32 | y;
    uint64_t* row = out + 21 * static_cast<uint64_t>(i);
    row[0] = __umulhi(x, y);
    row[1] = static_cast<uint32_t>(__mulhi(static_cast<int>(x), static_cast<int>(y)));
    row[2] = __umul64hi(wide, wide ^ z);
    row[3] = __funnelshift_r(x, y, z);
    row[4] = __funnelshift_l(x, y, z);
    row[5] = __funnelshift_rc(x, y, z);
    row[6] = __funnelshift_lc(x, y, z);
    row[7] = __byte_perm(x, y, z & 0xffff);
    row[8] = __popc(x);
    row[9] = __popcll(wide);
    row[10] = __ffs(static_cast<int>(x));
    row[11] = __clz(static_cast<int>(x));
    row[12] = __clzll(static_cast<long long>(wide));
    row[13] = __brev(x);
    row[14] = __brevll(wide);
    row[15] = __float_as_uint(__uint_as_float(x & 0x7f7fffffu));
    row[16] = min(x, y);
    row[17] = max(x, y);
    row[18] = __ffsll(static_cast<long long>(wide));
    row[19] = static_cast<uint64_t>(__double_as_longlong(static_cast<double>(x)));
    row[20] = __float_as_uint(static_cast<float>(x) * static_cast<float>(y) + 1.0f);
}

constexpr int gs_divide_threads = 256;
extern "C" __global__ void __launch_bounds__(gs_divide_threads) gs_divide(
    const uint32_t* numbers, const FastDivisor* divisors, uint32_t* out, uint32_t n) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[2 * i] = fast_quotient(numbers[i], divisors[i]);
    out[2 * i + 1] = fast_remainder(numbers[i], out[2 * i], divisors[i]);
}

constexpr int gs_reads_threads = 1;
extern "C" __global__ void __launch_bounds__(gs_reads_threads)
    gs_reads(const uint8_t* data, uint64_t nbytes, uint64_t* out) {
    const ByteSpan span = {data, nbytes};
    out[0] = read_u8(span, 1);
    out[1] = read_u16(span, 1);
    out[2] = read_u24(span, 1);
    out[3] = read_u32(span, 1);
    out[4] = read_u64(span, 1);
    out[5] = holds(span, nbytes, 0);
    out[6] = holds(span, 0, nbytes);
    out[7] = holds(span, 1, nbytes);
    out[8] = holds(span, nbytes + 1, 0);
    out[9] = holds(span, 2, ~0ull);
    out[10] = holds(span, ~0ull, 2);
}

constexpr int gs_shared_at_start_threads = 32;
// What the shared memory of a block holds before anything is written to it.
extern "C" __global__ void __launch_bounds__(gs_shared_at_start_threads)
    gs_shared_at_start(uint32_t* out) {
    __shared__ uint32_t fixed[gs_shared_at_start_threads];
    GS_DYNAMIC_SHARED(uint32_t, dynamic);
    out[blockIdx.x * 64 + threadIdx.x] = fixed[threadIdx.x];
    out[blockIdx.x * 64 + 32 + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 7;
}

// ---- the process dies

constexpr int gs_returned_threads = 64;
extern "C" __global__ void __launch_bounds__(gs_returned_threads) gs_returned() {
    if (threadIdx.x >= 48) return;
    __syncthreads();
}

constexpr int gs_two_barriers_threads = 64;
extern "C" __global__ void __launch_bounds__(gs_two_barriers_threads) gs_two_barriers() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

constexpr int gs_incomplete_mask_threads = 64;
extern "C" __global__ void __launch_bounds__(gs_incomplete_mask_threads)
    gs_incomplete_mask() {
    if (threadIdx.x < 16) __shfl_sync(0xffffffffu, 1u, 0);
    __syncthreads();
}

constexpr int gs_foreign_mask_threads = 64;
extern "C" __global__ void __launch_bounds__(gs_foreign_mask_threads)
    gs_foreign_mask() {
    __syncwarp(0x0000ffffu);
}

constexpr int gs_other_collective_threads = 32;
extern "C" __global__ void __launch_bounds__(gs_other_collective_threads)
    gs_other_collective() {
    if (threadIdx.x < 16)
        __syncwarp();
    else
        __ballot_sync(0xffffffffu, 1);
}

constexpr int gs_two_shuffles_threads = 32;
extern "C" __global__ void __launch_bounds__(gs_two_shuffles_threads)
    gs_two_shuffles() {
    if (threadIdx.x < 16)
        __shfl_sync(0xffffffffu, 1u, 0);
    else
        __shfl_sync(0xffffffffu, 1u, 1);
}

constexpr int gs_deep_threads = 32;
GS_DEVICE uint32_t pile_up(uint32_t depth) {
    volatile uint8_t page[4096];
    page[depth % 4096] = 1;
    return page[0];
}
extern "C" __global__ void __launch_bounds__(gs_deep_threads)
    gs_deep(uint32_t* out, uint32_t nbytes) {
    // Grows the stack by what the launch says, downwards into the guard page.
    volatile uint8_t* const heap = static_cast<uint8_t*>(__builtin_alloca(nbytes));
    heap[0] = 1;
    out[threadIdx.x] = heap[0] + pile_up(nbytes);
}

// ---- the sanitizers find it

constexpr int gs_overrun_threads = 32;
// Planted: element `index` of one of three arrays of 32 elements.
extern "C" __global__ void __launch_bounds__(gs_overrun_threads)
    gs_overrun(uint32_t* out, uint32_t which, uint32_t index) {
    __shared__ uint32_t fixed[gs_overrun_threads];
    GS_DYNAMIC_SHARED(uint32_t, dynamic);
    uint32_t* const array = which == 0 ? out : which == 1 ? fixed : dynamic;
    array[index] = 1;
}

constexpr int gs_misaligned_threads = 32;
extern "C" __global__ void __launch_bounds__(gs_misaligned_threads)
    gs_misaligned(uint8_t* out, uint32_t offset) {
    *reinterpret_cast<uint4*>(out + offset) = make_uint4(1, 2, 3, 4);
}
