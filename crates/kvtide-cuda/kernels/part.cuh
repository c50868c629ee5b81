// The places of the rows of K or V: outside pages at three strides, in a page head by head.
#pragma once

#include "target.cuh"

struct PassedPart {
  // Outside pages: the first row, and the distances in bytes from one layer, head and token to the next.
  uint64_t rows;
  uint64_t layer_bytes;
  uint64_t head_bytes;
  uint64_t token_bytes;
  // In a page: the start of the first head's codes, and the bytes of a head and of a row.
  uint64_t section;
  uint64_t section_head_bytes;
  uint32_t row_bytes;
  Divisor row_units;

  DEVICE uint64_t in_rows(uint32_t layer, uint32_t head, uint32_t token) const {
    return rows + layer * layer_bytes + head * head_bytes + token * token_bytes;
  }
  DEVICE uint64_t in_page(uint32_t head, uint32_t slot) const {
    return section + head * section_head_bytes + uint64_t(slot) * row_bytes;
  }
};
