// Damages encoded bytes at random, for the parsers of kernels/*_format.cuh.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

struct Random {
    uint64_t state;

    // splitmix64: any state is a good one.
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    uint64_t below(uint64_t n) { return next() % n; }
};

constexpr uint64_t GROWTH_NBYTES = 8;  // most bytes that damage appends

inline void damage_byte(Random& random, uint8_t* data, uint64_t nbytes) {
    // Headers are what the parsers believe.
    const uint64_t reach = random.below(2) && nbytes > 48 ? 48 : nbytes;
    const uint64_t at = random.below(reach);
    const uint32_t words[] = {0, 1, 2, 4, 16, 127, 128, 0x7fffffff, 0x80000000, ~0u};
    switch (random.below(6)) {
        case 0: data[at] ^= 1 << random.below(8); break;
        case 1: data[at] = 0; break;
        case 2: data[at] = 255; break;
        case 3: data[at] += static_cast<uint8_t>(random.below(3) - 1); break;
        case 4: data[at] = static_cast<uint8_t>(random.next()); break;
        default:
            if (nbytes < 4) break;
            std::memcpy(data + (at > nbytes - 4 ? nbytes - 4 : at & ~3ull),
                        words + random.below(10), 4);
    }
}

// Damaged copy of `seed` at `out`, which has room for GROWTH_NBYTES more; its size.
inline uint64_t damage(
    Random& random, const uint8_t* seed, uint64_t nbytes, uint8_t* out) {
    std::memcpy(out, seed, nbytes);
    const uint64_t kind = random.below(16);
    if (kind == 0) {
        nbytes = random.below(nbytes + 1);
    } else if (kind == 1) {
        const uint64_t more = 1 + random.below(GROWTH_NBYTES);
        for (uint64_t k = 0; k < more; k++) out[nbytes + k] = random.next() & 255;
        nbytes += more;
    }
    if (!nbytes) return 0;
    for (uint64_t n = random.below(4) + (kind > 1); n; n--) {
        damage_byte(random, out, nbytes);
    }
    return nbytes;
}

EXPORT uint64_t damaged(
    uint64_t seed, const uint8_t* data, uint64_t nbytes, uint8_t* out) {
    Random random{seed};
    return damage(random, data, nbytes, out);
}

// Calls `check(data, nbytes)` for `n` damaged seeds, each in an allocation of exactly
// its size, and counts the answers in `found`.
template <class Check>
void fuzz_seeds(
    const uint8_t* seeds, const uint64_t* bounds, uint64_t n_seeds, uint64_t n,
    uint64_t* found, const Check& check) {
    Random random{n};
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t pick = random.below(n_seeds);
        const uint8_t* seed = seeds + bounds[pick];
        const uint64_t seed_nbytes = bounds[pick + 1] - bounds[pick];
        uint8_t* room = static_cast<uint8_t*>(std::malloc(seed_nbytes + GROWTH_NBYTES));
        const uint64_t nbytes = damage(random, seed, seed_nbytes, room);
        uint8_t* exact = static_cast<uint8_t*>(std::malloc(nbytes));
        std::memcpy(exact, room, nbytes);
        found[check(exact, nbytes)]++;
        std::free(exact);
        std::free(room);
    }
}
