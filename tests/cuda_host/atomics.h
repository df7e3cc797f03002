// Atomic operations. Threads take turns, so each is a plain read and write.
#pragma once

#include <type_traits>

#include "fibers.h"

namespace gs_host {

// In pseudo-random schedules other threads may come in between before an atomic.
inline void maybe_pause() {
    if (run.schedule >= 2 && next_random() % 8 == 0) pause();
}

template <class T, class... Allowed>
constexpr bool is_one_of = (std::is_same_v<T, Allowed> || ...);

template <class T>
constexpr bool is_word =
    is_one_of<T, int, unsigned, long, unsigned long, long long, unsigned long long>;

template <class T, class F>
T update(T* at, F f) {
    maybe_pause();
    const T old = *at;
    *at = f(old);
    return old;
}

}  // namespace gs_host

template <class T>
T atomicAdd(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T> || std::is_floating_point_v<T>);
    return gs_host::update(at, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_one_of<T, int, unsigned>);
    return gs_host::update(at, [=](T old) { return static_cast<T>(old - value); });
}
template <class T>
T atomicMin(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T>);
    return gs_host::update(at, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T>);
    return gs_host::update(at, [=](T old) { return value > old ? value : old; });
}
template <class T>
T atomicAnd(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T>);
    return gs_host::update(at, [=](T old) { return old & value; });
}
template <class T>
T atomicOr(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T>);
    return gs_host::update(at, [=](T old) { return old | value; });
}
template <class T>
T atomicXor(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T>);
    return gs_host::update(at, [=](T old) { return old ^ value; });
}
template <class T>
T atomicExch(T* at, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T> || std::is_same_v<T, float>);
    return gs_host::update(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
    static_assert(gs_host::is_word<T> || std::is_same_v<T, unsigned short>);
    return gs_host::update(at, [=](T old) { return old == expected ? value : old; });
}
