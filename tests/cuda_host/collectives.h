// Barriers, shuffles, votes and fences, as kernels call them. They are macros because they
// note where in the kernel they stand.
#pragma once

#include <cstring>
#include <type_traits>

#include "fibers.h"

namespace gs_host {

inline void wait_at_barrier(Place place) {
    if (is_same_place(place, run.skipped)) return;
    run.current->place = place;
    run.current->state = State::AT_BARRIER;
    pause();
}

inline Fiber& meet(uint32_t mask, Collective kind, uint64_t gave, Place place) {
    Fiber& me = *run.current;
    if (!(mask >> me.index % WARP & 1)) die("a lane calls with a mask without it", place);
    me.mask = mask;
    me.collective = kind;
    me.gave = gave;
    me.place = place;
    me.state = State::AT_COLLECTIVE;
    pause();
    return me;
}

inline void meet_at_barrier(uint32_t mask, Place place) {
    if (!is_same_place(place, run.skipped)) meet(mask, Collective::SYNC, 0, place);
}

// Value of lane `from`. That of a lane which took no part is undefined on the device:
// here it is garbage.
template <class T>
T exchange(uint32_t mask, T value, unsigned from, Place place) {
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    const Fiber& me = meet(mask, Collective::SHUFFLE, bits, place);
    bits = me.seen_mask >> from & 1 ? me.seen[from] : 0xDEADBEEFDEADBEEFull;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned lane() { return run.current->index % WARP; }

inline unsigned vote(uint32_t mask, bool yes, Place place) {
    const Fiber& me = meet(mask, Collective::VOTE, yes, place);
    unsigned ballot = 0;
    for (unsigned i = 0; i < WARP; i++)
        if (me.seen_mask >> i & 1) ballot |= static_cast<unsigned>(me.seen[i]) << i;
    return ballot;
}

inline bool all_agree(uint32_t mask, bool yes, Place place) {
    const unsigned ballot = vote(mask, yes, place);
    return ballot == run.current->seen_mask;
}

// Lane a shuffle reads from; `width` divides the warp into groups of their own.
inline unsigned from_index(int source, int width = 32) {
    return (lane() & ~(width - 1)) | (source & (width - 1));
}
inline unsigned from_xor(int other, int width = 32) {
    const unsigned source = lane() ^ other;
    return (source & ~(width - 1)) <= (lane() & ~(width - 1)) ? source : lane();
}
inline unsigned from_up(unsigned delta, int width = 32) {
    return (lane() & (width - 1)) < delta ? lane() : lane() - delta;
}
inline unsigned from_down(unsigned delta, int width = 32) {
    return (lane() & (width - 1)) + delta >= static_cast<unsigned>(width)
               ? lane()
               : lane() + delta;
}

}  // namespace gs_host

#define GS_HOST_PLACE (::gs_host::Place{__FILE__, __LINE__})

#define __syncthreads() ::gs_host::wait_at_barrier(GS_HOST_PLACE)
#define GS_MASK_OR_ALL(...) (0xffffffffu __VA_OPT__(&(__VA_ARGS__)))
#define __syncwarp(...) \
    ::gs_host::meet_at_barrier(GS_MASK_OR_ALL(__VA_ARGS__), GS_HOST_PLACE)
#define __ballot_sync(mask, yes) ::gs_host::vote(mask, (yes) != 0, GS_HOST_PLACE)
#define __any_sync(mask, yes) \
    static_cast<int>(::gs_host::vote(mask, (yes) != 0, GS_HOST_PLACE) != 0)
#define __all_sync(mask, yes) \
    static_cast<int>(::gs_host::all_agree(mask, (yes) != 0, GS_HOST_PLACE))
#define __shfl_sync(mask, value, ...)                                                \
    ::gs_host::exchange(                                                             \
        mask, value, ::gs_host::from_index(__VA_ARGS__), GS_HOST_PLACE)
#define __shfl_xor_sync(mask, value, ...)                                            \
    ::gs_host::exchange(                                                             \
        mask, value, ::gs_host::from_xor(__VA_ARGS__), GS_HOST_PLACE)
#define __shfl_up_sync(mask, value, ...) \
    ::gs_host::exchange(mask, value, ::gs_host::from_up(__VA_ARGS__), GS_HOST_PLACE)
#define __shfl_down_sync(mask, value, ...)                                           \
    ::gs_host::exchange(                                                             \
        mask, value, ::gs_host::from_down(__VA_ARGS__), GS_HOST_PLACE)

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() { gs_host::die("__trap"); }
