// Elements of rows and codes of low-bit pages, one at a time: every bit as the host has it.
//
//   f16, bf16   widened exactly, narrowed to nearest, halves to even
//   f8e4m3      the float itself; over 448: 448; what is not finite: NaN
//   q8, q4      whole numbers times a scale (plus a minimum)
//
// Nothing is contracted: the files that use this are compiled without fused multiply-add.
#pragma once

#include <string.h>

#include "target.cuh"

namespace codes {

// How the elements of a row are kept.
enum Format : uint32_t { F32, F16, BF16, F8, Q8, Q4_ROWS, Q4_CHANNELS };

constexpr uint32_t INFINITE = 0x7f800000;
// The scale of a row or a channel in which something is not finite.
constexpr uint32_t NOT_FINITE = 0x7e00;

DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
DEVICE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
DEVICE uint32_t magnitude(float value) { return bits_of(value) & 0x7fffffff; }

// The value of an f16. Exponent and mantissa in their places; 2^112 is the difference of the biases.
DEVICE float from_f16(uint32_t bits) {
  const uint32_t rest = bits & 0x7fff;
  const uint32_t finite = bits_of(float_of(rest << 13) * float_of((112 + 127) << 23));
  const uint32_t special = INFINITE | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0);
  return float_of((rest < 0x7c00 ? finite : special) | (bits & 0x8000) << 16);
}

// The nearest f16, halves to even. Adding 1/2 leaves the multiple of 2^-24 of a small number in the low bits.
DEVICE uint32_t to_f16(float value) {
  const uint32_t rest = magnitude(value), sign = bits_of(value) >> 16 & 0x8000;
  const uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000;
  const uint32_t large = (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
  const uint32_t finite = rest < 0x38800000 ? small : large;
  const uint32_t special = rest > INFINITE ? 0x7e00 | (rest >> 13 & 0x3ff) : 0x7c00;
  // From 65520 on the nearest one is infinite.
  return (rest < 0x477ff000 ? finite : special) | sign;
}

DEVICE float from_bf16(uint32_t bits) {
  const bool is_nan = (bits & 0x7fff) > 0x7f80;
  return float_of((bits | (is_nan ? 0x40 : 0)) << 16);
}

DEVICE uint32_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if (magnitude(value) > INFINITE) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

DEVICE float from_f8(uint32_t code) {
  const uint32_t rest = code & 0x7f;
  const uint32_t finite = bits_of(float_of(rest << 20) * float_of((120 + 127) << 23));
  return float_of((rest == 0x7f ? 0x7fc00000 : finite) | (code & 0x80) << 24);
}

DEVICE uint32_t to_f8(float value) {
  const uint32_t rest = magnitude(value), sign = bits_of(value) >> 24 & 0x80;
  if (rest >= INFINITE) return 0x7f;
  // Below 2^-6: multiples of 2^-9, which adding 2^14 leaves in the low bits.
  if (rest < 0x3c800000) return (bits_of(float_of(rest) + float_of(0x46800000)) - 0x46800000) | sign;
  const uint32_t large = (rest + ((7u - 127u) << 23) + 0x7ffff + (rest >> 20 & 1)) >> 20;
  return (large < 0x7e ? large : 0x7e) | sign;
}

// The nearest whole number, halves to even, as a byte in two's complement: what 1.5 * 2^23 is added to has it in its low bits.
DEVICE uint32_t whole(float value) { return bits_of(value + 12582912.f) & 0xff; }

DEVICE float clamp(float value, float least, float most) { return fminf(fmaxf(value, least), most); }

// The nearest f16 of a finite number; the largest one for what is beyond it.
DEVICE uint32_t scale_of(float value) { return to_f16(clamp(value, -65504.f, 65504.f)); }

// What a scale is multiplied with to give 1; nothing is left of a scale of 0.
DEVICE float inverse(float scale) { return scale == 0.f ? 0.f : 1.f / scale; }

// How values become codes: those of a row, or of a channel.
struct Steps {
  float factor;
  float minimum;
};

// Scale and minimum as they are written down.
struct Scales {
  uint32_t scale;
  uint32_t minimum;
};

// Steps of 8 bits for values of at most this magnitude, which is given by its bits.
DEVICE Scales q8_scales(uint32_t largest) {
  return {largest < INFINITE ? scale_of(float_of(largest) / 127.f) : NOT_FINITE, 0};
}

DEVICE Steps q8_steps(const Scales &scales) { return {inverse(from_f16(scales.scale)), 0.f}; }

// A factor that is not a number gives code 0.
DEVICE uint32_t to_q8(float value, const Steps &steps) {
  return steps.factor != steps.factor ? 0 : whole(clamp(value * steps.factor, -127.f, 127.f));
}

// Steps of 4 bits from `low` to `high`, `largest` the bits of their largest magnitude: the minimum is rounded down and the
// scale up, so that 0 to 15 reach over every value.
DEVICE Scales q4_scales(float low, float high, uint32_t largest) {
  constexpr float NEXT = 1.f / 1024.f, LEAST = 1.f / 16777216.f, STEPS = 1.f / 15.f;
  if (largest >= INFINITE) return {NOT_FINITE, NOT_FINITE};
  // Plus 0: a bound of -0 is 0.
  low += 0.f, high += 0.f;
  uint32_t minimum = scale_of(low);
  if (from_f16(minimum) > low) minimum = scale_of(low - fabsf(low) * NEXT - LEAST);
  const float step = (high - from_f16(minimum)) * STEPS;
  uint32_t scale = scale_of(step);
  if (from_f16(scale) < step) scale = scale_of(step + step * NEXT + LEAST);
  return {scale, minimum};
}

DEVICE Steps q4_steps(const Scales &scales) {
  if (scales.scale == NOT_FINITE) return {0.f, 0.f};
  return {inverse(from_f16(scales.scale)), from_f16(scales.minimum)};
}

// What is not a number is code 0.
DEVICE uint32_t to_q4(float value, const Steps &steps) {
  return whole(clamp((value - steps.minimum) * steps.factor, 0.f, 15.f));
}

// Neighbouring elements of rows as floats, and back: 4 at a time where everything is aligned for that.
template <uint32_t Count> struct alignas(4 * Count) Values {
  float at[Count];
};

DEVICE uint32_t element_bytes(uint32_t element) { return element == F32 ? 4 : 2; }

DEVICE float widened(uint32_t bits, uint32_t element) { return element == F16 ? from_f16(bits) : from_bf16(bits); }
DEVICE uint32_t narrowed(float value, uint32_t element) { return element == F16 ? to_f16(value) : to_bf16(value); }

DEVICE void load(uint64_t at, uint32_t element, Values<1> &values) {
  values.at[0] = element == F32 ? *reinterpret_cast<const float *>(at)
                                : widened(*reinterpret_cast<const uint16_t *>(at), element);
}
DEVICE void load(uint64_t at, uint32_t element, Values<4> &values) {
  if (element == F32) {
    const float4 all = *reinterpret_cast<const float4 *>(at);
    values = {{all.x, all.y, all.z, all.w}};
  } else {
    const uint2 all = *reinterpret_cast<const uint2 *>(at);
    values = {{widened(all.x & 0xffff, element), widened(all.x >> 16, element), widened(all.y & 0xffff, element),
               widened(all.y >> 16, element)}};
  }
}

DEVICE void store(uint64_t at, uint32_t element, const Values<1> &values) {
  if (element == F32) *reinterpret_cast<float *>(at) = values.at[0];
  else *reinterpret_cast<uint16_t *>(at) = uint16_t(narrowed(values.at[0], element));
}
DEVICE void store(uint64_t at, uint32_t element, const Values<4> &values) {
  const float *of = values.at;
  if (element == F32) {
    *reinterpret_cast<float4 *>(at) = float4{of[0], of[1], of[2], of[3]};
  } else {
    *reinterpret_cast<uint2 *>(at) = uint2{narrowed(of[0], element) | narrowed(of[1], element) << 16,
                                           narrowed(of[2], element) | narrowed(of[3], element) << 16};
  }
}

// The same elements as they are, whatever their bits.
template <uint32_t Count> DEVICE void copy(uint64_t to, uint64_t from, uint32_t element) {
  if constexpr (Count == 1) {
    if (element == F32) *reinterpret_cast<uint32_t *>(to) = *reinterpret_cast<const uint32_t *>(from);
    else *reinterpret_cast<uint16_t *>(to) = *reinterpret_cast<const uint16_t *>(from);
  } else {
    if (element == F32) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    else *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(from);
  }
}

} // namespace codes
