// Shared by all kernels: integer types, statuses of inner chunks, reads of untrusted
// bytes, and division by a number that is known before the launch.
//
// This file has no warp intrinsics, because it is also compiled as plain C++ for a native
// fuzzing loop over the parsers in the *_format.cuh files. `GS_DEVICE` marks such
// functions.
#pragma once

#if defined(__CUDACC_RTC__)
// NVRTC ships no standard headers.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif

#if defined(__CUDACC__)
#define GS_DEVICE __device__ __forceinline__
#else
#define GS_DEVICE inline
#endif

// Dynamic shared memory of a kernel, as an array of `type` called `name`. The host shim
// gives each block an allocation of exactly the launched size.
#if defined(GS_CUDA_HOST)
#define GS_DYNAMIC_SHARED(type, name) \
    type* const name = static_cast<type*>(gs_host::dynamic_shared())
#else
#define GS_DYNAMIC_SHARED(type, name)                              \
    extern __shared__ __align__(16) unsigned char gs_dynamic_shared[]; \
    type* const name = reinterpret_cast<type*>(gs_dynamic_shared)
#endif

// Status of one inner chunk. The first status other than STATUS_OK is kept. Kernels skip
// rows that have one.
typedef uint32_t Status;
constexpr Status STATUS_OK = 0;
constexpr Status STATUS_CHECKSUM = 1;  // the stored checksum differs
constexpr Status STATUS_FORMAT = 2;    // the bytes contradict themselves or end early
constexpr Status STATUS_SIZE = 3;      // claims another decoded size than the metadata
constexpr Status STATUS_HOST = 4;      // may be valid, but the host has to decode it
constexpr Status STATUS_DECODER = 5;   // the vendor's decoder refused it
constexpr Status STATUS_SHORT = 6;     // the decoder wrote another number of bytes
constexpr Status STATUS_OVERRUN = 7;   // bytes around the row were overwritten
constexpr uint32_t STATUS_COUNT = 8;

// Encoded bytes that nobody has checked yet. Call `holds` before every read.
struct ByteSpan {
    const uint8_t* data;
    uint64_t nbytes;
};

// Whether [offset, offset + nbytes) is within the span; the sum cannot overflow.
GS_DEVICE bool holds(const ByteSpan& span, uint64_t offset, uint64_t nbytes) {
    return offset <= span.nbytes && nbytes <= span.nbytes - offset;
}

// Little-endian reads at any alignment; the caller has called `holds`.
GS_DEVICE uint32_t read_u8(const ByteSpan& span, uint64_t offset) {
    return span.data[offset];
}

GS_DEVICE uint32_t read_u16(const ByteSpan& span, uint64_t offset) {
    return read_u8(span, offset) | read_u8(span, offset + 1) << 8;
}

GS_DEVICE uint32_t read_u24(const ByteSpan& span, uint64_t offset) {
    return read_u16(span, offset) | read_u8(span, offset + 2) << 16;
}

GS_DEVICE uint32_t read_u32(const ByteSpan& span, uint64_t offset) {
    return read_u16(span, offset) | read_u16(span, offset + 2) << 16;
}

GS_DEVICE uint64_t read_u64(const ByteSpan& span, uint64_t offset) {
    return static_cast<uint64_t>(read_u32(span, offset)) |
           static_cast<uint64_t>(read_u32(span, offset + 4)) << 32;
}

// Divides any uint32_t by a `divisor` >= 1 without a division instruction (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994, figure 4.1).
// With l = ceil(log2(divisor)):
//   magic = floor(2^32 * (2^l - divisor) / divisor) + 1
//   shift_first = min(l, 1), shift_last = max(l - 1, 0)
struct FastDivisor {
    uint32_t divisor;
    uint32_t magic;
    uint32_t shift_first;
    uint32_t shift_last;
};

GS_DEVICE FastDivisor fast_divisor(uint32_t divisor) {
    uint32_t log2 = 0;
    while (log2 < 32 && static_cast<uint64_t>(1) << log2 < divisor) ++log2;
    const uint64_t beyond = (static_cast<uint64_t>(1) << log2) - divisor;
    FastDivisor by;
    by.divisor = divisor;
    by.magic = static_cast<uint32_t>((beyond << 32) / divisor) + 1;
    by.shift_first = log2 ? 1 : 0;
    by.shift_last = log2 ? log2 - 1 : 0;
    return by;
}

GS_DEVICE uint32_t fast_quotient(uint32_t n, const FastDivisor& by) {
    const uint32_t high =
        static_cast<uint32_t>(static_cast<uint64_t>(by.magic) * n >> 32);
    return (high + ((n - high) >> by.shift_first)) >> by.shift_last;
}

GS_DEVICE uint32_t fast_remainder(
    uint32_t n, uint32_t quotient, const FastDivisor& by) {
    return n - quotient * by.divisor;
}

#if defined(__CUDACC__)
// Loads and stores of what is used once: caches keep other lines rather than these.
template <class Word>
GS_DEVICE Word load_streamed(uint64_t at) {
    return __ldcs(reinterpret_cast<const Word*>(at));
}

template <class Word>
GS_DEVICE void store_streamed(uint8_t* to, const Word& word) {
    __stcs(reinterpret_cast<Word*>(to), word);
}

// Adds to a counter and returns its old value.
GS_DEVICE uint64_t take_from(uint64_t* counter, uint64_t n) {
    typedef unsigned long long Word;  // the 64-bit type of CUDA's atomics
    return atomicAdd(reinterpret_cast<Word*>(counter), static_cast<Word>(n));
}

// Sets the status of row `row`, unless the row already has one.
GS_DEVICE void fail_row(Status* status, uint64_t row, Status why) {
    atomicCAS(status + row, STATUS_OK, why);
}
#endif
