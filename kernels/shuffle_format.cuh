// Orders of the bytes or bits in a block that was shuffled before compression.
//
//   byte shuffle   a block of n items of S bytes has S planes; plane k has byte k of all
//                  items: | byte 0 of items 0..n-1 | byte 1 of items 0..n-1 | ... | rest |
//   bit shuffle    8 S planes; plane b has bit b of all items, with items 8k..8k+7 in byte
//                  k, the lowest bit first: | bit 0 of items 0..n-1 | bit 1 ... | ... |
//                  rest |. A block is not shuffled if n is not a multiple of 8.
//
//   rest: the bytes behind the last whole item, unchanged.
#pragma once
#include "common.cuh"

enum Filter { FILTER_NONE, FILTER_BYTE_SHUFFLE, FILTER_BIT_SHUFFLE };
