// Sets slots of quantised pages to zero, exactly, and leaves the others in place.
//
// Rows with their own codes and scales become zeros. K in q4 has one scale per channel, shared by all rows: the channel gets
// a scale of at most six binary digits, so that zero is one of its codes and each multiple is a minimum, and the remaining
// values are rounded to it. A thread handles the byte with the codes of two channels in each row. Rarely used, and bound by
// latency.
#include "quantise.cuh"

namespace holes {

using namespace codes;
using quantise::Args;
using quantise::Head;
using quantise::QuantisedPart;

// Neighbouring slots of a page. The holes of one page are neighbours in the list; the first one's blocks handle all of them.
struct Hole {
  uint64_t page;
  uint32_t start;
  uint32_t end;
};

// The smallest scale with at most six binary digits that is not below this.
DEVICE float six_digits(float value) {
  const float scale = fmaxf(value, float_of(1u << 23));
  return value > 0.f ? float_of((bits_of(scale) + 0x3ffff) & ~0x3ffffu) : 0.f;
}

DEVICE void zero_bytes(uint64_t first, uint64_t count) {
  for (uint64_t at = threadIdx.x; at < count; at += blockDim.x) *reinterpret_cast<uint8_t *>(first + at) = 0;
}

struct Channels {
  const QuantisedPart &of;
  const Hole *holes;
  uint32_t count;
  uint32_t slots;
  uint64_t codes;
  uint32_t *words;

  DEVICE bool is_zero(uint32_t slot) const {
    bool found = false;
    for (uint32_t hole = 0; hole < count; hole++) found |= holes[hole].start <= slot && slot < holes[hole].end;
    return found;
  }

  DEVICE void zero(uint32_t channel, uint32_t byte, uint32_t shift) const {
    const float before = scale_of_q4(words[channel]), minimum = minimum_of_q4(words[channel]);
    if (before != before) return;
    uint8_t *all = reinterpret_cast<uint8_t *>(codes + byte);
    float low = 0.f, high = 0.f;
    for (uint32_t slot = 0; slot < slots; slot++) {
      const float value = float(all[uint64_t(slot) * of.row_bytes] >> shift & 15) * before + minimum;
      if (!is_zero(slot)) low = fminf(low, value), high = fmaxf(high, value);
    }
    const float after = six_digits((high - low) / 15.f), factor = inverse(after), zero = rintf(-low * factor);
    for (uint32_t slot = 0; slot < slots; slot++) {
      uint8_t &both = all[uint64_t(slot) * of.row_bytes];
      const float value = float(both >> shift & 15) * before + minimum;
      const float code = is_zero(slot) ? zero : clamp(rintf(value * factor + zero), 0.f, 15.f);
      both = uint8_t((both & ~(15u << shift)) | uint32_t(code) << shift);
    }
    words[channel] = q4_word(after, -zero * after);
  }
};

DEVICE void run(const Args &args) {
  const uint32_t part = quantise::which_part(args), head = blockIdx.x - part * args.heads;
  const QuantisedPart &of = args.parts[part];
  const Hole *first = args.pages.items<Hole>() + blockIdx.y;
  if (of.dim == 0 || (blockIdx.y > 0 && first[-1].page == first->page)) return;
  uint32_t count = 1;
  while (blockIdx.y + count < args.count && first[count].page == first->page) count++;
  const uint64_t codes = first->page + of.codes + head * of.code_head_bytes;
  const uint64_t scales = first->page + of.scales + head * of.scale_head_bytes;
  const uint32_t slots = uint32_t(of.code_head_bytes / of.row_bytes);
  if (of.format == Q4_CHANNELS) {
    const Channels channels{of, first, count, slots, codes, reinterpret_cast<uint32_t *>(scales)};
    for (uint32_t byte = threadIdx.x; byte < of.row_bytes; byte += blockDim.x) {
      const quantise::Pair pair = quantise::pair_of(byte, of.dim);
      channels.zero(pair.low, byte, 0);
      if (pair.has_high) channels.zero(pair.high, byte, 4);
    }
    return;
  }
  for (uint32_t hole = 0; hole < count; hole++) {
    const uint64_t start = first[hole].start, rows = first[hole].end - start, scale_bytes = of.scale_head_bytes / slots;
    zero_bytes(codes + start * of.row_bytes, rows * of.row_bytes);
    zero_bytes(scales + start * scale_bytes, rows * scale_bytes);
  }
}

} // namespace holes

KERNEL(zero_slots, quantise::Args, 256) { holes::run(args); }
