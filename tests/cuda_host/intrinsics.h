// Intrinsics of one thread: integers, bits, floats, loads and stores.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// ---- integers and bits

inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
    return static_cast<int>(static_cast<int64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift < 32 ? shift : 32) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift < 32 ? shift : 32));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i;
        unsigned byte = static_cast<unsigned>(both >> (pick & 7) * 8) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long reversed = 0;
    for (int i = 0; i < 64; i++) reversed |= (x >> i & 1) << (63 - i);
    return reversed;
}
inline unsigned __brev(unsigned x) { return static_cast<unsigned>(__brevll(x) >> 32); }

template <class T>
constexpr T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
    return a < b ? b : a;
}

// ---- floats: the same bits, and operations that are never contracted

template <class To, class From>
To gs_host_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return gs_host_bits<unsigned>(x); }
inline int __float_as_int(float x) { return gs_host_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return gs_host_bits<float>(x); }
inline float __int_as_float(int x) { return gs_host_bits<float>(x); }
inline long long __double_as_longlong(double x) { return gs_host_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return gs_host_bits<double>(x); }
// A GPU makes one NaN in single precision, whatever the operands. In double precision its
// bits are not promised; here no host would make them.
inline float gs_host_nan(float x) { return x == x ? x : __uint_as_float(0x7fffffff); }
inline double gs_host_nan(double x) {
    return x == x ? x : __longlong_as_double(0x7fffffffffffffff);
}
inline float __fmaf_rn(float a, float b, float c) {
    return gs_host_nan(std::fmaf(a, b, c));
}
inline float __fmul_rn(float a, float b) { return gs_host_nan(a * b); }
inline float __fadd_rn(float a, float b) { return gs_host_nan(a + b); }
inline float __fdiv_rn(float a, float b) { return gs_host_nan(a / b); }
inline double __dmul_rn(double a, double b) { return gs_host_nan(a * b); }
inline double __dadd_rn(double a, double b) { return gs_host_nan(a + b); }
inline double __ddiv_rn(double a, double b) { return gs_host_nan(a / b); }
inline float __double2float_rn(double x) {
    return gs_host_nan(static_cast<float>(x));
}

// ---- loads and stores with cache hints; a misaligned address dies under UBSan

#define GS_LOAD(name)                \
    template <class T>               \
    T name(const T* at) {            \
        return *at;                  \
    }
GS_LOAD(__ldg)
GS_LOAD(__ldca)
GS_LOAD(__ldcg)
GS_LOAD(__ldcs)
GS_LOAD(__ldlu)
GS_LOAD(__ldcv)
#define GS_STORE(name)                                    \
    template <class T>                                    \
    void name(T* at, std::common_type_t<T> value) {       \
        *at = value;                                      \
    }
GS_STORE(__stwb)
GS_STORE(__stcg)
GS_STORE(__stcs)
GS_STORE(__stwt)
