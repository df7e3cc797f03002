// What a caller and nvCOMP pass each other besides addresses and sizes, laid out as in
// nvCOMP 6's headers. Of options that the stand-in only wants to be the defaults, it
// knows no more than where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvcomp {

enum Status : int {
    SUCCESS = 0,
    INVALID_VALUE = 10,
    NOT_SUPPORTED = 11,
    ALIGNMENT = 17,
    CHUNK_SIZE_TOO_LARGE = 18,
    INTERNAL = 10000,
};

constexpr int32_t CUDA_BACKEND = 2;

struct DecompressOptions {
    int32_t backend;
    unsigned char others[60];
};
struct Crc32Spec {
    uint32_t poly, init;
    bool ref_in, ref_out;
    uint32_t xorout;
    char reserved[16];
};
struct Crc32KernelConf {
    int32_t kernel_kind, bytes_per_read, blocks_per_msg;
    char reserved[20];
};
struct Crc32Options {
    Crc32Spec spec;
    Crc32KernelConf kernel_conf;
    char reserved[64];
};
struct CompressOptions {
    int32_t algorithm;
    unsigned char others[60];
};
static_assert(sizeof(DecompressOptions) == 64);
static_assert(sizeof(CompressOptions) == 64);
static_assert(sizeof(Crc32Options) == 128);

struct Alignments {
    size_t input, output, temp;
};
struct Properties {
    uint32_t version, cudart_version;
};

}  // namespace nvcomp
