// The threads of one block as fibers: their state, switching between them, and the
// pseudo-random order in which a schedule runs them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(GS_HOST_UCONTEXT)
#define GS_HOST_SWITCH_UCONTEXT 1
#include <ucontext.h>
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace gs_host {

constexpr unsigned WARP = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr size_t PAGE = 4096;
constexpr size_t STACK_NBYTES = 256 * 1024;
constexpr unsigned char POISON = 0xA5;

enum class State : uint8_t { READY, AT_BARRIER, AT_COLLECTIVE, DONE };
enum class Collective : uint8_t { SHUFFLE, VOTE, SYNC };

struct Place {
    const char* file;
    int line;
};

inline bool is_same_place(Place a, Place b) {
    return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file));
}

#if defined(GS_HOST_SWITCH_UCONTEXT)
typedef ucontext_t Saved;
#else
typedef void* Saved;
extern "C" void gs_host_switch(void** save, void* load);
// x86-64 System V: only what a function call must preserve; swapcontext would spend
// most of its time in sigprocmask.
__asm__(R"(
.text
.type gs_host_switch, @function
.local gs_host_switch
gs_host_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
#endif

struct Fiber {
    Saved saved;
    char* stack;
    void* fake_stack;
    uint3 thread;
    unsigned index;
    State state;
    Place place;             // where it waits
    uint32_t mask;           // of the collective it waits at
    Collective collective;
    uint64_t gave;           // its value in that collective
    uint64_t seen[WARP];     // everybody's values, filled when it is released
    uint32_t seen_mask;      // whose values are there
};

struct Run {
    Saved scheduler;
    void* fake_stack;
    const void* stack_bottom;
    size_t stack_nbytes;
    Fiber* current;
    uint3 block;
    dim3 grid_dim, block_dim;
    unsigned threads, live;
    unsigned stacks;         // fibers that have one
    uint64_t schedule, random;
    uint32_t held;           // warps, or lanes of every warp, that are held back
    bool held_is_by_warp;
    Place skipped;           // a barrier that nobody waits at; line 0: none
    const char* kernel;
    void (*body)(const void*);
    const void* arguments;
    std::vector<Fiber> fibers;
    std::vector<unsigned char> shared;
};

inline Run run;

[[noreturn]] inline void die(const char* why, Place place = {"", 0}) {
    std::fprintf(
        stderr, "cuda_host: %s: %s (block %u,%u,%u thread %u) %s:%d\n", run.kernel, why,
        run.block.x, run.block.y, run.block.z, run.current ? run.current->index : 0,
        place.file, place.line);
    std::abort();
}

// ---- order: pseudo-random numbers and the permutation i -> first + i * step (mod n)

inline uint64_t next_random() {
    uint64_t x = run.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return run.random = x;
}

struct Order {
    uint64_t n, first, step;
    uint64_t operator()(uint64_t i) const { return (first + i * step) % n; }
};

inline Order next_order(uint64_t n) {
    if (run.schedule == 0) return {n, 0, 1};
    if (run.schedule == 1) return {n, n - 1, n - 1};
    const uint64_t first = next_random() % n;
    uint64_t step = next_random() % n;
    while (std::gcd(step, n) != 1) step = (step + 1) % n;
    return {n, first, n == 1 ? 0 : step};
}

// ---- fibers

inline void switch_context(Saved& save, Saved& load) {
#if defined(GS_HOST_SWITCH_UCONTEXT)
    swapcontext(&save, &load);
#else
    gs_host_switch(&save, load);
#endif
}

inline void resume(Fiber& fiber) {
    run.current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&run.fake_stack, fiber.stack, STACK_NBYTES);
#endif
    switch_context(run.scheduler, fiber.saved);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(run.fake_stack, nullptr, nullptr);
#endif
}

// Back to the scheduler, until it resumes this fiber.
inline void pause() {
    Fiber& me = *run.current;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(
        me.state == State::DONE ? nullptr : &me.fake_stack, run.stack_bottom,
        run.stack_nbytes);
#endif
    switch_context(me.saved, run.scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(me.fake_stack, nullptr, nullptr);
#endif
}

inline void enter() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &run.stack_bottom, &run.stack_nbytes);
#endif
    run.body(run.arguments);
    run.current->state = State::DONE;
    run.live--;
    pause();
    std::abort();
}

// Stacks for `n` fibers. Each takes two of the 65,530 mappings that Linux gives a
// process, and every source that is loaded has stacks of its own: past that limit
// allocations fail anywhere in the process. So none is made ahead of need.
inline void allocate_stacks(unsigned n) {
    if (n <= run.stacks) return;
    const size_t stride = STACK_NBYTES + PAGE;
    run.fibers.resize(MAX_THREADS);
    char* more = static_cast<char*>(mmap(
        nullptr, (n - run.stacks) * stride, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (more == MAP_FAILED) die("no memory for the fibers' stacks");
    for (; run.stacks < n; run.stacks++, more += stride) {
        // A page that faults, so that a deep kernel cannot run into its neighbour.
        if (mprotect(more, PAGE, PROT_NONE)) die("no more mappings for stacks");
        run.fibers[run.stacks].stack = more + PAGE;
    }
}

inline void prepare(Fiber& fiber, unsigned index) {
    const dim3& b = run.block_dim;
    fiber.index = index;
    fiber.thread = {index % b.x, index / b.x % b.y, index / (b.x * b.y)};
    fiber.state = State::READY;
#if defined(GS_HOST_SWITCH_UCONTEXT)
    getcontext(&fiber.saved);
    fiber.saved.uc_stack.ss_sp = fiber.stack;
    fiber.saved.uc_stack.ss_size = STACK_NBYTES;
    fiber.saved.uc_link = nullptr;
    makecontext(&fiber.saved, enter, 0);
#else
    void** top = reinterpret_cast<void**>(fiber.stack + STACK_NBYTES);
    *--top = nullptr;  // `enter` sees the alignment that a call would have left
    *--top = reinterpret_cast<void*>(&enter);
    for (int saved_register = 0; saved_register < 6; saved_register++) *--top = nullptr;
    fiber.saved = top;
#endif
}

}  // namespace gs_host
