// Elements of rows and codes of low-bit pages, one at a time, with exactly the same bits as on the host.
//
// f16, bf16   widened exactly, narrowed to nearest, ties to even
// f8e4m3      the float itself; over 448: 448; infinity and NaN: NaN
// q8          integers times a scale, a bf16
// q4          integers times a scale plus a minimum: a word, 18 bits of the minimum, then 14 of the scale
//
// Nothing is contracted: the files that include this one are compiled without fused multiply-add.
#pragma once

#include <string.h>

#include "target.cuh"

namespace codes {

// The format of the elements of a row.
enum Format : uint32_t { F32, F16, BF16, F8, Q8, Q4_ROWS, Q4_CHANNELS };

constexpr uint32_t INFINITE = 0x7f800000;
// The scale of a q8 row, and the word of a q4 row or channel, that has a value that is not finite.
constexpr uint32_t Q8_NOT_FINITE = 0x7fc0, Q4_NOT_FINITE = 0x7fc03fe0;
// The number of low bits of a float that are cut: from a scale of q8, from a scale and from a minimum of q4.
constexpr uint32_t Q8_CUT = 16, STEP_CUT = 17, MINIMUM_CUT = 14, STEP_BITS = (1 << MINIMUM_CUT) - 1;

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

// The value of an f16. Puts exponent and mantissa in place; 2^112 is the difference of the biases.
DEVICE float from_f16(uint32_t bits) {
  const uint32_t rest = bits & 0x7fff;
  const uint32_t finite = bits_of(float_of(rest << 13) * float_of((112 + 127) << 23));
  const uint32_t special = INFINITE | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0);
  return float_of((rest < 0x7c00 ? finite : special) | (bits & 0x8000) << 16);
}

// The nearest f16, ties to even. Adding 1/2 leaves the multiple of 2^-24 of a small number in the low bits.
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

// The nearest integer, ties to even, as a byte in two's complement: adding 1.5 * 2^23 leaves it in the low bits.
DEVICE uint32_t whole(float value) { return bits_of(value + 12582912.f) & 0xff; }

DEVICE float clamp(float value, float least, float most) { return fminf(fmaxf(value, least), most); }

// The nearest float whose last `cut` bits are 0, ties to the one with an even last kept bit.
DEVICE float nearest(float value, uint32_t cut) {
  const uint32_t bits = bits_of(value), odd = bits >> cut & 1;
  return float_of((bits + odd + (1u << (cut - 1)) - 1) & ~((1u << cut) - 1));
}

// A scale without its last `cut` bits, at least the smallest normal float; 0 if it is not above 0.
DEVICE float rounded(float scale, uint32_t cut) {
  const float smallest = float_of(1u << 23);
  return scale > 0.f ? nearest(scale > smallest ? scale : smallest, cut) : 0.f;
}

// The largest minimum that q4 can store and that is not above this.
DEVICE float minimum_below(float value) {
  return float_of((bits_of(value) + (value < 0.f ? STEP_BITS : 0)) & ~STEP_BITS);
}

// The inverse of a scale; 0 for a scale of 0.
DEVICE float inverse(float scale) { return scale == 0.f ? 0.f : 1.f / scale; }

// The parameters that turn values into codes, for a row or a channel.
struct Steps {
  float factor;
  float minimum;
};

// Scales and minimums as they are stored.
DEVICE float scale_of_q8(uint32_t bits) { return float_of(bits << Q8_CUT); }
DEVICE float scale_of_q4(uint32_t word) { return float_of((word & STEP_BITS) << STEP_CUT); }
DEVICE float minimum_of_q4(uint32_t word) { return float_of(word & ~STEP_BITS); }
DEVICE uint32_t q4_word(float step, float minimum) { return bits_of(minimum) | bits_of(step) >> STEP_CUT; }

// The q8 scale for values of at most this magnitude, which is given as its bits.
DEVICE uint32_t q8_scale(uint32_t largest) {
  return largest < INFINITE ? bits_of(rounded(float_of(largest) / 127.f, Q8_CUT)) >> Q8_CUT : Q8_NOT_FINITE;
}

DEVICE Steps q8_steps(uint32_t scale) { return {inverse(scale_of_q8(scale)), 0.f}; }

// A factor that is NaN gives code 0.
DEVICE uint32_t to_q8(float value, const Steps &steps) {
  return steps.factor != steps.factor ? 0 : whole(clamp(value * steps.factor, -127.f, 127.f));
}

// The q4 word for values from `low` to `high`; `largest` is the bits of their largest magnitude. Minimum and scale are
// rounded to the nearest numbers that a word can store, unless a value would then be more than half a step outside the range
// of 0 to 15; in that case the minimum is rounded down.
DEVICE uint32_t q4_word_of(float low, float high, uint32_t largest) {
  constexpr float STEPS = 1.f / 15.f;
  // 2^126, so that the difference of the smallest and the largest is a finite float.
  const float most = float_of((126u + 127u) << 23);
  if (largest >= INFINITE) return Q4_NOT_FINITE;
  // Adding 0 turns a bound of -0 into 0.
  low = clamp(low, -most, most) + 0.f, high = clamp(high, -most, most) + 0.f;
  const float minimum = nearest(low, MINIMUM_CUT), below = minimum_below(low);
  const float step = rounded((high - minimum) * STEPS, STEP_CUT), of_below = rounded((high - below) * STEPS, STEP_CUT);
  const bool reaches = (minimum - low) * 2.f <= step;
  return reaches ? q4_word(step, minimum) : q4_word(of_below, below);
}

DEVICE Steps q4_steps(uint32_t word) {
  if (word == Q4_NOT_FINITE) return {0.f, 0.f};
  return {inverse(scale_of_q4(word)), minimum_of_q4(word)};
}

// NaN becomes code 0.
DEVICE uint32_t to_q4(float value, const Steps &steps) {
  return whole(clamp((value - steps.minimum) * steps.factor, 0.f, 15.f));
}

// Neighbouring elements of rows as floats, and back: 4 at a time if everything is aligned for that.
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

// The nearest number that an element can represent: finite numbers stay finite.
DEVICE float saturated(float value, uint32_t element) {
  const float most = float_of(element == F16 ? 0x477fe000u : 0x7f7f0000u);
  return element == F32 || value != value ? value : clamp(value, -most, most);
}

// Copies the same elements, whatever their bits.
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
