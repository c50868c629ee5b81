// Tiles for multiplication: queries, keys and values widened to one type; and the output.
#pragma once

#include "rows.cuh"

namespace attend {

// The bytes of a number: `float`, or one of the types of two bytes.
template <typename W> constexpr uint32_t BYTES = sizeof(W) == 4 ? 4 : 2;
// The distance in bytes between rows of a widened tile.
template <typename W, int D> constexpr uint32_t WIDE = D * BYTES<W> + 16;

// Writes a row of floats in the type that is multiplied: all lanes of a warp take part.
template <typename W, int D> DEVICE void put_row(unsigned char *to, const float *from) {
  for (uint32_t index = 8 * lane(); index < D; index += 256) {
    float values[8];
#pragma unroll
    for (int at = 0; at < 8; at++) values[at] = from[index + at];
    put_eight<W>(to + index * BYTES<W>, values);
  }
}

// Loads the rows of queries, rotated like the keys. After their elements, and after the last row, there are zeros.
template <typename W, int D, int Rows, int Tile>
APART void load_queries(const Args &args, const Work<Tile> &work, unsigned char *shared) {
  float *scratch = reinterpret_cast<float *>(shared + args.shared.scratch) + warp() * D;
  const uint32_t dim = args.parts[0].dim;
  for (uint32_t row = warp(); row < Rows; row += blockDim.x / 32) {
    const Row of = row_of(args, work, row);
    const unsigned char *from = nullptr;
    if (of.is_there) {
      uint32_t batch = args.is_ragged ? 0 : work.sequence, token = args.is_ragged ? work.of.first_query + of.query : of.query;
      if (work.of.members != NONE) {
        const uint32_t *member = numbers_at<uint32_t>(args, args.members) + 2 * (work.of.members + of.query);
        batch = member[0], token = member[1];
      }
      from = reinterpret_cast<const unsigned char *>(row_of_strided(args.queries, batch, of.head, token));
    }
    for (uint32_t index = lane(); index < D; index += 32) {
      scratch[index] = from && index < dim ? element(from, args.query_format, dim, index) : 0;
    }
    if (is_rotated(args, 0)) rotate(scratch, dim);
    warp_barrier();
    put_row<W, D>(shared + args.shared.queries + row * WIDE<W, D>, scratch);
    warp_barrier();
  }
}

// True if codes are multiplied directly, and the products then by the scales of their rows: integers up to 127 are exact in
// two bytes. In f16, weights take no scales, because its range is too small for them.
template <typename W> DEVICE bool folds_scales(const Args &args, int part) {
  if constexpr (sizeof(W) == 4) return false;
  else return args.parts[part].sections[0].format == Q8 && (part == 0 || !W::IS_HALF);
}

// The scale of an 8-bit row, from the word that contains it.
DEVICE float scale_of_row(uint64_t from, uint32_t word) { return numbers::as_float(from & 2 ? word & 0xffff0000u : word << 16); }

// Eight numbers of a row that was read: codes, times scales plus minimums unless scales are folded.
template <int Tile>
DEVICE void widen_eight(const Args &args, const Work<Tile> &work, int part, const unsigned char *stage, bool is_folded,
                        uint32_t row, uint32_t key, uint32_t index, float (&out)[8]) {
  const ReadPart &of = args.parts[part];
  const Section &section = of.sections[0];
  const unsigned char *codes = stage + (part ? args.shared.values : 0) + row * of.stride;
  const uint32_t format = section.format, group_end = format == Q4 ? (index & ~31u) + 32 : index + 8;
  if (group_end <= of.dim) {
    eight(out, codes, format, index);
  } else {
#pragma unroll
    for (int at = 0; at < 8; at++) out[at] = index + at < of.dim ? element(codes, format, of.dim, index + at) : 0;
  }
  if (is_folded || (format != Q8 && format != Q4)) return;
  const uint32_t entry = reinterpret_cast<const uint32_t *>(stage + args.shared.entries)[row];
  uint32_t slot = key;
  args.block_size.split(slot);
  const uint32_t bytes = row_scale_bytes(section, part);
  const uint64_t from = scales_of(section, page_of(args, entry), work.kv_head, slot, bytes);
  if (bytes) {
    const uint32_t word = reinterpret_cast<const uint32_t *>(stage + args.shared.scales)[part * Tile + row];
    const float scale = bytes == 4 ? numbers::scale_of(word) : scale_of_row(from, word);
    const float minimum = bytes == 4 ? numbers::minimum_of(word) : 0;
#pragma unroll
    for (int at = 0; at < 8; at++) out[at] = out[at] * scale + minimum;
  } else {
    uint32_t words[8];
    eight_words(words, from + 4 * index, of.dim - index);
#pragma unroll
    for (int at = 0; at < 8; at++) out[at] = out[at] * numbers::scale_of(words[at]) + numbers::minimum_of(words[at]);
  }
}

// Widens a float row among low-bit ones, rotated like those. All lanes of a warp take part.
template <typename W, int D, int Tile>
APART void widen_staged(const Args &args, const Work<Tile> &work, int part, unsigned char *shared, uint32_t entry,
                         uint32_t key, unsigned char *to) {
  const ReadPart &of = args.parts[part];
  const Section &section = of.sections[1];
  float *scratch = reinterpret_cast<float *>(shared + args.shared.scratch) + warp() * D;
  uint32_t slot = key;
  args.block_size.split(slot);
  const unsigned char *row =
      reinterpret_cast<const unsigned char *>(codes_of(section, page_of(args, entry), work.kv_head, slot));
  for (uint32_t index = lane(); index < D; index += 32) {
    scratch[index] = index < of.dim ? element(row, section.format, of.dim, index) : 0;
  }
  if (is_rotated(args, part)) rotate(scratch, of.dim);
  warp_barrier();
  put_row<W, D>(to, scratch);
  warp_barrier();
}

// Converts the word with a row's scale to the scale, if scales are folded: by the one thread of the row that reads it.
template <int Tile>
DEVICE void unpack_scale(const Args &args, const Work<Tile> &work, int part, unsigned char *stage, uint32_t row, uint32_t key) {
  const uint32_t entry = reinterpret_cast<const uint32_t *>(stage + args.shared.entries)[row];
  uint32_t *word = reinterpret_cast<uint32_t *>(stage + args.shared.scales) + part * Tile + row;
  float scale = 1;
  if (key < work.count && !(entry >> 31)) {
    uint32_t slot = key;
    args.block_size.split(slot);
    scale = scale_of_row(scales_of(args.parts[part].sections[0], page_of(args, entry), work.kv_head, slot, 2), *word);
  }
  *reinterpret_cast<float *>(word) = scale;
}

// Sixteen codes of a row as numbers: times `scale`, or the scales of channels, plus minimums, unless scales are folded.
template <typename W, uint32_t F, bool IsFolded>
DEVICE void widen_sixteen(uint32_t (&out)[8], const uint4 &codes, uint32_t nibbles, float scale, float minimum, uint64_t channels) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  if constexpr (IsFolded) {
#pragma unroll
    for (int at = 0; at < 8; at++) out[at] = W::pair_of_bytes(words[at / 2], at % 2);
    return;
  }
#pragma unroll
  for (int quarter = 0; quarter < 4; quarter++) {
    float values[4];
    uint4 of = {};
    if (F == Q4 && channels) of = reinterpret_cast<const uint4 *>(channels)[quarter];
    const uint32_t of_channels[4] = {of.x, of.y, of.z, of.w}, word = F == Q4 ? words[quarter] >> nibbles : words[quarter];
#pragma unroll
    for (int at = 0; at < 4; at++) {
      const uint32_t code = word >> 8 * at;
      if constexpr (F == F8E4M3) values[at] = numbers::of_f8(code & 0xff);
      else if constexpr (F == Q8) values[at] = numbers::of_byte(code) * scale;
      else if (channels) values[at] = numbers::of_nibble(code) * numbers::scale_of(of_channels[at]) + numbers::minimum_of(of_channels[at]);
      else values[at] = numbers::of_nibble(code) * scale + minimum;
    }
    out[2 * quarter] = W::pair(values[0], values[1]), out[2 * quarter + 1] = W::pair(values[2], values[3]);
  }
}

// Like `widen`, for codes of a row whose length is a multiple of 16, or of 32 for nibbles: sixteen at a time. All loads of a
// thread come before its conversions, and its stores come last, since a load does not move before a store.
template <typename W, int D, int Tile, uint32_t F, bool IsFolded>
DEVICE void widen_codes(const Args &args, const Work<Tile> &work, int part, uint32_t tile, unsigned char *wide, const unsigned char *stage, bool mixed) {
  constexpr int IN_ROW = D / 16, THREADS = 2 * Tile, ITEMS = Tile * IN_ROW / THREADS;
  const ReadPart &of = args.parts[part];
  const uint32_t *entries = reinterpret_cast<const uint32_t *>(stage + args.shared.entries);
  const uint32_t *scales = reinterpret_cast<const uint32_t *>(stage + args.shared.scales) + part * Tile;
  const unsigned char *rows = stage + (part ? args.shared.values : 0);
  const uint32_t keys = work.count - tile * Tile, dim = of.dim, stride = of.stride;
  const bool by_row = F == Q8 || part == 1;
  uint4 codes[ITEMS];
  uint32_t found[ITEMS], words[ITEMS];
#pragma unroll
  for (int at = 0; at < ITEMS; at++) {
    const uint32_t item = threadIdx.x + at * THREADS, row = item / IN_ROW, index = item % IN_ROW * 16;
    codes[at] = {};
    if (index < dim) codes[at] = *reinterpret_cast<const uint4 *>(rows + row * stride + (F == Q4 ? (index & ~31u) / 2 : index));
    found[at] = mixed || (!IsFolded && F != F8E4M3) ? entries[row] : 0;
    words[at] = !IsFolded && F != F8E4M3 && by_row ? scales[row] : 0;
  }
#pragma unroll
  for (int at = 0; at < ITEMS; at++) {
    const uint32_t item = threadIdx.x + at * THREADS, row = item / IN_ROW, index = item % IN_ROW * 16;
    if (mixed && found[at] >> 31) continue;
    uint32_t out[8] = {};
    // Codes that were not read are zeros, which stand for 0 unless a minimum is added.
    if (IsFolded || F == F8E4M3 || (row < keys && index < dim)) {
      float scale = 0, minimum = 0;
      uint64_t channels = 0;
      if constexpr (!IsFolded && F != F8E4M3) {
        uint32_t slot = tile * Tile + row;
        args.block_size.split(slot);
        const uint64_t from = scales_of(of.sections[0], page_of(args, found[at]), work.kv_head, slot, F == Q8 ? 2 : by_row ? 4 : 0);
        if (F == Q8) scale = scale_of_row(from, words[at]);
        else if (by_row) scale = numbers::scale_of(words[at]), minimum = numbers::minimum_of(words[at]);
        else channels = from + 4 * index;
      }
      widen_sixteen<W, F, IsFolded>(out, codes[at], index & 16 ? 4 : 0, scale, minimum, channels);
    }
    uint4 *to = reinterpret_cast<uint4 *>(wide + row * WIDE<W, D> + 2 * index);
    to[0] = {out[0], out[1], out[2], out[3]}, to[1] = {out[4], out[5], out[6], out[7]};
  }
}

// Widens a tile of codes for tensor cores; false for other rows, which it leaves.
template <typename W, int D, int Tile>
DEVICE bool widen_by_sixteen(const Args &args, const Work<Tile> &work, int part, uint32_t tile, unsigned char *wide, const unsigned char *stage, bool mixed) {
  if constexpr (sizeof(W) != 4) {
    const uint32_t format = args.parts[part].sections[0].format;
    if (format < F8E4M3 || args.parts[part].dim % (format == Q4 ? 32 : 16) != 0) return false;
    if (format == F8E4M3) widen_codes<W, D, Tile, F8E4M3, false>(args, work, part, tile, wide, stage, mixed);
    else if (format == Q4) widen_codes<W, D, Tile, Q4, false>(args, work, part, tile, wide, stage, mixed);
    else if (folds_scales<W>(args, part)) widen_codes<W, D, Tile, Q8, true>(args, work, part, tile, wide, stage, mixed);
    else widen_codes<W, D, Tile, Q8, false>(args, work, part, tile, wide, stage, mixed);
    return true;
  } else {
    return false;
  }
}

// Widens a tile of keys or values. After their elements, and after the last key, there are zeros.
template <typename W, int D, int Tile>
DEVICE void widen(const Args &args, const Work<Tile> &work, int part, uint32_t tile, unsigned char *shared, unsigned char *stage) {
  const ReadPart &of = args.parts[part];
  unsigned char *wide = shared + args.shared.wide[part];
  const uint32_t *entries = reinterpret_cast<const uint32_t *>(stage + args.shared.entries);
  const bool mixed = args.is_paged && of.sections[0].format != of.sections[1].format, is_folded = folds_scales<W>(args, part);
  if (is_folded && threadIdx.x < Tile) unpack_scale(args, work, part, stage, threadIdx.x, tile * Tile + threadIdx.x);
  if (!widen_by_sixteen<W, D>(args, work, part, tile, wide, stage, mixed)) {
    for (uint32_t item = threadIdx.x; item < Tile * (D / 8); item += blockDim.x) {
      const uint32_t row = item / (D / 8), index = item % (D / 8) * 8, key = tile * Tile + row;
      if (mixed && entries[row] >> 31) continue;
      float values[8] = {};
      if (key < work.count && index < of.dim) widen_eight(args, work, part, stage, is_folded, row, key, index, values);
      put_eight<W>(wide + row * WIDE<W, D> + index * BYTES<W>, values);
    }
  }
  if (!mixed) return;
  for (uint32_t row = warp(); row < Tile; row += blockDim.x / 32) {
    if (entries[row] >> 31) {
      widen_staged<W, D>(args, work, part, shared, entries[row], tile * Tile + row, wide + row * WIDE<W, D>);
    }
  }
}

// Marks the weight of a key that a row does not attend to.
constexpr float UNSEEN = -1;

// Rows for multiplication: their address, and the distance between them in bytes; and the scales of rows, if products are
// still to be scaled.
struct TileRows {
  const unsigned char *first;
  uint32_t stride;
  const float *scales;
};

// The tiles of a block in shared memory, and the addresses of their rows. Both are in slots that tiles take in turn.
template <int Tile> struct Ring {
  const Args &args;
  const Work<Tile> &work;
  unsigned char *shared;

  // The slots of tiles, and of the addresses of their rows: with one stage, those of the next tile are looked up while the
  // current one is read.
  DEVICE uint32_t stages() const { return args.shared.stages; }
  DEVICE uint32_t found() const { return stages() > 1 ? stages() : 2; }
  // A slot that is less than `count` slots after another one.
  DEVICE static uint32_t after(uint32_t slot, uint32_t by, uint32_t count) { return slot + by < count ? slot + by : slot + by - count; }

  DEVICE unsigned char *stage(uint32_t slot) const { return shared + args.shared.ring + slot * args.shared.stage_bytes; }
  DEVICE uint64_t *rows(uint32_t slot) const { return reinterpret_cast<uint64_t *>(shared + args.shared.rows) + slot * 2 * Tile; }
  // The table's entry for the thread's row of a tile, which `find` and `read` use.
  DEVICE uint32_t ask(uint32_t at) const { return at < work.to ? ask_entry(args, work, work.tile(at)) : 0; }
  DEVICE void find(uint32_t at, uint32_t entry, uint32_t slot) const {
    if (at < work.to) find_row(args, work, work.tile(at), entry, rows(slot));
  }
  DEVICE void read(uint32_t at, uint32_t entry, uint32_t slot, uint32_t rows_slot) const {
    if (at < work.to) read_tile(args, work, work.tile(at), stage(slot), rows(rows_slot), entry);
    copies_commit();
  }
  // Starts reading the first tiles, before any other work, so that they arrive meanwhile. Returns the entry of the last tile
  // that was found, which is read next.
  DEVICE uint32_t begin() const {
    uint32_t entries[3] = {};
#pragma unroll
    for (uint32_t ahead = 0; ahead < 3; ahead++) {
      if (ahead < stages()) entries[ahead] = ask(work.from + ahead);
    }
#pragma unroll
    for (uint32_t ahead = 0; ahead < 3; ahead++) {
      if (ahead < stages()) find(work.from + ahead, entries[ahead], ahead);
    }
    block_barrier();
#pragma unroll
    for (uint32_t ahead = 0; ahead < 2; ahead++) {
      if (ahead + 1 < stages()) read(work.from + ahead, entries[ahead], ahead, ahead);
    }
    return stages() == 3 ? entries[2] : stages() == 2 ? entries[1] : entries[0];
  }
};

// Loops over a block's tiles, the first of which are already being read: calls `use` with each tile, its keys and its
// values, once all threads have them. The next tiles are in flight meanwhile, unless there is only one stage. `entry` is what
// `Ring::begin` returned.
template <typename W, int D, int Tile, typename Use>
DEVICE void each_tile(const Args &args, const Work<Tile> &work, unsigned char *shared, uint32_t entry, Use use) {
  const Ring<Tile> ring = {args, work, shared};
  const uint32_t stages = ring.stages(), found = ring.found();
  uint32_t slot = 0, rows_slot = 0;
  for (uint32_t at = work.from; at < work.to; at++) {
    const uint32_t next = at + stages - 1, tile = work.tile(at), asked = ring.ask(next + 1);
    if (stages == 3) copies_wait<1>();
    else copies_wait<0>();
    // All copies of this tile are complete, and no thread reads the previous one any longer.
    block_barrier();
    ring.read(next, entry, ring.after(slot, stages - 1, stages), ring.after(rows_slot, stages - 1, found));
    ring.find(next + 1, asked, ring.after(rows_slot, stages, found));
    entry = asked;
    if (stages == 1) {
      copies_wait<0>();
      block_barrier();
    }
    unsigned char *stage = ring.stage(slot);
    slot = ring.after(slot, 1, stages), rows_slot = ring.after(rows_slot, 1, found);
    TileRows rows[2];
    bool widened = false;
#pragma unroll 1
    for (int part = 0; part < 2; part++) {
      if (args.parts[part].is_direct) continue;
      widen<W, D>(args, work, part, tile, shared, stage);
      widened = true;
    }
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const ReadPart &of = args.parts[part];
      rows[part] = {stage + (part ? args.shared.values : 0), of.stride, nullptr};
      if (of.is_direct) continue;
      const float *scales = reinterpret_cast<const float *>(stage + args.shared.scales) + part * Tile;
      rows[part] = {shared + args.shared.wide[part], WIDE<W, D>, folds_scales<W>(args, part) ? scales : nullptr};
    }
    if (widened) block_barrier();
    use(tile, rows[0], rows[1]);
  }
  copies_wait<0>();
  block_barrier();
}

// Writes one element of the output.
DEVICE void put_element(uint64_t row, uint32_t format, uint32_t index, float value) {
  if (format == F32) {
    reinterpret_cast<float *>(row)[index] = value;
  } else {
    const uint32_t pair = format == F16 ? numbers::Half::pair(value, 0) : numbers::Brain::pair(value, 0);
    reinterpret_cast<uint16_t *>(row)[index] = uint16_t(pair);
  }
}

// Writes up to four neighbouring elements of the output: at once if they are aligned to their size, which a part of a tensor
// need not be.
DEVICE void put_four(uint64_t row, uint32_t format, uint32_t index, uint32_t dim, const float (&values)[4]) {
  if (dim % 4 || row % (format == F32 ? 16 : 8)) {
    for (uint32_t at = 0; at < 4 && index + at < dim; at++) put_element(row, format, index + at, values[at]);
  } else if (format == F32) {
    *reinterpret_cast<float4 *>(row + 4 * index) = {values[0], values[1], values[2], values[3]};
  } else {
    const auto pair = [&](int at) {
      return format == F16 ? numbers::Half::pair(values[at], values[at + 1]) : numbers::Brain::pair(values[at], values[at + 1]);
    };
    *reinterpret_cast<uint2 *>(row + 2 * index) = {pair(0), pair(2)};
  }
}

// The address of a row of the output.
DEVICE uint64_t output_row(const Args &args, uint64_t place) {
  return args.out + place * args.parts[1].dim * (args.query_format == F32 ? 4 : 2);
}

// The factor of a row of weighted values at the end; zero if it attended to no key. Writes the logarithm of its sum if
// requested.
DEVICE float end_row(const Args &args, uint32_t token, uint32_t head, float max, float sum, bool puts_sum) {
  constexpr float LN_2 = 0.6931471805599453f;
  float share = 1;
  if (has(args.logits)) {
    // Adds the sink logit: one more score, without a value.
    const float logit = numbers_at<float>(args, args.logits)[head];
    const float larger = fmaxf(max, logit), base = larger == -numbers::infinity() ? 0 : larger;
    share = numbers::power_of_e(max - base);
    sum = sum * share + numbers::power_of_e(logit - base);
    max = larger;
  }
  if (puts_sum && lane() == 0) {
    reinterpret_cast<float *>(args.sums)[uint64_t(token) * args.query_heads + head] =
        sum == 0 ? -numbers::infinity() : max + log2f(sum) * LN_2;
  }
  return sum == 0 ? 0 : share / sum;
}

// Writes a row, divided by its sum, in the queries' type; zeros if it attended to no key. All lanes of a warp take part.
DEVICE void put_output(const Args &args, uint64_t place, uint32_t token, uint32_t head, float max, float sum, const float *values) {
  const float factor = end_row(args, token, head, max, sum, true);
  const uint32_t dim = args.parts[1].dim;
  const uint64_t row = output_row(args, place);
  for (uint32_t index = lane(); index < dim; index += 32) put_element(row, args.query_format, index, values[index] * factor);
}

// Stores the results of a block: its rows are in shared memory, `stride` floats apart, each with its largest score and its
// sum. Sums of rotated values are rotated back: the rotation is its own inverse.
template <int Rows, int Tile>
APART void finish(const Args &args, const Work<Tile> &work, float *rows, uint32_t stride, const float *states) {
  const uint32_t dim = args.parts[1].dim;
  for (uint32_t row = warp(); row < Rows; row += blockDim.x / 32) {
    const Row of = row_of(args, work, row);
    if (!of.is_there) continue;
    const uint32_t token = work.of.first_query + of.query;
    float *values = rows + row * stride;
    if (is_rotated(args, 1)) rotate(values, dim);
    warp_barrier();
    if (work.of.kept != NOWHERE) {
      const uint64_t rows_of_share = uint64_t(work.of.queries) * args.query_heads;
      const uint64_t place = work.of.kept + work.split * rows_of_share + uint64_t(of.query) * args.query_heads + of.head;
      float *state = reinterpret_cast<float *>(args.split_states) + 2 * place;
      float *out = reinterpret_cast<float *>(args.split_rows) + place * dim;
      if (lane() < 2) state[lane()] = states[2 * row + lane()];
      for (uint32_t index = lane(); index < dim; index += 32) out[index] = values[index];
    } else {
      const uint64_t place = args.is_ragged
                                 ? uint64_t(token) * args.query_heads + of.head
                                 : (uint64_t(work.sequence) * args.query_heads + of.head) * work.of.queries + of.query;
      put_output(args, place, token, of.head, states[2 * row], states[2 * row + 1], values);
    }
  }
}

} // namespace attend
