// Attention with tensor cores: queries of two bytes, keys and values of the same type or low-bit ones that are rounded to
// it.
//
// narrow   up to 16 rows: each warp has 16 keys of a tile and all rows; the results are merged at the end
// wide     16 rows a warp: each warp has its rows and all keys of a tile
//
// Scores and sums are floats. Weights are rounded to the queries' type before they are multiplied with values, a relative
// error of up to 2^-9 in bf16 and 2^-12 in f16; sums use the unrounded weights.
#pragma once

#include "tiles.cuh"
#include "../matrix.cuh"

namespace attend {

template <typename W, int D, int Warps, bool IsWide> struct Tensor {
  static constexpr int TILE = 16 * Warps, ROWS = IsWide ? 16 * Warps : 16, KEYS = IsWide ? TILE : 16;
  // Queries stay in registers if there is room.
  static constexpr bool KEEPS_QUERIES = D <= 128;
  // The distance between rows of the output in shared memory, in floats.
  static constexpr uint32_t STRIDE = D + 4;

  // A lane has two rows of its warp's sixteen: `lane / 4`, and the one eight rows later.
  uint32_t queries[KEEPS_QUERIES ? D / 16 : 1][4];
  float out[D / 8][4];
  float max[2], sum[2];
  Row rows[2];

  DEVICE static uint32_t first_row() { return IsWide ? 16 * warp() : 0; }
  DEVICE static uint32_t first_key() { return IsWide ? 0 : 16 * warp(); }

  DEVICE void load_query(uint32_t (&to)[4], const unsigned char *tile, int step) {
    const uint32_t row = first_row() + lane() % 16, column = 16 * step + lane() / 16 * 8;
    warp_load(to, tile + row * WIDE<W, D> + 2 * column);
  }

  DEVICE void start(const Args &args, const Work<TILE> &work, const unsigned char *tile) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      rows[half] = row_of(args, work, first_row() + lane() / 4 + 8 * half);
      max[half] = -numbers::infinity(), sum[half] = 0;
    }
#pragma unroll
    for (int step = 0; step < D / 8; step++) out[step][0] = out[step][1] = out[step][2] = out[step][3] = 0;
    if constexpr (KEEPS_QUERIES) {
#pragma unroll
      for (int step = 0; step < D / 16; step++) load_query(queries[step], tile, step);
    }
  }

  // Computes the products of the warp's rows and keys. `Full` says that rows have all D elements.
  template <bool Full> DEVICE void multiply_keys(const Args &args, const unsigned char *query_tile, TileRows keys, float (&scores)[KEYS / 8][4]) {
    // Lanes 0 to 7 give the addresses of the first eight keys' first eight elements, lanes 8 to 15 of their next eight; the
    // other lanes do the same for the next eight keys.
    const unsigned char *row = keys.first + (first_key() + lane() / 16 * 8 + lane() % 8) * keys.stride + lane() / 8 % 2 * 16;
#pragma unroll
    for (int tile = 0; tile < KEYS / 8; tile++) scores[tile][0] = scores[tile][1] = scores[tile][2] = scores[tile][3] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
      if (!Full && 16u * step >= args.parts[0].dim) break;
      uint32_t query[4];
      if constexpr (KEEPS_QUERIES) {
#pragma unroll
        for (int at = 0; at < 4; at++) query[at] = queries[step][at];
      } else {
        load_query(query, query_tile, step);
      }
#pragma unroll
      for (int pair = 0; pair < KEYS / 16; pair++) {
        uint32_t b[4];
        warp_load(b, row + 16 * pair * keys.stride + 32 * step);
        warp_multiply<W>(scores[2 * pair], query, b[0], b[1]);
        warp_multiply<W>(scores[2 * pair + 1], query, b[2], b[3]);
      }
    }
    if (!keys.scales) return;
#pragma unroll
    for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
      for (int at = 0; at < 4; at++) scores[of][at] *= keys.scales[first_key() + 8 * of + 2 * (lane() % 4) + at % 2];
    }
  }

  // Adds to each score its head's slope times the distance between key and query; `first` is the lane's first key.
  DEVICE void slope(const Args &args, const Work<TILE> &work, uint32_t first, float (&scores)[KEYS / 8][4]) {
    const float slopes[2] = {slope_of(args, rows[0]), slope_of(args, rows[1])};
#pragma unroll
    for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        // Scores of keys after the last one are -infinity, and remain so.
        const uint32_t key = first + 8 * of + at % 2, last = work.count - 1;
        scores[of][at] += slopes[at / 2] * float(work.rules.position(key < last ? key : last) - rows[at / 2].position);
      }
    }
  }

  // Turns products into weights, and rescales previous sums to the same base.
  template <bool Whole>
  DEVICE void soften(const Args &args, const Work<TILE> &work, uint32_t tile, float (&scores)[KEYS / 8][4]) {
    float largest[2] = {max[0], max[1]};
    const uint32_t first = tile * TILE + first_key() + 2 * (lane() % 4);
#pragma unroll
    for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        const uint32_t key = first + 8 * of + at % 2;
        scores[of][at] = Whole ? scores[of][at] * args.scale : score_on_edge(args, work, rows[at / 2], scores[of][at], key);
      }
    }
    if (Whole && args.softcap != 0) {
#pragma unroll
      for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
        for (int at = 0; at < 4; at++) scores[of][at] = capped(args, scores[of][at]);
      }
    }
    if (has(args.slopes)) slope(args, work, first, scores);
#pragma unroll
    for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
      for (int at = 0; at < 4; at++) largest[at / 2] = fmaxf(largest[at / 2], scores[of][at]);
    }
    float before[2], base[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      largest[half] = fmaxf(largest[half], warp_across(largest[half], 1));
      largest[half] = fmaxf(largest[half], warp_across(largest[half], 2));
      // If no key was visible yet, the base is still finite: infinity minus infinity would be NaN.
      base[half] = largest[half] == -numbers::infinity() ? 0 : largest[half];
      before[half] = numbers::power_of_e(max[half] - base[half]);
    }
    if (warp_any(largest[0] != max[0] || largest[1] != max[1])) {
#pragma unroll
      for (int step = 0; step < D / 8; step++) {
#pragma unroll
        for (int at = 0; at < 4; at++) out[step][at] *= before[at / 2];
      }
      sum[0] *= before[0], sum[1] *= before[1];
    }
    max[0] = largest[0], max[1] = largest[1];
#pragma unroll
    for (int of = 0; of < KEYS / 8; of++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        const float weight = numbers::power_of_e(scores[of][at] - base[at / 2]);
        sum[at / 2] += weight;
        scores[of][at] = !Whole && scores[of][at] == -numbers::infinity() ? UNSEEN : weight;
      }
    }
  }

  // The weights of sixteen keys in the format of the tensor cores: `of` turns two weights into a pair; its third argument is
  // the first one's key, counted within the warp's.
  template <typename Of> DEVICE static void weights_of(const float (&weights)[KEYS / 8][4], int pair, uint32_t (&a)[4], Of of) {
#pragma unroll
    for (int at = 0; at < 4; at++) {
      const float(&from)[4] = weights[2 * pair + at / 2];
      a[at] = of(from[at % 2 * 2], from[at % 2 * 2 + 1], 16 * pair + at / 2 * 8 + 2 * (lane() % 4));
    }
  }

  // Adds weighted values. If not every row attends to every key, values that are not finite are left out, and then added
  // only to the rows that attend to them.
  template <bool Whole, bool Full> DEVICE void weigh(const Args &args, TileRows values, const float (&weights)[KEYS / 8][4]) {
    const unsigned char *row = values.first + (first_key() + lane() % 16) * values.stride + lane() / 16 * 16;
    uint32_t bad = 0;
#pragma unroll
    for (int pair = 0; pair < KEYS / 16; pair++) {
      uint32_t a[4];
      weights_of(weights, pair, a, [&](float one, float other, uint32_t key) {
        float scales[2] = {1, 1};
        if (values.scales) scales[0] = values.scales[first_key() + key], scales[1] = values.scales[first_key() + key + 1];
        // A row that does not attend to a value takes nothing of it, whatever its scale is.
        return W::pair(!Whole && one == UNSEEN ? 0 : one * scales[0], !Whole && other == UNSEEN ? 0 : other * scales[1]);
      });
#pragma unroll
      for (int step = 0; step < D / 16; step++) {
        if (!Full && 16u * step >= args.parts[1].dim) break;
        uint32_t b[4];
        warp_load_transposed(b, row + 16 * pair * values.stride + 32 * step);
        if constexpr (!Whole) {
#pragma unroll
          for (int at = 0; at < 4; at++) {
            const uint32_t halves = bad_halves(b[at]);
            bad |= halves, b[at] &= ~halves;
          }
        }
        warp_multiply<W>(out[2 * step], a, b[0], b[1]);
        warp_multiply<W>(out[2 * step + 1], a, b[2], b[3]);
      }
    }
    if (!Whole && warp_any(bad != 0)) spoil(args, row, values.stride, weights);
  }

  // A mask of the halves of a pair that are not finite.
  DEVICE static uint32_t bad_halves(uint32_t pair) {
    return ((pair & W::EXPONENT) == W::EXPONENT ? 0xffffu : 0) | ((pair >> 16 & W::EXPONENT) == W::EXPONENT ? 0xffff0000u : 0);
  }

  // A number that stands for a value that is not finite when such values are counted: 1, or a power of 2 above the count of
  // all others together.
  DEVICE static uint32_t kind_of(uint32_t half) {
    if ((half & W::EXPONENT) != W::EXPONENT) return 0;
    constexpr uint32_t mantissa = W::IS_HALF ? 0x3ffu : 0x7fu;
    return W::ONE + (half & mantissa ? 14 : half >> 15 ? 7 : 0) * (mantissa + 1);
  }

  // Adds values that are not finite to the outputs that attend to them: with weights of 1, products count them.
  DEVICE void spoil(const Args &args, const unsigned char *row, uint32_t stride, const float (&weights)[KEYS / 8][4]) {
    uint32_t above[D / 64 + 1] = {}, below[D / 64 + 1] = {};
#pragma unroll 1
    for (uint32_t step = 0; 16 * step < args.parts[1].dim; step++) {
      float counts[2][4] = {};
#pragma unroll
      for (int pair = 0; pair < KEYS / 16; pair++) {
        uint32_t a[4], b[4];
        weights_of(weights, pair, a, [](float one, float other, uint32_t) {
          return (one != UNSEEN ? W::ONE : 0) | (other != UNSEEN ? W::ONE << 16 : 0);
        });
        warp_load_transposed(b, row + 16 * pair * stride + 32 * step);
#pragma unroll
        for (int at = 0; at < 4; at++) b[at] = kind_of(b[at] & 0xffffu) | kind_of(b[at] >> 16) << 16;
        warp_multiply<W>(counts[0], a, b[0], b[1]);
        warp_multiply<W>(counts[1], a, b[2], b[3]);
      }
      uint32_t has_above = 0, has_below = 0;
#pragma unroll
      for (int at = 0; at < 8; at++) {
        const uint32_t count = uint32_t(counts[at / 4][at % 4]);
        has_above |= count >> 14 || count & 127 ? 1u << at : 0, has_below |= count >> 7 ? 1u << at : 0;
      }
#pragma unroll
      for (uint32_t word = 0; word < D / 64 + 1; word++) {
        if (step / 4 == word) above[word] |= has_above << 8 * (step % 4), below[word] |= has_below << 8 * (step % 4);
      }
    }
#pragma unroll
    for (int at = 0; at < D / 2; at++) {
      if (above[at / 32] >> at % 32 & 1) out[at / 4][at % 4] += numbers::infinity();
      if (below[at / 32] >> at % 32 & 1) out[at / 4][at % 4] -= numbers::infinity();
    }
  }

  template <bool Whole, bool Full>
  DEVICE void add(const Args &args, const Work<TILE> &work, const unsigned char *query_tile, uint32_t tile, TileRows keys, TileRows values) {
    float scores[KEYS / 8][4];
    multiply_keys<Full>(args, query_tile, keys, scores);
    soften<Whole>(args, work, tile, scores);
    weigh<Whole, Full>(args, values, scores);
  }

  // Writes the warp's rows to shared memory, or adds them to its content.
  DEVICE void put(float *to, bool adds) {
#pragma unroll
    for (int step = 0; step < D / 8; step++) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        float &place = to[(first_row() + lane() / 4 + at / 2 * 8) * STRIDE + 8 * step + 2 * (lane() % 4) + at % 2];
        place = adds ? place + out[step][at] : out[step][at];
      }
    }
  }

  // Collects the rows and states of all warps in shared memory.
  DEVICE void gather(unsigned char *shared, const Args &args) {
    float *to = reinterpret_cast<float *>(shared + args.shared.wide[0]);
    float *states = reinterpret_cast<float *>(shared + args.shared.states);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] += warp_across(sum[half], 1);
      sum[half] += warp_across(sum[half], 2);
      const uint32_t row = IsWide ? first_row() + lane() / 4 + 8 * half : 16 * warp() + lane() / 4 + 8 * half;
      if (lane() % 4 == 0) states[2 * row] = max[half], states[2 * row + 1] = sum[half];
    }
    if constexpr (IsWide) {
      put(to, false);
      block_barrier();
      return;
    }
    block_barrier();
    float total[2][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t row = lane() / 4 + 8 * half;
      float largest = -numbers::infinity(), all = 0;
      for (uint32_t of = 0; of < Warps; of++) largest = fmaxf(largest, states[2 * (16 * of + row)]);
      const float base = largest == -numbers::infinity() ? 0 : largest;
      for (uint32_t of = 0; of < Warps; of++) {
        all += states[2 * (16 * of + row) + 1] * numbers::power_of_e(states[2 * (16 * of + row)] - base);
      }
      const float share = numbers::power_of_e(max[half] - base);
#pragma unroll
      for (int step = 0; step < D / 8; step++) out[step][2 * half] *= share, out[step][2 * half + 1] *= share;
      total[half][0] = largest, total[half][1] = all;
    }
    for (uint32_t of = 0; of < Warps; of++) {
      block_barrier();
      if (warp() == of) put(to, of > 0);
      if (of == 0 && warp() == 0 && lane() % 4 == 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint32_t row = lane() / 4 + 8 * half;
          states[2 * row] = total[half][0], states[2 * row + 1] = total[half][1];
        }
      }
    }
    block_barrier();
  }

  DEVICE static void run(const Args &args) {
    unsigned char *shared = SHARED();
    Work<TILE> &work = *reinterpret_cast<Work<TILE> *>(shared);
    begin_work<ROWS>(args, work);
    const unsigned char *query_tile = shared + args.shared.queries;
    const uint32_t entry = Ring<TILE>{args, work, shared}.begin();
    load_queries<W, D, ROWS>(args, work, shared);
    block_barrier();
    Tensor own;
    own.start(args, work, query_tile);
    const bool is_full = args.parts[0].dim == D && args.parts[1].dim == D;
    each_tile<W, D>(args, work, shared, entry, [&](uint32_t tile, TileRows keys, TileRows values) {
      if (!work.is_whole(args, tile)) own.template add<false, false>(args, work, query_tile, tile, keys, values);
      else if (is_full) own.template add<true, true>(args, work, query_tile, tile, keys, values);
      else own.template add<true, false>(args, work, query_tile, tile, keys, values);
    });
    own.gather(shared, args);
    finish<ROWS>(args, work, reinterpret_cast<float *>(shared + args.shared.wide[0]), STRIDE,
                 reinterpret_cast<const float *>(shared + args.shared.states));
  }
};

} // namespace attend

#define ATTEND_KERNELS(name, is_wide)                                                                                   \
  KERNEL_OF(name##_f16_64, attend::Args, 128, 2) { attend::Tensor<numbers::Half, 64, 4, is_wide>::run(args); }   \
  KERNEL_OF(name##_f16_96, attend::Args, 128, 2) { attend::Tensor<numbers::Half, 96, 4, is_wide>::run(args); }   \
  KERNEL_OF(name##_f16_128, attend::Args, 128, 2) { attend::Tensor<numbers::Half, 128, 4, is_wide>::run(args); } \
  KERNEL_OF(name##_f16_256, attend::Args, 64, 2) { attend::Tensor<numbers::Half, 256, 2, is_wide>::run(args); }  \
  KERNEL_OF(name##_bf16_64, attend::Args, 128, 2) { attend::Tensor<numbers::Brain, 64, 4, is_wide>::run(args); } \
  KERNEL_OF(name##_bf16_96, attend::Args, 128, 2) { attend::Tensor<numbers::Brain, 96, 4, is_wide>::run(args); } \
  KERNEL_OF(name##_bf16_128, attend::Args, 128, 2) { attend::Tensor<numbers::Brain, 128, 4, is_wide>::run(args); } \
  KERNEL_OF(name##_bf16_256, attend::Args, 64, 2) { attend::Tensor<numbers::Brain, 256, 2, is_wide>::run(args); }
