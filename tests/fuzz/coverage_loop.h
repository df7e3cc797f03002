// A coverage-guided loop for g++, which brings the instrumentation (-fsanitize-coverage)
// but no fuzzer: inputs that reach new edges, or come closer to passing a comparison,
// are kept and damaged further.
#pragma once
#include <cstdio>
#include <vector>

#include "kernel_fuzz.h"

#define NOT_COUNTED __attribute__((no_sanitize_coverage))

constexpr uint32_t FEATURES = 1 << 16;
static uint8_t met[FEATURES];  // bit 0: by the input under way, bit 1: by any before
static uint32_t list[FEATURES];  // of those by the input under way
static uint32_t n_met = 0;

NOT_COUNTED static void meet(uint64_t what) {
    const uint32_t feature = (what * 0x9e3779b97f4a7c15ull) >> 48;
    if (met[feature] & 1) return;
    met[feature] |= 1;
    list[n_met++] = feature;
}

extern "C" {
NOT_COUNTED void __sanitizer_cov_trace_pc() {
    meet(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}

// How many bits of the two sides agree: a step towards equality is something new.
#define TRACE_COMPARISON(name, type)                                            \
    NOT_COUNTED void name(type a, type b) {                                     \
        const uint64_t place = reinterpret_cast<uint64_t>(__builtin_return_address(0)); \
        meet(place * 67 + __builtin_popcountll(static_cast<uint64_t>(a ^ b)) + 1); \
    }
TRACE_COMPARISON(__sanitizer_cov_trace_cmp1, uint8_t)
TRACE_COMPARISON(__sanitizer_cov_trace_cmp2, uint16_t)
TRACE_COMPARISON(__sanitizer_cov_trace_cmp4, uint32_t)
TRACE_COMPARISON(__sanitizer_cov_trace_cmp8, uint64_t)
TRACE_COMPARISON(__sanitizer_cov_trace_const_cmp1, uint8_t)
TRACE_COMPARISON(__sanitizer_cov_trace_const_cmp2, uint16_t)
TRACE_COMPARISON(__sanitizer_cov_trace_const_cmp4, uint32_t)
TRACE_COMPARISON(__sanitizer_cov_trace_const_cmp8, uint64_t)
NOT_COUNTED void __sanitizer_cov_trace_switch(uint64_t value, void*) {
    meet(reinterpret_cast<uint64_t>(__builtin_return_address(0)) * 67 + value);
}
NOT_COUNTED void __sanitizer_cov_trace_cmpf(float, float) {}
NOT_COUNTED void __sanitizer_cov_trace_cmpd(double, double) {}
}

using Input = std::vector<uint8_t>;

// How many features no input met before, all of which are met before from now on.
NOT_COUNTED static uint32_t count_new() {
    uint32_t n = 0;
    for (uint32_t k = 0; k < n_met; k++) {
        n += met[list[k]] == 1;
        met[list[k]] = 2;
    }
    n_met = 0;
    return n;
}

// What a seed of another length has from some place on.
NOT_COUNTED static void cross(Random& random, Input& into, const Input& other) {
    if (into.empty() || other.empty()) return;
    const uint64_t from = random.below(other.size());
    const uint64_t to = random.below(into.size());
    const uint64_t n = 1 + random.below(64);
    for (uint64_t k = 0; k < n && from + k < other.size() && to + k < into.size(); k++) {
        into[to + k] = other[from + k];
    }
}

NOT_COUNTED static Input step(Random& random, const std::vector<Input>& corpus) {
    Input made = corpus[random.below(corpus.size())];
    if (!random.below(8)) cross(random, made, corpus[random.below(corpus.size())]);
    Input out(made.size() + GROWTH_NBYTES);
    out.resize(damage(random, made.data(), made.size(), out.data()));
    return out;
}

// Calls `check(data, nbytes)` `n` times, each input in an allocation of exactly its
// size, and counts the answers in `found`. Returns the number of inputs kept.
template <class Check>
NOT_COUNTED uint64_t explore(
    std::vector<Input> corpus, uint64_t n, uint64_t seed, uint64_t* found,
    const Check& check) {
    Random random{seed};
    const uint64_t n_seeds = corpus.size();
    for (uint64_t k = 0; k < n; k++) {
        const Input input = k < n_seeds ? corpus[k] : step(random, corpus);
        uint8_t* exact = static_cast<uint8_t*>(std::malloc(input.size()));
        if (!input.empty()) std::memcpy(exact, input.data(), input.size());
        found[check(exact, input.size())]++;
        std::free(exact);
        if (count_new() && k >= n_seeds && !input.empty()) corpus.push_back(input);
    }
    return corpus.size() - n_seeds;
}
