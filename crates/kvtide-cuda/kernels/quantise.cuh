// The common part of sealing and unsealing low-bit pages: their arguments, and the tile of rows in shared memory.
//
// The tile is read in order, so that no two lanes use the same bank. Rotation stages whose pairs are within one warp's 32
// elements are exchanges within the warp; in later stages neighbouring threads handle neighbouring pairs.
#pragma once

#include "codes.cuh"

namespace quantise {

using namespace codes;

// A page, and the rows that are copied to it or from it.
struct Page {
  uint64_t page;
  // For K and V: the row of the first head that belongs to slot `slot`.
  uint64_t rows[2];
  uint32_t slot;
  uint32_t tokens;
};

struct QuantisedPart {
  // In a page: the start of codes and scales, and the bytes of a head's.
  uint64_t codes;
  uint64_t code_head_bytes;
  uint64_t scales;
  uint64_t scale_head_bytes;
  // In the rows: the distances in bytes from one head and token to the next.
  uint64_t head_bytes;
  uint64_t token_bytes;
  // The bytes of a row's codes.
  uint32_t row_bytes;
  uint32_t format;
  uint32_t element;
  uint32_t dim;
  // The number of elements that are rotated together, none if at most 1; and the factor after a rotation.
  uint32_t rotated;
  float factor;
  uint32_t tile_rows;
  // The number of element groups in a row that are read at once.
  Divisor vectors;
};

struct Args {
  QuantisedPart parts[2];
  uint32_t heads;
  // The number of items in the list.
  uint32_t count;
  List pages;
};

// One head of one page.
struct Head {
  uint64_t codes;
  uint64_t scales;
  uint64_t rows;
  uint32_t slot;
  uint32_t tokens;
};

DEVICE Head head_of(const Args &args, uint32_t part) {
  const Page &page = args.pages.items<Page>()[blockIdx.y];
  const QuantisedPart &of = args.parts[part];
  const uint32_t head = blockIdx.x - part * args.heads;
  return {page.page + of.codes + head * of.code_head_bytes, page.page + of.scales + head * of.scale_head_bytes,
          page.rows[part] + head * of.head_bytes, page.slot, page.tokens};
}

DEVICE uint32_t which_part(const Args &args) { return blockIdx.x >= args.heads; }

// The elements in the low and the high nibble of a byte of a q4 row; the high one may be missing in the last group.
struct Pair {
  uint32_t low, high;
  bool has_high;
};

DEVICE Pair pair_of(uint32_t byte, uint32_t dim) {
  const uint32_t start = byte / 16 * 32, left = dim - start;
  const uint32_t half = left < 32 ? (left + 1) / 2 : 16;
  const uint32_t high = start + half + byte % 16;
  return {start + byte % 16, high, high < dim && byte % 16 + half < 32};
}

// Rotates the elements of a tile, one butterfly stage after the other, in the host's order.
DEVICE void rotate(const QuantisedPart &of, float *tile, uint32_t count) {
  const uint32_t size = of.rotated, lane = threadIdx.x % 32;
  for (uint32_t first = threadIdx.x - lane; first < count; first += blockDim.x) {
    const uint32_t at = first + lane;
    float value = at < count ? tile[at] : 0.f;
    for (uint32_t half = 1; half < size && half < 32; half *= 2) {
      const float other = warp_across(value, int(half));
      value = lane & half ? other - value : value + other;
    }
    if (at < count) tile[at] = size > 32 ? value : value * of.factor;
  }
  for (uint32_t half = 32; half < size; half *= 2) {
    block_barrier();
    const float factor = half * 2 == size ? of.factor : 1.f;
    for (uint32_t pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
      const uint32_t low = (pair & ~(half - 1)) * 2 | (pair & (half - 1));
      const float a = tile[low], b = tile[low + half];
      tile[low] = (a + b) * factor, tile[low + half] = (a - b) * factor;
    }
  }
  block_barrier();
}

// Fills a tile with rows of floats.
template <uint32_t Count> DEVICE void fill(const QuantisedPart &of, uint64_t rows, uint32_t count, float *tile) {
  block_barrier();
  const uint32_t vectors = count * of.vectors.by;
  for (uint32_t at = threadIdx.x; at < vectors; at += blockDim.x) {
    uint32_t within = at;
    const uint32_t row = of.vectors.split(within);
    auto &values = reinterpret_cast<Values<Count> *>(tile)[at];
    load(rows + row * of.token_bytes + uint64_t(within) * Count * element_bytes(of.element), of.element, values);
  }
  block_barrier();
  if (of.rotated > 1) rotate(of, tile, count * of.dim);
}

// Copies unquantised rows.
template <uint32_t Count> DEVICE void copy_rows(const QuantisedPart &of, const Head &head, bool into_page) {
  const uint32_t vectors = head.tokens * of.vectors.by;
  for (uint32_t at = threadIdx.x; at < vectors; at += blockDim.x) {
    uint32_t within = at;
    const uint32_t row = of.vectors.split(within);
    const uint64_t bytes = uint64_t(within) * Count * element_bytes(of.element);
    const uint64_t outside = head.rows + row * of.token_bytes + bytes;
    const uint64_t inside = head.codes + uint64_t(head.slot + row) * of.row_bytes + bytes;
    codes::copy<Count>(into_page ? inside : outside, into_page ? outside : inside, of.element);
  }
}

} // namespace quantise
