// Products of a warp's tensor cores: tiles of 16 by 16 by 8 numbers of two bytes, summed as floats.
//
// a   16 rows x 16        lane 4g + t: [row g, row g + 8][2t, 2t + 1 | 2t + 8, 2t + 9]
// b   16 x 8 columns      lane 4g + t: [2t, 2t + 1 | 2t + 8, 2t + 9] of column g
// c   16 rows x 8         lane 4g + t: columns 2t, 2t + 1 of row g, then of row g + 8
//
// In the emulation the lanes exchange their operands as the hardware does, so an element in the wrong lane is detected.
// There, each sum of floats is rounded; the hardware cuts off bits far below the largest product.
#pragma once

#include "attend/numbers.cuh"

#ifdef __CUDACC__

// Loads four 8 x 8 matrices: each lane gives a row's address, the first eight lanes those of the first matrix. Lane 4g + t
// gets elements 2t and 2t + 1 of row g of each.
DEVICE void warp_load(uint32_t (&out)[4], const void *row) {
  uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(from)
               : "memory");
}
// Like `warp_load`, of the transposed matrices: elements of column g in rows 2t and 2t + 1.
DEVICE void warp_load_transposed(uint32_t (&out)[4], const void *row) {
  uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(from)
               : "memory");
}

// c += a * b
template <typename W>
DEVICE void warp_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (W::IS_HALF) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

#else

inline void warp_load(uint32_t (&out)[4], const void *row) {
  const auto rows = emulate::show(row);
  const uint32_t lane = emulate::block.current % emulate::LANES;
  for (uint32_t matrix = 0; matrix < 4; matrix++) {
    memcpy(&out[matrix], static_cast<const unsigned char *>(rows[8 * matrix + lane / 4]) + 4 * (lane % 4), 4);
  }
}
inline void warp_load_transposed(uint32_t (&out)[4], const void *row) {
  const auto rows = emulate::show(row);
  const uint32_t lane = emulate::block.current % emulate::LANES;
  for (uint32_t matrix = 0; matrix < 4; matrix++) {
    uint16_t pair[2];
    for (uint32_t of = 0; of < 2; of++) {
      const auto *from = static_cast<const unsigned char *>(rows[8 * matrix + 2 * (lane % 4) + of]);
      memcpy(&pair[of], from + 2 * (lane / 4), 2);
    }
    memcpy(&out[matrix], pair, 4);
  }
}

namespace emulate {
struct Operands {
  uint32_t a[4], b[2];
};
} // namespace emulate

template <typename W>
inline void warp_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto lanes = emulate::show(emulate::Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const uint32_t lane = emulate::block.current % emulate::LANES, row = lane / 4, column = lane % 4 * 2;
  for (uint32_t t = 0; t < 4; t++) {
    const emulate::Operands own = lanes[4 * row + t], first = lanes[4 * column + t], second = lanes[4 * column + 4 + t];
    for (uint32_t half = 0; half < 2; half++) {
      for (uint32_t of = 0; of < 2; of++) {
        const float b[2] = {W::half_of(first.b[half], of), W::half_of(second.b[half], of)};
        const float high = W::half_of(own.a[2 * half], of), low = W::half_of(own.a[2 * half + 1], of);
        c[0] += high * b[0], c[1] += high * b[1], c[2] += low * b[0], c[3] += low * b[1];
      }
    }
  }
}

#endif
