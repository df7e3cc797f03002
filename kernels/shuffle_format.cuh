// How bytes or bits of the items of a block were rearranged before compression.
//
//   byte shuffle   a block of n items of S bytes is S planes, byte k of all items:
//                  | byte 0 of items 0..n-1 | byte 1 of items 0..n-1 | ... | rest |
//   bit shuffle    8 S planes, bit b of all items, items 8k..8k+7 in byte k, the lowest
//                  bit first: | bit 0 of items 0..n-1 | bit 1 ... | ... | rest |
//                  Blocks whose items do not come in eights stay as they are.
//
//   rest: the bytes behind the last whole item, in place.
#pragma once
#include "common.cuh"

enum Filter { FILTER_NONE, FILTER_BYTE_SHUFFLE, FILTER_BIT_SHUFFLE };
