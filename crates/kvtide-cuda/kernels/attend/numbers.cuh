// The number formats of keys, values and queries, and conversions to floats and back.
//
// Half, Brain   two bytes: f16 and bf16; two of them in a register are a pair, the first one in its low half
// the others    f32, and the codes of low-bit pages: f8e4m3, bytes and nibbles
//
// Rounding is to nearest, ties to even; numbers beyond the largest f16 become infinity. The emulations are exact.
#pragma once

#include "../target.cuh"

namespace numbers {

DEVICE float as_float(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, 4);
  return value;
#endif
}
DEVICE uint32_t as_bits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
#endif
}

DEVICE float infinity() { return as_float(0x7f800000u); }
DEVICE float nan() { return as_float(0x7fc00000u); }

// 2 to the power of `value`; 0 for -infinity.
DEVICE float power_of_2(float value) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#else
  return exp2f(value);
#endif
}

constexpr float LOG2_E = 1.4426950408889634f;

// e to the power of `value`, a difference of scores, which are natural logarithms. In base 2, scores close to the largest
// float would overflow.
DEVICE float power_of_e(float value) { return power_of_2(value * LOG2_E); }

DEVICE float of_half(uint32_t bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(uint16_t(bits)));
  return value;
#else
  const uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // 2^112 is the difference of the biases.
  return as_float(as_bits(as_float(magnitude << 13) * as_float((112u + 127u) << 23)) | sign);
#endif
}

#ifndef __CUDACC__
// The bits of the nearest f16.
inline uint32_t to_half(float value) {
  const uint32_t bits = as_bits(value), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  // From 65520 on the nearest one is infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  // Adding a half leaves the multiple of 2^-24 in the low bits.
  if (magnitude < 0x38800000u) return sign | (as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f));
  return sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}
// The bits of the nearest bf16.
inline uint32_t to_brain(float value) {
  const uint32_t bits = as_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
#endif

// Two bytes of a word, each in the low half of sixteen bits: the first two, or the last two.
DEVICE uint32_t spread(uint32_t word, uint32_t last) {
#ifdef __CUDACC__
  return __byte_perm(word, 0, last ? 0x4342 : 0x4140);
#else
  const uint32_t both = last ? word >> 16 : word;
  return (both & 0xffu) | (both & 0xff00u) << 8;
#endif
}

// f16.
struct Half {
  static constexpr bool IS_HALF = true;
  static constexpr uint32_t EXPONENT = 0x7c00u, ONE = 0x3c00u;

  // One of a pair.
  DEVICE static float half_of(uint32_t pair, uint32_t which) { return of_half(pair >> 16 * which & 0xffffu); }
  DEVICE static uint32_t pair(float low, float high) {
#ifdef __CUDACC__
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return to_half(low) | to_half(high) << 16;
#endif
  }
  // The integers of two bytes of a word: above 1024, minus that and the sign's offset.
  DEVICE static uint32_t pair_of_bytes(uint32_t word, uint32_t last) {
    const uint32_t above = spread(word ^ 0x80808080u, last) | 0x64006400u;
#ifdef __CUDACC__
    uint32_t both;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(above), "r"(0x64806480u));
    return both;
#else
    return pair(half_of(above, 0) - 1152.0f, half_of(above, 1) - 1152.0f);
#endif
  }
};

// bf16.
struct Brain {
  static constexpr bool IS_HALF = false;
  static constexpr uint32_t EXPONENT = 0x7f80u, ONE = 0x3f80u;

  DEVICE static float half_of(uint32_t pair, uint32_t which) {
    return as_float(which ? pair & 0xffff0000u : pair << 16);
  }
  DEVICE static uint32_t pair(float low, float high) {
#ifdef __CUDACC__
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return to_brain(low) | to_brain(high) << 16;
#endif
  }
  // The integers of two bytes of a word: seven bits above 128, minus 128, or 256 if the sign bit, here the lowest one of the
  // exponent, is set.
  DEVICE static uint32_t pair_of_bytes(uint32_t word, uint32_t last) {
    const uint32_t codes = spread(word, last), above = (codes & 0x007f007fu) | 0x43004300u, sign = (codes & 0x00800080u) | 0xc300c300u;
#ifdef __CUDACC__
    uint32_t both;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(above), "r"(0x3f803f80u), "r"(sign));
    return both;
#else
    return pair(half_of(above, 0) + half_of(sign, 0), half_of(above, 1) + half_of(sign, 1));
#endif
  }
};

// The value of an f8e4m3 code: exponent and mantissa in place, times the difference of the biases.
DEVICE float of_f8(uint32_t code) {
  const float value = as_float((code & 0x7fu) << 20) * as_float((120u + 127u) << 23);
  const uint32_t bits = (code & 0x7fu) == 0x7fu ? 0x7fc00000u : as_bits(value);
  return as_float(bits | (code & 0x80u) << 24);
}

// A byte as an integer: puts it above 2^23, then subtracts that and the sign's offset.
DEVICE float of_byte(uint32_t code) { return as_float(0x4b000000u | ((code & 0xffu) ^ 0x80u)) - 8388736.0f; }
DEVICE float of_nibble(uint32_t code) { return as_float(0x4b000000u | (code & 0xfu)) - 8388608.0f; }

// Scale and minimum of nibbles, from the word that has both (codes.cuh).
DEVICE float scale_of(uint32_t word) { return as_float((word & 0x3fffu) << 17); }
DEVICE float minimum_of(uint32_t word) { return as_float(word & ~0x3fffu); }

} // namespace numbers
