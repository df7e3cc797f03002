// Patches of a square whose axes change places, turned in the registers of a thread.
//
//   inner chunk   | w0: a b c d |      w0 = a b c d       output   | a e i m |
//   (loop 1 ->)   | w1: e f g h |      w1 = e f g h   (loop 0 ->)  | b f j n |
//                 | w2: i j k l |      w2 = i j k l                | c g k o |
//                 | w3: m n o p |      w3 = m n o p                | d h l p |
//
// A patch has P x P units: as many as a word of 16 bytes holds, or 4 units of 2 bytes. A
// warp takes 8 patches along loop 0 and 4 along loop 1, so that it fills sectors of 32
// bytes on either side. Nothing is shared, and no thread waits for another.
#pragma once
#include "scatter_move.cuh"

constexpr uint32_t SIDE = 64;   // units of a square along loops 0 and 1
constexpr uint32_t GROUPS = 8;  // warps of a block
constexpr uint32_t ALONG_0 = 8;  // patches of a warp along loop 0
constexpr uint32_t ALONG_1 = LANES / ALONG_0;

// A square: where it begins on loops 0 and 1, and how many elements follow from there.
struct Square {
    int64_t in_offset;
    int64_t out_offset;
    uint32_t length[2];
};

// The part of a square from unit `i` of loop 0 and `j` of loop 1 on.
template <int R>
GS_DEVICE Square part_of(
    const Scatter<R>& p, const Square& square, uint32_t i, uint32_t j) {
    Square part;
    part.in_offset =
        square.in_offset + p.loops[0].in_stride * i + p.loops[1].in_stride * j;
    part.out_offset =
        square.out_offset + p.loops[0].out_stride * i + p.loops[1].out_stride * j;
    part.length[0] = square.length[0] - i;
    part.length[1] = square.length[1] - j;
    return part;
}

// Words of P units of N bytes.
template <int N>
struct Patch;

template <>
struct Patch<2> {
    typedef uint2 Word;
    static constexpr uint32_t P = 4;
    static GS_DEVICE void turn(Word (&w)[P]) {
        const uint32_t a = __byte_perm(w[0].x, w[1].x, 0x5410);
        const uint32_t b = __byte_perm(w[0].x, w[1].x, 0x7632);
        const uint32_t c = __byte_perm(w[0].y, w[1].y, 0x5410);
        const uint32_t d = __byte_perm(w[0].y, w[1].y, 0x7632);
        const uint32_t e = __byte_perm(w[2].x, w[3].x, 0x5410);
        const uint32_t f = __byte_perm(w[2].x, w[3].x, 0x7632);
        const uint32_t g = __byte_perm(w[2].y, w[3].y, 0x5410);
        const uint32_t h = __byte_perm(w[2].y, w[3].y, 0x7632);
        w[0] = make_uint2(a, e);
        w[1] = make_uint2(b, f);
        w[2] = make_uint2(c, g);
        w[3] = make_uint2(d, h);
    }
    static GS_DEVICE Word changed(const Word& word, const Transfer& transfer) {
        const uint64_t low = word.x;
        const uint64_t bits = moved(low | static_cast<uint64_t>(word.y) << 32, transfer);
        return make_uint2(
            static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32));
    }
};

template <>
struct Patch<4> {
    typedef uint4 Word;
    static constexpr uint32_t P = 4;
    static GS_DEVICE void turn(Word (&w)[P]) {
        const Word a = w[0], b = w[1], c = w[2], d = w[3];
        w[0] = make_uint4(a.x, b.x, c.x, d.x);
        w[1] = make_uint4(a.y, b.y, c.y, d.y);
        w[2] = make_uint4(a.z, b.z, c.z, d.z);
        w[3] = make_uint4(a.w, b.w, c.w, d.w);
    }
    static GS_DEVICE Word changed(const Word& word, const Transfer& transfer) {
        return moved(word, transfer);
    }
};

template <>
struct Patch<8> {
    typedef uint4 Word;
    static constexpr uint32_t P = 2;
    static GS_DEVICE void turn(Word (&w)[P]) {
        const Word a = w[0], b = w[1];
        w[0] = make_uint4(a.x, a.y, b.x, b.y);
        w[1] = make_uint4(a.z, a.w, b.z, b.w);
    }
    static GS_DEVICE Word changed(const Word& word, const Transfer& transfer) {
        return moved(word, transfer);
    }
};

// Whether units of N bytes are neighbours on their own side, and all words are aligned.
template <int N, int R>
GS_DEVICE bool has_patches(const Scatter<R>& p, uint64_t src, const Square& square) {
    const uint64_t from = src + square.in_offset;
    const uint64_t to = reinterpret_cast<uint64_t>(p.out) + square.out_offset;
    const uint64_t far = from | to | p.loops[0].in_stride | p.loops[1].out_stride;
    return p.loops[1].in_stride == N && p.loops[0].out_stride == N &&
           far % sizeof(typename Patch<N>::Word) == 0;
}

// Moves a patch at the edge of a box unit by unit.
template <int N, int R>
GS_DEVICE void turn_edge(const Scatter<R>& p, uint64_t src, const Square& patch) {
    const Copy<N> mover = {p.transfer};
#pragma unroll 1
    for (uint32_t i = 0; i < Patch<N>::P && i < patch.length[0]; ++i) {
#pragma unroll 1
        for (uint32_t j = 0; j < Patch<N>::P && j < patch.length[1]; ++j) {
            const Square unit = part_of(p, patch, i, j);
            const Spot spot = {unit.in_offset, unit.out_offset, 0};
            mover.store(p.out + spot.out_offset, mover.changed(mover.load(src, spot)));
        }
    }
}

// Moves a patch; all its loads are under way before the first is waited for.
template <int N, int R>
GS_DEVICE void turn_patch(const Scatter<R>& p, uint64_t src, const Square& patch) {
    typedef typename Patch<N>::Word Word;
    constexpr uint32_t P = Patch<N>::P;
    if (patch.length[0] < P || patch.length[1] < P) {
        turn_edge<N>(p, src, patch);
        return;
    }
    Word words[P];
#pragma unroll
    for (uint32_t i = 0; i < P; ++i) {
        const uint64_t from = src + patch.in_offset + p.loops[0].in_stride * i;
        words[i] = load_streamed<Word>(from);
    }
    Patch<N>::turn(words);
    uint8_t* const to = p.out + patch.out_offset;
#pragma unroll
    for (uint32_t j = 0; j < P; ++j) {
        const Word word = Patch<N>::changed(words[j], p.transfer);
        store_streamed(to + p.loops[1].out_stride * j, word);
    }
}

// Moves a square by patches of units of N bytes. Call it from all threads of a block.
template <int N, int R>
GS_DEVICE void turn_patches(const Scatter<R>& p, uint64_t src, const Square& square) {
    constexpr uint32_t P = Patch<N>::P;
    constexpr uint32_t ACROSS = SIDE / P / ALONG_1;  // warps side by side along loop 1
    constexpr uint32_t N_PARTS = ACROSS * (SIDE / P / ALONG_0);
    const uint32_t lane = threadIdx.x % LANES;
#pragma unroll 1
    for (uint32_t part = threadIdx.x / LANES; part < N_PARTS; part += GROUPS) {
        const uint32_t i = P * (part / ACROSS * ALONG_0 + lane / ALONG_1);
        const uint32_t j = P * (part % ACROSS * ALONG_1 + lane % ALONG_1);
        if (i < square.length[0] && j < square.length[1]) {
            turn_patch<N>(p, src, part_of(p, square, i, j));
        }
    }
}
