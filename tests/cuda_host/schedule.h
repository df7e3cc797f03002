// Runs a launch: blocks one after the other, passes over the fibers of a block, and the
// release of those that wait.
#pragma once

#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fibers.h"

extern "C" {
// Bounds of the section that holds static shared memory; absent where there is none.
extern unsigned char __start_gs_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_gs_shared[] __attribute__((weak, visibility("hidden")));
}

namespace gs_host {

// ---- releasing those who wait

inline bool has_arrived(const Fiber& fiber, const Fiber& first) {
    if (fiber.state != State::AT_COLLECTIVE) return false;
    if (fiber.mask != first.mask) return false;
    if (fiber.collective != first.collective)
        die("lanes of one mask meet in different collectives", first.place);
    if (!is_same_place(fiber.place, first.place))
        die("lanes of one mask meet at different places", first.place);
    return true;
}

// Releases the lanes that wait with `first` for its mask, once they are all there.
// Lanes that have returned are not waited for, as on the device.
inline bool release_collective(Fiber& first) {
    Fiber* const warp = &run.fibers[first.index / WARP * WARP];
    const unsigned base = first.index / WARP * WARP;
    uint32_t arrived = 0;
    for (unsigned lane = 0; lane < WARP && base + lane < run.threads; lane++) {
        if (!(first.mask >> lane & 1) || warp[lane].state == State::DONE) continue;
        if (!has_arrived(warp[lane], first)) return false;
        arrived |= 1u << lane;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(arrived >> lane & 1)) continue;
        Fiber& fiber = warp[lane];
        for (unsigned other = 0; other < WARP; other++)
            if (arrived >> other & 1) fiber.seen[other] = warp[other].gave;
        fiber.seen_mask = arrived;
    }
    for (unsigned lane = 0; lane < WARP; lane++)
        if (arrived >> lane & 1) warp[lane].state = State::READY;
    return true;
}

inline bool release_barrier() {
    const Fiber* first = nullptr;
    for (unsigned i = 0; i < run.threads; i++) {
        const Fiber& fiber = run.fibers[i];
        if (fiber.state == State::READY || fiber.state == State::AT_COLLECTIVE)
            return false;
        if (fiber.state == State::AT_BARRIER && !first) first = &fiber;
    }
    if (!first) return false;
    if (run.live != run.threads)
        die("a barrier after part of the block has returned", first->place);
    for (unsigned i = 0; i < run.threads; i++) {
        Fiber& fiber = run.fibers[i];
        if (!is_same_place(fiber.place, first->place))
            die("part of the block waits at another barrier", first->place);
        fiber.state = State::READY;
    }
    return true;
}

inline void die_hanging() {
    for (unsigned i = 0; i < run.threads; i++) {
        run.current = &run.fibers[i];
        if (run.current->state == State::AT_COLLECTIVE)
            die("hangs: lanes of the mask never arrive", run.current->place);
    }
    die("hangs");
}

// ---- holding back: some threads wait until nobody else can go on

// Draws whom to hold back: whole warps, or the same lanes of all warps.
inline void draw_held() {
    if (run.schedule < 2 || run.schedule % 2 == 0) return;
    const uint64_t drawn = next_random();
    run.held_is_by_warp = drawn >> 63;
    run.held = static_cast<uint32_t>(drawn >> 8);
}

inline bool is_held(const Fiber& fiber) {
    const unsigned bit = run.held_is_by_warp ? fiber.index / WARP : fiber.index % WARP;
    return run.held >> bit & 1;
}

// Whether anything happened.
inline bool run_pass() {
    bool progress = false;
    const Order order = next_order(run.threads);
    for (unsigned k = 0; k < run.threads; k++) {
        Fiber& fiber = run.fibers[order(k)];
        if (fiber.state == State::READY && !is_held(fiber)) {
            progress = true;
            resume(fiber);
        }
        if (fiber.state == State::AT_COLLECTIVE) progress |= release_collective(fiber);
    }
    // A lane that returned after the others arrived may have been the last one awaited.
    for (unsigned i = 0; i < run.threads; i++)
        if (run.fibers[i].state == State::AT_COLLECTIVE)
            progress |= release_collective(run.fibers[i]);
    return release_barrier() || progress;
}

// A pass; once all others are stuck, one with those who were held back, and others are
// held back from then on.
inline bool run_pass_holding() {
    if (run_pass()) return true;
    if (!run.held) return false;
    run.held = 0;
    const bool progress = run_pass();
    draw_held();
    return progress;
}

// Shared memory holds anything when a block starts. Byte by byte and unchecked: between
// the arrays lie the sanitizer's red zones.
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) inline void
poison_shared() {
    for (volatile unsigned char* p = __start_gs_shared; p < __stop_gs_shared; p++)
        *p = POISON;
    std::memset(run.shared.data(), POISON, run.shared.size());
}

inline void run_block() {
    for (unsigned i = 0; i < run.threads; i++) prepare(run.fibers[i], i);
    poison_shared();
    run.live = run.threads;
    draw_held();
    while (run.live)
        if (!run_pass_holding()) die_hanging();
    run.held = 0;
    run.current = nullptr;
}

inline void run_grid() {
    const dim3& g = run.grid_dim;
    const uint64_t blocks = static_cast<uint64_t>(g.x) * g.y * g.z;
    const Order order = next_order(blocks);
    for (uint64_t k = 0; k < blocks; k++) {
        const uint64_t i = order(k);
        run.block = {
            static_cast<unsigned>(i % g.x), static_cast<unsigned>(i / g.x % g.y),
            static_cast<unsigned>(i / g.x / g.y)};
        run_block();
    }
}

inline void* dynamic_shared() { return run.shared.data(); }

// ---- launching

template <class... P>
struct Kernel {
    typedef std::tuple<std::remove_cv_t<P>...> Arguments;
    void (*function)(P...);
    Arguments arguments;

    static void body(const void* self) {
        const Kernel& kernel = *static_cast<const Kernel*>(self);
        std::apply(kernel.function, kernel.arguments);
    }
};

template <class Arguments, size_t... I>
Arguments unpack(void** params, std::index_sequence<I...>) {
    Arguments arguments;
    (std::memcpy(
         &std::get<I>(arguments), params[I],
         sizeof(std::tuple_element_t<I, Arguments>)),
     ...);
    return arguments;
}

struct Launch {
    unsigned grid[3];
    unsigned block[3];
    uint64_t shared_nbytes;
    uint64_t schedule;
    void** params;              // as cuLaunchKernel takes them
    uint64_t* param_nbytes;     // 0: is told, and nothing is launched
    uint64_t param_count;
    const char* skipped_file;   // null: no barrier is skipped
    uint64_t skipped_line;
};

enum LaunchError { LAUNCHED = 0, BAD_SHAPE = 1, BAD_COUNT = 2, BAD_NBYTES = 16 };

template <class... P>
int check(const Launch& launch, unsigned bound) {
    const uint64_t sizes[] = {sizeof(P)..., 0};
    const uint64_t threads =
        static_cast<uint64_t>(launch.block[0]) * launch.block[1] * launch.block[2];
    if (!threads || threads > bound || bound > MAX_THREADS) return BAD_SHAPE;
    if (!launch.grid[0] || !launch.grid[1] || !launch.grid[2]) return BAD_SHAPE;
    if (launch.param_count != sizeof...(P)) return BAD_COUNT;
    for (unsigned i = 0; i < sizeof...(P); i++)
        if (launch.param_nbytes[i] != sizes[i]) {
            if (!launch.param_nbytes[i]) launch.param_nbytes[i] = sizes[i];
            return static_cast<int>(BAD_NBYTES + i);
        }
    return LAUNCHED;
}

// Of all kernels of a source, whatever their parameters: they share `run`.
inline std::mutex one_at_a_time;

template <class... P>
int launch(
    void (*function)(P...), const char* name, unsigned bound, const Launch& launch) {
    const int error = check<P...>(launch, bound);
    if (error) return error;
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    typedef Kernel<P...> K;
    const K kernel{
        function, unpack<typename K::Arguments>(
                      launch.params, std::index_sequence_for<P...>())};
    run.kernel = name;
    run.body = &K::body;
    run.arguments = &kernel;
    run.grid_dim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    run.block_dim = {launch.block[0], launch.block[1], launch.block[2]};
    run.threads = launch.block[0] * launch.block[1] * launch.block[2];
    allocate_stacks(run.threads);
    run.skipped = {launch.skipped_file, static_cast<int>(launch.skipped_line)};
    run.schedule = launch.schedule;
    run.random = 0x9E3779B97F4A7C15ull ^ (launch.schedule * 0xD1B54A32D192ED03ull);
    std::vector<unsigned char>(launch.shared_nbytes).swap(run.shared);
    run_grid();
    return LAUNCHED;
}

}  // namespace gs_host

#define GS_HOST_EXPORT(name)                                                         \
    extern "C" __attribute__((visibility("default"))) int gs_host_launch_##name(     \
        const ::gs_host::Launch* launch) {                                           \
        return ::gs_host::launch(name, #name, name##_threads, *launch);              \
    }
