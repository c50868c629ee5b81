// Converts rows of floats to the codes and scales of low-bit pages, and back: for pages that are now full, and tokens that
// are read.
//
// rows   [head][token] of f32, f16 or bf16, at two strides, K and V separately
// tile   some rows of one head as f32, in shared memory: for rotations, and for the bounds of channels
// page   codes [head][slot], then scales [head]
//
// A block of threads handles one head of K or V of one page; a launch handles all heads of all pages of a call. Bound by
// memory bandwidth: each value is read once and each code written once, four at a time and by neighbouring threads; only a
// head larger than a tile is read twice, for the scales of its channels. Rows that are not rotated are read without a tile.
// Shared memory is read in order: rotation stages whose pairs are within one warp's 32 elements are exchanges within the
// warp.
#include "quantise.cuh"

namespace quantise {

DEVICE uint32_t warp_largest(uint32_t value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32_t other = warp_across(value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// The steps of a row, which its warp computes together and stores.
DEVICE Steps row_steps(const QuantisedPart &of, const float *row, uint64_t scales, uint32_t slot) {
  if (of.format == F8) return {1.f, 0.f};
  const uint32_t lane = threadIdx.x % 32;
  float low = float_of(INFINITE), high = -low;
  uint32_t largest = 0;
  for (uint32_t at = lane; at < of.dim; at += 32) {
    low = fminf(low, row[at]), high = fmaxf(high, row[at]);
    largest = magnitude(row[at]) > largest ? magnitude(row[at]) : largest;
  }
  largest = warp_largest(largest);
  if (of.format == Q8) {
    const uint32_t scale = q8_scale(largest);
    if (lane == 0) reinterpret_cast<uint16_t *>(scales)[slot] = uint16_t(scale);
    return q8_steps(scale);
  }
  const uint32_t word = q4_word_of(-warp_max(-low), warp_max(high), largest);
  if (lane == 0) reinterpret_cast<uint32_t *>(scales)[slot] = word;
  return q4_steps(word);
}

// The steps of an element.
struct Chosen {
  Steps row;
  // Factors and minimums of channels, if each has its own.
  const float *factors;
  const float *minimums;

  DEVICE Steps of(uint32_t element) const { return factors ? Steps{factors[element], minimums[element]} : row; }
};

// True if codes can be read as words, so that the codes of four neighbours are four bytes.
DEVICE bool is_in_words(const QuantisedPart &of) { return of.format < Q4_ROWS || of.dim % 32 == 0; }

// The code of an element.
DEVICE uint32_t code_of(const QuantisedPart &of, float value, uint32_t element, const Chosen &steps) {
  if (of.format == F8) return to_f8(value);
  return of.format == Q8 ? to_q8(value, steps.row) : to_q4(value, steps.of(element));
}

// Writes the codes of a row, the lanes of a warp side by side: four bytes at a time if they belong to neighbours.
template <uint32_t Count> DEVICE void write_row(const QuantisedPart &of, const float *row, uint64_t codes, const Chosen &steps) {
  const uint32_t lane = threadIdx.x % 32;
  const bool is_q4 = of.format >= Q4_ROWS;
  if constexpr (Count == 4) {
    for (uint32_t byte = 4 * lane; is_in_words(of) && byte < of.row_bytes; byte += 4 * 32) {
      const uint32_t low = is_q4 ? pair_of(byte, of.dim).low : byte, high = low + 16;
      const Values<4> values = *reinterpret_cast<const Values<4> *>(row + low);
      uint32_t word = 0;
#pragma unroll
      for (uint32_t step = 0; step < 4; step++) word |= code_of(of, values.at[step], low + step, steps) << 8 * step;
      if (is_q4) {
        const Values<4> above = *reinterpret_cast<const Values<4> *>(row + high);
#pragma unroll
        for (uint32_t step = 0; step < 4; step++) word |= code_of(of, above.at[step], high + step, steps) << (8 * step + 4);
      }
      *reinterpret_cast<uint32_t *>(codes + byte) = word;
    }
    if (is_in_words(of)) return;
  }
  for (uint32_t byte = lane; byte < of.row_bytes; byte += 32) {
    const Pair pair = is_q4 ? pair_of(byte, of.dim) : Pair{byte, byte, false};
    uint32_t code = code_of(of, row[pair.low], pair.low, steps);
    if (pair.has_high) code |= code_of(of, row[pair.high], pair.high, steps) << 4;
    *reinterpret_cast<uint8_t *>(codes + byte) = uint8_t(code);
  }
}

// The bounds of a channel while its rows are read, then its steps: arrays after the tile.
struct Channels {
  float *low;
  float *high;
  uint32_t *largest;

  DEVICE void widen(const float *tile, uint32_t count, uint32_t dim, bool is_first) {
    for (uint32_t channel = threadIdx.x; channel < dim; channel += blockDim.x) {
      float least = is_first ? float_of(INFINITE) : low[channel], most = is_first ? -least : high[channel];
      uint32_t most_bits = is_first ? 0 : largest[channel];
      for (uint32_t row = 0; row < count; row++) {
        const float value = tile[row * dim + channel];
        least = fminf(least, value), most = fmaxf(most, value);
        most_bits = magnitude(value) > most_bits ? magnitude(value) : most_bits;
      }
      low[channel] = least, high[channel] = most, largest[channel] = most_bits;
    }
  }

  DEVICE void settle(uint64_t scales, uint32_t dim) {
    for (uint32_t channel = threadIdx.x; channel < dim; channel += blockDim.x) {
      const uint32_t word = q4_word_of(low[channel], high[channel], largest[channel]);
      reinterpret_cast<uint32_t *>(scales)[channel] = word;
      const Steps steps = q4_steps(word);
      low[channel] = steps.factor, high[channel] = steps.minimum;
    }
    block_barrier();
  }
};

template <uint32_t Count> DEVICE void seal(const Args &args) {
  const uint32_t part = which_part(args);
  const QuantisedPart &of = args.parts[part];
  if (of.dim == 0) return;
  const Head head = head_of(args, part);
  if (of.format <= BF16) return copy_rows<Count>(of, head, true);
  float *tile = reinterpret_cast<float *>(SHARED());
  float *behind = tile + of.tile_rows * of.dim;
  Channels channels{behind, behind + of.dim, reinterpret_cast<uint32_t *>(behind + 2 * of.dim)};
  const bool by_channel = of.format == Q4_CHANNELS, is_whole = head.tokens <= of.tile_rows;
  for (uint32_t pass = by_channel ? 0 : 1; pass < 2; pass++) {
    for (uint32_t first = 0; first < head.tokens; first += of.tile_rows) {
      const uint32_t left = head.tokens - first, count = left < of.tile_rows ? left : of.tile_rows;
      const bool is_there = by_channel && pass == 1 && is_whole;
      if (!is_there) fill<Count>(of, head.rows + first * of.token_bytes, count, tile);
      if (pass == 0) {
        channels.widen(tile, count, of.dim, first == 0);
        continue;
      }
      for (uint32_t row = threadIdx.x / 32; row < count; row += blockDim.x / 32) {
        const float *values = tile + row * of.dim;
        const uint32_t slot = head.slot + first + row;
        Chosen steps{{0.f, 0.f}, by_channel ? channels.low : nullptr, channels.high};
        if (!by_channel) steps.row = row_steps(of, values, head.scales, slot);
        write_row<Count>(of, values, head.codes + uint64_t(slot) * of.row_bytes, steps);
      }
    }
    if (pass == 0) channels.settle(head.scales, of.dim);
  }
}

// The place of the code of an element in a q4 row.
struct Nibble {
  uint32_t byte;
  uint32_t shift;
};

DEVICE Nibble nibble_of(uint32_t element, uint32_t dim) {
  const uint32_t start = element / 32 * 32, left = dim - start, within = element - start;
  const uint32_t half = left < 32 ? (left + 1) / 2 : 16;
  const bool is_high = within >= half;
  return {start / 2 + (is_high ? within - half : within), is_high ? 4u : 0u};
}

// The codes of neighbouring elements.
template <uint32_t Count> struct Codes {
  uint32_t at[Count];
};

template <uint32_t Count> DEVICE Codes<Count> read_codes(const QuantisedPart &of, uint64_t row, uint32_t element) {
  const bool is_q4 = of.format >= Q4_ROWS;
  Codes<Count> found;
  if (Count == 4 && is_in_words(of)) {
    const Nibble at = is_q4 ? nibble_of(element, of.dim) : Nibble{element, 0};
    const uint32_t word = *reinterpret_cast<const uint32_t *>(row + at.byte) >> at.shift;
#pragma unroll
    for (uint32_t step = 0; step < Count; step++) found.at[step] = word >> 8 * step & (is_q4 ? 15 : 255);
  } else {
#pragma unroll
    for (uint32_t step = 0; step < Count; step++) {
      const Nibble at = is_q4 ? nibble_of(element + step, of.dim) : Nibble{element + step, 0};
      const uint32_t byte = *reinterpret_cast<const uint8_t *>(row + at.byte);
      found.at[step] = is_q4 ? byte >> at.shift & 15 : byte;
    }
  }
  return found;
}

// The values of neighbouring elements of a slot.
template <uint32_t Count>
DEVICE Values<Count> decode(const QuantisedPart &of, const Head &head, uint32_t slot, uint32_t element) {
  const uint64_t row = head.codes + uint64_t(slot) * of.row_bytes;
  Values<Count> values;
  if (of.format <= BF16) {
    load(row + uint64_t(element) * element_bytes(of.format), of.format, values);
    return values;
  }
  const Codes<Count> found = read_codes<Count>(of, row, element);
  const bool by_channel = of.format == Q4_CHANNELS;
#pragma unroll
  for (uint32_t step = 0; step < Count; step++) {
    if (of.format == F8) {
      values.at[step] = from_f8(found.at[step]);
    } else if (of.format == Q8) {
      values.at[step] = float(int8_t(found.at[step])) * scale_of_q8(reinterpret_cast<const uint16_t *>(head.scales)[slot]);
    } else {
      const uint32_t word = reinterpret_cast<const uint32_t *>(head.scales)[by_channel ? element + step : slot];
      values.at[step] = float(found.at[step]) * scale_of_q4(word) + minimum_of_q4(word);
    }
  }
  return values;
}

template <uint32_t Count> DEVICE void unseal(const Args &args) {
  const uint32_t part = which_part(args);
  const QuantisedPart &of = args.parts[part];
  if (of.dim == 0) return;
  const Head head = head_of(args, part);
  if (of.format == of.element) return copy_rows<Count>(of, head, false);
  auto *tile = reinterpret_cast<Values<Count> *>(SHARED());
  const bool is_rotated = of.rotated > 1;
  const uint32_t at_once = is_rotated ? of.tile_rows : head.tokens;
  for (uint32_t first = 0; first < head.tokens; first += at_once) {
    const uint32_t left = head.tokens - first, vectors = (left < at_once ? left : at_once) * of.vectors.by;
    for (uint32_t pass = is_rotated ? 0 : 1; pass < 2; pass++) {
      for (uint32_t at = threadIdx.x; at < vectors; at += blockDim.x) {
        uint32_t within = at;
        const uint32_t row = first + of.vectors.split(within), element = within * Count;
        const bool is_decoded = is_rotated && pass == 1;
        Values<Count> values = is_decoded ? tile[at] : decode<Count>(of, head, head.slot + row, element);
        const uint64_t place = head.rows + row * of.token_bytes + uint64_t(element) * element_bytes(of.element);
        if (pass == 0) {
          tile[at] = values;
          continue;
        }
#pragma unroll
        for (uint32_t step = 0; step < Count; step++) values.at[step] = saturated(values.at[step], of.element);
        store(place, of.element, values);
      }
      if (is_rotated) block_barrier();
      if (pass == 0) rotate(of, reinterpret_cast<float *>(tile), vectors * Count);
    }
  }
}

} // namespace quantise

KERNEL(seal_4, quantise::Args, 256) { quantise::seal<4>(args); }
KERNEL(seal_1, quantise::Args, 256) { quantise::seal<1>(args); }
KERNEL(unseal_4, quantise::Args, 256) { quantise::unseal<4>(args); }
KERNEL(unseal_1, quantise::Args, 256) { quantise::unseal<1>(args); }
