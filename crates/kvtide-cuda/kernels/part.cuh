// Where the rows of K or V lie: outside pages at three strides, in a page head by head.
#pragma once

#include "target.cuh"

struct Part {
  // Outside: the first row; bytes from a layer, a head, a token to the next.
  uint64_t rows;
  uint64_t layer_bytes;
  uint64_t head_bytes;
  uint64_t token_bytes;
  // In a page: where the codes of the first head begin, bytes of a head's and of a row.
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
